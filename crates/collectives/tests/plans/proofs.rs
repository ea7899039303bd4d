//! Every operation by every algorithm, for 1 to 33 ranks at all awkward lengths: in and out of place, in slices, from every sort of root, with counts, codecs and residuals, on hosts and graphs of all sorts.
//!
//! Of an operation's forms each world and length takes one by turns, so that every form comes up several times; `GAGGLE_EXHAUSTIVE=1` takes all of them, or 100 where there are more.

use crate::{cases, plans, request};
use gaggle_collectives::{Call, Promise, algorithms, check};
use gaggle_core::{Algorithm, OpKind, Rank, Reduce};

/// Where an operation has more forms than these, a world and length takes so many of them.
const MOST_FORMS: u64 = 100;

fn is_exhaustive() -> bool {
    std::env::var_os("GAGGLE_EXHAUSTIVE").is_some()
}

/// Of the whole vector, or of each part of one.
fn lengths(kind: OpKind, world: u32) -> Vec<u64> {
    let p = u64::from(world);
    let parts = !matches!(
        kind,
        OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast | OpKind::HierarchicalMix
    );
    let mut all = match parts && world > 8 {
        true => vec![0, 1, 2, 3, 5],
        false => vec![0, 1, p - 1, p, p + 1, 37],
    };
    all.sort_unstable();
    all.dedup();
    all
}

fn prove(promise: &Promise) {
    if let Err(fault) = check(&plans(promise), promise) {
        panic!("{:?}: {fault}", promise.requests()[0]);
    }
}

/// Proves what is asked for at all worlds and lengths; says how many plans were proved.
fn prove_forms(kind: OpKind, algorithm: Algorithm) {
    let mut n_proved = 0;
    let mut unproved = vec![];
    for world in 1..=33 {
        let before = n_proved;
        let n = cases::n_cases(kind, algorithm, world);
        for (i, len) in (0..).zip(lengths(kind, world)) {
            let some = |place| cases::hash(&[world.into(), i, algorithm as u64, place]) % n;
            let which: Vec<u64> = match (is_exhaustive(), n <= MOST_FORMS) {
                (true, true) => (0..n).collect(),
                (true, false) => (0..MOST_FORMS).map(some).collect(),
                // The next one that exists for this world and length.
                (false, _) => (0..n)
                    .map(|k| (some(0) + k) % n)
                    .find(|w| cases::case(kind, algorithm, world, len, *w).is_some())
                    .into_iter()
                    .collect(),
            };
            for which in which {
                if let Some(promise) = cases::case(kind, algorithm, world, len, which) {
                    prove(&promise);
                    n_proved += 1;
                }
            }
        }
        if n_proved == before {
            unproved.push(world);
        }
    }
    // A message needs two ranks, two levels two hosts.
    assert!(
        unproved.iter().all(|world| *world < 3),
        "{kind:?} by {algorithm}: nothing proved for {unproved:?} ranks"
    );
    assert!(n_proved > 30, "{kind:?} by {algorithm}: {n_proved} proved");
}

fn prove_kind(kind: OpKind, which: impl Fn(Algorithm) -> bool) {
    for &algorithm in algorithms(kind).iter().filter(|a| which(**a)) {
        prove_forms(kind, algorithm);
    }
}

macro_rules! proofs {
    ($($name:ident: $kind:ident $which:expr;)*) => {$(
        #[test]
        fn $name() {
            prove_kind(OpKind::$kind, $which);
        }
    )*};
}

proofs! {
    all_reduce_by_ring: AllReduce |a| a == Algorithm::Ring;
    all_reduce_by_recursive_doubling: AllReduce |a| a == Algorithm::RecursiveDoubling;
    all_reduce_by_direct: AllReduce |a| a == Algorithm::Direct;
    all_reduce_by_halving_doubling: AllReduce |a| a == Algorithm::HalvingDoubling;
    all_reduce_by_trees: AllReduce |a| matches!(a, Algorithm::Binomial | Algorithm::Knomial);
    all_reduce_by_double_tree: AllReduce |a| a == Algorithm::DoubleTree;
    all_reduce_by_exchange: AllReduce |a| a == Algorithm::Exchange;
    all_reduce_fused: AllReduce |a| a == Algorithm::Fused;
    all_reduce_in_two_levels: AllReduce |a| a.between_hosts().is_some();
    reduce: Reduce |_| true;
    broadcast: Broadcast |_| true;
    gather: Gather |_| true;
    scatter: Scatter |_| true;
    all_gather: AllGather |_| true;
    reduce_scatter: ReduceScatter |_| true;
    all_to_all: AllToAll |_| true;
    barrier: Barrier |_| true;
    mix: Mix |_| true;
    neighbour_gather: NeighbourGather |_| true;
    hierarchical_mix: HierarchicalMix |_| true;
    message: Message |_| true;
}

/// All reductions make the same plans, means apart.
#[test]
fn reductions_are_planned_like_sums() {
    for reduce in Reduce::ALL {
        for (kind, algorithm) in cases::all().filter(|(kind, _)| kind.reduces()) {
            for world in [1, 2, 3, 5, 7, 8] {
                let Some(promise) = cases::case(kind, algorithm, world, 11, 0) else {
                    continue;
                };
                prove(&cases::with_reduce(&promise, reduce));
            }
        }
    }
}

fn with_root(promise: &Promise, to: Rank) -> Promise {
    let mut requests = promise.requests().to_vec();
    for request in &mut requests {
        if let Call::Broadcast { root, .. }
        | Call::Reduce { root, .. }
        | Call::Gather { root, .. }
        | Call::Scatter { root, .. } = &mut request.call
        {
            *root = to;
        }
    }
    Promise::of(&requests).folding(promise.folds())
}

#[test]
fn any_rank_may_be_the_root() {
    for (kind, algorithm) in cases::all().filter(|(kind, _)| kind.is_rooted()) {
        for world in [1, 2, 3, 5, 8, 13, 16, 33] {
            let Some(promise) = cases::case(kind, algorithm, world, 3, 0) else {
                continue;
            };
            for to in (0..world).map(Rank) {
                prove(&with_root(&promise, to));
            }
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for world in 1..=70 {
        prove(&Promise::of_all(&request(Call::Barrier, world, 0)));
    }
}

/// What plans say of the order of their folds is all they keep: where the table says less than is true, it is to be made better.
#[test]
fn the_table_of_foldings_says_what_holds() {
    use gaggle_collectives::{Folding, select};
    let mut wrong = Vec::new();
    for (kind, algorithm) in cases::all().filter(|(kind, _)| kind.reduces()) {
        // In two levels the order depends on the hosts.
        if algorithm.between_hosts().is_some() {
            continue;
        }
        let keeps = |folding| {
            (2..=17).all(|world| {
                let case = cases::case(kind, algorithm, world, 2 * u64::from(world), 0);
                let promise = case
                    .expect("the first form is a plain one")
                    .folding(folding);
                let kept = |promise: &Promise| check(&plans(promise), promise).is_ok();
                kept(&promise) && kept(&with_root(&promise, Rank(world / 2)))
            })
        };
        let want = match (keeps(Folding::AtOnce), keeps(Folding::InOrder)) {
            (true, _) => Folding::AtOnce,
            (false, true) => Folding::InOrder,
            (false, false) => Folding::Any,
        };
        if select::folding(kind, algorithm) != want {
            wrong.push(format!("{kind:?} by {algorithm}: {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn larger_worlds_are_proved_too() {
    for (kind, algorithm) in cases::all() {
        for world in [64, 67] {
            if (is_exhaustive() || kind == OpKind::AllReduce)
                && let Some(promise) = cases::case(kind, algorithm, world, 3, 0)
            {
                prove(&promise);
            }
        }
    }
}
