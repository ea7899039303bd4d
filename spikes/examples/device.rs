//! A step of training on fake devices: kernels and collectives in stream order, and the host waits once, at the end.
//!
//! `cargo run -p gaggle-spikes --bin spike-device -- 4` runs four ranks, as threads of this process with a device each.

use anyhow::{Context, Result, ensure};
use gaggle_core::{Group, Kind, Op, Reduce};
use gaggle_spikes::device::{Device, Stream, world};
use std::thread;

fn main() -> Result<()> {
    let n: u32 = std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?;
    ensure!((1..=64).contains(&n), "1 to 64 ranks");
    let devices: Vec<_> = (0..n).map(Device::new).collect();
    let ranks: Vec<_> = world(&devices)?
        .into_iter()
        .zip(devices)
        .map(|(comm, device)| {
            thread::spawn(move || -> Result<Vec<f32>> {
                let (group, compute) = (Group::new(comm), Stream::new(&device)?);
                let rank = group.rank().0 as f32;
                let mut gradient = compute.upload(&[rank, 1.0]);
                // "Backward", still running when the mean is enqueued behind it.
                compute.map(&mut gradient, |x: f32| x * 2.0);
                let op = Op::new(Kind::AllReduce(Reduce::Mean));
                let mut mean = group.start(op, gradient).enqueued()?;
                // The update rule, enqueued behind the mean.
                compute.map(&mut mean, |x| -0.1 * x);
                Ok(compute.download(&mean))
            })
        })
        .collect();
    for rank in ranks {
        let update = rank.join().ok().context("a rank has panicked")??;
        println!("{update:?}");
    }
    Ok(())
}
