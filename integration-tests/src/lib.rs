//! Real processes and real faults: what the tests in `tests/` share.

pub mod bluefog;
pub mod drive;
pub mod memory;
pub mod process;
#[cfg(unix)]
pub mod raw_fork;
pub mod shared;
#[cfg(unix)]
pub mod stress;
pub mod work;
