//! The rendezvous store: a small table that every rank can reach before any rank knows another.
//!
//! [`StoreServer`] is run by rank 0 or by the launcher, [`StoreClient`] by every rank, [`LocalStore`] by ranks that are threads.
//! All three share one table and therefore one behaviour: an integer made by `add` reads as decimal text; a caller of `get` or `barrier` whose time is over no longer counts.
//! Who may speak to the server is decided by [`crate::auth`]; how ranks use the table to find each other by [`crate::rendezvous`].

mod client;
mod local;
mod server;
mod table;
pub(crate) mod wire;

pub use client::StoreClient;
pub(crate) use client::connect_one;
pub use local::LocalStore;
pub use server::{Roster, StoreConfig, StoreServer};

/// Longest key in bytes.
pub const KEY_MAX: usize = 256;
/// Longest value in bytes.
pub const VALUE_MAX: usize = 64 * 1024;

use gaggle_core::Error;

fn check_key(op: &str, key: &str) -> Result<(), Error> {
    if key.len() > KEY_MAX {
        return Err(Error::invalid(
            format!("store {op}"),
            format!(
                "the key has {} bytes, at most {KEY_MAX} are allowed",
                key.len()
            ),
        ));
    }
    Ok(())
}

fn check_value(op: &str, value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_MAX {
        return Err(Error::invalid(
            format!("store {op}"),
            format!(
                "the value has {} bytes, at most {VALUE_MAX} are allowed",
                value.len()
            ),
        ));
    }
    Ok(())
}
