//! Groups without the facade: an engine over a link that somebody else has made.

use gaggle_core::{Control, Error, Sum, SystemClock, Transport};
use gaggle_engine::{Engine, EngineConfig};
use std::sync::Arc;

fn sum(link: Box<dyn Transport>, control: Box<dyn Control>) -> Result<f32, Error> {
    let engine = Engine::new(vec![link], control, Arc::new(SystemClock::new()), EngineConfig::default())?;
    let mut x = [1.0_f32; 4];
    engine.group().all_reduce(&mut x, Sum)?;
    Ok(x[0])
}

fn main() {
    println!("{}", size_of_val(&sum));
}
