//! `torch_basics`: who is who, and who is whose neighbour.

use super::{Case, Scene, Worlds, case, expect, scene::around};
use crate::work::Trouble;
use gaggle::{
    Form, Rank, Round,
    core::Topology,
    topology::{Graph, StaticExp, Table, Weights, by_name, edges},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "torch_basics",
        rank,
        Worlds::All,
        "as the launcher's environment says"
    ),
    case!(
        "torch_basics",
        size,
        Worlds::All,
        "as the launcher's environment says"
    ),
    case!(
        "torch_basics",
        set_and_load_topology,
        Worlds::Of(&[1, 4]),
        "n = 4 with all weights 1/3, n = 1 with [[1]]: the exponential graph"
    ),
    case!(
        "torch_basics",
        in_out_neighbors_expo2,
        Worlds::All,
        "in (r − 2^i) mod n, out (r + 2^i) mod n; none for n = 1"
    ),
    case!(
        "torch_basics",
        in_out_neighbors_biring,
        Worlds::All,
        "r ± 1; none for n = 1"
    ),
    case!(
        "torch_basics",
        infer_destination_from_source,
        Worlds::All,
        "the out-neighbours; W = (A > 0) / column sums"
    ),
    case!(
        "torch_basics",
        infer_source_from_destination,
        Worlds::All,
        "the in-neighbours; W = (A > 0) / column sums"
    ),
];

/// Under a launcher its variables are there; ranks that are threads have none.
fn environment(name: &str) -> Result<Option<u32>, Trouble> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse()?)),
        Err(_) => Ok(None),
    }
}

fn rank(s: &Scene) -> Result<(), Trouble> {
    expect::that(s.me < s.n, || format!("rank {} of {}", s.me, s.n))?;
    match environment("RANK")? {
        Some(r) => expect::ranks("rank", &[s.group.rank()], &[r]),
        None => Ok(()),
    }
}

fn size(s: &Scene) -> Result<(), Trouble> {
    // Everybody counts the others: as many as there are said to be.
    let all = s.group.all_gather(&[s.me])?;
    expect::exactly(&all, &(0..s.n).collect::<Vec<u32>>())?;
    match environment("WORLD_SIZE")? {
        Some(n) => expect::length(s.group.size(), n as usize),
        None => Ok(()),
    }
}

fn set_and_load_topology(s: &Scene) -> Result<(), Trouble> {
    let n = s.n;
    let part = |i: u32| {
        // In BlueFog's matrix rank i sends to i + 1 and i + 2.
        let peers = |sign: i32| (1..3).map(move |d| around(i, sign * d, n));
        match n {
            1 => Round {
                keep: 1.0,
                ..Round::default()
            },
            _ => Round {
                from: peers(-1).map(|r| (r, 1.0 / 3.0)).collect(),
                to: peers(1).map(|r| (r, 1.0)).collect(),
                keep: 1.0 / 3.0,
                form: Form::Delta,
            },
        }
    };
    let explicit = Table::new("explicit", vec![(0..n).map(part).collect()])?;
    let usual = StaticExp::new(s.group.size())?;
    for r in (0..n).map(Rank) {
        let (a, b) = (sorted(&explicit, r), sorted(&usual, r));
        expect::that(a == b, || format!("{r:?}: {a:?}, wanted {b:?}"))?;
    }
    Ok(())
}

/// A rank's part of a static topology, neighbours ascending.
fn sorted(topology: &dyn Topology, rank: Rank) -> Round {
    let mut round = Round::default();
    topology.round(rank, 0, &mut round);
    round.from.sort_by_key(|(r, _)| *r);
    round.to.sort_by_key(|(r, _)| *r);
    round
}

fn neighbours(s: &Scene, topology: &str, into: Vec<u32>, out: Vec<u32>) -> Result<(), Trouble> {
    let round = sorted(&*by_name(topology, s.group.size())?, Rank(s.me));
    let names = |list: &[(Rank, f64)]| list.iter().map(|(r, _)| *r).collect::<Vec<_>>();
    let ascending = |mut list: Vec<u32>| {
        list.sort_unstable();
        list.dedup();
        list
    };
    expect::ranks("in-neighbours", &names(&round.from), &ascending(into))?;
    expect::ranks("out-neighbours", &names(&round.to), &ascending(out))
}

fn in_out_neighbors_expo2(s: &Scene) -> Result<(), Trouble> {
    neighbours(s, "static-exp", s.in_exp2(s.me), s.out_exp2(s.me))
}

fn in_out_neighbors_biring(s: &Scene) -> Result<(), Trouble> {
    let beside = match s.n {
        1 => vec![],
        _ => vec![s.at(-1).0, s.at(1).0],
    };
    neighbours(s, "ring", beside.clone(), beside)
}

/// The graphs of both inference tests.
const GRAPHS: [&str; 5] = ["static-exp", "ring", "star", "mesh", "fully-connected"];

/// Every rank tells whom it knows of, and all see the whole graph.
fn inferred(s: &Scene, topology: &str, known: Known) -> Result<(), Trouble> {
    let own = sorted(&*by_name(topology, s.group.size())?, Rank(s.me));
    let list = match known {
        Known::Sources => &own.from,
        Known::Destinations => &own.to,
    };
    let list: Vec<u32> = list.iter().map(|(r, _)| r.0).collect();
    let (all, counts) = s.group.all_gather_any(&list)?;
    let mut all = all.into_iter();
    let mut told = Vec::new();
    for (teller, count) in (0..).zip(counts) {
        let peers = all.by_ref().take(count as usize);
        told.extend(peers.map(|peer| match known {
            Known::Sources => (Rank(peer), Rank(teller)),
            Known::Destinations => (Rank(teller), Rank(peer)),
        }));
    }
    let graph = Graph::new(s.group.size(), told)?;
    let names = |list: &[(Rank, f64)]| list.iter().map(|(r, _)| r.0).collect::<Vec<_>>();
    let me = Rank(s.me);
    let (into, out): (Vec<Rank>, Vec<Rank>) = (
        graph.in_neighbours(me).collect(),
        graph.out_neighbours(me).collect(),
    );
    expect::ranks("in-neighbours", &into, &names(&own.from))?;
    expect::ranks("out-neighbours", &out, &names(&own.to))?;
    // Column r of BlueFog's matrix is what receiver r weighs with.
    let rounds = graph.round(Weights::Uniform)?;
    let truth = edges(&*by_name(topology, s.group.size())?, 0);
    for (r, round) in (0..).map(Rank).zip(&rounds) {
        let entries = 1 + truth.iter().filter(|(_, to, _)| *to == r).count();
        let weight = 1.0 / entries as f64;
        let uniform = round.keep == weight && round.from.iter().all(|(_, w)| *w == weight);
        expect::that(uniform && round.from.len() + 1 == entries, || {
            format!("{topology}, column {}: {round:?}", r.0)
        })?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Known {
    Sources,
    Destinations,
}

fn infer_destination_from_source(s: &Scene) -> Result<(), Trouble> {
    GRAPHS
        .iter()
        .try_for_each(|graph| inferred(s, graph, Known::Sources))
}

fn infer_source_from_destination(s: &Scene) -> Result<(), Trouble> {
    GRAPHS
        .iter()
        .try_for_each(|graph| inferred(s, graph, Known::Destinations))
}
