//! The demo as a whole: real training on real ranks, which are threads here.

mod program;
mod training;
