//! Buckets over any group: one step of data-parallel training.

use gaggle_core::{Group, Weight};
use gaggle_ddp::{Ddp, DdpConfig, DdpError, ParamSpec, PlainMean};
use std::sync::Arc;

fn one_step(group: Group) -> Result<f32, DdpError> {
    let params = [ParamSpec::new("w", [2]), ParamSpec::new("b", [1])];
    let mut ddp = Ddp::<f32>::new(group, &params, Arc::new(PlainMean), DdpConfig::default())?;
    ddp.begin_step(Weight::samples(32))?;
    ddp.ready(1, &[0.5])?;
    ddp.ready(0, &[1.0, 2.0])?;
    Ok(ddp.finish()?.grad(0)[0])
}

fn main() {
    println!("{}", size_of_val(&one_step));
}
