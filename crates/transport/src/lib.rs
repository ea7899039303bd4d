//! Links between ranks: within a process, through shared memory, over TCP, and simulated; and how ranks find each other.

pub mod auth;
#[cfg(target_os = "linux")]
mod cgroup;
pub mod contract;
pub mod control;
pub mod frame;
#[cfg(target_os = "linux")]
pub mod heap;
pub mod inproc;
pub mod interfaces;
#[cfg(all(test, unix))]
mod models;
mod pieces;
pub mod processors;
pub mod rendezvous;
#[cfg(unix)]
pub mod shm;
pub mod sim;
mod slab;
#[cfg(unix)]
pub mod sockopt;
pub mod store;
#[cfg(unix)]
mod sync;
#[cfg(unix)]
pub mod tcp;
