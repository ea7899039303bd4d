//! The flight recorder alone: what was written is read.

use gaggle_core::Rank;
use gaggle_trace::{About, Recorder, Recording};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = Recorder::create(&std::env::temp_dir(), &About::new("alone", 1, Rank(0)))?;
    println!("{:?}", Recording::read(recorder.path())?.header);
    recorder.close();
    Ok(())
}
