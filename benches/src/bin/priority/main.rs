//! Priorities on a wire of 1 Gbit/s: an urgent all-reduce beside a large one, and layers of a ResNet-50 that are needed in turn.
//!
//! Starts two ranks, each in a network namespace of its own (see [`wire`]), and measures what a user would see:
//! - how long an all-reduce of 256 KiB takes alone, beside one of 100 MiB that is under way, and beside it with priority;
//! - how long training waits for communication when gradients are reduced first come, first served, and when the layers that are needed first go first.
//!
//! The second is the experiment behind MLSL's figures: with r = time of all communication ÷ time of all computation, and forward : backward = 1 : 2, first come, first served exposes r − 2/3 of the computation's time and priority r − 1 (for 1 < r), so that a ratio means something only together with r.
//!
//! Needs Linux, root, and the programs `ip` and `tc` (Debian: iproute2), `unshare` and `nsenter` (util-linux); says so and ends with exit code 77 where it cannot run.

mod layers;
mod rank;
mod wire;

use anyhow::{Context, Result, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rank::{Plan, Said};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use wire::Wire;

/// The machine does not allow it.
const CANNOT: u8 = 77;

#[derive(Parser)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_parser = gaggle_benches::options::file)]
    out: Option<PathBuf>,
    /// Only one of the two experiments
    #[arg(long, value_parser = ["urgent", "layers"])]
    only: Option<String>,
    /// The queue at each end of the wire, as `tc` takes it; 1 Gbit/s is what the slice's time is computed for
    #[arg(long, default_value = wire::QUEUE)]
    queue: String,
    /// TCP's congestion control
    #[arg(long, default_value = wire::CONGESTION)]
    congestion: String,
    /// Used by the program itself: be a rank
    #[arg(long, hide = true)]
    rank: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.rank {
        rank::main(&plan(&args))
    } else {
        match wire::missing() {
            Some(what) => {
                println!("priority: cannot run: {what}");
                return ExitCode::from(CANNOT);
            }
            None => orchestrate(&args),
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("priority: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn plan(args: &Args) -> Plan {
    let mut plan = if args.smoke {
        Plan::smoke()
    } else {
        Plan::full()
    };
    match args.only.as_deref() {
        Some("urgent") => plan.blocks = 0,
        Some("layers") => plan.rounds = 0,
        _ => {}
    }
    plan
}

/// What the ranks have measured: for each name the samples in their order, of the rank that took longer.
#[derive(Default)]
struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    fn add(&mut self, name: &str, index: usize, seconds: f64) {
        let samples = self.0.entry(name.to_owned()).or_default();
        if samples.len() <= index {
            samples.resize(index + 1, 0.0);
        }
        samples[index] = samples[index].max(seconds);
    }

    fn of(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    fn median(&self, name: &str) -> f64 {
        let mut sorted = self.of(name).to_vec();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }
}

fn orchestrate(args: &Args) -> Result<()> {
    let plan = plan(args);
    let mut flags = vec!["--rank"];
    flags.extend(args.smoke.then_some("--smoke"));
    if let Some(only) = &args.only {
        flags.extend(["--only", only]);
    }
    let deadline = Instant::now() + Duration::from_secs(if args.smoke { 60 } else { 600 });
    let mut wire = Wire::start(&flags, &args.queue, &args.congestion)?;
    println!(
        "two ranks in two network namespaces joined by a veth pair, `{}` at each end, {}",
        args.queue, args.congestion
    );
    wire.go()?;
    let bar = ProgressBar::new(plan.steps() as u64);
    bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {msg}",
    )?);
    let mut samples = Samples::default();
    let mut ended = 0;
    while ended < wire::RANKS {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some((rank, said)) = wire.next(left)? else {
            bail!("not done after {} s", deadline.elapsed().as_secs());
        };
        match said {
            Said::Ready => {}
            Said::Step(what) if rank == 0 => {
                bar.set_message(what);
                bar.inc(1);
            }
            Said::Step(_) => {}
            Said::Sample {
                name,
                index,
                seconds,
            } => samples.add(&name, index, seconds),
            Said::Wire { what, sent, seen } => {
                // What the ranks say they sent must have left by the interface: nothing took another way.
                if seen < sent {
                    bail!(
                        "rank {rank}, {what}: {sent} bytes were sent, but only {seen} left by the interface"
                    );
                }
                samples.add(&format!("{what}: bytes on the wire"), rank, seen as f64);
            }
            Said::End => ended += 1,
        }
    }
    bar.finish_and_clear();
    wire.finish()?;
    if args.smoke {
        println!("it works; so short, the figures mean nothing:");
    }
    let figures = report(args, &plan, &samples);
    if let Some(path) = &args.out {
        fs::write(path, Value::Array(figures).to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn report(args: &Args, plan: &Plan, samples: &Samples) -> Vec<Value> {
    let mut figures = Vec::new();
    let mut figure = |name: &str, parameters: Value, unit: &str, samples: &[f64], bytes| {
        let mut figure =
            json!({"name": name, "parameters": parameters, "unit": unit, "samples": samples});
        if let Some(bytes) = bytes {
            figure["bytes"] = json!(bytes);
        }
        figures.push(figure);
    };
    let wire = json!({"rate_bits_per_s": wire::RATE, "queue": args.queue, "congestion_control": args.congestion, "ranks": wire::RANKS});
    if plan.rounds > 0 {
        let ms = |name: &str| 1e3 * samples.median(name);
        let slice = 8e3 * plan.slice_bytes() as f64 / wire::RATE as f64;
        let (with, alone) = (ms(rank::WITH), ms(rank::ALONE));
        let bar = 2.0 * alone + slice;
        println!(
            "urgent all-reduce of {} KiB beside one of {} MiB, medians of {}:",
            plan.urgent_bytes >> 10,
            plan.bulk_bytes >> 20,
            plan.rounds
        );
        println!("  alone               {alone:9.3} ms");
        println!("  without priorities  {:9.3} ms", ms(rank::WITHOUT));
        println!("  with priorities     {with:9.3} ms");
        println!(
            "  bar: 2 x alone + one slice of {} KiB ({slice:.3} ms) = {bar:.3} ms: {}",
            plan.slice_bytes() >> 10,
            verdict(with <= bar)
        );
        println!(
            "  the large one: {:.1} ms beside an urgent one without priority, {:.1} ms with",
            ms(rank::BULK_WITHOUT),
            ms(rank::BULK_WITH)
        );
        for name in [rank::ALONE, rank::WITHOUT, rank::WITH] {
            let mut parameters = wire.clone();
            parameters["beside_bytes"] = json!(plan.bulk_bytes);
            parameters["slice_bytes"] = json!(plan.slice_bytes());
            let bytes = Some(plan.urgent_bytes);
            figure(name, parameters, "s", samples.of(name), bytes);
        }
        for name in [rank::BULK_WITHOUT, rank::BULK_WITH] {
            let bytes = Some(plan.bulk_bytes);
            figure(name, wire.clone(), "s", samples.of(name), bytes);
        }
    }
    if plan.blocks > 0 {
        let compute = samples.median(rank::COMPUTE);
        let r = samples.median(rank::COMMUNICATION) / compute;
        let exposed = |name: &str| samples.median(name) - compute;
        let (fifo, priority) = (exposed(rank::FIFO), exposed(rank::PRIORITY));
        let ratio = fifo / priority;
        let ideal = (r - 2.0 / 3.0) / (r - 1.0);
        println!(
            "layers of a ResNet-50 ({} of them, {:.1} MB), medians of {}:",
            layers::resnet50().len(),
            plan.layer_bytes() as f64 / 1e6,
            samples.of(rank::FIFO).len()
        );
        println!(
            "  computation alone    {:8.1} ms, communication alone {:8.1} ms: r = {r:.3}",
            1e3 * compute,
            1e3 * samples.median(rank::COMMUNICATION)
        );
        println!(
            "  exposed, first come, first served  {:8.1} ms (theory {:.1})",
            1e3 * fifo,
            1e3 * compute * (r - 2.0 / 3.0)
        );
        println!(
            "  exposed, needed first goes first   {:8.1} ms (theory {:.1})",
            1e3 * priority,
            1e3 * compute * (r - 1.0)
        );
        println!(
            "  ratio {ratio:.3}; bar: 0.85 x (r - 2/3)/(r - 1) = 0.85 x {ideal:.3} = {:.3}: {}",
            0.85 * ideal,
            verdict(ratio >= 0.85 * ideal && (1.2..=1.5).contains(&r))
        );
        let bytes = Some(plan.layer_bytes());
        for name in [
            rank::COMPUTE,
            rank::COMMUNICATION,
            rank::FIFO,
            rank::PRIORITY,
        ] {
            let mut parameters = wire.clone();
            parameters["layers"] = json!(layers::resnet50().len());
            figure(name, parameters, "s", samples.of(name), bytes);
        }
        figure(
            "exposed, first come ÷ needed first",
            json!({"r": r, "ideal": ideal}),
            "ratio",
            &[ratio],
            None,
        );
    }
    for (name, values) in samples.0.iter().filter(|(n, _)| n.ends_with("on the wire")) {
        figure(name, wire.clone(), "bytes", values, None);
    }
    figures
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
