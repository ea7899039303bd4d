//! The fused shared-memory step between real processes.
//!
//! `cargo run -p gaggle-spikes --bin spike-shared -- 3` starts three ranks that all-reduce 4 MiB in registered memory a hundred times, and prints what one takes.
//!
//! With RANK, WORLD_SIZE and SPIKE_MEETING set it is one rank: `rank ROLE …`; the tests use that, see `shared/program.rs`.

#[cfg(target_os = "linux")]
#[path = "shared/program.rs"]
mod program;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIPPED: sealed memory and futexes are Linux's");
}
