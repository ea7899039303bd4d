//! Random operations by real processes while others stop, continue and kill them at random: `cargo xtask stress`.
//!
//! A run is a series of episodes, each a job of its own with a seed of its own. [`conductor`] starts the ranks, does them harm and judges what they say; [`rank`] is what each of them does; [`task`] is one operation, checked element by element.
//! What must hold: no wrong value, no byte written after an operation has ended, no hang, no panic; whoever is killed or stopped for longer than the deadline is named by all others within it; the survivors rebuild and go on; nothing is left behind.

pub mod conductor;
pub mod rank;
pub mod task;

use crate::memory::Memory;
use clap::{Parser, ValueEnum};
use std::time::Duration;

/// Through what the ranks talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Through {
    /// Shared memory.
    Shm,
    /// Sockets.
    Tcp,
}

impl Through {
    fn name(self) -> &'static str {
        match self {
            Through::Shm => "shm",
            Through::Tcp => "tcp",
        }
    }
}

/// Runs random collectives in real processes and stops, continues and kills these at random; every result is checked.
///
/// A failure prints the seed and the command that begins with it.
#[derive(Clone, Parser, Debug)]
#[command(name = "cargo xtask stress", bin_name = "cargo xtask stress")]
pub struct Options {
    /// For how long; an episode that has begun is finished
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Of the first episode; each later one has the next. Drawn where it is not given
    #[arg(long)]
    pub seed: Option<u64>,
    /// Processes at the beginning of each episode
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Through what they talk
    #[arg(long, value_enum, default_value_t = Through::Shm)]
    pub transport: Through,
    /// Where buffers lie: registered, plain, or mixed
    #[arg(long, default_value_t = Memory::Mixed)]
    pub buffers: Memory,
    /// Deadline of an operation, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    pub timeout: f64,
    /// Harm no rank
    #[arg(long)]
    pub peaceful: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    match (0.2..=600.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("wanted: from 0.2 to 600 seconds".into()),
    }
}

impl Options {
    fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }

    /// What begins with this seed.
    fn command(&self, seed: u64) -> String {
        let peaceful = if self.peaceful { " --peaceful" } else { "" };
        format!(
            "cargo xtask stress --seed {seed} --seconds 1 --ranks {} --transport {} --buffers {} --timeout {}{peaceful}",
            self.ranks,
            self.transport.name(),
            self.buffers,
            self.timeout
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// `cargo xtask stress --help` tells it without building anything.
    #[test]
    fn the_help_that_xtask_prints_is_that_of_the_options() {
        let said = <Options as CommandFactory>::command()
            .term_width(100)
            .render_long_help()
            .to_string();
        assert_eq!(include_str!("help.txt"), said);
    }
}
