//! The seam of the rendezvous store: a small table that every rank can reach before any rank knows another.

use crate::Error;
use std::time::Duration;

/// A table of byte strings with waits, shared by the ranks of a job.
///
/// Every method answers within its deadline or returns [`Cause::Store`](crate::Cause::Store). Keys are at most 256 bytes, values at most 64 KiB. All methods may be called from any thread.
pub trait Store: Send + Sync {
    /// Sets `key`, replacing what was there.
    ///
    /// # Errors
    /// The store cannot be reached, or key or value are too long.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error>;
    /// The value of `key`, as soon as there is one.
    ///
    /// # Errors
    /// There was none within `timeout`: the error names the key.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error>;
    /// Adds to the integer at `key` (0 where there is none) and returns the sum, which wraps.
    ///
    /// # Errors
    /// The store cannot be reached, or `key` holds something else.
    fn add(&self, key: &str, delta: i64) -> Result<i64, Error>;
    /// Sets `key` to `new` if it holds `expected` (`None`: nothing). Returns what it holds afterwards.
    ///
    /// # Errors
    /// The store cannot be reached, or key or value are too long.
    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Vec<u8>, Error>;
    /// Returns once `n` calls with this name have come. A name may be used again after that.
    ///
    /// # Errors
    /// Fewer came within `timeout`: the error says how many.
    fn barrier(&self, name: &str, n: u32, timeout: Duration) -> Result<(), Error>;
}
