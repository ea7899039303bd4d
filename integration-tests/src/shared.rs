//! What ranks of one host do in the trials of shared memory: on registered, ordinary and mixed buffers, small and large.

use crate::{
    memory::{Memory, fill, world_rank},
    raw_fork::in_a_fork,
    work::{Number, Trouble, blame, value},
};
use gaggle::{
    Buffer, Cause, Counts, Element, Error, Form, Group, Kind, Max, Mean, Mode, Op, Rank, Reduce,
    Round, Sum, core::raw::bytes_of, topology::by_name,
};
use half::bf16;
use std::{
    fmt::Write as _,
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Bytes of a buffer of these trials: two small and two large ones.
pub const SIZES: [usize; 4] = [8, 4 << 10, 1 << 20, 16 << 20];

/// The deadline that these trials are run with, in seconds (`GAGGLE_TIMEOUT`).
pub const DEADLINE: u64 = 5;

/// Trial 1 at each of [`SIZES`]: who calls something else is named by everybody, within the deadline, nobody's input is touched where nothing else is said, and the next operation is right.
///
/// # Errors
/// It is not so.
pub fn mismatches(group: &Group, memory: Memory) -> Result<String, Trouble> {
    let me = group.rank();
    let mut told = 0;
    for bytes in SIZES {
        let n = bytes / 4;
        for (trial, deviating) in [
            ("shorter", vec![0]),
            ("halves", vec![0, 1, 2, 3]),
            ("barrier", vec![1]),
            ("broadcast", vec![2]),
        ] {
            let short = match trial {
                "shorter" => me.0 == 0,
                "halves" => me.0 < 2,
                _ => false,
            };
            let mut x: Buffer<f32> = memory.filled(group, if short { n / 2 } else { n }, |_| 1.0);
            let start = Instant::now();
            let result = match trial {
                "barrier" if me.0 == 1 => group.barrier(),
                "broadcast" if me.0 == 2 => group.broadcast(&mut x, me).map(drop),
                _ => group.all_reduce(&mut x, Sum).map(drop),
            };
            let what = format!("{trial} of {bytes} bytes, {memory}");
            let mut again: Buffer<f32> = memory.filled(group, n, |_| 1.0);
            let (error, next) = match result {
                Err(error) => (error, group.all_reduce(&mut again, Sum).map(drop)),
                // A root that only sends may be done before anybody could object: then its next operation says so, and is carried out all the same.
                Ok(()) if trial == "broadcast" && me.0 == 2 => {
                    let next = group.all_reduce(&mut again, Sum);
                    let error = next.err().ok_or(format!("{what}: nobody noticed"))?;
                    (error, Ok(()))
                }
                Ok(()) => return Err(format!("{what}: nobody noticed").into()),
            };
            let took = start.elapsed();
            next.map_err(|e| format!("{what}: afterwards {e}"))?;
            let Cause::Mismatch {
                op,
                deviating: named,
                versions,
                partly_written,
            } = error.cause()
            else {
                return Err(format!("{what}: {error}").into());
            };
            if took > Duration::from_secs(DEADLINE) {
                return Err(format!("{what}: only after {took:?}: {error}").into());
            }
            let named: Vec<u32> = named.iter().map(|r| r.0).collect();
            // A root that was done before has heard of one of the others only, so that with it all of two are named.
            let late = trial == "broadcast" && me.0 == 2 && named.contains(&2);
            if !(named == deviating || late) || versions.len() != 2 || !op.contains('#') {
                return Err(format!("{what}: not {deviating:?}: {error}").into());
            }
            if !partly_written && x.iter().any(|v| *v != 1.0) {
                return Err(format!("{what}: touched, which is not said: {error}").into());
            }
            if again.iter().any(|v| *v != group.size() as f32) {
                return Err(format!("{what}: the next operation is wrong").into());
            }
            told += 1;
        }
    }
    Ok(format!("{told} told"))
}

/// Trial 2: large numbers that cancel, in each order that there is, and every element alike whatever its place. Returns hashes of what `ordered` gives.
///
/// # Errors
/// Ranks disagree, places do, or an exact sum is not.
pub fn orders(group: &Group, memory: Memory) -> Result<String, Trouble> {
    let (me, world) = (group.rank().idx(), group.size());
    let mut hash = 0;
    for bytes in SIZES {
        let n = bytes / 4;
        let large = bytes > 1 << 20;
        if world == 4 {
            for order in distinct_orders()
                .into_iter()
                .take(if large { 1 } else { 12 })
            {
                for mode in [Mode::Default, Mode::Ordered, Mode::Exact] {
                    if large && mode == Mode::Exact {
                        continue;
                    }
                    let mut x: Buffer<f32> = memory.filled(group, n, |_| order[me]);
                    let op = Op::new(Kind::AllReduce(Reduce::Sum)).in_mode(mode);
                    group.run(&op, &mut x)?;
                    let what = format!("{mode:?} {order:?} of {bytes} bytes");
                    alike(group, &x, &what)?;
                    if mode == Mode::Exact && x.iter().any(|v| *v != 2.0) {
                        return Err(format!("{what}: {}, not 2", x[0]).into());
                    }
                    if mode == Mode::Ordered {
                        hash = hash_of(hash, &x);
                        if x.iter().any(|v| v.to_bits() != x[0].to_bits()) {
                            return Err(format!("{what}: places differ").into());
                        }
                    }
                }
            }
        }
        for mode in [Mode::Default, Mode::Ordered] {
            let mut x: Buffer<f32> = memory.filled(group, n, |i| value(group.rank(), i));
            let op = Op::new(Kind::AllReduce(Reduce::Mean)).in_mode(mode);
            group.run(&op, &mut x)?;
            alike(group, &x, "a mean")?;
            if mode == Mode::Ordered {
                hash = hash_of(hash, &x);
                // The inputs repeat after 97 elements.
                let differs = |i: usize| x[i].to_bits() != x[i % 97].to_bits();
                if let Some(i) = (0..n).find(|i| differs(*i)) {
                    return Err(format!("elements {i} and {} differ", i % 97).into());
                }
            }
        }
    }
    Ok(format!("{hash:016x}"))
}

fn distinct_orders() -> Vec<[f32; 4]> {
    let mut all: Vec<[f32; 4]> = vec![];
    for a in 0..4 {
        for b in (0..4).filter(|b| *b != a) {
            let mut order = [1.0; 4];
            (order[a], order[b]) = (1e8, -1e8);
            all.push(order);
        }
    }
    all
}

/// All ranks hold the same bits.
fn alike<T: Element>(group: &Group, x: &[T], what: &str) -> Result<(), Trouble> {
    let all = group.all_gather(&[hash_of(0, x)])?;
    match all.iter().all(|h| *h == all[0]) {
        true => Ok(()),
        false => Err(format!("{what}: the ranks differ: {all:x?}").into()),
    }
}

/// Mixes values into a hash; faster than [`stable_hash`](gaggle::core::descriptor::stable_hash) in builds for tests.
fn hash_of<T: Element>(seed: u64, x: &[T]) -> u64 {
    let (words, rest) = bytes_of(x).as_chunks::<8>();
    let mix = |h: u64, w: u64| (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let h = words
        .iter()
        .fold(seed, |h, w| mix(h, u64::from_le_bytes(*w)));
    rest.iter()
        .fold(mix(h, x.len() as u64), |h, b| mix(h, u64::from(*b)))
}

/// Every kind of operation by whatever algorithm is chosen, small and large; one word with the hash of each result.
///
/// # Errors
/// An operation fails.
pub fn results(group: &Group, memory: Memory) -> Result<String, Trouble> {
    let mut text = String::new();
    let mut t = 0;
    for bytes in SIZES {
        each_kind::<f32>(group, memory, bytes, &mut t, &mut text)?;
        if bytes <= 1 << 20 {
            each_kind::<f64>(group, memory, bytes, &mut t, &mut text)?;
            each_kind::<bf16>(group, memory, bytes, &mut t, &mut text)?;
            whole_numbers::<i32>(group, memory, bytes, &mut text)?;
            whole_numbers::<u8>(group, memory, bytes, &mut text)?;
        }
    }
    group.barrier()?;
    Ok(text)
}

fn each_kind<T: Number + gaggle::Float>(
    group: &Group,
    memory: Memory,
    bytes: usize,
    t: &mut u64,
    text: &mut String,
) -> Result<(), Trouble> {
    whole_numbers::<T>(group, memory, bytes, text)?;
    let n = bytes / size_of::<T>();
    let me = group.rank();
    let given = |n| memory.filled::<T>(group, n, |i| value(me, i));
    let mut note = |what: &str, x: &[T]| {
        let _ = write!(text, "{what}/{bytes}/{}={:016x} ", T::DTYPE, hash_of(0, x));
    };
    let mut x = given(n);
    group.all_reduce(&mut x, Mean)?;
    note("mean", &x);
    for name in ["ring", "exp2", "fully-connected"] {
        let graph = by_name(name, group.size())?;
        let mut round = Round::default();
        graph.round(me, *t, &mut round);
        let mut x = given(n);
        group.mix(&mut x, &round, *t)?;
        note(name, &x);
        *t += 1;
    }
    Ok(())
}

fn whole_numbers<T: Number>(
    group: &Group,
    memory: Memory,
    bytes: usize,
    text: &mut String,
) -> Result<(), Trouble> {
    let n = bytes / size_of::<T>();
    let (me, world) = (group.rank(), group.size());
    let given = |n| memory.filled::<T>(group, n, |i| value(me, i));
    let mut note = |what: &str, x: &[T]| {
        let _ = write!(text, "{what}/{bytes}/{}={:016x} ", T::DTYPE, hash_of(0, x));
    };
    let last = Rank(world as u32 - 1);
    let mut x = given(n);
    group.all_reduce(&mut x, Sum)?;
    note("sum", &x);
    let mut x = given(n);
    group.all_reduce(&mut x, Max)?;
    note("max", &x);
    let x = given(n);
    let mut y = memory.zeros::<T>(group, n);
    group.all_reduce_into(&x, &mut y, Sum)?;
    note("sum_into", &y);
    let mut x = given(n);
    group.broadcast(&mut x, last)?;
    note("broadcast", &x);
    let mut x = given(n);
    group.reduce(&mut x, last, Sum)?;
    if me == last {
        note("reduce", &x);
    }
    let part = n / world;
    let x = given(part);
    note("all_gather", &group.all_gather(&x)?);
    note("gather", &group.gather(&x, last)?);
    let x = given(part * world);
    let mut y = memory.zeros::<T>(group, part);
    group.reduce_scatter(&x, &mut y, Sum)?;
    note("reduce_scatter", &y);
    group.scatter(if me == last { &x } else { &[] }, &mut y, last)?;
    note("scatter", &y);
    let mut y = memory.zeros::<T>(group, part * world);
    group.all_to_all(&x, &mut y)?;
    note("all_to_all", &y);
    Ok(())
}

/// What a rank gives to the k-th operation of [`checked`]: whole numbers, so that every order of adding gives the same.
fn given(rank: Rank, k: u64, i: usize) -> f32 {
    ((i * 7 + k as usize * 13 + rank.idx() * 31) % 1000) as f32
}

/// Which operation [`checked`] carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// An all-reduce in place: ranks write into each other's results.
    Reduce,
    /// An average with both neighbours on a ring, in place: ranks read each other's values.
    Average,
    /// A broadcast by rank 1.
    Broadcast,
    /// An all-gather in place, of what is equally long for all.
    AllGather,
    /// A reduce-scatter in place, likewise.
    ReduceScatter,
    /// An all-to-all in place, likewise.
    AllToAll,
}

impl How {
    /// By its name: `reduce`, `average`, `broadcast`, `all-gather`, `reduce-scatter` or `all-to-all`.
    pub fn named(name: &str) -> Option<How> {
        Some(match name {
            "reduce" => How::Reduce,
            "average" => How::Average,
            "broadcast" => How::Broadcast,
            "all-gather" => How::AllGather,
            "reduce-scatter" => How::ReduceScatter,
            "all-to-all" => How::AllToAll,
            _ => return None,
        })
    }
}

/// The k-th operation on `x`, whose result is checked element by element.
///
/// # Errors
/// What ended it; a wrong result is [`Cause::Internal`].
pub fn checked(
    group: &Group,
    how: How,
    k: u64,
    x: &mut [f32],
    inside: &dyn Fn(bool),
) -> Result<(), Error> {
    let (me, n) = (group.rank(), group.size() as u32);
    let number = |r: Rank| world_rank(group, r);
    fill(x, |i| given(number(me), k, i));
    let (next, last) = (Rank((me.0 + 1) % n), Rank((me.0 + n - 1) % n));
    // What is cut into parts; what is left over stays as it is.
    let part = x.len() / n as usize;
    let cut = &mut x[..part * n as usize];
    let root = Rank(1 % n);
    let equal = Counts::Equal;
    let result = match how {
        How::Reduce => {
            inside(true);
            group.all_reduce(x, Sum)
        }
        How::Broadcast => {
            inside(true);
            group.broadcast(x, root)
        }
        How::AllGather => {
            inside(true);
            group.run(&Op::new(Kind::AllGather(equal)), cut)
        }
        How::ReduceScatter => {
            let reduce = Reduce::Sum;
            inside(true);
            group.run(
                &Op::new(Kind::ReduceScatter {
                    reduce,
                    counts: equal,
                }),
                cut,
            )
        }
        How::AllToAll => {
            let (send, recv) = (Counts::Equal, Counts::Equal);
            inside(true);
            group.run(&Op::new(Kind::AllToAll { send, recv }), cut)
        }
        How::Average => {
            let mut with = vec![next, last];
            with.retain(|r| *r != me);
            with.dedup();
            let round = Round {
                from: with.iter().map(|r| (*r, 0.25)).collect(),
                to: with.iter().map(|r| (*r, 1.0)).collect(),
                keep: 1.0 - 0.25 * with.len() as f64,
                form: Form::Delta,
            };
            inside(true);
            group.mix(x, &round, k)
        }
    };
    inside(false);
    result?;
    let all: Vec<Rank> = (0..n).map(|r| number(Rank(r))).collect();
    let sum = |i: usize| all.iter().map(|r| given(*r, k, i)).sum::<f32>();
    let want = |i: usize| match how {
        How::Reduce => sum(i),
        How::Broadcast => given(number(root), k, i),
        _ if i >= part * n as usize && how != How::Average => given(number(me), k, i),
        How::AllGather => given(all[i / part], k, i),
        // Of the other parts nothing is said.
        How::ReduceScatter if i / part != me.idx() => x[i],
        How::ReduceScatter => sum(i),
        How::AllToAll => given(all[i / part], k, me.idx() * part + i % part),
        How::Average => {
            let mut with = vec![next, last];
            with.retain(|r| *r != me);
            with.dedup();
            let own = given(number(me), k, i);
            with.iter()
                .fold(own, |x, r| x + 0.25 * (given(number(*r), k, i) - own))
        }
    };
    match (0..x.len()).find(|i| x[*i] != want(*i)) {
        None => Ok(()),
        Some(i) => Err(Error::internal(format!(
            "WRONG: element {i} of operation {k} is {}, not {}",
            x[i],
            want(i)
        ))),
    }
}

/// Where [`stragglers`] says what it is at: `inside` in the trial's folder.
pub const INSIDE: &str = "inside";
/// The rank that is stopped.
pub const VICTIM: Rank = Rank(1);

/// Operations on one large buffer, round after round, until somebody stops the victim in the middle of one.
/// The others then fill their buffers with something else, wait until the victim has gone on and ended (the file `over-ROUND`), and look whether a byte has changed.
///
/// # Errors
/// One has; or an operation ends well with a wrong result.
pub fn stragglers(
    job: &Group,
    (memory, how, bytes): (Memory, How, usize),
    rounds: u32,
    dir: &Path,
    say: &dyn Fn(&str),
) -> Result<(), Trouble> {
    let me = job.rank();
    let all: Vec<Rank> = (0..job.size() as u32).map(Rank).collect();
    let file = File::create(dir.join(format!("{INSIDE}-{}", me.0)))?;
    let inside = |yes: bool| {
        // Where it cannot be written, the test never finds anybody inside, and says so.
        let _ = file.write_at(if yes { b"1" } else { b"0" }, 0);
    };
    for round in 0..rounds {
        let group = job.subgroup(&all, &format!("round {round}"))?;
        let mut x: Buffer<f32> = memory.zeros(&group, bytes / 4);
        let mut k = 0;
        let error = loop {
            if let Err(error) = checked(&group, how, k, &mut x, &inside) {
                break error;
            }
            if k == 0 {
                say(&format!("round {round} is under way"));
            }
            k += 1;
        };
        if let Cause::Internal { .. } = error.cause() {
            return Err(error.into());
        }
        let pattern = |i: usize| -((i % 100_003) as f32) - me.0 as f32;
        if me == VICTIM {
            say(&format!("round {round} ended with {}", blame(&error)));
        } else {
            fill(&mut x, pattern);
            say(&format!("round {round} refilled after {}", blame(&error)));
        }
        let over = dir.join(format!("over-{round}"));
        while !over.exists() {
            thread::sleep(Duration::from_millis(2));
        }
        if me != VICTIM {
            if let Some(i) = (0..x.len()).find(|i| x[*i].to_bits() != pattern(*i).to_bits()) {
                let what = format!("round {round}: WRITTEN LATE: element {i} is {}", x[i]);
                return Err(what.into());
            }
            say(&format!("round {round} kept"));
        }
    }
    Ok(())
}

/// Operations without end, each checked; `begun` is called after the first. Returns what ended them.
///
/// # Errors
/// There is no such operation; a result is wrong.
pub fn endless(
    group: &Group,
    memory: Memory,
    how: How,
    bytes: usize,
    begun: impl FnOnce(),
) -> Result<Error, Trouble> {
    let mut x: Buffer<f32> = memory.zeros(group, bytes / 4);
    let mut begun = Some(begun);
    for k in 0.. {
        match checked(group, how, k, &mut x, &|_| ()) {
            Ok(()) => {}
            Err(error) if matches!(error.cause(), Cause::Internal { .. }) => {
                return Err(error.into());
            }
            Err(error) => return Ok(error),
        }
        if let Some(begun) = begun.take() {
            begun();
        }
    }
    Err("2⁶⁴ operations are over".into())
}

/// Operations of every size, checked, `halfway` in the middle of them. Returns what it has done.
///
/// # Errors
/// One fails, or is wrong.
pub fn steps(group: &Group, memory: Memory, halfway: impl FnOnce()) -> Result<String, Trouble> {
    let mut halfway = Some(halfway);
    for k in 0..24 {
        if k == 12
            && let Some(halfway) = halfway.take()
        {
            halfway();
        }
        // The largest size takes most of the time.
        for bytes in SIZES.into_iter().take(if k % 8 == 0 { 4 } else { 3 }) {
            let mut x: Buffer<f32> = memory.zeros(group, bytes / 4);
            let how = if k % 2 == 0 {
                How::Reduce
            } else {
                How::Average
            };
            checked(
                group,
                how,
                k * 4 + (bytes.ilog2() / 7) as u64,
                &mut x,
                &|_| (),
            )?;
        }
    }
    Ok("24 steps".into())
}

/// A buffer of `mib` MiB in use by all, and what it is; what does not fit is ordinary memory, and a typed answer.
///
/// # Errors
/// An operation fails.
pub fn room(group: &Group, memory: Memory, mib: usize) -> Result<String, Trouble> {
    let mut x: Buffer<f32> = memory.zeros(group, mib << 18);
    let registered = x.is_registered();
    for k in 0..3 {
        checked(group, How::Reduce, k, &mut x, &|_| ())?;
    }
    Ok(format!("registered {registered}"))
}

/// Asks for `mib` MiB and touches none of it; then works on little memory.
///
/// # Errors
/// An operation fails.
pub fn too_much(group: &Group, mib: usize) -> Result<String, Trouble> {
    let much: Buffer<f32> = group.buffer(mib << 18);
    let mut x: Buffer<f32> = group.buffer(1000);
    for k in 0..3 {
        checked(group, How::Reduce, k, &mut x, &|_| ())?;
    }
    Ok(format!(
        "much registered {}, little {}",
        much.is_registered(),
        x.is_registered()
    ))
}

/// One rank after the other asks for `mib` MiB and touches none of it; then all of them fill what they have got. Who has got registered memory.
///
/// # Errors
/// An operation fails.
pub fn promised(group: &Group, mib: usize) -> Result<String, Trouble> {
    let mut x: Buffer<f32> = Buffer::default();
    for turn in 0..group.size() {
        if turn == group.rank().idx() {
            x = group.buffer(mib << 18);
        }
        group.barrier()?;
    }
    let registered = x.is_registered();
    match registered {
        true => x.fill(1.0),
        false => x = group.buffer(1000),
    }
    group.barrier()?;
    let mut little: Buffer<f32> = group.buffer(1000);
    checked(group, How::Reduce, 0, &mut little, &|_| ())?;
    Ok(format!("registered {registered}, {} elements", x.len()))
}

/// What a fork inherits does nothing and harms nothing: every call answers `Forked` or returns, and the parent's operations and registered memory are as before.
///
/// # Errors
/// It is not so.
pub fn forked(group: &Group) -> Result<String, Trouble> {
    let lane = gaggle::Lane(9);
    let op = || Op::new(Kind::AllReduce(Reduce::Sum)).on(lane);
    let mut x: Buffer<f32> = group.buffer(100_000);
    fill(&mut x, |i| given(group.rank(), 0, i));
    let kept: Buffer<f32> = Memory::Registered.filled(group, 100_000, |i| i as f32);
    let registered = kept.is_registered();
    if group.rank() == Rank(0) {
        let mut work = Some(group.start(op(), x));
        let mut again =
            Some(group.persistent(Op::new(Kind::AllReduce(Reduce::Max)), vec![1.0_f32])?);
        let mut kept = Some(kept);
        let is_forked = |e: &Error| matches!(e.cause(), Cause::Forked { .. });
        let code = in_a_fork(|| {
            let (Some(work), Some(mut again)) = (work.take(), again.take()) else {
                return 1;
            };
            if let Some(canceller) = work.canceller() {
                canceller.cancel("by a fork");
            }
            group.abort("by a fork");
            if !work.wait().is_err_and(|failed| is_forked(&failed.error)) {
                return 2;
            }
            if !again.wait().is_err_and(|e| is_forked(&e))
                || !again.start().is_err_and(|e| is_forked(&e))
            {
                return 3;
            }
            drop(again);
            if !group.barrier().is_err_and(|e| is_forked(&e)) {
                return 4;
            }
            if !group
                .subgroup(&[Rank(0)], "fork")
                .is_err_and(|e| is_forked(&e))
            {
                return 5;
            }
            if !group
                .rebuild(Duration::from_secs(1))
                .is_err_and(|e| is_forked(&e))
            {
                return 6;
            }
            if group.buffer::<f32>(1000).is_registered() {
                return 7;
            }
            drop(kept.take());
            0
        })?;
        if code != 0 {
            return Err(format!("the fork has ended with {code}").into());
        }
        let work = work.take().ok_or("the fork has taken it")?;
        x = work.wait()?;
        let kept = kept.take().ok_or("the fork has taken it")?;
        if let Some(i) = (0..kept.len()).find(|i| kept[*i] != *i as f32) {
            return Err(format!("element {i} is {} since the fork", kept[i]).into());
        }
        let mut again = again.take().ok_or("the fork has taken it")?;
        again.start()?;
        again.wait()?;
    } else {
        group.run(&op(), &mut x)?;
        let mut again = group.persistent(Op::new(Kind::AllReduce(Reduce::Max)), vec![1.0_f32])?;
        again.start()?;
        again.wait()?;
    }
    let sum = |i: usize| {
        (0..group.size() as u32)
            .map(|r| given(Rank(r), 0, i))
            .sum::<f32>()
    };
    if let Some(i) = (0..x.len()).find(|i| x[*i] != sum(*i)) {
        return Err(format!("element {i} is {}, not {}", x[i], sum(i)).into());
    }
    Ok(format!("registered {registered}, as before"))
}
