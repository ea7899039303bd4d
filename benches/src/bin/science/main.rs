//! What decentralised training learns: ten methods on data that differ from rank to rank, one-peer against static exponential graphs, and six graphs; margins are checked.
//!
//! Real digits, a small perceptron, 16 and 25 ranks as threads, ten seeds; some minutes on two processors.
//! It ends with an error where a margin is broken; pairs that the library refuses as unstable are said to be refused.

mod experiments;
mod judge;
mod model;
mod page;
mod plot;
mod split;
mod trial;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use experiments::Experiment;
use gaggle_benches::digits::Digits;
use indicatif::{ProgressBar, ProgressStyle};
use judge::{Ran, Row, claims};
use page::Results;
use serde_json::{Value, json};
use std::{fs, path::PathBuf, process::ExitCode};
use trial::{Plan, Trial};

#[derive(Parser)]
struct Args {
    /// One seed and a few steps, to see that it works: nothing is judged
    #[arg(long, alias = "quick")]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_parser = gaggle_benches::options::file)]
    out: Option<PathBuf>,
    /// Write the page there, with its plots beside it
    #[arg(long, value_name = "FILE", value_parser = gaggle_benches::options::file)]
    page: Option<PathBuf>,
    /// Seeds, from 11 on
    #[arg(long, value_name = "N", default_value_t = 10)]
    seeds: u64,
    /// Only these of methods, mild, one-peer, graphs, separated by commas; claims about the others are left out
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
}

const FIRST_SEED: u64 = 11;
const FULL: Plan = Plan {
    steps: 400,
    batch: 16,
};
const MOMENT: Plan = Plan {
    steps: 5,
    batch: 16,
};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("science: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    ensure!(args.seeds > 0, "--seeds 0: it must be at least 1");
    let (plan, seeds) = match args.smoke {
        true => (MOMENT, 1),
        false => (FULL, args.seeds),
    };
    let seeds: Vec<u64> = (FIRST_SEED..FIRST_SEED + seeds).collect();
    let experiments = chosen(&args.only)?;
    let rows = train(&experiments, plan, &seeds)?;
    let mut claims = claims(&rows);
    if !args.only.is_empty() {
        // Of what was not to run nothing is claimed.
        claims.retain(|c| c.got.is_some());
    }
    let results = Results {
        experiments: &experiments,
        rows: &rows,
        claims: &claims,
        seeds: &seeds,
        plan,
    };
    println!("{}", results.markdown(&[]));
    if let Some(path) = &args.page {
        results.write(path)?;
        println!("page: {}", path.display());
    }
    if let Some(path) = &args.out {
        fs::write(path, figures(&rows, plan).to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.smoke {
        println!(
            "it works; after {} steps the figures mean nothing",
            plan.steps
        );
        return Ok(());
    }
    let broken: Vec<&str> = claims
        .iter()
        .filter(|c| !c.holds())
        .map(|c| c.what.as_str())
        .collect();
    if !broken.is_empty() {
        bail!("{} claims are broken: {}", broken.len(), broken.join("; "));
    }
    println!("all {} claims hold", claims.len());
    Ok(())
}

fn chosen(only: &[String]) -> Result<Vec<Experiment>> {
    let mut all = experiments::all();
    for name in only {
        ensure!(
            all.iter().any(|e| e.name == name),
            "--only {name}: there are {}",
            all.iter().map(|e| e.name).collect::<Vec<_>>().join(", ")
        );
    }
    all.retain(|e| only.is_empty() || only.iter().any(|n| n == e.name));
    Ok(all)
}

fn train(experiments: &[Experiment], plan: Plan, seeds: &[u64]) -> Result<Vec<Row>> {
    let digits = Digits::load()?;
    let trials: usize = experiments.iter().map(|e| e.trials.len()).sum();
    let bar = ProgressBar::new((trials * seeds.len()) as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left  {msg}")
            .context("the bar's template")?,
    );
    let mut rows = Vec::new();
    for experiment in experiments {
        for trial in &experiment.trials {
            bar.set_message(format!("{} on {}", trial.method.label, trial.topology));
            rows.push(Row {
                experiment: experiment.name,
                trial: *trial,
                result: result(trial, &digits, plan, seeds, &bar)?,
            });
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn result(
    trial: &Trial,
    digits: &Digits,
    plan: Plan,
    seeds: &[u64],
    bar: &ProgressBar,
) -> Result<Ran> {
    if let Some(why) = trial.refusal()? {
        bar.inc(seeds.len() as u64);
        return Ok(Ran::Refused(why));
    }
    let mut outcomes = Vec::with_capacity(seeds.len());
    for seed in seeds {
        outcomes.push(trial.run(digits, plan, *seed)?);
        bar.inc(1);
    }
    Ok(Ran::Seeds(outcomes))
}

/// In the form of `cargo xtask bench`: a figure per trial, a sample per seed.
fn figures(rows: &[Row], plan: Plan) -> Value {
    let ran = rows.iter().filter(|r| !r.outcomes().is_empty());
    let figure = |row: &Row| {
        let t = &row.trial;
        json!({
            "name": format!("{}/{}/{}/{}", row.experiment, t.method.label, t.topology, t.split),
            "parameters": {
                "ranks": t.ranks,
                "steps": plan.steps,
                "batch": plan.batch,
                "lr": t.method.lr,
                "consensus": row.consensus(),
            },
            "unit": "per cent",
            "samples": row.local(),
        })
    };
    ran.map(figure).collect()
}
