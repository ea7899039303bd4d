//! How near a registered all-reduce of two processes comes to a kernel that touches memory in the same way and waits for nobody.
//!
//! Both processes map two buffers of ordinary shared memory besides, and each adds its half of one to its half of the other and stores the sums in both, again and again: what an all-reduce in place has to do, without a word between the two.
//! In every round that is timed twice, as a plain loop and by the library's own kernel, and beside it the all-reduce; the faster of the two loops is what there is to be had.

mod rank;
mod raw_memory;

use anyhow::{Context, Result, bail};
use clap::Parser;
use raw_memory::Memory;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    env, fs,
    hash::{BuildHasher, Hasher},
    io::{BufRead, BufReader},
    net::TcpListener,
    os::fd::AsRawFd,
    path::PathBuf,
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The machine does not allow it.
const CANNOT: u8 = 77;
const RANKS: usize = 2;
/// What the all-reduce is to reach of the kernel's bandwidth.
const BAR: f64 = 0.8;

#[derive(Parser)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_parser = gaggle_benches::options::file)]
    out: Option<PathBuf>,
    /// Bytes of each rank's buffer
    #[arg(long, default_value_t = 64 << 20)]
    bytes: usize,
    /// How often everything is timed; a figure is the median
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Used by the program itself: be a rank, and find the memory there
    #[arg(long, hide = true)]
    rank: Option<PathBuf>,
}

impl Args {
    fn plan(&self) -> rank::Plan {
        // Several megabytes are timed at once, however short the buffers are.
        let passes = (256 << 20) / self.bytes.max(1);
        match self.smoke {
            true => rank::Plan {
                len: (1 << 20) / 4,
                rounds: 2,
                passes: 2,
            },
            false => rank::Plan {
                len: self.bytes / 4,
                rounds: self.rounds.max(1),
                passes: passes.clamp(4, 1000),
            },
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.rank {
        Some(memory) => rank::main(memory, &args.plan()),
        None => orchestrate(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(CANNOT),
        Err(error) => {
            eprintln!("bandwidth: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A rank's process, killed when it is dropped; its end is also when its input ends.
struct End {
    child: Child,
    _stdin: Option<ChildStdin>,
}

impl Drop for End {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn orchestrate(args: &Args) -> Result<bool> {
    let plan = args.plan();
    let memory = match Memory::create(2 * 4 * plan.len) {
        Ok(memory) => memory,
        Err(error) => {
            println!("bandwidth: cannot run: no shared memory: {error}");
            return Ok(false);
        }
    };
    let place = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        memory.file().as_raw_fd()
    );
    // A port that was free a moment ago.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let secret: String = (0..4).map(|_| format!("{:016x}", random())).collect();
    let program = env::current_exe().context("cannot tell which program this is")?;
    let mut ends = Vec::new();
    for rank in 0..RANKS {
        let mut command = Command::new(&program);
        command
            .args(["--rank", &place])
            .args(["--bytes", &args.bytes.to_string()])
            .args(["--rounds", &args.rounds.to_string()])
            .args(args.smoke.then_some("--smoke"));
        for name in ["GAGGLE_STORE", "GAGGLE_SECRET_FILE", "GAGGLE_INSECURE"] {
            command.env_remove(name);
        }
        let mut child = command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("GAGGLE_SECRET", &secret)
            .env("GAGGLE_JOB", "bandwidth")
            .env("GAGGLE_TIMEOUT", "60")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a rank")?;
        let stdin = child.stdin.take();
        ends.push(End {
            child,
            _stdin: stdin,
        });
    }
    let limit = Duration::from_secs(if args.smoke { 60 } else { 300 });
    let samples = listen(&mut ends, Instant::now() + limit)?;
    let Some(samples) = samples else {
        println!("bandwidth: cannot run: no registered memory here");
        return Ok(false);
    };
    if args.smoke {
        println!("it works; so short, the figures mean nothing:");
    }
    let figures = report(&plan, &samples)?;
    if let Some(path) = &args.out {
        fs::write(path, Value::Array(figures).to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(true)
}

fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

type Samples = BTreeMap<String, Vec<f64>>;

/// What rank 0 says until it ends well; `None` where it has no registered memory.
fn listen(ends: &mut [End], deadline: Instant) -> Result<Option<Samples>> {
    let stdout = ends[0].child.stdout.take();
    let stdout = stdout.context("a rank without an output")?;
    let (tell, lines) = mpsc::channel();
    thread::Builder::new()
        .name("rank-0-out".into())
        .spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if tell.send(line).is_err() {
                    return;
                }
            }
        })?;
    let mut samples = Samples::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match lines.recv_timeout(left) {
            Ok(line) => line?,
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("the ranks have not ended in time"),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("rank 0 has ended early"),
        };
        match line.split_once('\t') {
            Some((name, seconds)) => {
                let seconds = seconds.parse().with_context(|| line.clone())?;
                samples.entry(name.to_owned()).or_default().push(seconds);
            }
            None if line == rank::NONE => return Ok(None),
            None if line == rank::END => return Ok(Some(samples)),
            None => bail!("a line that makes no sense: {line}"),
        }
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn report(plan: &rank::Plan, samples: &Samples) -> Result<Vec<Value>> {
    let of = |name: &str| {
        let samples = samples.get(name).filter(|s| s.len() == plan.rounds);
        samples.with_context(|| format!("not all rounds of: {name}"))
    };
    let bytes = 4 * plan.len as u64;
    let parameters = json!({"ranks": RANKS, "passes": plan.passes, "dtype": "f32"});
    let mut figures = Vec::new();
    // Two buffers are read and written once, by the two ranks together.
    let moved = 4.0 * bytes as f64;
    println!(
        "{:.4} MiB of f32 in each of {RANKS} processes, medians of {} rounds of {} passes:",
        bytes as f64 / f64::from(1 << 20),
        plan.rounds,
        plan.passes
    );
    for name in [rank::LOOP, rank::KERNEL, rank::ALL_REDUCE] {
        let samples = of(name)?;
        let seconds = median(samples);
        println!(
            "  {name:32} {:9.1} µs {:6.1} GB/s",
            1e6 * seconds,
            1e-9 * moved / seconds
        );
        figures.push(json!({"name": name, "parameters": parameters, "unit": "s", "samples": samples, "bytes": bytes}));
    }
    let best = of(rank::LOOP)?.iter().zip(of(rank::KERNEL)?);
    let best = best.map(|(a, b)| a.min(*b));
    let ratios: Vec<f64> = best
        .zip(of(rank::ALL_REDUCE)?)
        .map(|(b, t)| b / t)
        .collect();
    let ratio = median(&ratios);
    let verdict = if ratio >= BAR { "met" } else { "MISSED" };
    println!("  of the bandwidth of the faster loop: {ratio:.3}; bar: {BAR}: {verdict}");
    figures.push(json!({"name": "all-reduce ÷ unsynchronised", "parameters": parameters, "unit": "ratio", "samples": ratios}));
    Ok(figures)
}
