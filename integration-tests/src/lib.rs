//! Real processes and real faults: what the tests in `tests/` share.

pub mod process;
pub mod work;
