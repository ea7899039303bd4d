//! Every operation as a case: what each rank calls, and what it must hold afterwards, from a serial reference.

use super::{covering, lengths, number::Number};
use gaggle_collectives::select::{Question, Tables, eligible};
use gaggle_core::{Algorithm, Counts, DType, Form, Kind, Op, OpKind, Rank, Reduce, Round};
use std::sync::Arc;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    AllReduce,
    Reduce,
    Broadcast,
    Gather,
    GatherV,
    GatherAny,
    Scatter,
    ScatterV,
    AllGather,
    AllGatherV,
    AllGatherAny,
    ReduceScatter,
    ReduceScatterV,
    AllToAll,
    AllToAllV,
    AllToAllAny,
    Barrier,
    Message,
    Mix,
    Gossip,
    NeighbourGather,
    NeighbourGatherV,
    NeighbourGatherAny,
    HierarchicalMix,
}

impl What {
    pub const ALL: [What; 24] = [
        What::AllReduce,
        What::Reduce,
        What::Broadcast,
        What::Gather,
        What::GatherV,
        What::GatherAny,
        What::Scatter,
        What::ScatterV,
        What::AllGather,
        What::AllGatherV,
        What::AllGatherAny,
        What::ReduceScatter,
        What::ReduceScatterV,
        What::AllToAll,
        What::AllToAllV,
        What::AllToAllAny,
        What::Barrier,
        What::Message,
        What::Mix,
        What::Gossip,
        What::NeighbourGather,
        What::NeighbourGatherV,
        What::NeighbourGatherAny,
        What::HierarchicalMix,
    ];

    pub fn reduces(self) -> bool {
        matches!(
            self,
            What::AllReduce | What::Reduce | What::ReduceScatter | What::ReduceScatterV
        )
    }

    pub fn averages(self) -> bool {
        matches!(self, What::Mix | What::Gossip | What::HierarchicalMix)
    }

    /// Counts that the ranks tell each other: only for operations that make their output.
    pub fn discovers(self) -> bool {
        matches!(
            self,
            What::GatherAny | What::AllGatherAny | What::AllToAllAny | What::NeighbourGatherAny
        )
    }

    /// Has no meaning in place.
    pub fn out_of_place_only(self) -> bool {
        self.discovers()
            || matches!(
                self,
                What::AllToAllV | What::NeighbourGather | What::NeighbourGatherV
            )
    }

    /// In a descriptor.
    pub fn kind(self) -> OpKind {
        match self {
            What::AllReduce => OpKind::AllReduce,
            What::Reduce => OpKind::Reduce,
            What::Broadcast => OpKind::Broadcast,
            What::Gather | What::GatherV | What::GatherAny => OpKind::Gather,
            What::Scatter | What::ScatterV => OpKind::Scatter,
            What::AllGather | What::AllGatherV | What::AllGatherAny => OpKind::AllGather,
            What::ReduceScatter | What::ReduceScatterV => OpKind::ReduceScatter,
            What::AllToAll | What::AllToAllV | What::AllToAllAny => OpKind::AllToAll,
            What::Barrier => OpKind::Barrier,
            What::Message => OpKind::Message,
            What::Mix | What::Gossip => OpKind::Mix,
            What::NeighbourGather | What::NeighbourGatherV | What::NeighbourGatherAny => {
                OpKind::NeighbourGather
            }
            What::HierarchicalMix => OpKind::HierarchicalMix,
        }
    }

    /// Whether the parts are of lengths of their own.
    fn is_counted(self) -> bool {
        self.discovers()
            || matches!(
                self,
                What::GatherV
                    | What::ScatterV
                    | What::AllGatherV
                    | What::ReduceScatterV
                    | What::AllToAllV
                    | What::NeighbourGatherV
            )
    }

    /// Whether it may be carried out so.
    pub fn is_eligible(
        self,
        dtype: DType,
        reduce: Reduce,
        world: u32,
        algorithm: Algorithm,
    ) -> bool {
        let hosts = hosts(world);
        let question = Question {
            reduce,
            counted: self.is_counted(),
            hosts: Some(&hosts),
            ..Question::new(self.kind(), dtype, world, 100)
        };
        eligible(&Tables::default(), &question, algorithm).is_ok()
    }
}

/// Two ranks on each host; the last of an odd world has one of its own.
pub fn hosts(world: u32) -> Vec<u32> {
    (0..world).map(|r| r / 2).collect()
}

/// One call, the same on every rank.
#[derive(Clone, Debug)]
pub struct Case {
    pub what: What,
    pub dtype: DType,
    pub reduce: Reduce,
    pub world: u32,
    pub len: usize,
    pub in_place: bool,
    pub algorithm: Option<Algorithm>,
    pub asynchronous: bool,
    /// Whether messages are cut into slices of a few elements.
    pub sliced: bool,
    /// Makes roots, values and counts differ between cases.
    pub salt: usize,
}

const REDUCES: [Reduce; 8] = [
    Reduce::Sum,
    Reduce::Mean,
    Reduce::Min,
    Reduce::Max,
    Reduce::Prod,
    Reduce::Band,
    Reduce::Bor,
    Reduce::Bxor,
];
/// Values of each factor: operation, type, reduction, world, length, place, algorithm, blocking, slices.
const FACTORS: [usize; 9] = [
    What::ALL.len(),
    13,
    8,
    super::WORLDS.len(),
    6,
    2,
    1 + Algorithm::ALL.len(),
    2,
    2,
];

/// Whether values go together, as far as they are chosen.
fn allowed(pick: &[Option<usize>]) -> bool {
    let what = pick[0].map(|i| What::ALL[i]);
    let dtype = pick[1].map(|i| DType::ALL[i]);
    let reduce = pick[2].map(|i| REDUCES[i]);
    let world = pick[3].map(|i| super::WORLDS[i]);
    let (in_place, asynchronous) = (pick[5].map(|i| i == 0), pick[7].map(|i| i == 0));
    let algorithm = pick[6].and_then(|i| Some(Algorithm::ALL[i.checked_sub(1)?]));
    if let (Some(dtype), Some(reduce)) = (dtype, reduce)
        && !reduce.is_defined_on(dtype)
    {
        return false;
    }
    let Some(what) = what else {
        return true;
    };
    let nonsense =
        // Where nothing is reduced, one value stands for all.
        (!what.reduces() && reduce.is_some_and(|r| r != Reduce::Sum))
        || (what.averages() && dtype.is_some_and(|d| !d.is_float()))
        || (in_place == Some(true) && what.out_of_place_only())
        || (what.discovers() && asynchronous == Some(false))
        || (matches!(what, What::Message | What::Gossip) && world == Some(1));
    let eligible = |a| {
        let (dtype, world) = (dtype.unwrap_or(DType::F32), world.unwrap_or(8));
        what.is_eligible(dtype, reduce.unwrap_or(Reduce::Sum), world, a)
    };
    !nonsense && algorithm.is_none_or(eligible)
}

fn case(pick: &[usize], salt: usize) -> Case {
    Case {
        what: What::ALL[pick[0]],
        dtype: DType::ALL[pick[1]],
        reduce: REDUCES[pick[2]],
        world: super::WORLDS[pick[3]],
        len: lengths(super::WORLDS[pick[3]])[pick[4]],
        in_place: pick[5] == 0,
        algorithm: pick[6].checked_sub(1).map(|i| Algorithm::ALL[i]),
        asynchronous: pick[7] == 0,
        sliced: pick[8] == 0,
        salt,
    }
}

/// All pairs of values, or with `GAGGLE_EXHAUSTIVE` all combinations of operation, type, reduction, world, length, place and algorithm, by turns blocking and not, in slices and not.
pub fn cases() -> Vec<Case> {
    let picks = if std::env::var_os("GAGGLE_EXHAUSTIVE").is_some() {
        let n = FACTORS.len() - 2;
        let known = |pick: &[Option<usize>]| allowed(&[pick, &[None, None]].concat());
        let picks = covering::complete(&FACTORS[..n], &known);
        let finish = |(i, pick): (usize, Vec<usize>)| {
            (i..i + 4).find_map(|i| {
                let whole = [&pick[..], &[i % 2, i / 2 % 2]].concat();
                let chosen: Vec<Option<usize>> = whole.iter().copied().map(Some).collect();
                allowed(&chosen).then_some(whole)
            })
        };
        picks.into_iter().enumerate().filter_map(finish).collect()
    } else {
        covering::pairwise(&FACTORS, &allowed)
    };
    let numbered = picks.iter().enumerate();
    numbered.map(|(i, pick)| case(pick, i)).collect()
}

/// One rank's call.
pub struct Step<T> {
    pub op: Op,
    pub input: Option<Vec<T>>,
    pub io: Vec<T>,
}

/// What the rank must hold afterwards.
pub struct Want<T> {
    pub io: Vec<T>,
    /// How many roundings the result may be off by.
    pub roundings: f64,
    pub counts: Vec<u64>,
}

/// A round in which ranks have different in- and out-degrees: everybody hears the one after, even ranks also the one after that.
pub fn sources(world: u32, rank: u32) -> Vec<u32> {
    let mut from = vec![];
    for (step, applies) in [(2, rank.is_multiple_of(2)), (1, true)] {
        let s = (rank + step) % world;
        if applies && s != rank && !from.contains(&s) {
            from.push(s);
        }
    }
    from
}

fn targets(world: u32, rank: u32) -> Vec<u32> {
    (0..world)
        .filter(|d| *d != rank && sources(world, *d).contains(&rank))
        .collect()
}

/// A sender's factor, keyed by the receiver.
fn factor(to: u32) -> f64 {
    if to.is_multiple_of(2) { 1.0 } else { 0.5 }
}

const RECEIVES: f64 = 0.25;

/// A partner for each rank, and back; the last of an odd world has none.
fn partner(world: u32, rank: u32) -> Option<u32> {
    let p = rank ^ 1;
    (p < world).then_some(p)
}

/// Machines of equal size: as many ranks in each as divide the world.
fn machines(world: u32, salt: usize) -> Vec<Vec<Rank>> {
    let divisors: Vec<u32> = (1..=world).filter(|d| world.is_multiple_of(*d)).collect();
    let per = divisors[salt % divisors.len()];
    // Not neighbours in number: machine m has every n-th rank.
    let n = world / per;
    (0..n)
        .map(|m| (0..per).map(|i| Rank(m + i * n)).collect())
        .collect()
}

impl Case {
    fn root(&self) -> u32 {
        (self.salt % self.world as usize) as u32
    }

    /// Element `i` of what rank `r` has.
    fn at<T: Number>(&self, r: u32, i: usize) -> T {
        T::of((r as usize * 31 + i * 7 + self.salt) as i64)
    }

    fn values<T: Number>(&self, r: u32, n: usize) -> Vec<T> {
        (0..n).map(|i| self.at(r, i)).collect()
    }

    /// What stands in memory that nobody has written.
    fn untouched<T: Number>(n: usize) -> Vec<T> {
        vec![T::of(5); n]
    }

    /// How much rank r has, where that differs; some have nothing.
    fn counts(&self) -> Vec<usize> {
        let each = |r: usize| match (r + self.salt) % 3 {
            0 => 0,
            _ => self.len + r,
        };
        (0..self.world as usize).map(each).collect()
    }

    /// How much rank s has for rank d.
    fn between(&self, s: u32, d: u32) -> usize {
        (self.len + 3 * s as usize + d as usize + self.salt) % (self.len + 2)
    }

    fn known(counts: &[usize]) -> Counts {
        let counts: Vec<u64> = counts.iter().map(|c| *c as u64).collect();
        Counts::known(&counts)
    }

    fn reduced<T: Number>(&self, i: usize) -> T {
        let all: Vec<T> = (0..self.world).map(|r| self.at(r, i)).collect();
        T::reduced(self.reduce, &all)
    }

    /// What rank `me` calls, and what must come of it.
    pub fn steps<T: Number>(&self, me: u32, t: u64) -> Vec<(Step<T>, Want<T>)> {
        let (world, len, root) = (self.world, self.len, self.root());
        let (n, mine) = (world as usize, me as usize);
        let on_root = me == root;
        let exact = |io: Vec<T>| Want {
            io,
            roundings: 0.0,
            counts: vec![],
        };
        let own: Vec<T> = self.values(me, len);
        let parts = |counts: &[usize]| -> Vec<T> {
            let part = |(r, c): (u32, &usize)| self.values::<T>(r, *c);
            (0..world).zip(counts).flat_map(part).collect()
        };
        let offset = |counts: &[usize]| counts[..mine].iter().sum::<usize>();
        // Own values at their place, among what was there before.
        let placed = |counts: &[usize]| -> Vec<T> {
            let mut all = Self::untouched::<T>(counts.iter().sum());
            let at = offset(counts);
            all[at..at + counts[mine]].copy_from_slice(&self.values(me, counts[mine]));
            all
        };
        let rank = Rank(root);
        let (kind, input, io, want): (Kind, Option<Vec<T>>, Vec<T>, Want<T>) = match self.what {
            What::AllReduce | What::Reduce => {
                let all = self.what == What::AllReduce;
                let result: Vec<T> = (0..len).map(|i| self.reduced(i)).collect();
                let kind = if all {
                    Kind::AllReduce(self.reduce)
                } else {
                    Kind::Reduce {
                        reduce: self.reduce,
                        root: rank,
                    }
                };
                let gets = all || on_root;
                let (input, io) = if self.in_place {
                    (None, own.clone())
                } else {
                    let n = if gets || self.salt.is_multiple_of(2) {
                        len
                    } else {
                        0
                    };
                    (Some(own.clone()), Self::untouched(n))
                };
                let want = if gets { result } else { io.clone() };
                let roundings = if self.reduce == Reduce::Mean {
                    2.0
                } else {
                    0.0
                };
                let want = Want {
                    io: want,
                    roundings,
                    counts: vec![],
                };
                (kind, input, io, want)
            }
            What::Broadcast => {
                let result = self.values(root, len);
                let (input, io) = if self.in_place {
                    (None, own.clone())
                } else {
                    let input = if on_root || self.salt.is_multiple_of(2) {
                        own.clone()
                    } else {
                        vec![]
                    };
                    (Some(input), Self::untouched(len))
                };
                (Kind::Broadcast { root: rank }, input, io, exact(result))
            }
            What::Gather | What::GatherV | What::GatherAny => {
                let equal = self.what == What::Gather;
                let counts = if equal { vec![len; n] } else { self.counts() };
                let all = if on_root { parts(&counts) } else { vec![] };
                let part = self.values::<T>(me, counts[mine]);
                let kind = Kind::Gather {
                    root: rank,
                    counts: match self.what {
                        What::Gather => Counts::Equal,
                        What::GatherV => Self::known(&counts),
                        _ => Counts::Discover,
                    },
                };
                let listed: Vec<u64> = counts.iter().map(|c| *c as u64).collect();
                let (input, io, mut want) = match (self.in_place, on_root) {
                    (true, true) => (None, placed(&counts), exact(all)),
                    (true, false) => (None, part.clone(), exact(part)),
                    (false, _) => (Some(part), Self::untouched(all.len()), exact(all)),
                };
                let mut io = io;
                if self.what == What::GatherAny {
                    io.clear();
                    want.counts = if on_root { listed } else { vec![] };
                }
                (kind, input, io, want)
            }
            What::Scatter | What::ScatterV => {
                let equal = self.what == What::Scatter;
                let counts = if equal { vec![len; n] } else { self.counts() };
                let all: Vec<T> = self.values(root, counts.iter().sum());
                let at = offset(&counts);
                let part = all[at..at + counts[mine]].to_vec();
                let kind = Kind::Scatter {
                    root: rank,
                    counts: if equal {
                        Counts::Equal
                    } else {
                        Self::known(&counts)
                    },
                };
                let (input, io, want) = match (self.in_place, on_root) {
                    (true, true) => (None, all.clone(), all),
                    (true, false) => (None, Self::untouched(part.len()), part),
                    (false, true) => (Some(all), Self::untouched(part.len()), part),
                    (false, false) => (Some(vec![]), Self::untouched(part.len()), part),
                };
                (kind, input, io, exact(want))
            }
            What::AllGather | What::AllGatherV | What::AllGatherAny => {
                let equal = self.what == What::AllGather;
                let counts = if equal { vec![len; n] } else { self.counts() };
                let kind = Kind::AllGather(match self.what {
                    What::AllGather => Counts::Equal,
                    What::AllGatherV => Self::known(&counts),
                    _ => Counts::Discover,
                });
                let all = parts(&counts);
                let part = self.values::<T>(me, counts[mine]);
                let mut want = exact(all.clone());
                let (input, io) = if self.in_place {
                    (None, placed(&counts))
                } else if self.what == What::AllGatherAny {
                    want.counts = counts.iter().map(|c| *c as u64).collect();
                    (Some(part), vec![])
                } else {
                    (Some(part), Self::untouched(all.len()))
                };
                (kind, input, io, want)
            }
            What::ReduceScatter | What::ReduceScatterV => {
                let equal = self.what == What::ReduceScatter;
                let counts = if equal { vec![len; n] } else { self.counts() };
                let total: usize = counts.iter().sum();
                let at = offset(&counts);
                let part: Vec<T> = (at..at + counts[mine]).map(|i| self.reduced(i)).collect();
                let kind = Kind::ReduceScatter {
                    reduce: self.reduce,
                    counts: if equal {
                        Counts::Equal
                    } else {
                        Self::known(&counts)
                    },
                };
                let whole: Vec<T> = self.values(me, total);
                let (input, io, want) = if self.in_place {
                    let mut want = whole.clone();
                    want[at..at + counts[mine]].copy_from_slice(&part);
                    (None, whole, want)
                } else {
                    (Some(whole), Self::untouched(part.len()), part)
                };
                let roundings = if self.reduce == Reduce::Mean {
                    2.0
                } else {
                    0.0
                };
                let want = Want {
                    io: want,
                    roundings,
                    counts: vec![],
                };
                (kind, input, io, want)
            }
            What::AllToAll | What::AllToAllV | What::AllToAllAny => {
                let equal = self.what == What::AllToAll;
                let count = |s: u32, d: u32| if equal { len } else { self.between(s, d) };
                let send: Vec<usize> = (0..world).map(|d| count(me, d)).collect();
                let recv: Vec<usize> = (0..world).map(|s| count(s, me)).collect();
                let from = |s: u32| -> Vec<T> {
                    let before: usize = (0..me).map(|d| count(s, d)).sum();
                    (before..before + count(s, me))
                        .map(|i| self.at(s, i))
                        .collect()
                };
                let result: Vec<T> = (0..world).flat_map(from).collect();
                let whole: Vec<T> = self.values(me, send.iter().sum());
                let (send_counts, recv_counts) = match self.what {
                    What::AllToAll => (Counts::Equal, Counts::Equal),
                    What::AllToAllV => (Self::known(&send), Self::known(&recv)),
                    _ => (Self::known(&send), Counts::Discover),
                };
                let kind = Kind::AllToAll {
                    send: send_counts,
                    recv: recv_counts,
                };
                let mut want = exact(result.clone());
                let (input, io) = if self.in_place {
                    (None, whole)
                } else if self.what == What::AllToAllAny {
                    want.counts = recv.iter().map(|c| *c as u64).collect();
                    (Some(whole), vec![])
                } else {
                    (Some(whole), Self::untouched(result.len()))
                };
                (kind, input, io, want)
            }
            What::Barrier => {
                let input = (!self.in_place).then(Vec::new);
                (Kind::Barrier, input, vec![], exact(vec![]))
            }
            What::Message => return self.messages(me),
            What::Mix => {
                let from = sources(world, me);
                let delta = self.salt.is_multiple_of(2);
                let factor = |d: u32| if delta { 1.0 } else { factor(d) };
                let to = targets(world, me);
                // In the delta form the rows sum to one.
                let keep = if delta {
                    1.0 - RECEIVES * from.len() as f64
                } else {
                    0.5
                };
                let round = Round {
                    from: from.iter().map(|s| (Rank(*s), RECEIVES)).collect(),
                    to: to.iter().map(|d| (Rank(*d), factor(*d))).collect(),
                    keep,
                    form: if delta { Form::Delta } else { Form::Sum },
                };
                let result = |i: usize| {
                    let heard = |s: &u32| RECEIVES * factor(me) * self.at::<T>(*s, i).value();
                    keep * own[i].value() + from.iter().map(heard).sum::<f64>()
                };
                let result = (0..len).map(|i| T::nearest(result(i))).collect();
                let (input, io) = self.place(own.clone());
                (Kind::Mix { round, t }, input, io, exact(result))
            }
            What::Gossip => {
                let other = partner(world, me);
                let round = Round {
                    from: other.iter().map(|p| (Rank(*p), 0.5)).collect(),
                    to: other.iter().map(|p| (Rank(*p), 1.0)).collect(),
                    keep: if other.is_some() { 0.5 } else { 1.0 },
                    form: Form::Delta,
                };
                let average = |i: usize| match other {
                    Some(p) => T::nearest(0.5 * (own[i].value() + self.at::<T>(p, i).value())),
                    None => own[i],
                };
                let result = (0..len).map(average).collect();
                let (input, io) = self.place(own.clone());
                (Kind::Mix { round, t }, input, io, exact(result))
            }
            What::NeighbourGather | What::NeighbourGatherV | What::NeighbourGatherAny => {
                let equal = self.what == What::NeighbourGather;
                let counts = if equal { vec![len; n] } else { self.counts() };
                let from = sources(world, me);
                let incoming: Vec<usize> = from.iter().map(|s| counts[*s as usize]).collect();
                let listed: Vec<u64> = incoming.iter().map(|c| *c as u64).collect();
                let part = |(s, c): (&u32, &usize)| self.values::<T>(*s, *c);
                let result: Vec<T> = from.iter().zip(&incoming).flat_map(part).collect();
                let to = targets(world, me);
                let kind = Kind::NeighbourGather {
                    from: from.iter().map(|r| Rank(*r)).collect(),
                    to: to.iter().map(|r| Rank(*r)).collect(),
                    counts: match self.what {
                        What::NeighbourGather => Counts::Equal,
                        What::NeighbourGatherV => Self::known(&incoming),
                        _ => Counts::Discover,
                    },
                    t,
                };
                let mut want = exact(result.clone());
                let io = if self.what == What::NeighbourGatherAny {
                    want.counts = listed;
                    vec![]
                } else {
                    Self::untouched(result.len())
                };
                (kind, Some(self.values(me, counts[mine])), io, want)
            }
            What::HierarchicalMix => {
                let machines = machines(world, self.salt);
                let count = machines.len() as u32;
                let home = machines.iter().position(|m| m.contains(&Rank(me))).unwrap() as u32;
                let from = sources(count, home);
                let to = targets(count, home);
                let round = Round {
                    from: from.iter().map(|s| (Rank(*s), RECEIVES)).collect(),
                    to: to.iter().map(|d| (Rank(*d), factor(*d))).collect(),
                    keep: 0.5,
                    form: Form::Sum,
                };
                let mean = |m: u32, i: usize| {
                    let ranks = &machines[m as usize];
                    let sum: f64 = ranks.iter().map(|r| self.at::<T>(r.0, i).value()).sum();
                    sum / ranks.len() as f64
                };
                let result = |i: usize| {
                    let heard = |s: &u32| RECEIVES * factor(home) * mean(*s, i);
                    T::nearest(0.5 * mean(home, i) + from.iter().map(heard).sum::<f64>())
                };
                let result = (0..len).map(result).collect();
                let kind = Kind::HierarchicalMix {
                    machines: Arc::from(machines.clone()),
                    round,
                    t,
                };
                let (input, io) = self.place(own.clone());
                let want = Want {
                    io: result,
                    // Of the means, and of their average.
                    roundings: 8.0,
                    counts: vec![],
                };
                (kind, input, io, want)
            }
        };
        let mut op = Op::new(kind);
        op.algorithm = self.algorithm;
        vec![(Step { op, input, io }, want)]
    }

    fn place<T: Number>(&self, own: Vec<T>) -> (Option<Vec<T>>, Vec<T>) {
        if self.in_place {
            (None, own)
        } else {
            let n = own.len();
            (Some(own), Self::untouched(n))
        }
    }

    /// Around the ring, two messages of one tag and one of another.
    fn messages<T: Number>(&self, me: u32) -> Vec<(Step<T>, Want<T>)> {
        let (next, last) = (
            Rank((me + 1) % self.world),
            Rank((me + self.world - 1) % self.world),
        );
        let mut all = vec![];
        let tag = self.salt as u32 * 2;
        for (n, tag) in [tag, tag, tag + 1].into_iter().enumerate() {
            let of = |r: u32| -> Vec<T> { (0..self.len).map(|i| self.at(r, i + 13 * n)).collect() };
            let (input, io) = if self.in_place {
                (None, of(me))
            } else {
                (Some(of(me)), vec![])
            };
            let op = Op::new(Kind::Send { to: next, tag });
            let want = Want {
                io: io.clone(),
                roundings: 0.0,
                counts: vec![],
            };
            all.push((Step { op, input, io }, want));
            let op = Op::new(Kind::Recv { from: last, tag });
            let step = Step {
                op,
                input: None,
                io: Self::untouched(self.len),
            };
            let want = Want {
                io: of(last.0),
                roundings: 0.0,
                counts: vec![],
            };
            all.push((step, want));
        }
        all
    }

    /// Compares what came with what should have come.
    pub fn check<T: Number>(
        &self,
        me: u32,
        given: &Option<Vec<T>>,
        input: &Option<Vec<T>>,
        io: &[T],
        counts: &[u64],
        want: &Want<T>,
    ) {
        let about = || format!("rank {me}, {self:?}");
        assert_eq!(input, given, "{}: the input is modified", about());
        assert_eq!(counts, want.counts, "{}: counts", about());
        assert_eq!(io.len(), want.io.len(), "{}: length", about());
        for (i, (got, want_at)) in io.iter().zip(&want.io).enumerate() {
            assert!(
                got.is_close(*want_at, want.roundings),
                "{}: element {i} is {got:?}, not {want_at:?}",
                about()
            );
        }
    }
}
