//! Everything that can be planned, numbered: an operation by an algorithm on so many ranks and elements in all its forms.

use crate::request;
use gaggle_collectives::select::{self, Question, Tables};
use gaggle_collectives::{Call, Promise, Request, algorithms};
use gaggle_core::{Algorithm, Codec, Counts, DType, Form, OpKind, Rank, Reduce};
use std::sync::Arc;

/// All operations with all their algorithms.
pub(crate) fn all() -> impl Iterator<Item = (OpKind, Algorithm)> {
    OpKind::ALL
        .into_iter()
        .flat_map(|kind| algorithms(kind).iter().map(move |&a| (kind, a)))
}

/// Some number (Steele, Lea and Flood 2014: SplitMix).
pub(crate) fn hash(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |state, &n| {
        let mut z = (state ^ n).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A number taken apart into choices; and how many there are.
struct Choices {
    left: u64,
    n: u64,
}

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.n *= n;
        let choice = self.left % n;
        self.left /= n;
        choice
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// How many forms an operation has on so many ranks.
pub(crate) fn n_cases(kind: OpKind, algorithm: Algorithm, world: u32) -> u64 {
    build(kind, algorithm, world, 1, 0).1
}

/// Form `which` of an operation; `None` where it is one that has no meaning (as an all-to-all in place with counts) or no plan.
pub(crate) fn case(
    kind: OpKind,
    algorithm: Algorithm,
    world: u32,
    len: u64,
    which: u64,
) -> Option<Promise> {
    build(kind, algorithm, world, len, which).0
}

/// The same with another reduction.
pub(crate) fn with_reduce(promise: &Promise, to: Reduce) -> Promise {
    let mut requests = promise.requests().to_vec();
    for request in &mut requests {
        if let Call::AllReduce { reduce, .. }
        | Call::Reduce { reduce, .. }
        | Call::ReduceScatter { reduce, .. } = &mut request.call
        {
            *reduce = to;
        }
    }
    Promise::of(&requests)
}

/// A sum, in place, of `len` elements in the longer buffer, as rank 0 is asked for.
pub(crate) fn plain(
    kind: OpKind,
    algorithm: Algorithm,
    world: u32,
    len: u64,
    slice: u64,
) -> Promise {
    let parts = !matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast);
    let len = if parts { len / u64::from(world) } else { len };
    let promise = case(kind, algorithm, world, len, 0).expect("the first form is a plain one");
    let requests = promise.requests().iter();
    let sliced: Vec<Request> = requests.map(|r| Request { slice, ..r.clone() }).collect();
    Promise::of(&sliced)
}

fn build(
    kind: OpKind,
    algorithm: Algorithm,
    world: u32,
    len: u64,
    which: u64,
) -> (Option<Promise>, u64) {
    let mut pick = Choices { left: which, n: 1 };
    let base = Request {
        slice: pick.one_of(&[len.max(1), 3, 7]),
        radix: match algorithm {
            Algorithm::Knomial => pick.one_of(&[4, 2, 3, 7]),
            _ => Request::RADIX,
        },
        ..request(Call::Barrier, world, len)
    };
    let promise = match kind {
        OpKind::Barrier => Some(Promise::of_all(&base)),
        OpKind::Mix => Some(mix(&base, &mut pick)),
        OpKind::NeighbourGather => Some(neighbour_gather(&base, &mut pick)),
        OpKind::HierarchicalMix => hierarchical(&base, &mut pick),
        OpKind::Message => message(&base, &mut pick),
        _ => collective(kind, algorithm, base, &mut pick),
    };
    (promise, pick.n)
}

fn collective(
    kind: OpKind,
    algorithm: Algorithm,
    base: Request,
    pick: &mut Choices,
) -> Option<Promise> {
    let (world, len) = (base.world, base.len);
    let reduce = match kind.reduces() {
        true => pick.one_of(&[Reduce::Sum, Reduce::Mean]),
        false => Reduce::Sum,
    };
    let root = match kind.is_rooted() {
        true => Rank(pick.one_of(&[0, world / 2, world - 1])),
        false => Rank(0),
    };
    let has_counts = !matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast);
    let counted = has_counts && pick.yes();
    let counts = match counted {
        true => some_counts(world, len),
        false => Counts::Equal,
    };
    let two_levels = algorithm.between_hosts().is_some();
    let hosts = two_levels.then(|| some_hosts(world, pick.below(5)));
    let fits = |world: u32, hosts: Option<&[u32]>, (codec, feedback)| {
        // Fused plans are for one host.
        let one = vec![0; world as usize];
        let question = Question {
            reduce,
            counted,
            codec,
            feedback,
            hosts: hosts.or((algorithm == Algorithm::Fused).then_some(&one[..])),
            ..Question::new(kind, DType::F32, world, len)
        };
        let tables = Tables {
            mapped: true,
            ..Tables::default()
        };
        select::eligible(&tables, &question, algorithm).is_ok()
    };
    // What goes on the wire does not depend on the hosts, as long as there are several.
    let wide = some_hosts(4, 0);
    let mut wires = vec![(Codec::None, false)];
    let coded = [(Codec::Bf16, false), (Codec::Int8, false)];
    wires.extend(
        coded
            .into_iter()
            .filter(|&wire| fits(4, two_levels.then_some(&wide[..]), wire)),
    );
    let (codec, feedback) = pick.one_of(&wires);
    let request = Request {
        codec,
        feedback,
        // Codecs are for f32, whose partial results are as wide.
        widen: pick.yes() && codec == Codec::None,
        out_of_place: pick.yes(),
        hosts: hosts.clone(),
        ..base
    };
    if !fits(world, hosts.as_deref(), (codec, feedback)) {
        return None;
    }
    let call = match kind {
        OpKind::AllReduce => Call::AllReduce { reduce, algorithm },
        OpKind::Reduce => Call::Reduce {
            reduce,
            root,
            algorithm,
        },
        OpKind::Broadcast => Call::Broadcast { root, algorithm },
        OpKind::Gather => Call::Gather {
            root,
            counts,
            algorithm,
        },
        OpKind::Scatter => Call::Scatter {
            root,
            counts,
            algorithm,
        },
        OpKind::AllGather => Call::AllGather { counts, algorithm },
        OpKind::ReduceScatter => Call::ReduceScatter {
            reduce,
            counts,
            algorithm,
        },
        _ => return all_to_all(&request, counted, algorithm),
    };
    let folding = select::folding(kind, algorithm);
    Some(Promise::of_all(&Request { call, ..request }).folding(folding))
}

/// Each rank sends each other one another number of elements.
fn all_to_all(base: &Request, counted: bool, algorithm: Algorithm) -> Option<Promise> {
    if counted && (!base.out_of_place || algorithm != Algorithm::Direct) {
        return None;
    }
    let world = base.world;
    let sent = |from: u32, to: u32| hash(&[from.into(), to.into()]) % (base.len + 2);
    let of = |r: u32| {
        let list = |n: &dyn Fn(u32) -> u64| match counted {
            true => Counts::Known((0..world).map(n).collect()),
            false => Counts::Equal,
        };
        let call = Call::AllToAll {
            send: list(&|to| sent(r, to)),
            recv: list(&|from| sent(from, r)),
            algorithm,
        };
        Request {
            call,
            rank: Rank(r),
            ..base.clone()
        }
    };
    Some(Promise::of(&(0..world).map(of).collect::<Vec<_>>()))
}

/// Parts of all lengths up to twice as long, some of them empty.
fn some_counts(world: u32, len: u64) -> Counts {
    let of = |r: u32| match hash(&[r.into(), len]) {
        h if h % 4 == 0 => 0,
        h => h % (2 * len + 2),
    };
    Counts::Known((0..world).map(of).collect())
}

/// Blocks of two, unequal blocks, one by one around three hosts, anyhow, blocks of three.
fn some_hosts(world: u32, which: u64) -> Arc<[u32]> {
    let of = |r: u32| match which {
        0 => r / 2,
        1 => r.checked_ilog2().unwrap_or(0),
        2 => r % 3,
        3 => hash(&[r.into()]) as u32 % 4,
        _ => r / 3,
    };
    (0..world).map(of).collect()
}

/// A directed graph: each rank's in- and out-neighbours, in orders of their own.
fn graph(n: u32, density: u64, seed: u64) -> Vec<(Vec<u32>, Vec<u32>)> {
    let edge = |a: u32, b: u32| {
        a != b
            && match density {
                // A ring, one way.
                0 => (a + 1) % n == b,
                // Few, many.
                d => hash(&[seed, a.into(), b.into()]) % 8 < 2 * d * d,
            }
    };
    (0..n)
        .map(|r| {
            let mut from: Vec<u32> = (0..n).filter(|&s| edge(s, r)).collect();
            let mut to: Vec<u32> = (0..n).filter(|&t| edge(r, t)).collect();
            let by = r as usize % from.len().max(1);
            from.rotate_left(by);
            to.reverse();
            (from, to)
        })
        .collect()
}

fn ranks(numbers: &[u32]) -> Vec<Rank> {
    numbers.iter().copied().map(Rank).collect()
}

fn mix(base: &Request, pick: &mut Choices) -> Promise {
    let graph = graph(base.world, pick.below(3), base.len);
    let scaled = pick.yes();
    let form = pick.one_of(&[Form::Delta, Form::Sum]);
    let codec = pick.one_of(&[Codec::None, Codec::F16, Codec::Int8]);
    let out_of_place = pick.yes();
    let of = |(r, (from, to)): (u32, &(Vec<u32>, Vec<u32>))| Request {
        call: Call::Mix {
            from: ranks(from),
            to: ranks(to),
            scaled,
            form,
        },
        rank: Rank(r),
        codec,
        out_of_place,
        ..base.clone()
    };
    Promise::of(&(0..).zip(&graph).map(of).collect::<Vec<_>>())
}

fn neighbour_gather(base: &Request, pick: &mut Choices) -> Promise {
    let graph = graph(base.world, pick.below(3), base.len);
    let counted = pick.yes();
    let len_of = |r: u32| match counted {
        true => hash(&[r.into()]) % (base.len + 2),
        false => base.len,
    };
    let of = |(r, (from, to)): (u32, &(Vec<u32>, Vec<u32>))| Request {
        call: Call::NeighbourGather {
            from: ranks(from),
            to: ranks(to),
            counts: match counted {
                true => Counts::Known(from.iter().map(|&s| len_of(s)).collect()),
                false => Counts::Equal,
            },
        },
        rank: Rank(r),
        len: len_of(r),
        out_of_place: true,
        ..base.clone()
    };
    Promise::of(&(0..).zip(&graph).map(of).collect::<Vec<_>>())
}

/// Machines of equal size, their members next to each other or far apart.
fn hierarchical(base: &Request, pick: &mut Choices) -> Option<Promise> {
    let world = base.world;
    let per_machine = pick.one_of(&[2, 3, 1, 4, 5]);
    let scattered = pick.yes();
    let density = pick.below(3);
    let scaled = pick.yes();
    let form = pick.one_of(&[Form::Delta, Form::Sum]);
    let codec = pick.one_of(&[Codec::None, Codec::Bf16, Codec::Int8]);
    let (widen, out_of_place) = (pick.yes() && codec == Codec::None, pick.yes());
    if !world.is_multiple_of(per_machine) {
        return None;
    }
    let n = world / per_machine;
    let machine_of = |r: u32| if scattered { r % n } else { r / per_machine };
    let members = |m: u32| {
        (0..world)
            .filter(|&r| machine_of(r) == m)
            .map(Rank)
            .collect()
    };
    let machines: Arc<[Vec<Rank>]> = (0..n).map(members).collect();
    let graph = graph(n, density, base.len);
    let of = |r: u32| {
        let (from, to) = graph[machine_of(r) as usize].clone();
        Request {
            call: Call::HierarchicalMix {
                machines: machines.clone(),
                from,
                to,
                scaled,
                form,
            },
            rank: Rank(r),
            codec,
            widen,
            out_of_place,
            ..base.clone()
        }
    };
    Some(Promise::of(&(0..world).map(of).collect::<Vec<_>>()))
}

/// Pairs, each of a sender and a receiver.
fn message(base: &Request, pick: &mut Choices) -> Option<Promise> {
    let out_of_place = pick.yes();
    let world = base.world & !1;
    let of = |r: u32| {
        let peer = Rank(r ^ 1);
        let sends = r & 1 == 0;
        Request {
            call: match sends {
                true => Call::Send { to: peer },
                false => Call::Recv { from: peer },
            },
            rank: Rank(r),
            world,
            out_of_place: out_of_place && sends,
            ..base.clone()
        }
    };
    (world > 0).then(|| Promise::of(&(0..world).map(of).collect::<Vec<_>>()))
}
