//! What a device will have done: how memory that comes back early says when it is ready.

use crate::Space;
use std::{any::Any, fmt, time::Duration};

/// A point in a device's stream of work.
///
/// Made by a backend, and known again by that backend through `as_any`: it then makes its own stream wait, without the host. Anybody else waits here.
/// All methods may be called from any thread; once done it stays so.
pub trait Event: Send + Sync + fmt::Debug {
    /// Whose work it stands for.
    fn space(&self) -> Space;
    /// Whether everything before it has been done. Never blocks.
    fn is_done(&self) -> bool;
    /// Blocks this thread until it is done, at most `limit`; whether it is.
    fn wait(&self, limit: Duration) -> bool;
    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}
