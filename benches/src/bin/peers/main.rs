//! Beside Open MPI 4 and 5, MPICH, oneCCL, Gloo and BlueFog: installs them below the target directory and runs them and gaggle in turn.
//!
//! Each round runs every contender of an experiment once, so that a slow spell of the machine meets them all; whose turn is first goes round. [`table`] has the experiments and the rows by which gaggle is judged, [`judge`] the arithmetic, [`systems`] how each is started, [`install`] how each comes to be there.
//! The other systems' programs are in `benches/peers`.
//!
//! A system that cannot be installed is absent, with a reason, and voids what would need it; so is said what gaggle itself cannot run.

#![forbid(unsafe_code)]

mod duplex;
mod install;
mod judge;
mod plot;
mod report;
mod run;
mod systems;
mod table;

use anyhow::{Context, Result, bail};
use clap::Parser;
use gaggle_benches::options;
use indicatif::{ProgressBar, ProgressStyle};
use install::Fetch;
use judge::Measured;
use report::Report;
use run::Busy;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};
use systems::Places;
use table::{Experiment, System};

/// The machine does not allow it.
const CANNOT: u8 = 77;
/// A contender that has failed so often in one experiment is not tried again there.
const TRIES: usize = 2;

#[derive(Parser)]
struct Args {
    /// A moment only, to see that it works: nothing is installed, what is not there is absent
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_name = "FILE", value_parser = options::file)]
    out: Option<PathBuf>,
    /// Where tables and plots go; target/bench/peers without it
    #[arg(long, value_name = "DIR", value_parser = options::folder)]
    report: Option<PathBuf>,
    /// Of the other systems only these, separated by commas; `gaggle`: none of them
    #[arg(long, value_delimiter = ',', value_name = "SYSTEMS")]
    only: Vec<String>,
    /// Only the experiments whose name begins with one of these, as shm-2 or mix
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    rows: Vec<String>,
    /// How often each contender is run; fewer than 7 judge nothing
    #[arg(long, default_value_t = report::ROUNDS, value_parser = options::at_least_one)]
    rounds: usize,
    /// One round with a third of the time
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Seconds for each size in each run
    #[arg(long, default_value_t = 0.3)]
    budget: f64,
    /// Measure this `gaggle` instead of building one
    #[arg(long, value_name = "FILE", value_parser = options::program)]
    gaggle: Option<PathBuf>,
    /// Say what systems, experiments and rows there are
    #[arg(long)]
    list: bool,
    /// Install and measure nothing
    #[arg(long)]
    install_only: bool,
    /// Install nothing; what is not there is absent
    #[arg(long, conflicts_with = "install_only")]
    no_install: bool,
    /// Used by the program itself: be one end of the raw exchange
    #[arg(long, hide = true)]
    duplex: bool,
    #[arg(long, hide = true, value_delimiter = ',')]
    sizes: Vec<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !cfg!(target_os = "linux") {
        println!("peers: cannot run: the other systems are installed for Linux");
        return ExitCode::from(CANNOT);
    }
    let done = match () {
        () if args.list => {
            list();
            Ok(())
        }
        () if args.duplex => {
            duplex::end(&args.sizes, Duration::from_secs_f64(args.budget.max(0.0)))
        }
        () => in_private_memory().and_then(|()| orchestrate(&args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Goes on in a mount namespace with a `/dev/shm` of its own, where the system allows it: what contenders that had to be killed leave there goes with this process.
fn in_private_memory() -> Result<()> {
    const INSIDE: &str = "GAGGLE_PEERS_PRIVATE";
    const MOUNT: &str = "mount -t tmpfs tmpfs /dev/shm && exec \"$0\" \"$@\"";
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c"]);
        unshare
    };
    let allowed = || {
        let mut tried = unshare();
        tried.args(["mount -t tmpfs tmpfs /dev/shm"]);
        tried.output().is_ok_and(|out| out.status.success())
    };
    if env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    if !allowed() {
        eprintln!("peers: no private /dev/shm here: what other systems leave there stays");
        return Ok(());
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        let mut again = unshare();
        again.arg(MOUNT).arg(env::current_exe()?);
        // It does not come back.
        let error = again.args(env::args_os().skip(1)).env(INSIDE, "1").exec();
        Err(error).context("cannot go on in a mount namespace")
    }
    #[cfg(not(unix))]
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn list() {
    println!("systems (--only):");
    for system in System::ALL.iter().filter(|s| other(**s)) {
        println!("  {:9} {}", system.key(), system.about());
    }
    println!("experiments (--rows):");
    for e in table::experiments(cores()) {
        println!(
            "  {:17} {} of {}, {} ranks, {}, {} sizes from {} to {}",
            e.id,
            e.op,
            e.dtype,
            e.ranks,
            e.path.name(),
            e.sizes.len(),
            e.sizes.first().map_or(String::new(), |s| table::size(*s)),
            e.sizes.last().map_or(String::new(), |s| table::size(*s)),
        );
    }
    println!("rows, and what gaggle's time divided by the best other's may be:");
    for row in table::rows() {
        let bar = match row.bar {
            table::Bar::Fixed(bar) => format!("{bar:.2}"),
            table::Bar::Duplex { floor, factor } => {
                format!("{floor:.2}, or {factor:.2} times the raw exchange's where that is more")
            }
        };
        println!("  {:32} {bar}", row.name);
    }
}

fn other(system: System) -> bool {
    !matches!(system, System::Gaggle | System::Duplex)
}

/// The systems that `only` names, or all; gaggle and the raw exchange always take part, whether they are named or not.
fn chosen_systems(only: &[String]) -> Result<Vec<System>> {
    let known = |key: &String| System::ALL.iter().any(|s| s.key() == key);
    if let Some(unknown) = only.iter().find(|key| !known(key)) {
        let keys: Vec<&str> = System::ALL
            .iter()
            .filter(|s| other(**s))
            .map(|s| s.key())
            .collect();
        bail!(
            "there is no system `{unknown}`; there are {}, and gaggle, which takes part in any case",
            keys.join(", ")
        );
    }
    let wanted = |s: &System| only.is_empty() || !other(*s) || only.iter().any(|k| k == s.key());
    Ok(System::ALL.into_iter().filter(wanted).collect())
}

/// The experiments whose names begin as one of `names`, or all.
fn chosen_experiments(names: &[String], cores: usize) -> Result<Vec<Experiment>> {
    let all = table::experiments(cores);
    if let Some(unknown) = names
        .iter()
        .find(|n| !all.iter().any(|e| e.id.starts_with(*n)))
    {
        let ids: Vec<&str> = all.iter().map(|e| e.id).collect();
        bail!(
            "no experiment's name begins with `{unknown}`; there are {}",
            ids.join(", ")
        );
    }
    let wanted = |e: &Experiment| names.is_empty() || names.iter().any(|n| e.id.starts_with(n));
    Ok(all.into_iter().filter(wanted).collect())
}

fn orchestrate(args: &Args) -> Result<()> {
    let own = env::current_exe().context("cannot tell which program this is")?;
    let built = own.parent().context("this program lies nowhere")?;
    let target = built
        .parent()
        .context("this program lies in no target directory")?;
    let mut wanted = chosen_systems(&args.only)?;
    // BlueFog runs under it.
    if wanted.contains(&System::BlueFog) && !wanted.contains(&System::OpenMpi4) {
        wanted.insert(1, System::OpenMpi4);
    }
    let mut experiments = chosen_experiments(&args.rows, cores())?;
    let mut places = Places {
        cache: target.join("peers"),
        sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("peers"),
        gaggle: args.gaggle.clone().unwrap_or_else(|| built.join("gaggle")),
        own: own.clone(),
        torch: install::torch_python(target),
        cores: cores(),
    };
    let fetch = match args.smoke || args.no_install {
        true => Fetch::No,
        false => Fetch::Yes,
    };
    let (present, absent) = install::install(&mut places, &wanted, fetch);
    for system in System::ALL {
        if let Some(version) = present.get(&system) {
            println!("{:9} {version}", system.key());
        }
        if let Some(why) = absent.get(&system) {
            println!("{:9} absent: {why}", system.key());
        }
    }
    if args.install_only {
        return Ok(());
    }
    let (mut rounds, mut budget) = (args.rounds, args.budget);
    if args.quick {
        (rounds, budget) = (1, budget / 3.0);
    }
    if args.smoke {
        (rounds, budget) = (1, 0.01);
        let few = [4, 64 << 10];
        experiments.retain(|e| ["shm-2", "tcp-2"].contains(&e.id));
        for e in &mut experiments {
            e.sizes.retain(|s| few.contains(s));
        }
    } else if args.gaggle.is_none() {
        build_gaggle(target)?;
    }
    for e in &mut experiments {
        e.contenders.retain(|c| present.contains_key(&c.system()));
    }
    let head = [
        format!("machine: {}", machine(places.cores)),
        format!("command: cargo xtask bench {}", typed()),
    ];
    let dir = args
        .report
        .clone()
        .unwrap_or_else(|| target.join("bench/peers"));
    let rows = table::rows();
    let told = |measured: &Measured, rounds: usize, tell: &dyn Fn(&Report<'_>) -> Result<()>| {
        let judged: Vec<judge::Judged> = rows
            .iter()
            .map(|r| judge::judge(r, &experiments, measured))
            .collect();
        tell(&Report {
            head: &head,
            experiments: &experiments,
            measured,
            judged: &judged,
            present: &present,
            absent: &absent,
            rounds,
        })
    };
    // Hours may lie between the first round and the last: what there is is told after each.
    let write = |measured: &Measured, rounds: usize| match args.smoke {
        true => Ok(()),
        false => told(measured, rounds, &|report| report.write(&dir)),
    };
    let measured = measure(&places, &experiments, rounds, budget, &write)?;
    told(&measured, rounds, &|report| {
        if args.smoke {
            return smoked(report);
        }
        println!("\n{}", report.rows());
        if rounds < report::ROUNDS {
            println!("{rounds} of {} rounds: this judges nothing", report::ROUNDS);
        }
        println!("tables and plots are in {}", dir.display());
        if let Some(path) = &args.out {
            fs::write(path, Value::Array(report.figures()).to_string())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    })
}

/// Sees that everything up to the written report works.
fn smoked(report: &Report<'_>) -> Result<()> {
    let dir = tempfile::tempdir()?;
    report.write(dir.path())?;
    for (experiment, contender, why) in report.measured.failures() {
        println!("{experiment}, {contender}: {why}");
    }
    let raw = report.experiments.iter().filter(|e| e.id == "tcp-2");
    for e in raw {
        for size in &e.sizes {
            let exchanged = report
                .measured
                .median_us(e.id, table::Contender::Duplex, *size);
            exchanged
                .with_context(|| format!("the raw exchange of {size} bytes was not measured"))?;
        }
    }
    println!("it works; so short, the figures mean nothing");
    Ok(())
}

/// `gaggle`, optimised, beside this program.
fn build_gaggle(target: &Path) -> Result<()> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "build",
            "--release",
            "--package=gaggle-cli",
            "--bin=gaggle",
            "--target-dir",
        ])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    eprintln!("$ cargo build --release --package=gaggle-cli --bin=gaggle");
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("gaggle cannot be built ({status})");
    }
    Ok(())
}

/// `after` is told what there is after each round, and how many there were.
fn measure(
    places: &Places,
    experiments: &[Experiment],
    rounds: usize,
    budget: f64,
    after: &dyn Fn(&Measured, usize) -> Result<()>,
) -> Result<Measured> {
    let runs: usize = experiments.iter().map(|e| e.contenders.len()).sum();
    let bar = ProgressBar::new((runs * rounds) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {msg}",
    )?);
    let mut measured = Measured::default();
    let mut failed: BTreeMap<(&str, table::Contender), usize> = BTreeMap::new();
    for round in 0..rounds {
        for e in experiments {
            for at in 0..e.contenders.len() {
                // Whoever comes first finds the machine as the last experiment left it; nobody does so in every round.
                let contender = e.contenders[(at + round) % e.contenders.len()];
                bar.set_message(format!(
                    "round {} of {rounds}: {}, {contender}",
                    round + 1,
                    e.id
                ));
                let tried = failed.entry((e.id, contender)).or_default();
                if *tried >= TRIES {
                    bar.inc(1);
                    continue;
                }
                let invocation = systems::invocation(places, e, contender, &e.sizes, budget);
                let busy = Busy::start();
                let (lines, why) = run::run(&invocation, limit(&e.sizes, budget));
                for (size, sample) in lines {
                    measured.add(e.id, contender, size, round, sample);
                }
                if let Some(why) = why {
                    *tried += 1;
                    bar.suspend(|| eprintln!("{}, {contender}: {why}", e.id));
                    measured.fail(e.id, contender, why);
                }
                measured.foreign.extend(busy.and_then(|b| b.foreign()));
                bar.inc(1);
            }
        }
        after(&measured, round + 1)?;
    }
    bar.finish_and_clear();
    Ok(measured)
}

/// Starting takes seconds, a size its budget, and a large one some calls of it at the worst.
fn limit(sizes: &[u64], budget: f64) -> Duration {
    let large: u64 = sizes.iter().sum();
    let seconds = 30.0 + 4.0 * budget * sizes.len() as f64 + large as f64 / 8e6;
    Duration::from_secs_f64(seconds)
}

fn machine(cores: usize) -> String {
    let first = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = first("/proc/cpuinfo");
    let name = cpuinfo.lines().find_map(|l| {
        let (key, value) = l.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    format!(
        "{cores} processors ({}), Linux {}",
        name.unwrap_or("unknown"),
        first("/proc/sys/kernel/osrelease").trim()
    )
}

/// This program's name and arguments, but for where the figures go.
fn typed() -> String {
    let mut words = vec!["peers".to_owned()];
    let mut given = env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--out" => {
                given.next();
            }
            _ => words.push(word),
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use table::Role;

    #[test]
    fn systems_and_experiments_are_chosen_by_name_and_strangers_refused() {
        let names = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen_systems(&[]).expect("all"), System::ALL);
        assert_eq!(
            chosen_systems(&names(&["mpich"])).expect("one"),
            [System::Gaggle, System::Mpich, System::Duplex]
        );
        let alone = chosen_systems(&names(&["gaggle"])).expect("alone");
        assert_eq!(alone, [System::Gaggle, System::Duplex]);
        let error = chosen_systems(&names(&["nccl"]))
            .expect_err("none")
            .to_string();
        assert!(
            error.contains("nccl") && error.contains("openmpi4, openmpi5"),
            "{error}"
        );
        let ids = |words: &[&str]| -> Vec<&str> {
            let chosen = chosen_experiments(&names(words), 2).expect("known");
            chosen.iter().map(|e| e.id).collect()
        };
        assert_eq!(ids(&["shm", "tcp-2"]), ["shm-2", "shm-4", "tcp-2"]);
        assert_eq!(ids(&[]).len(), 13);
        let error = chosen_experiments(&names(&["udp"]), 2)
            .expect_err("none")
            .to_string();
        assert!(
            error.contains("`udp`") && error.contains("bf16-shm-2"),
            "{error}"
        );
    }

    #[test]
    fn a_run_has_longer_the_more_it_has_to_do() {
        assert!(limit(&[4], 0.1) < limit(&[4, 8], 0.1));
        assert!(limit(&[4], 0.1) < limit(&[256 << 20], 0.1));
        assert!(limit(&[4], 0.1) >= Duration::from_secs(30));
    }

    #[test]
    fn contenders_of_ours_and_of_others_are_told_apart() {
        for e in table::experiments(2) {
            let ours = e
                .contenders
                .iter()
                .filter(|c| c.role() == Role::Ours)
                .count();
            let others = e
                .contenders
                .iter()
                .filter(|c| c.role() == Role::Other)
                .count();
            assert!(ours > 0 && others > 0, "{}", e.id);
        }
    }
}
