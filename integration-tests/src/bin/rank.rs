//! A rank that does what its arguments say: `rank ROLE [ARGUMENT]`, see [`act`].

use gaggle::{Engine, EngineConfig, Group, Mean, Rank, core, transport};
use gaggle_integration_tests::{
    bluefog,
    memory::Memory,
    shared::{self, How},
    work::{self, Trouble, blame},
};
use std::{
    env, hint,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};
use transport::{
    auth::{Credentials, Secret},
    control::TcpControl,
    processors::{NodeSetting, Seat, Seats},
    rendezvous::Rendezvous,
    store::StoreClient,
    tcp::{TcpConfig, TcpTransport},
};

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match act(&args) {
        Ok(code) => code,
        Err(trouble) => {
            eprintln!("rank: {trouble}");
            ExitCode::FAILURE
        }
    }
}

fn act(args: &[&str]) -> Result<ExitCode, Trouble> {
    match *args {
        ["unjoined"] if env::var("RANK").is_ok_and(|rank| rank == "0") => {
            say("ready");
            compute();
        }
        ["strangers", dir] => return strangers(Path::new(dir)),
        _ => {}
    }
    let job = gaggle::join()?;
    match *args {
        ["collectives", ref rest @ ..] => say(&work::collectives(&job, memory(rest)?)?),
        ["mismatches", memory] => say(&shared::mismatches(&job, memory.parse()?)?),
        ["orders", memory] => say(&shared::orders(&job, memory.parse()?)?),
        ["results", memory] => say(&shared::results(&job, memory.parse()?)?),
        ["forked"] => say(&shared::forked(&job)?),
        ["room", memory, mib] => say(&shared::room(&job, memory.parse()?, mib.parse()?)?),
        ["too-much", mib] => say(&shared::too_much(&job, mib.parse()?)?),
        ["promised", mib] => say(&shared::promised(&job, mib.parse()?)?),
        ["steps", memory, dir] => {
            say(&shared::steps(&job, memory.parse()?, || {
                if job.rank() == Rank(0) {
                    say("halfway");
                    await_file(&Path::new(dir).join("half"));
                }
            })?);
        }
        ["stragglers", memory, how, mib, rounds, dir] => {
            let what = (memory.parse()?, named(how)?, mib.parse::<usize>()? << 20);
            shared::stragglers(&job, what, rounds.parse()?, Path::new(dir), &say)?;
        }
        ["endless-on", memory, how, bytes] => {
            let (how, bytes) = (named(how)?, bytes.parse()?);
            let error = shared::endless(&job, memory.parse()?, how, bytes, || say("ready"))?;
            return survive(&job, &error, Rank(1));
        }
        ["bluefog", part] => {
            let named = bluefog::Part::named(part);
            let part = named.ok_or_else(|| format!("{part:?} is no part of the inventory"))?;
            say(&bluefog::run(&job, part)?);
        }
        ["payload"] => say(&work::payload(&job)?),
        ["mismatch", trial] => say(&work::mismatch(&job, trial)?),
        ["equal-ranks"] => say(&work::equal_ranks(&job)?),
        ["endless", how] => return endless(&job, how, Rank(1), || say("ready")),
        ["stop-short", how] => {
            return endless(&job, how, Rank(1), || {
                say("ready");
                if job.rank() == Rank(1) {
                    stop_here();
                }
            });
        }
        ["vanish"] => {
            job.barrier()?;
            // Its end is well, but it leaves nobody and nothing behind in order.
            std::process::exit(0);
        }
        ["panic"] => {
            job.barrier()?;
            if job.rank() == Rank(2) {
                panic!("the dice said so");
            }
            return endless(&job, "ring", Rank(2), || ());
        }
        ["unlinked"] => return unlinked(&job),
        ["rebuild"] => return rebuild(&job),
        ["tolerate"] => return tolerate(&job),
        ["unjoined"] => return Err("joined a world whose rank 0 is elsewhere".into()),
        ["busy"] => {
            job.barrier()?;
            say("ready");
            match job.rank().0 {
                0 => compute(),
                1 => loop {
                    thread::park();
                },
                _ => job.all_reduce(&mut [0.0_f32; 1000], Mean)?,
            };
        }
        _ => return Err(format!("no role {args:?}").into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Where buffers lie; ordinary memory where nothing is said.
fn memory(rest: &[&str]) -> Result<Memory, Trouble> {
    Ok(rest
        .first()
        .map_or(Ok(Memory::Plain), |name| name.parse())?)
}

fn named(how: &str) -> Result<How, Trouble> {
    How::named(how).ok_or_else(|| format!("{how:?} is no operation of these trials").into())
}

/// One line, at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever listened is gone: then nobody misses it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn compute() -> ! {
    loop {
        hint::spin_loop();
    }
}

/// Stands still, as by Ctrl-Z: alive for the system, silent for everybody else.
fn stop_here() {
    let me = rustix::process::getpid();
    // Whoever waits for this rank to be silent notices that it is not.
    let _ = rustix::process::kill_process(me, rustix::process::Signal::STOP);
}

/// Works until something ends it, says what, and meets the survivors, all but `victim`.
fn endless(
    group: &Group,
    how: &str,
    victim: Rank,
    begun: impl FnOnce(),
) -> Result<ExitCode, Trouble> {
    let error = match how.strip_prefix("mix-") {
        Some(graph) => work::endless_mix(group, graph, begun),
        None => {
            let algorithm = work::ALL_REDUCE.into_iter().find(|a| a.name() == how);
            work::endless(group, algorithm.ok_or("no such algorithm")?, begun)
        }
    };
    survive(group, &error, victim)
}

/// Says what has ended the work, and meets the survivors, all but `victim`.
fn survive(group: &Group, error: &gaggle::Error, victim: Rank) -> Result<ExitCode, Trouble> {
    say(&blame(error));
    say(&format!("text {error}"));
    let all = (0..group.size() as u32).map(Rank);
    let survivors: Vec<Rank> = all.filter(|rank| *rank != victim).collect();
    group.subgroup(&survivors, "survivors")?.barrier()?;
    say("survivors met");
    Ok(ExitCode::from(3))
}

/// Rank 1 stops before it can take any connection. The others want something of it, and, when that has ended, something else.
fn unlinked(job: &Group) -> Result<ExitCode, Trouble> {
    let victim = Rank(1);
    if job.rank() == victim {
        say("ready");
        stop_here();
        compute();
    }
    let stats = job.stats();
    if stats.connections > 0 {
        return Err(format!("connections before any message: {stats:?}").into());
    }
    say("ready");
    for what in ["a receive", "a later send", "a later all-reduce"] {
        let ended = match what {
            "a receive" => job.recv(&mut [0_u8; 8], victim, 1),
            "a later send" => job.send(&[0_u8; 8], victim, 2),
            _ => job.all_reduce(&mut [0.0_f32; 8], Mean),
        };
        let error = ended.err().ok_or("it has gone well")?;
        say(&format!("{what}: {}", blame(&error)));
    }
    let all = (0..job.size() as u32).map(Rank);
    let survivors: Vec<Rank> = all.filter(|rank| *rank != victim).collect();
    job.subgroup(&survivors, "survivors")?.barrier()?;
    say("survivors met");
    Ok(ExitCode::from(3))
}

/// Trains until a rank dies; then the survivors agree on who they are, and finish.
fn rebuild(job: &Group) -> Result<ExitCode, Trouble> {
    let me = f64::from(job.rank().0);
    let step = |group: &Group| {
        let mut x = vec![me + 1.0; 10_000];
        group.all_reduce(&mut x, core::Sum).map(|_| x[9_999])
    };
    step(job)?;
    say("ready");
    let error = loop {
        if let Err(error) = step(job) {
            break error;
        }
    };
    say(&format!("text {error}"));
    let group = job.rebuild(Duration::from_secs(20))?;
    let n = group.size() as f64;
    let mut sum = 0.0;
    for _ in 0..20 {
        sum = step(&group)?;
        let mut mean = [me + 1.0];
        group.all_reduce(&mut mean, Mean)?;
        if (mean[0] * n - sum).abs() > 1e-9 {
            return Err(format!("{n} times the mean {} is not {sum}", mean[0]).into());
        }
    }
    let info = group.communicator().info();
    say(&format!(
        "rebuilt {} of {}, epoch {}, sum {sum}",
        group.size(),
        info.initial_size,
        info.epoch
    ));
    group.barrier()?;
    Ok(ExitCode::from(3))
}

/// Averages with everybody until somebody is missing, and then a while without.
fn tolerate(job: &Group) -> Result<ExitCode, Trouble> {
    let (me, n) = (job.rank(), job.size() as u32);
    let others = || (0..n).map(Rank).filter(|r| *r != me);
    let round = core::Round {
        from: others().map(|r| (r, 1.0 / f64::from(n))).collect(),
        to: others().map(|r| (r, 1.0)).collect(),
        keep: 1.0 / f64::from(n),
        form: core::Form::Delta,
    };
    let mut without = 0;
    // The last element says who has seen enough: whether rank 1 is there in the round of its death differs from rank to rank, so all must end with the first that does.
    let enough = 9_999;
    for t in 0.. {
        let kind = core::Kind::Mix {
            round: round.clone(),
            t,
        };
        let op = core::Op::new(kind).on_missing(core::OnMissing::Tolerate);
        let mut x = vec![f64::from(me.0); 10_000];
        x[enough] = f64::from(u8::from(without >= 49));
        let done = job.run(&op, &mut x)?;
        if t == 0 {
            say("ready");
        }
        if done.missing.is_empty() {
            continue;
        }
        without += 1;
        let w = 1.0 / f64::from(n);
        let there = others().filter(|r| !done.missing.contains(r));
        let want = there.fold(f64::from(me.0), |x, r| {
            x + w * (f64::from(r.0) - f64::from(me.0))
        });
        // In the round of the death its value may have come although it could take nothing any more.
        if without > 1 && (x[0] - want).abs() > 1e-9 {
            return Err(format!("{} without {:?}, not {want}", x[0], done.missing).into());
        }
        if x[enough] > 0.0 {
            let missing = core::name_ranks(&done.missing);
            say(&format!("went on without {missing}"));
            // Who left now would be missed by those who are a round behind.
            let all = (0..n).map(Rank);
            let rest: Vec<Rank> = all.filter(|r| !done.missing.contains(r)).collect();
            job.subgroup(&rest, "survivors")?.barrier()?;
            return Ok(ExitCode::from(3));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Trains with strangers about. Rank 3 holds up the meeting until the file `go` is there, rank 0 the training until `half` is.
fn strangers(dir: &Path) -> Result<ExitCode, Trouble> {
    let halfway = |rank: Rank| {
        let dir = dir.to_owned();
        move || {
            if rank == Rank(0) {
                say("halfway");
                await_file(&dir.join("half"));
            }
        }
    };
    if env::var("RANK")? == "3" {
        let (engine, store) = slow_join(dir.join("go"))?;
        say(&work::train(&engine.group(), halfway(Rank(3)))?);
        drop(engine);
        store.goodbye()?;
    } else {
        let job = gaggle::join()?;
        say(&work::train(&job, halfway(job.rank()))?);
    }
    Ok(ExitCode::SUCCESS)
}

fn await_file(path: &Path) {
    while !path.exists() {
        thread::sleep(Duration::from_millis(5));
    }
}

/// As `gaggle::join` under `gaggle run`, but with a store that keeps the others' ports back until a file is there: as long the other ranks listen.
fn slow_join(go: PathBuf) -> Result<(Engine, StoreClient), Trouble> {
    const LIMIT: Duration = Duration::from_secs(60);
    let rank = Rank(env::var("RANK")?.parse()?);
    let world = env::var("WORLD_SIZE")?.parse()?;
    let creds = Credentials {
        job: env::var("GAGGLE_JOB")?,
        epoch: 0,
        secret: Secret::from_hex(&env::var("GAGGLE_SECRET")?)?,
    };
    let client = StoreClient::connect(env::var("GAGGLE_STORE")?, &creds, rank, LIMIT)?;
    let slow = Slow { inner: &client, go };
    let mut meeting = Rendezvous::over(&client, rank, world, &creds, LIMIT);
    meeting.store = &slow;
    let hosts = meeting.hosts()?;
    // It shares no memory, as the others do not under `GAGGLE_TRANSPORT=tcp`.
    #[cfg(target_os = "linux")]
    transport::shm::meet::decline(&meeting)?;
    meeting.agree("mapped", false)?;
    let seats = meeting.seats(&Seat::here(NodeSetting::Auto.node()))?;
    let seats = Seats::of(rank.idx(), &hosts, &seats);
    let met = meeting.introduce()?;
    let reach = met.reach.ok_or("nobody is to be reached")?;
    let link = TcpTransport::reaching(rank, reach, TcpConfig::default())?;
    let control = TcpControl::new(rank, world, met.control)?;
    let clock = Arc::new(core::SystemClock::new());
    let mut config = EngineConfig::default();
    config.hosts = Some(hosts.into());
    config.nodes = seats.nodes.map(Into::into);
    config.crowded = seats.crowded;
    let engine = Engine::new(vec![Box::new(link)], Box::new(control), clock, config)?;
    Ok((engine, client))
}

struct Slow<'a> {
    inner: &'a StoreClient,
    go: PathBuf,
}

impl core::Store for Slow<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), gaggle::Error> {
        self.inner.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, gaggle::Error> {
        if key.contains("/port/") {
            await_file(&self.go);
        }
        self.inner.get(key, timeout)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64, gaggle::Error> {
        self.inner.add(key, delta)
    }
    fn compare_and_set(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Vec<u8>, gaggle::Error> {
        self.inner.compare_and_set(key, old, new)
    }
    fn barrier(&self, name: &str, n: u32, timeout: Duration) -> Result<(), gaggle::Error> {
        self.inner.barrier(name, n, timeout)
    }
}
