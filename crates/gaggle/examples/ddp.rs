//! Data-parallel training with gradients that leave in buckets: alone, or as `gaggle run -n 4 -- target/debug/examples/ddp`.

use gaggle::{Group, Weight, ddp::*};
use std::sync::Arc;

/// Fits y = 2x + 1. Each rank has points of its own, and not equally many.
fn fit(group: Group) -> Result<[f64; 2], DdpError> {
    let n = 4 + group.rank().0;
    let points: Vec<f64> = (0..n).map(|i| f64::from(i) / f64::from(n)).collect();
    let params = [ParamSpec::new("slope", []), ParamSpec::new("offset", [])];
    let mut ddp = Ddp::new(group, &params, Arc::new(PlainMean), DdpConfig::default())?;
    let mut w = [0.0, 0.0];
    for _ in 0..2000 {
        ddp.begin_step(Weight::samples(n))?;
        let error = |x: &f64| w[0] * x + w[1] - (2.0 * x + 1.0);
        let mean = |f: &dyn Fn(&f64) -> f64| points.iter().map(f).sum::<f64>() / f64::from(n);
        ddp.ready(1, &[mean(&error)])?; // as backward has them: the last parameter first
        ddp.ready(0, &[mean(&|x| error(x) * x)])?;
        let reduced = ddp.finish()?; // waits for what is still under way
        w = [0, 1].map(|i| w[i] - 0.5 * reduced.grad(i)[0]);
    }
    Ok(w)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = gaggle::join()?;
    let [slope, offset] = fit(job.group().clone())?;
    println!(
        "{} of {}: y = {slope:.3} x + {offset:.3}",
        job.rank(),
        job.size()
    );
    Ok(())
}
