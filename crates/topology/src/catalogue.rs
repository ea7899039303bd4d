//! Names that users type, with what may be written after them.

use crate::{
    BaseGraph, Direction, EquiDyn, EquiStatic, FullyConnected, Graph, Hypercube, InnerOuter,
    KPeerExp, Lazy, NullCascade, OnePeer, OnePeerExp, OnePeerHypercube, RandomMatching, Ring, Star,
    StaticExp, SymmetricExp, TopologyError, UniRing, Weights, binary_tree, chain, edges,
    erdos_renyi, even_shape, mesh, torus,
};
use gaggle_core::{Rank, Topology};
use std::str::FromStr;

/// One kind of topology, for help and lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The name that [`by_name`] knows.
    pub name: &'static str,
    /// What may follow the name, each after a colon; empty for nothing.
    pub parameters: &'static str,
    /// What it is for, in a line.
    pub about: &'static str,
}

const fn entry(name: &'static str, parameters: &'static str, about: &'static str) -> Entry {
    Entry {
        name,
        parameters,
        about,
    }
}

/// All that [`by_name`] knows, simple ones first.
pub const CATALOGUE: [Entry; 28] = [
    entry(
        "ring",
        "",
        "both neighbours; simple, and slow on many ranks",
    ),
    entry("uni-ring", "", "the next rank only; one message a round"),
    entry("uni-ring-left", "", "the rank before only"),
    entry(
        "star",
        "CENTRE",
        "all with one rank, which carries the load; rank 0 unless told",
    ),
    entry(
        "fully-connected",
        "",
        "everybody with everybody: the mean in one round, at n − 1 messages",
    ),
    entry(
        "static-exp",
        "",
        "powers of two away; log₂ n messages, mixes fast on any number of ranks",
    ),
    entry(
        "one-peer-exp",
        "",
        "one power of two a round; exact after log₂ n rounds of 2^m ranks",
    ),
    entry("chain", "", "a line: a tree for relaysgd, slow otherwise"),
    entry(
        "binary-tree",
        "",
        "parents (i − 1)/2: a tree for relaysgd, of small diameter",
    ),
    entry("mesh", "ROWSxCOLUMNS", "a grid without edges around"),
    entry(
        "torus",
        "ROWSxCOLUMNS",
        "a grid with edges around; four messages",
    ),
    entry(
        "hypercube",
        "",
        "one bit apart; 2^m ranks, symmetric, log₂ n messages",
    ),
    entry(
        "one-peer-hypercube",
        "",
        "one bit a round, in pairs; exact after log₂ n rounds, symmetric",
    ),
    entry(
        "exp",
        "BASE",
        "powers of another base away; fewer messages than static-exp (3 unless told)",
    ),
    entry(
        "symmetric-exp",
        "BASE",
        "powers away on both sides; symmetric (4 unless told)",
    ),
    entry(
        "k-peer-exp",
        "K",
        "k peers a round; exact where n is a power of k + 1 (2 unless told)",
    ),
    entry(
        "base",
        "K",
        "at most k peers a round, and exact for every number of ranks (1 unless told)",
    ),
    entry("simple-base", "K", "as base, by its simple form"),
    entry(
        "null-cascade",
        "K",
        "at most k peers, exact for every number of ranks, rounds in any order (2 unless told)",
    ),
    entry(
        "erdos-renyi",
        "P:SEED",
        "every pair with probability p (2·ln n/n unless told)",
    ),
    entry(
        "random-matching",
        "SEED",
        "other random pairs in every round",
    ),
    entry(
        "d-equi-static",
        "SHIFTS:SEED",
        "random distances, directed; mixing does not depend on n",
    ),
    entry(
        "u-equi-static",
        "SHIFTS:SEED",
        "random distances, both ways; mixing does not depend on n",
    ),
    entry(
        "od-equi-dyn",
        "SEED",
        "one random distance a round, directed; one message",
    ),
    entry(
        "ou-equi-dyn",
        "SEED",
        "one random distance a round, in pairs; one message",
    ),
    entry(
        "inner-outer-exp",
        "LOCAL",
        "one rank of each machine sends outside per round, machines at powers of two",
    ),
    entry(
        "inner-outer-ring",
        "LOCAL",
        "one rank of each machine sends outside per round, to the next machine",
    ),
    entry(
        "one-peer-over",
        "NAME",
        "one edge of another graph a round, by clockwise distance",
    ),
];

/// Names contain names, so there is an end to them.
const LONGEST_NAME: usize = 200;

/// The topology that users call `name`, for `world` ranks.
///
/// The names of the [`CATALOGUE`], each with its parameters after colons: `torus:4x8`, `base:3`, `erdos-renyi:0.3:7`, `one-peer-over:torus:4x4`.
/// `lazy-` before a name halves every step; `full` and `exp2` are short for `fully-connected` and `static-exp`.
///
/// # Errors
/// [`TopologyError::UnknownName`] with the names that exist, [`TopologyError::Parameter`] for what cannot follow the name, or what the constructor says.
pub fn by_name(name: &str, world: usize) -> Result<Box<dyn Topology>, TopologyError> {
    by_name_seeded(name, world, 0)
}

/// As [`by_name`], where a random topology whose name has no seed takes `seed`: one seed of a run decides these draws too.
///
/// # Errors
/// As there.
///
/// ```
/// use gaggle_topology::{by_name, by_name_seeded, edges};
/// let drawn = |name, seed| by_name_seeded(name, 8, seed).map(|t| edges(&*t, 0));
/// assert_ne!(drawn("random-matching", 1)?, drawn("random-matching", 2)?);
/// assert_eq!(drawn("random-matching:7", 1)?, edges(&*by_name("random-matching:7", 8)?, 0));
/// # Ok::<(), gaggle_topology::TopologyError>(())
/// ```
pub fn by_name_seeded(
    name: &str,
    world: usize,
    seed: u64,
) -> Result<Box<dyn Topology>, TopologyError> {
    if name.len() > LONGEST_NAME {
        return Err(TopologyError::Parameter {
            topology: name.chars().take(20).chain("…".chars()).collect(),
            what: format!("a name has up to {LONGEST_NAME} characters"),
        });
    }
    if let Some(inner) = name.strip_prefix("lazy-") {
        return Ok(Box::new(Lazy::new(by_name_seeded(inner, world, seed)?)));
    }
    if let Some(inner) = name.strip_prefix("one-peer-over:")
        && !inner.is_empty()
    {
        let all = edges(&*by_name_seeded(inner, world, seed)?, 0);
        let graph = Graph::new(world, all.into_iter().map(|(from, to, _)| (from, to)))?;
        let name = format!("one-peer-over:{inner}");
        return Ok(Box::new(OnePeer::over(name, &graph, Weights::Uniform)?));
    }
    let mut words = name.split(':');
    let kind = words.next().unwrap_or_default();
    let mut p = Parameters {
        name: kind,
        left: words.collect(),
    };
    let topology: Box<dyn Topology> = match kind {
        "ring" => Box::new(Ring::new(world)?),
        "uni-ring" => Box::new(UniRing::new(world, Direction::Right)?),
        "uni-ring-left" => Box::new(UniRing::new(world, Direction::Left)?),
        "star" => Box::new(Star::new(world, Rank(p.next("CENTRE", 0)?))?),
        "fully-connected" | "full" => Box::new(FullyConnected::new(world)?),
        "static-exp" | "exp2" => Box::new(StaticExp::new(world)?),
        "one-peer-exp" => Box::new(OnePeerExp::new(world)?),
        "chain" => Box::new(chain(world)?),
        "binary-tree" => Box::new(binary_tree(world)?),
        "mesh" => p.grid(world, mesh)?,
        "torus" => p.grid(world, torus)?,
        "hypercube" => Box::new(Hypercube::new(world)?),
        "one-peer-hypercube" => Box::new(OnePeerHypercube::new(world)?),
        "exp" => Box::new(StaticExp::with_base(world, p.next("BASE", 3)?)?),
        "symmetric-exp" => Box::new(SymmetricExp::new(world, p.next("BASE", 4)?)?),
        "k-peer-exp" => {
            // The largest that there are peers for, unless told.
            let usual = 2.min(world.saturating_sub(1).max(1) as u32);
            Box::new(KPeerExp::new(world, p.next("K", usual)?)?)
        }
        "base" => Box::new(BaseGraph::new(world, p.next("K", 1)?)?),
        "simple-base" => Box::new(BaseGraph::simple(world, p.next("K", 1)?)?),
        "null-cascade" => Box::new(NullCascade::new(world, p.next("K", 2)?)?),
        "erdos-renyi" => {
            let n = world.max(2) as f64;
            let usual = (2.0 * n.ln() / n).min(1.0);
            let chance = p.next("P", usual)?;
            Box::new(erdos_renyi(world, chance, p.next("SEED", seed)?)?)
        }
        "random-matching" => Box::new(RandomMatching::new(world, p.next("SEED", seed)?)?),
        "d-equi-static" | "u-equi-static" => {
            let undirected = kind == "u-equi-static";
            let usual = (world.max(2).ilog2() as usize + 1).max(2);
            let shifts = p.next("SHIFTS", usual)?;
            let seed = p.next("SEED", seed)?;
            Box::new(EquiStatic::random(world, shifts, undirected, seed)?)
        }
        "od-equi-dyn" => Box::new(EquiDyn::new(world, false, 0.5, p.next("SEED", seed)?)?),
        "ou-equi-dyn" => Box::new(EquiDyn::new(world, true, 0.5, p.next("SEED", seed)?)?),
        "inner-outer-exp" => Box::new(InnerOuter::exp(world, p.needed("LOCAL")?)?),
        "inner-outer-ring" => Box::new(InnerOuter::ring(world, p.needed("LOCAL")?)?),
        "one-peer-over" => {
            return Err(p.wrong("one-peer-over:NAME is wanted, as one-peer-over:ring".into()));
        }
        _ => {
            let known: Vec<&str> = CATALOGUE.iter().map(|e| e.name).collect();
            return Err(TopologyError::UnknownName {
                name: name.into(),
                known: known.join(", "),
            });
        }
    };
    p.end()?;
    Ok(topology)
}

/// What follows a name.
struct Parameters<'a> {
    name: &'a str,
    left: std::collections::VecDeque<&'a str>,
}

impl Parameters<'_> {
    fn wrong(&self, what: String) -> TopologyError {
        TopologyError::Parameter {
            topology: self.name.into(),
            what,
        }
    }

    fn next<T: FromStr>(&mut self, what: &str, usual: T) -> Result<T, TopologyError> {
        match self.left.pop_front() {
            None => Ok(usual),
            Some(text) => text
                .parse()
                .map_err(|_| self.wrong(format!("{what} is a number, not {text:?}"))),
        }
    }

    fn needed(&mut self, what: &str) -> Result<usize, TopologyError> {
        match self.left.is_empty() {
            true => Err(self.wrong(format!("{0}:{what} is wanted, as {0}:4", self.name))),
            false => self.next(what, 0),
        }
    }

    fn grid(
        &mut self,
        world: usize,
        make: impl Fn(usize, usize) -> Result<crate::Table, TopologyError>,
    ) -> Result<Box<dyn Topology>, TopologyError> {
        let Some(text) = self.left.pop_front() else {
            let (rows, columns) = even_shape(world);
            return Ok(Box::new(make(rows, columns)?));
        };
        let shape = text.split_once('x').and_then(|(rows, columns)| {
            let (rows, columns): (usize, usize) = (rows.parse().ok()?, columns.parse().ok()?);
            (rows.checked_mul(columns) == Some(world)).then_some((rows, columns))
        });
        let (rows, columns) = shape.ok_or_else(|| {
            self.wrong(format!(
                "{text:?} is no shape of {world} ranks, as ROWSxCOLUMNS"
            ))
        })?;
        Ok(Box::new(make(rows, columns)?))
    }

    fn end(&self) -> Result<(), TopologyError> {
        match self.left.front() {
            None => Ok(()),
            Some(text) => Err(self.wrong(format!("{text:?} is one parameter too many"))),
        }
    }
}
