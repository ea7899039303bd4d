//! One rank of the shared-memory spike, and the starter of several; see [`act`].

use anyhow::{Context, Result, bail, ensure};
use gaggle_core::{Cause, Rank, Reduce, Region, Weight, descriptor::stable_hash, raw::bytes_of};
use gaggle_spikes::shared::{Members, Stop, meet::meet, plans, work};
use half::bf16;
use std::{
    env,
    io::Write,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

pub(crate) fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["rank", ref role @ ..] => act(role),
        [n] => start(n.parse()?),
        _ => start(2),
    }
}

/// Starts the ranks and waits for them.
fn start(n: u32) -> Result<()> {
    let name = format!("gaggle-spike-{}", std::process::id());
    let ranks: Vec<_> = (0..n)
        .map(|rank| {
            Command::new(env::current_exe()?)
                .args(["rank", "time"])
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", n.to_string())
                .env("SPIKE_MEETING", &name)
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    for mut rank in ranks {
        ensure!(rank.wait()?.success(), "a rank has failed");
    }
    Ok(())
}

/// One rank.
fn act(role: &[&str]) -> Result<()> {
    let me = Rank(env::var("RANK").context("RANK")?.parse()?);
    let world: u32 = env::var("WORLD_SIZE").context("WORLD_SIZE")?.parse()?;
    let name = env::var("SPIKE_MEETING").context("SPIKE_MEETING")?;
    let mut members = meet(&name, me, world, 256 << 20, work::PATIENCE)?;
    match *role {
        ["compare"] => compare(&mut members, me, world),
        ["mismatch"] => mismatch(&mut members, me, world),
        ["fail", how, sever, dir] => fail(&mut members, me, world, (how, sever), Path::new(dir)),
        ["time"] => time(&mut members, me, world),
        _ => bail!("no role {role:?}"),
    }
}

/// Every operation of the comparison with the engine, and broadcasts.
fn compare(members: &mut Members, me: Rank, world: u32) -> Result<()> {
    let mut lines = Vec::new();
    for reduce in [Reduce::Sum, Reduce::Mean, Reduce::Max] {
        lines.extend(work::all_reduces::<f32>(members, me, world, reduce)?);
        lines.extend(work::all_reduces::<f64>(members, me, world, reduce)?);
        lines.extend(work::all_reduces::<bf16>(members, me, world, reduce)?);
        if reduce != Reduce::Mean {
            lines.extend(work::all_reduces::<i32>(members, me, world, reduce)?);
        }
    }
    for root in (0..world).map(Rank) {
        let mut x = work::buffer::<f32>(members, 4099)?;
        x.copy_from_slice(&work::contribution::<f32>(me, 4099));
        let mut x = Region::new(x);
        let plan = plans::broadcast(root, (me, world), 4099)?;
        members.run(&plan, Weight::ONE, None, &mut x, work::PATIENCE)?;
        let same = x
            .typed::<f32>()
            .is_some_and(|x| *x == work::contribution::<f32>(root, 4099)[..]);
        ensure!(same, "a broadcast from {root}");
    }
    for n in [0, 1, 4099] {
        let mut x = work::buffer::<f64>(members, n)?;
        x.copy_from_slice(&work::contribution::<f64>(me, n));
        let mut x = Region::new(x);
        let mut all = Region::new(work::buffer::<f64>(members, n * world as usize)?);
        let plan = plans::all_gather((me, world), n as u64)?;
        members.run(&plan, Weight::ONE, Some(&mut x), &mut all, work::PATIENCE)?;
        let parts = (0..world).map(|r| work::contribution::<f64>(Rank(r), n));
        let want = parts.collect::<Vec<_>>().concat();
        ensure!(
            all.typed::<f64>().is_some_and(|all| *all == want[..]),
            "an all-gather"
        );
    }
    lines.iter().for_each(|line| say(line));
    Ok(())
}

/// Rank 1 calls another operation than the others.
fn mismatch(members: &mut Members, me: Rank, world: u32) -> Result<()> {
    let mut x = work::buffer::<f32>(members, 1000)?;
    x.fill(me.0 as f32);
    let mut x = Region::new(x);
    let reduce = if me == Rank(1) {
        Reduce::Max
    } else {
        Reduce::Sum
    };
    let plan = plans::all_reduce(reduce, (me, world), 1000, false)?;
    let error = members.run(&plan, Weight::ONE, None, &mut x, work::PATIENCE);
    let error = error.err().context("it went well")?;
    let intact = x
        .typed::<f32>()
        .is_some_and(|x| x.iter().all(|x| *x == me.0 as f32));
    ensure!(
        matches!(error.cause(), Cause::Mismatch { .. }) && intact,
        "{error}"
    );
    say(&format!("mismatch {:?}", error.culprits()));
    Ok(())
}

/// Rank 1 stands still somewhere. The others tell what they are told, and what their memory is then and later.
fn fail(
    members: &mut Members,
    me: Rank,
    world: u32,
    (how, sever): (&str, &str),
    dir: &Path,
) -> Result<()> {
    // Some tiles for each rank.
    const N: u64 = 300_007;
    members.sever = sever == "sever";
    let mut limit = Duration::from_millis(1500);
    let mine = work::contribution::<f32>(me, N as usize);
    let mut x = work::buffer::<f32>(members, N as usize)?;
    x.copy_from_slice(&mine);
    let mut x = Region::new(x);
    // Both ways come up: out of place the output begins as zeros.
    let mut input = None;
    let mut before = mine.clone();
    if how == "mid-write" {
        before.fill(0.0);
        input = Some(x);
        x = Region::new(work::buffer::<f32>(members, N as usize)?);
    }
    let plan = plans::all_reduce(Reduce::Sum, (me, world), N, input.is_some())?;
    // All are here, and one operation has gone well.
    let mut y = work::buffer::<f32>(members, 1)?;
    y[0] = 1.0;
    let warm = plans::all_reduce(Reduce::Sum, (me, world), 1, false)?;
    members.run(
        &warm,
        Weight::ONE,
        None,
        &mut Region::new(y),
        work::PATIENCE,
    )?;
    if me == Rank(1) {
        members.stop = Some(match how {
            "before-write" => Stop::BeforeWrite(2),
            "mid-write" => Stop::MidWrite(2),
            "before-arrival" => Stop::BeforeArrival,
            other => bail!("no place {other}"),
        });
        // How long it stands still is not its own time.
        limit = work::PATIENCE;
        say("ready now");
    }
    let result = members.run(&plan, Weight::ONE, input.as_mut(), &mut x, limit);
    let Err(error) = result else {
        bail!("it went well")
    };
    let digest = |x: &mut Region| stable_hash(&[x.typed::<f32>().map_or(&[], |x| bytes_of(x))]);
    say(&format!("told {error}"));
    let untouched = x.typed::<f32>().is_some_and(|x| *x == before[..]);
    say(&format!("untouched {untouched}"));
    let input = input
        .as_mut()
        .map(|r| r.typed::<f32>().is_some_and(|x| *x == mine[..]));
    ensure!(input != Some(false), "the input was written");
    say(&format!("digest {:016x}", digest(&mut x)));
    if me != Rank(1) {
        // Rank 1 has come to its end meanwhile.
        while !dir.join("later").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        say(&format!("later {:016x}", digest(&mut x)));
        let again = members.run(&warm, Weight::ONE, None, &mut x, limit).err();
        say(&format!("again {}", again.context("it went on")?));
        // Whole, and the owner's alone.
        let all = x.typed::<f32>().context("its own type")?;
        all.fill(5.0);
        ensure!(all.iter().all(|v| *v == 5.0), "not writable");
    }
    Ok(())
}

/// What an all-reduce takes, untuned; and what severing costs.
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn time(members: &mut Members, me: Rank, world: u32) -> Result<()> {
    for n in [1u64, 4096, 1 << 20] {
        let mut x = work::buffer::<f32>(members, n as usize)?;
        x.fill(1.0);
        let mut x = Region::new(x);
        let plan = plans::all_reduce(Reduce::Max, (me, world), n, false)?;
        let mut times = Vec::new();
        for _ in 0..100 {
            let start = Instant::now();
            members.run(&plan, Weight::ONE, None, &mut x, work::PATIENCE)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        if me == Rank(0) {
            println!("{world} ranks, {:9} bytes: median {:?}", n * 4, times[50]);
        }
    }
    if me == Rank(0) {
        // Nobody else comes: the deadline is over at once, and what is left is the severing.
        let mut x = Region::new(work::buffer::<f32>(members, 16 << 20)?);
        let plan = plans::all_reduce(Reduce::Max, (me, world), 16 << 20, false)?;
        let start = Instant::now();
        let result = members.run(&plan, Weight::ONE, None, &mut x, Duration::ZERO);
        println!(
            "a failure with 64 MiB: {:?} ({})",
            start.elapsed(),
            result.is_err()
        );
    }
    Ok(())
}

/// One line, at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever listened is gone: then nobody misses it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
