//! Small trials of the seams, before anything is built on them: correct, untuned, and not part of the library.
//!
//! Each has a program in `examples/` whose first lines say how it is run, tests that run it where its library is present, and its verdict under "Spikes" in `ARCHITECTURE.md`:
//! - [`shared`]: the fused step over memory that several processes have mapped;
//! - [`device`]: a communicator over the memory of devices, which have streams of their own;
//! - [`packets`]: the `Transport` trait over any library that moves packets, for UCX and MPI;
//! - [`ucx`]: UCX's active messages as such a library;
//! - [`mpi`]: MPI's point-to-point messages as another.

pub mod device;
#[cfg(unix)]
pub mod mpi;
#[cfg(unix)]
pub mod packets;
#[cfg(target_os = "linux")]
pub mod shared;
#[cfg(unix)]
pub mod ucx;
