//! The demo: ranks train one small network to read real digits, by all-reduce and with nobody in charge, and measure what each way costs.
//!
//! This is the harness; [`run_with`] puts flags, a progress bar and a page around it, and takes update rules of your own beside the library's.
//! The program `gaggle-demo` is that without any.
//! Every rank holds its own share of the images that ship with the repository ([`data`], [`partition`]), its own copy of a candle model ([`model`]), and makes the same steps as the others ([`method`], [`train`]).
//! What was measured becomes a table, a JSON object ([`summary`]) and a page ([`page`]).
//!
//! ```
//! use clap::Parser;
//! use gaggle_demo::{data::Digits, progress::Silent, settings::Args, train::demo};
//!
//! let args = Args::parse_from(["gaggle-demo", "--algorithm", "dmsgd", "--epochs", "1", "--batch", "256"]);
//! let (settings, digits) = (args.settings()?, Digits::load()?);
//! let stories = gaggle::local(2, |group| demo(&group, &settings, &digits, "threads", &mut Silent))?;
//! for story in stories {
//!     assert!(story?.runs[0].accuracy_mean_model > 0.3); // one in ten by guessing
//! }
//! # Ok::<(), gaggle_demo::error::DemoError>(())
//! ```

pub mod charts;
mod check;
pub mod choices;
pub mod data;
pub mod error;
pub mod formula;
pub mod method;
pub mod model;
pub mod page;
pub mod partition;
pub mod picture;
pub mod program;
pub mod progress;
mod raw_env;
pub mod rule_args;
pub mod rules;
pub mod settings;
pub mod summary;
pub mod train;
mod uses;

pub use program::run_with;
