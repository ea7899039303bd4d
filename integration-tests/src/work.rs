//! What ranks do in these tests: bodies that processes and threads share, with outcomes as text, so that they can be compared.

use crate::memory::{Memory, fill};
use gaggle::{
    Algorithm, Bool, Buffer, Cause, Codec, Counts, DType, Element, Error, Float, Group, Kind,
    LinkStats, Max, Min, Mode, Op, Rank, Reduce, Sum, Weight,
    collectives::{Call, Cost, Request, bytes_sent, plan},
    core::{Round, descriptor::stable_hash},
    ddp::{NeighbourMixer, digest},
    optim::{Decentralised, RuleConfig, rule_by_name},
    topology::by_name,
};
use half::{bf16, f16};

/// Topologies of every world that these jobs average over.
const TOPOLOGIES: [&str; 9] = [
    "ring",
    "uni-ring",
    "uni-ring-left",
    "star",
    "fully-connected",
    "static-exp",
    "one-peer-exp",
    "base:2",
    "random-matching",
];

/// What goes wrong in a rank.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// The plans that an all-reduce may be carried out by.
pub const ALL_REDUCE: [Algorithm; 3] = [
    Algorithm::Ring,
    Algorithm::RecursiveDoubling,
    Algorithm::Direct,
];

/// 0, 1, n−1, n, n+1 and a prime.
pub fn lengths(n: usize) -> [usize; 6] {
    [0, 1, n - 1, n, n + 1, 101]
}

/// An element that these tests can make and look into.
pub trait Number: Element {
    /// Near `v`; integers wrap.
    fn of(v: f64) -> Self;
    /// Its bytes.
    fn bytes(self) -> impl AsRef<[u8]>;
}

macro_rules! numbers {
    ($($t:ty: $of:expr),*) => {$(
        impl Number for $t {
            fn of(v: f64) -> Self {
                let of: fn(f64) -> Self = $of;
                of(v)
            }
            fn bytes(self) -> impl AsRef<[u8]> {
                self.to_le_bytes()
            }
        }
    )*};
}
numbers!(
    f32: Float::from_f64, f64: Float::from_f64, f16: Float::from_f64, bf16: Float::from_f64,
    i8: |v| v as i64 as i8, i16: |v| v as i64 as i16, i32: |v| v as i32, i64: |v| v as i64,
    u8: |v| v as i64 as u8, u16: |v| v as i64 as u16, u32: |v| v as i64 as u32, u64: |v| v as i64 as u64
);

impl Number for Bool {
    fn of(v: f64) -> Self {
        Bool::from(v as i64 % 2 != 0)
    }
    fn bytes(self) -> impl AsRef<[u8]> {
        [self.0]
    }
}

/// One of the values whose sums depend on the order of adding.
pub fn value<T: Number>(rank: Rank, i: usize) -> T {
    T::of(((rank.idx() * 31 + i * 7) % 97) as f64 * 0.37 - 11.0)
}

fn values<T: Number>(rank: Rank, len: usize) -> Vec<T> {
    (0..len).map(|i| value(rank, i)).collect()
}

/// Two running hashes, of what all ranks must have alike, and of everything; and where the buffers lie.
struct Hashes {
    memory: Memory,
    alike: u64,
    all: u64,
}

impl Hashes {
    fn values<T: Number>(&self, group: &Group, len: usize) -> Buffer<T> {
        let me = group.rank();
        self.memory.filled(group, len, |i| value(me, i))
    }

    fn take<T: Number>(&mut self, x: &[T], alike: bool) {
        let bytes: Vec<u8> = x.iter().flat_map(|v| v.bytes().as_ref().to_vec()).collect();
        let next = |h: u64| stable_hash(&[&h.to_le_bytes(), &bytes]);
        self.all = next(self.all);
        if alike {
            self.alike = next(self.alike);
        }
    }
}

/// Every operation, plan, type, reduction, codec and topology. Returns `alike HASH all HASH`: the first is the same on all ranks.
///
/// # Errors
/// An operation fails.
pub fn collectives(group: &Group, memory: Memory) -> Result<String, Trouble> {
    let mut h = Hashes {
        memory,
        alike: 0,
        all: 0,
    };
    let mut t = 0;
    each_type::<f32>(group, &mut h, &mut t)?;
    each_type::<f64>(group, &mut h, &mut t)?;
    each_type::<f16>(group, &mut h, &mut t)?;
    each_type::<bf16>(group, &mut h, &mut t)?;
    each_type::<i32>(group, &mut h, &mut t)?;
    each_type::<i64>(group, &mut h, &mut t)?;
    each_type::<u8>(group, &mut h, &mut t)?;
    each_type::<i8>(group, &mut h, &mut t)?;
    each_type::<i16>(group, &mut h, &mut t)?;
    each_type::<u16>(group, &mut h, &mut t)?;
    each_type::<u32>(group, &mut h, &mut t)?;
    each_type::<u64>(group, &mut h, &mut t)?;
    each_type::<Bool>(group, &mut h, &mut t)?;
    group.barrier()?;
    Ok(format!("alike {:016x} all {:016x}", h.alike, h.all))
}

fn each_type<T: Number>(group: &Group, h: &mut Hashes, t: &mut u64) -> Result<(), Trouble> {
    let (me, world) = (group.rank(), group.size());
    for len in lengths(world) {
        let mut x: Buffer<T> = h.memory.zeros(group, len);
        for reduce in Reduce::ALL
            .into_iter()
            .filter(|r| r.is_defined_on(T::DTYPE) && *r != Reduce::User)
        {
            for algorithm in ALL_REDUCE {
                let op = Op::new(Kind::AllReduce(reduce)).by(algorithm);
                let weight = Weight::samples(1 + me.0);
                for op in [op.clone(), op.weighing(weight)] {
                    fill(&mut x, |i| value(me, i));
                    group.run(&op, &mut x)?;
                    h.take(&x, true);
                }
            }
        }
        // Whatever algorithm is chosen, `ordered` has the same bits.
        for reduce in [Reduce::Sum, Reduce::Mean, Reduce::Max] {
            if reduce.is_defined_on(T::DTYPE) {
                fill(&mut x, |i| value(me, i));
                let op = Op::new(Kind::AllReduce(reduce)).in_mode(Mode::Ordered);
                group.run(&op, &mut x)?;
                h.take(&x, true);
            }
        }
        for root in 0..world as u32 {
            fill(&mut x, |i| value(me, i));
            group.broadcast(&mut x, Rank(root))?;
            h.take(&x, true);
        }
        let x: Buffer<T> = h.values(group, len);
        h.take(&group.all_gather(&x)?, true);
        parts::<T>(group, h, t, len)?;
        for codec in [Codec::None, Codec::Bf16] {
            if codec.wire_type(T::DTYPE).is_none() || !T::DTYPE.is_float() {
                continue;
            }
            let op = Op::new(Kind::AllReduce(Reduce::Mean))
                .coded_always(codec)
                .in_mode(Mode::Ordered);
            let mut x: Buffer<T> = h.values(group, len);
            group.run(&op, &mut x)?;
            h.take(&x, true);
            mixes::<T>(group, h, t, len, codec)?;
        }
    }
    Ok(())
}

/// Every operation that deals in parts, blocking, with counts that are equal, known and discovered.
fn parts<T: Number>(group: &Group, h: &mut Hashes, t: &mut u64, len: usize) -> Result<(), Trouble> {
    let (me, world) = (group.rank(), group.size());
    let root = Rank((len % world) as u32);
    let on_root = me == root;
    let count = |r: usize| (len + r * 5) % (len + 2);
    let counts: Vec<u64> = (0..world).map(|r| count(r) as u64).collect();
    let total: usize = (0..world).map(count).sum();
    let own: Buffer<T> = h.values(group, len);
    let part: Buffer<T> = h.values(group, count(me.idx()));
    let whole: Buffer<T> = h.values(group, len * world);
    let mut x: Buffer<T> = h.values(group, len);
    group.reduce(&mut x, root, Max)?;
    h.take(&x, false);
    let mut y: Buffer<T> = h.values(group, len);
    // What is chosen depends on the link, and without this promise the bits depend on what is chosen.
    let ordered = |kind| Op::new(kind).in_mode(Mode::Ordered);
    group.run_into(&ordered(Kind::AllReduce(Reduce::Sum)), &own, &mut y)?;
    h.take(&y, true);
    h.take(&group.gather(&own, root)?, false);
    h.take(&group.gather_v(&part, &counts, root)?, false);
    h.take(&group.gather_any(&part, root)?.0, false);
    let given: &[T] = if on_root { &whole } else { &[] };
    group.scatter(given, &mut y, root)?;
    h.take(&y, false);
    let all: Buffer<T> = h.values(group, total);
    let given: &[T] = if on_root { &all } else { &[] };
    h.take(&group.scatter_v(given, &counts, root)?, false);
    let told: &[u64] = if on_root { &counts } else { &[] };
    h.take(&group.scatter_any(given, told, root)?, false);
    h.take(&group.all_gather_v(&part, &counts)?, true);
    h.take(&group.all_gather_any(&part)?.0, true);
    let scattered = Kind::ReduceScatter {
        reduce: Reduce::Sum,
        counts: Counts::Equal,
    };
    group.run_into(&ordered(scattered), &whole, &mut y)?;
    h.take(&y, false);
    h.take(&group.reduce_scatter_v(&all, &counts, Min)?, false);
    let mut z: Buffer<T> = h.values(group, len * world);
    group.all_to_all(&whole, &mut z)?;
    h.take(&z, false);
    // Rank s sends `count(s + d)` elements to rank d.
    let both: Vec<u64> = (0..world).map(|r| count(me.idx() + r) as u64).collect();
    let sent: Buffer<T> = h.values(group, both.iter().sum::<u64>() as usize);
    h.take(&group.all_to_all_v(&sent, &both, &both)?, false);
    h.take(&group.all_to_all_any(&sent, &both)?.0, false);
    if world == 1 {
        return Ok(());
    }
    let at = |by: usize| Rank(((me.idx() + by) % world) as u32);
    let (next, last) = (at(1), at(world - 1));
    group.send(&own, next, 5)?;
    group.recv(&mut y, last, 5)?;
    h.take(&y, false);
    h.take(
        &group.neighbour_all_gather(&own, &[last], &[next], *t)?,
        false,
    );
    let heard = [count(last.idx()) as u64];
    let got = group.neighbour_all_gather_v(&part, &[last], &[next], &heard, *t + 1)?;
    h.take(&got, false);
    let got = group.neighbour_all_gather_any(&part, &[last], &[next], *t + 2)?;
    h.take(&got.0, false);
    *t += 3;
    Ok(())
}

/// Three rounds on every topology.
fn mixes<T: Number>(
    group: &Group,
    h: &mut Hashes,
    t: &mut u64,
    len: usize,
    codec: Codec,
) -> Result<(), Trouble> {
    for name in TOPOLOGIES {
        let graph = by_name(name, group.size())?;
        let mut x: Buffer<T> = h.values(group, len);
        for _ in 0..3 {
            let mut round = Round::default();
            graph.round(group.rank(), *t, &mut round);
            group.run(
                &Op::new(Kind::Mix { round, t: *t }).coded_always(codec),
                &mut x,
            )?;
            *t += 1;
        }
        h.take(&x, false);
    }
    Ok(())
}

/// Trial 1: what the ranks of four learn when they call different things, and whether they agree again afterwards.
///
/// # Errors
/// It is not the mismatch that it should be.
pub fn mismatch(group: &Group, trial: &str) -> Result<String, Trouble> {
    let me = group.rank().0;
    let rows = match trial {
        "a" if me == 0 => 100,
        "a" => 200,
        "b" if me < 2 => 1,
        "b" => 2,
        "c" => 1,
        other => return Err(format!("there is no trial 1 {other}").into()),
    };
    let mut x = vec![1.0_f32; rows * 2560];
    let result = if trial == "c" && me == 1 {
        group.barrier()
    } else {
        group.all_reduce(&mut x, Sum).map(drop)
    };
    let Err(error) = result else {
        return Err("nobody noticed".into());
    };
    let Cause::Mismatch {
        op,
        deviating,
        versions,
        partly_written,
    } = error.cause()
    else {
        return Err(error.into());
    };
    if !partly_written && x.iter().any(|v| *v != 1.0) {
        return Err(format!("the buffer was touched, which is not said: {error}").into());
    }
    let mut again = [1.0_f32];
    group.all_reduce(&mut again, Sum)?;
    let deviating: Vec<u32> = deviating.iter().map(|r| r.0).collect();
    let versions: Vec<String> = versions
        .iter()
        .map(|(ranks, what)| format!("{:?} {what}", ranks.iter().map(|r| r.0).collect::<Vec<_>>()))
        .collect();
    Ok(format!(
        "{op} deviating {deviating:?}: {}; then {}",
        versions.join(", "),
        again[0]
    ))
}

/// Payload at the link, against the plans' cost, for every plan on three types, three times each.
///
/// # Errors
/// Any count differs.
pub fn payload(group: &Group) -> Result<String, Trouble> {
    let before = group.stats();
    let mut sum = (0, 0);
    let mut t = 0;
    counted_type::<f32>(group, &mut sum, &mut t)?;
    counted_type::<f64>(group, &mut sum, &mut t)?;
    counted_type::<bf16>(group, &mut sum, &mut t)?;
    // Whatever was sent to this rank has been received: its operations are over.
    group.barrier()?;
    let counted = group.stats().since(&before);
    let got = (
        counted.payload_sent + counted.lent_sent,
        counted.payload_received + counted.lent_received,
    );
    if got != sum {
        return Err(format!("sent and received {got:?}, the plans say {sum:?}").into());
    }
    Ok(format!("sent {} received {}", sum.0, sum.1))
}

fn counted_type<T: Number>(
    group: &Group,
    sum: &mut (u64, u64),
    t: &mut u64,
) -> Result<(), Trouble> {
    let world = group.size();
    let codecs = || {
        [Codec::None, Codec::Bf16]
            .into_iter()
            .filter(|c| c.wire_type(T::DTYPE).is_some())
    };
    for len in lengths(world).into_iter().chain([100_003]) {
        for algorithm in ALL_REDUCE {
            for codec in codecs().filter(|c| *c == Codec::None || algorithm == Algorithm::Direct) {
                let op = Op::new(Kind::AllReduce(Reduce::Mean))
                    .by(algorithm)
                    .coded_always(codec);
                let call = Call::AllReduce {
                    reduce: Reduce::Mean,
                    algorithm,
                };
                for _ in 0..3 {
                    counted::<T>(group, &op, call.clone(), len, sum)?;
                }
            }
        }
        for codec in codecs() {
            for name in TOPOLOGIES {
                let graph = by_name(name, world)?;
                for _ in 0..3 {
                    let mut round = Round::default();
                    graph.round(group.rank(), *t, &mut round);
                    let call = Call::Mix {
                        from: round.from.iter().map(|(r, _)| *r).collect(),
                        to: round.to.iter().map(|(r, _)| *r).collect(),
                        scaled: round.to.iter().any(|(_, w)| *w != 1.0),
                        form: round.form,
                    };
                    let op = Op::new(Kind::Mix { round, t: *t }).coded_always(codec);
                    counted::<T>(group, &op, call, len, sum)?;
                    *t += 1;
                }
            }
        }
    }
    Ok(())
}

/// Runs it, and compares what it sent with the plan and with the formula.
fn counted<T: Number>(
    group: &Group,
    op: &Op,
    call: Call,
    len: usize,
    sum: &mut (u64, u64),
) -> Result<(), Trouble> {
    let dtype: DType = T::DTYPE;
    let request = Request {
        call,
        rank: group.rank(),
        world: group.size() as u32,
        len: len as u64,
        slice: 1 << 16,
        codec: op.codec,
        widen: dtype.accumulator() != dtype,
        ..Request::default()
    };
    let cost = Cost::of(&plan(&request)?, dtype).ok_or("a codec that does not apply")?;
    let before: LinkStats = group.stats();
    let done = group.run(op, &mut values::<T>(group.rank(), len))?;
    let counted = group.stats().since(&before);
    let sent = counted.payload_sent + counted.lent_sent;
    let formula = bytes_sent(&request, dtype);
    if (sent, Some(sent), sent) != (cost.bytes_sent, formula, done.bytes_sent) {
        return Err(format!(
            "{op:?} of {len} {dtype}: sent {sent}, its plan says {}, the formula {formula:?}, the operation {}",
            cost.bytes_sent, done.bytes_sent
        )
        .into());
    }
    sum.0 += cost.bytes_sent;
    sum.1 += cost.bytes_received;
    Ok(())
}

/// 200 steps of DmSGD on the one-peer exponential graph with an all-reduce after every tenth; `halfway` is called in the middle. Returns the digest.
///
/// # Errors
/// An operation fails.
pub fn train(group: &Group, halfway: impl FnOnce()) -> Result<String, Trouble> {
    const DIM: usize = 1000;
    let mixer = NeighbourMixer::<f32>::new(group.clone(), by_name("one-peer-exp", group.size())?)?;
    let rule = rule_by_name("dmsgd", &RuleConfig::default())?;
    let mut driver = Decentralised::unchecked(rule, Box::new(mixer), DIM);
    let mut x = vec![0.0_f32; DIM];
    let mut halfway = Some(halfway);
    for step in 0..200 {
        if step == 100
            && let Some(halfway) = halfway.take()
        {
            halfway();
        }
        let target = |i: usize| (i * (group.rank().idx() + 1)) as f32 / DIM as f32;
        let g: Vec<f32> = x.iter().enumerate().map(|(i, x)| x - target(i)).collect();
        driver.step(0.05, &mut x, &g)?;
        if step % 10 == 9 {
            group.all_reduce(&mut x, gaggle::Mean)?;
        }
    }
    Ok(digest(&x).to_string())
}

/// Trial 14 (BlueFog), what of it applies: gradient 1 and step size 1 on every rank lead every plain rule to −1, −2, −3, −4; micro-batches with gradients 4 and 7 take it 11 further down.
///
/// # Errors
/// An operation fails.
pub fn equal_ranks(group: &Group) -> Result<String, Trouble> {
    let mut told = Vec::new();
    for (lane, name) in (10..)
        .step_by(8)
        .zip(["allreduce-sgd", "dsgd-atc", "dsgd-awc", "dsgd-cta"])
    {
        for graph in ["ring", "one-peer-exp"] {
            let lane = gaggle::Lane(if graph == "ring" { lane } else { lane + 4 });
            let graph = by_name(graph, group.size())?;
            let mixer = NeighbourMixer::<f64>::on_lanes(group.clone(), graph, lane)?;
            let rule = rule_by_name(name, &RuleConfig::default())?;
            let mut driver = Decentralised::unchecked(rule, Box::new(mixer), 1);
            let mut x = [0.0];
            let mut steps = Vec::new();
            for _ in 0..4 {
                driver.before_forward(1.0, &mut x)?;
                driver.step(1.0, &mut x, &[1.0])?;
                steps.push(x[0].to_string());
            }
            x = [0.0];
            driver.before_forward(1.0, &mut x)?;
            driver.accumulate(&[4.0])?;
            driver.step(1.0, &mut x, &[7.0])?;
            steps.push(format!("then {}", x[0]));
            told.push(steps.join(" "));
        }
    }
    told.dedup();
    Ok(told.join(", "))
}

/// All-reduces without end; `begun` is called after the first. Returns what ended it.
pub fn endless(group: &Group, algorithm: Algorithm, begun: impl FnOnce()) -> Error {
    let op = Op::new(Kind::AllReduce(Reduce::Sum)).by(algorithm);
    let mut begun = Some(begun);
    loop {
        if let Err(error) = group.run(&op, &mut vec![0.0_f32; 10_000]) {
            return error;
        }
        if let Some(begun) = begun.take() {
            begun();
        }
    }
}

/// Mixing on a graph without end; `begun` is called after the first round. Returns what ended it.
pub fn endless_mix(group: &Group, graph: &str, begun: impl FnOnce()) -> Error {
    let graph = match by_name(graph, group.size()) {
        Ok(graph) => graph,
        Err(e) => return Error::internal(e.to_string()),
    };
    let mut begun = Some(begun);
    let mut round = Round::default();
    for t in 0.. {
        graph.round(group.rank(), t, &mut round);
        if let Err(error) = group.mix(&mut vec![0.0_f32; 10_000], &round, t) {
            return error;
        }
        if let Some(begun) = begun.take() {
            begun();
        }
    }
    Error::internal("2⁶⁴ rounds are over")
}

/// `timeout [1]`: what kind of error, and whom it blames.
pub fn blame(error: &Error) -> String {
    let kind = match error.cause() {
        Cause::PeerLost { .. } => "lost",
        Cause::PeerLeft { .. } => "left",
        Cause::Timeout { .. } => "timeout",
        Cause::Mismatch { .. } => "mismatch",
        Cause::Aborted { .. } => "aborted",
        _ => "other",
    };
    let ranks: Vec<u32> = error.culprits().iter().map(|r| r.0).collect();
    format!("{kind} {ranks:?}")
}
