//! What an idle job costs: processor time and wake-ups of ranks that have everything and do nothing.
//!
//! Each rank has joined, has reduced something in the whole job, in a group and on a registered buffer where there is one, and then waits for its standard input to end, outside of the library.
//! Meanwhile the kernel's own account of every thread (`/proc/PID/task/TID/schedstat` and `status`) is read at the beginning and the end: the busiest rank may take 0.1 % of a processor.
//! [`counter`] sees first that the account moves when a thread is busy; where it does not nothing is judged.

#![forbid(unsafe_code)]

mod counter;

use anyhow::{Context, Result, bail};
use clap::Parser;
use counter::Counter;
use gaggle::{Group, Rank, Sum};
use gaggle_benches::{
    options, perf,
    verdict::{Figure, Line, Report, Table, machine},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::PathBuf,
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The machine does not allow it.
const CANNOT: u8 = 77;
/// Of a processor.
const BAR: f64 = 0.001;
/// Seconds that judge: of fewer a few late wake-ups are more than the bar.
const JUDGES: f64 = 5.0;
const READY: &str = "ready";

#[derive(Parser)]
#[command(about = "What an idle job costs", long_about = None)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_name = "FILE", value_parser = options::file)]
    out: Option<PathBuf>,
    /// Where the table goes; target/bench/idle without it
    #[arg(long, value_name = "DIR", value_parser = options::folder)]
    report: Option<PathBuf>,
    /// How long the ranks are watched
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Watch for 2 seconds, which judges nothing
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Used by the program itself: be a rank
    #[arg(long, hide = true)]
    rank: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.rank {
        rank()
    } else {
        let Some(counter) = Counter::that_counts() else {
            println!("idle: cannot run: this system does not count how long threads have run");
            return ExitCode::from(CANNOT);
        };
        orchestrate(&args, counter)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("idle: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Uses all there is once, then waits until standard input ends.
fn rank() -> Result<()> {
    let job = gaggle::join()?;
    let all: Vec<Rank> = (0..job.size() as u32).map(Rank).collect();
    let group: Group = job.subgroup(&all, "idle")?;
    let mut x = vec![1f32; 100_000];
    for group in [&*job, &group] {
        group.all_reduce(&mut x[..10], Sum)?;
        group.all_reduce(&mut x, Sum)?;
        let mut buffer = group.buffer::<f32>(100_000);
        group.all_reduce(&mut buffer, Sum)?;
    }
    job.barrier()?;
    println!("{READY}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A rank that has said that it is ready.
struct Idle {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Drop for Idle {
    fn drop(&mut self) {
        // All fail only for what has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that is free, and the next one with it.
fn port() -> Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind(("127.0.0.1", 0))?;
        let port = first.local_addr()?.port();
        let next = port.checked_add(1);
        if next.is_some_and(|p| TcpListener::bind(("127.0.0.1", p)).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no two free ports in a row")
}

fn start(ranks: usize, transport: &str) -> Result<Vec<Idle>> {
    let own = env::current_exe().context("cannot tell which program this is")?;
    let port = port()?.to_string();
    let (tell, told) = mpsc::channel();
    let mut all = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(&own);
        perf::clean(&mut command);
        command
            .arg("--rank")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env("GAGGLE_TRANSPORT", transport)
            .env("GAGGLE_TIMEOUT", "30")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a rank")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        all.push(Idle { child, stdin });
        let (stdout, tell) = (stdout.context("a rank without output")?, tell.clone());
        thread::Builder::new()
            .name("listen".into())
            .spawn(move || {
                let mut line = String::new();
                let read = BufReader::new(stdout).read_line(&mut line);
                let ready = read.is_ok() && line.trim() == READY;
                // Nobody listens any more where another rank has failed.
                let _ = tell.send(ready);
            })?;
    }
    let deadline = Instant::now() + Duration::from_secs(40);
    for _ in 0..ranks {
        let left = deadline.saturating_duration_since(Instant::now());
        match told.recv_timeout(left) {
            Ok(true) => {}
            Ok(false) => bail!("a rank ends early, see above"),
            Err(_) => bail!("the ranks are not ready after 40 s"),
        }
    }
    Ok(all)
}

/// Of one thread: nanoseconds on a processor, and how often it went to sleep.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Account {
    ns: u64,
    sleeps: u64,
}

/// By thread: its name, and its account.
fn accounts(counter: Counter, pid: u32) -> Result<BTreeMap<String, (String, Account)>> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let (ran, status) = (
            counter.read(&task.path()),
            fs::read_to_string(task.path().join("status")),
        );
        let (Ok(ran), Ok(status)) = (ran, status) else {
            // A thread that has ended meanwhile.
            continue;
        };
        let account = ran.and_then(|ns| account(ns, &status));
        let (name, account) = account.context("the kernel writes another form")?;
        all.insert(
            task.file_name().to_string_lossy().into_owned(),
            (name, account),
        );
    }
    Ok(all)
}

fn account(ns: u64, status: &str) -> Option<(String, Account)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.map(|l| l.trim_start_matches(':').trim())
    };
    let sleeps = field("voluntary_ctxt_switches")?.parse().ok()?;
    Some((field("Name")?.to_owned(), Account { ns, sleeps }))
}

/// What a rank has used meanwhile: the share of a processor, wake-ups per second, and the thread that used most.
#[derive(Clone, PartialEq, Debug)]
struct Used {
    share: f64,
    wakes: f64,
    busiest: String,
}

fn used(
    before: &BTreeMap<String, (String, Account)>,
    after: &BTreeMap<String, (String, Account)>,
    seconds: f64,
) -> Used {
    let (mut ns, mut sleeps, mut most) = (0, 0, (0, String::from("none")));
    for (id, (name, now)) in after {
        let then = before.get(id).map(|(_, a)| *a).unwrap_or_default();
        let own = now.ns.saturating_sub(then.ns);
        ns += own;
        sleeps += now.sleeps.saturating_sub(then.sleeps);
        if own > most.0 {
            most = (own, name.clone());
        }
    }
    Used {
        share: ns as f64 / 1e9 / seconds,
        wakes: sleeps as f64 / seconds,
        busiest: most.1,
    }
}

fn watch(counter: Counter, (ranks, transport): (usize, &str), seconds: f64) -> Result<Vec<Used>> {
    let mut all = start(ranks, transport)?;
    // Whoever was last in the barrier is still on the way to its standard input.
    thread::sleep(Duration::from_secs_f64(seconds.min(1.0)));
    let look = || -> Result<Vec<_>> {
        {
            let pids = all.iter().map(|i| i.child.id());
            pids.map(|pid| accounts(counter, pid)).collect()
        }
    };
    let (began, before) = (Instant::now(), look()?);
    thread::sleep(Duration::from_secs_f64(seconds));
    let (after, took) = (look()?, began.elapsed().as_secs_f64());
    for idle in &mut all {
        idle.stdin = None;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    for (rank, idle) in all.iter_mut().enumerate() {
        let status = loop {
            match idle.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                None => bail!("rank {rank} does not end"),
            }
        };
        if !status.success() {
            bail!("rank {rank} failed ({status})");
        }
    }
    let pairs = before.iter().zip(&after);
    Ok(pairs.map(|(b, a)| used(b, a, took)).collect())
}

fn orchestrate(args: &Args, counter: Counter) -> Result<()> {
    let seconds = match (args.smoke, args.quick) {
        (true, _) => 0.2,
        (_, true) => 2.0,
        _ => args.seconds.clamp(0.1, 3600.0),
    };
    let mut report = Report {
        head: vec![
            format!("command: cargo xtask bench idle -- --seconds {seconds}"),
            format!("machine: {}", machine()),
            format!("watched for {seconds} s, by {}", counter.name()),
        ],
        unjudged: (seconds < JUDGES).then(|| format!("watched for less than {JUDGES} s")),
        ..Report::default()
    };
    let columns = [
        "transport",
        "ranks",
        "wake-ups per second",
        "busiest thread",
    ];
    let mut table = Table::new("Percent of a processor, the busiest rank", &columns);
    let mut cases = vec![("shm", 2), ("shm", 4), ("tcp", 2), ("tcp", 4)];
    if args.smoke {
        cases.truncate(1);
    }
    for (transport, ranks) in cases {
        let all = watch(counter, (ranks, transport), seconds)
            .with_context(|| format!("{ranks} ranks over {transport}"))?;
        let most = all.iter().max_by(|a, b| a.share.total_cmp(&b.share));
        let most = most.context("no ranks")?;
        table.lines.push(Line {
            cells: vec![
                transport.into(),
                ranks.to_string(),
                format!("{:.1}", most.wakes),
                most.busiest.clone(),
            ],
            held: Some((100.0 * most.share, 100.0 * BAR)),
        });
        for (what, of) in [
            ("share of a processor", Used::share as fn(&Used) -> f64),
            ("wake-ups per second", Used::wakes),
        ] {
            report.figures.push(Figure {
                name: format!("{transport}-{ranks}/{what}"),
                parameters: json!({"transport": transport, "ranks": ranks, "seconds": seconds}),
                unit: "ratio",
                samples: all.iter().map(of).collect(),
                bytes: None,
            });
        }
    }
    report.tables.push(table);
    println!("{}", report.markdown());
    if args.smoke {
        println!("it works; so short, the figures mean nothing");
        return report.write_figures(args.out.as_deref());
    }
    let beside = perf::beside()?;
    let target = beside
        .parent()
        .context("this program lies in no target directory")?;
    let dir = args.report.clone();
    report.write(&dir.unwrap_or_else(|| target.join("bench/idle")), "idle")?;
    report.write_figures(args.out.as_deref())
}

impl Used {
    fn share(&self) -> f64 {
        self.share
    }

    fn wakes(&self) -> f64 {
        self.wakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_accounted_for() {
        let status = "Name:\tgaggle-progress-0\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t5\n";
        let (name, account) = account(1_500_000, status).expect("read");
        assert_eq!(name, "gaggle-progress-0");
        let wanted = Account {
            ns: 1_500_000,
            sleeps: 12,
        };
        assert_eq!(account, wanted);
    }

    #[test]
    fn a_rank_is_the_sum_of_its_threads() {
        let of = |list: &[(&str, u64, u64)]| -> BTreeMap<String, (String, Account)> {
            let all = list.iter();
            all.map(|(id, ns, sleeps)| {
                let account = Account {
                    ns: *ns,
                    sleeps: *sleeps,
                };
                ((*id).to_owned(), (format!("thread {id}"), account))
            })
            .collect()
        };
        let before = of(&[("1", 1_000_000, 3), ("2", 0, 1)]);
        let after = of(&[
            ("1", 3_000_000, 7),
            ("2", 1_000_000, 2),
            ("3", 1_000_000, 1),
        ]);
        let wanted = Used {
            share: 0.002,
            wakes: 3.0,
            busiest: "thread 1".into(),
        };
        assert_eq!(used(&before, &after, 2.0), wanted);
    }
}
