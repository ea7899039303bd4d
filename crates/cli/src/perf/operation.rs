//! The operations that can be measured: their names, their bandwidth factors, and what each rank's buffers hold before and after.

use super::check::{Content, Piece};
use gaggle_core::{Counts, Form, Kind, Op, Rank, Reduce, Round, Topology};
use std::sync::Arc;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    AllReduce,
    Reduce,
    Broadcast,
    Gather,
    GatherV,
    Scatter,
    ScatterV,
    AllGather,
    AllGatherV,
    ReduceScatter,
    ReduceScatterV,
    AllToAll,
    AllToAllV,
    Barrier,
    SendRecv,
    Neighbour,
    NeighbourGather,
    PairGossip,
    Hierarchical,
}

/// Whether the result takes the contribution's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Out,
    In,
}

impl Place {
    pub(super) const BOTH: [Place; 2] = [Place::Out, Place::In];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Place::Out => "out-of-place",
            Place::In => "in-place",
        }
    }
}

/// An operation as people call it; some names say the topology, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) operation: Operation,
    pub(super) topology: Option<&'static str>,
}

impl Operation {
    pub(super) const ALL: [Operation; 19] = [
        Operation::AllReduce,
        Operation::Reduce,
        Operation::Broadcast,
        Operation::Gather,
        Operation::GatherV,
        Operation::Scatter,
        Operation::ScatterV,
        Operation::AllGather,
        Operation::AllGatherV,
        Operation::ReduceScatter,
        Operation::ReduceScatterV,
        Operation::AllToAll,
        Operation::AllToAllV,
        Operation::Barrier,
        Operation::SendRecv,
        Operation::Neighbour,
        Operation::NeighbourGather,
        Operation::PairGossip,
        Operation::Hierarchical,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all-reduce",
            Operation::Reduce => "reduce",
            Operation::Broadcast => "broadcast",
            Operation::Gather => "gather",
            Operation::GatherV => "gather-v",
            Operation::Scatter => "scatter",
            Operation::ScatterV => "scatter-v",
            Operation::AllGather => "all-gather",
            Operation::AllGatherV => "all-gather-v",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::ReduceScatterV => "reduce-scatter-v",
            Operation::AllToAll => "all-to-all",
            Operation::AllToAllV => "all-to-all-v",
            Operation::Barrier => "barrier",
            Operation::SendRecv => "send-recv",
            Operation::Neighbour => "neighbour-all-reduce",
            Operation::NeighbourGather => "neighbour-all-gather",
            Operation::PairGossip => "pair-gossip",
            Operation::Hierarchical => "hierarchical",
        }
    }

    /// Whether contributions are combined by a reduction.
    pub(super) const fn reduces(self) -> bool {
        matches!(
            self,
            Operation::AllReduce
                | Operation::Reduce
                | Operation::ReduceScatter
                | Operation::ReduceScatterV
        )
    }

    /// Whether weighted averages are computed, which only floats have.
    pub(super) const fn averages(self) -> bool {
        matches!(
            self,
            Operation::Neighbour | Operation::PairGossip | Operation::Hierarchical
        )
    }

    /// Whether calls that follow each other would overlap: a rank that only gives is off before the others have taken. One call at a time is measured then, and its time is the slowest rank's.
    pub(super) const fn is_one_sided(self) -> bool {
        matches!(
            self,
            Operation::Reduce
                | Operation::Broadcast
                | Operation::Gather
                | Operation::GatherV
                | Operation::Scatter
                | Operation::ScatterV
        )
    }

    /// Whether it has a root.
    pub(super) const fn is_rooted(self) -> bool {
        self.is_one_sided()
    }

    /// Whether every rank has a part of the vector; parts of lengths of their own are `Some(true)`.
    const fn parts(self) -> Option<bool> {
        match self {
            Operation::Gather
            | Operation::Scatter
            | Operation::AllGather
            | Operation::ReduceScatter
            | Operation::AllToAll => Some(false),
            Operation::GatherV
            | Operation::ScatterV
            | Operation::AllGatherV
            | Operation::ReduceScatterV
            | Operation::AllToAllV => Some(true),
            _ => None,
        }
    }

    pub(super) const fn has(self, place: Place) -> bool {
        match self {
            Operation::SendRecv | Operation::NeighbourGather | Operation::AllToAllV => {
                matches!(place, Place::Out)
            }
            Operation::Barrier => matches!(place, Place::In),
            _ => true,
        }
    }

    /// What a program that is compared with others is asked for: the vector itself where one buffer will do, two buffers elsewhere.
    pub(super) const fn usual_place(self) -> Place {
        match self {
            Operation::AllReduce | Operation::Broadcast | Operation::Barrier => Place::In,
            _ => Place::Out,
        }
    }

    /// The name in nccl-tests' style and others' fits too.
    pub(super) fn parse(text: &str) -> Option<Named> {
        let name = text.to_ascii_lowercase().replace(['_', ' ', '/'], "-");
        let usual = match name.as_str() {
            "allreduce" => "all-reduce",
            "allgather" => "all-gather",
            "allgatherv" | "allgather-v" | "all-gatherv" => "all-gather-v",
            "gatherv" => "gather-v",
            "scatterv" => "scatter-v",
            "reducescatter" => "reduce-scatter",
            "reduce-scatterv" => "reduce-scatter-v",
            "alltoall" => "all-to-all",
            "alltoallv" | "alltoall-v" | "all-to-allv" => "all-to-all-v",
            "sendrecv" | "send" | "message" => "send-recv",
            "gossip" => "pair-gossip",
            "mix" | "neighbor-allreduce" | "neighbor-all-reduce" => "neighbour-all-reduce",
            "neighbour-gather" | "neighbor-allgather" | "neighbor-all-gather" => {
                "neighbour-all-gather"
            }
            "hierarchical-mix"
            | "hierarchical-neighbour-all-reduce"
            | "hierarchical-neighbor-allreduce" => "hierarchical",
            other => other,
        };
        if let Some(topology) = usual
            .strip_prefix("neighbor-")
            .or(usual.strip_prefix("neighbour-"))
        {
            let topology = match topology {
                "ring" => Some("ring"),
                "exp2" => Some("static-exp"),
                "onepeer" | "one-peer" => Some("one-peer-exp"),
                _ => None,
            };
            if topology.is_some() {
                return Some(Named {
                    operation: Operation::Neighbour,
                    topology,
                });
            }
        }
        let operation = Self::ALL.into_iter().find(|o| o.name() == usual)?;
        Some(Named {
            operation,
            topology: None,
        })
    }
}

/// Who takes part, and how.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) operation: Operation,
    pub(super) world: u32,
    pub(super) me: u32,
    pub(super) root: u32,
    pub(super) reduce: Reduce,
    /// Of ranks, or of machines.
    pub(super) topology: Option<Arc<dyn Topology>>,
    /// Ranks per machine.
    pub(super) machine: u32,
}

/// One operation on buffers of one length.
pub(super) struct Call {
    /// One per round after which the topology repeats.
    pub(super) ops: Vec<Op>,
    /// Started after the first one and waited for together with it.
    pub(super) beside: Option<Op>,
    /// Elements of the vector: as asked for, or fewer so that all parts are equal.
    pub(super) len: u64,
    /// Elements as the engine counts a call's length: of one part where all parts are equal.
    pub(super) unit: u64,
    pub(super) input: Option<Vec<Piece>>,
    pub(super) io: Vec<Piece>,
    /// What `io` holds after the first of `ops`.
    pub(super) want: Vec<Piece>,
}

/// Of several parts of one vector: whose begins where.
struct Parts {
    counts: Vec<u64>,
}

impl Parts {
    fn of(len: u64, world: u32, uneven: bool) -> Parts {
        let n = u64::from(world);
        if !uneven {
            return Parts {
                counts: vec![len / n; world as usize],
            };
        }
        // Rank r's is r + 1 parts long; the last one takes the rest.
        let all = u128::from(n) * u128::from(n + 1) / 2;
        let mut counts: Vec<u64> = (1..=u128::from(n))
            .map(|r| (u128::from(len) * r / all) as u64)
            .collect();
        let rest = len - counts.iter().sum::<u64>();
        if let Some(last) = counts.last_mut() {
            *last += rest;
        }
        Parts { counts }
    }

    fn count(&self, rank: u32) -> u64 {
        self.counts[rank as usize]
    }

    fn start(&self, rank: u32) -> u64 {
        self.counts[..rank as usize].iter().sum()
    }

    /// One piece for each rank's part.
    fn each(&self, content: impl Fn(u32) -> Content) -> Vec<Piece> {
        self.counts
            .iter()
            .zip(0..)
            .map(|(len, rank)| Piece::new(*len, content(rank)))
            .collect()
    }
}

impl Setting {
    /// What the bandwidth of an algorithm is multiplied with to get the hardware's, as nccl-tests does; of neighbour operations, how many vectors a rank sends.
    pub(super) fn bus_factor(&self) -> f64 {
        let n = f64::from(self.world);
        match self.operation {
            Operation::AllReduce => 2.0 * (n - 1.0) / n,
            Operation::Reduce | Operation::Broadcast | Operation::SendRecv => 1.0,
            Operation::Barrier => 0.0,
            Operation::PairGossip => f64::from(u8::from(self.world > 1)),
            Operation::Neighbour | Operation::NeighbourGather => self.degree(),
            Operation::Hierarchical => {
                let k = f64::from(self.machine);
                2.0 * (k - 1.0) / k + self.degree() / k
            }
            _ => (n - 1.0) / n,
        }
    }

    /// To how many others the busiest one sends, in the mean over all rounds.
    fn degree(&self) -> f64 {
        let Some(topology) = &self.topology else {
            return 0.0;
        };
        let mut round = Round::default();
        let mut sum = 0;
        for t in 0..self.period() {
            let most = (0..topology.world() as u32).map(|rank| {
                topology.round(Rank(rank), t, &mut round);
                round.to.len()
            });
            sum += most.max().unwrap_or(0);
        }
        sum as f64 / self.period() as f64
    }

    fn period(&self) -> u64 {
        /// Of topologies that never repeat, and of those that take long: that many rounds in turn.
        const MOST: u64 = 64;
        let period = self.topology.as_ref().and_then(|t| t.period());
        period.unwrap_or(MOST).clamp(1, MOST)
    }

    fn round(&self, of: u32, t: u64) -> Round {
        let mut round = Round::default();
        if let Some(topology) = &self.topology {
            topology.round(Rank(of), t, &mut round);
        }
        round
    }

    /// Who averages with how much of whom in round 0, ranks or machines.
    fn weights(&self, of: u32) -> Vec<(u32, f64)> {
        let round = self.round(of, 0);
        let mut weights = vec![(of, round.keep)];
        for (from, w) in &round.from {
            let theirs = self.round(from.0, 0);
            let sent = theirs.to.iter().find(|(to, _)| to.0 == of);
            weights.push((from.0, w * sent.map_or(0.0, |(_, b)| *b)));
        }
        weights
    }

    fn partner(&self) -> Option<u32> {
        let partner = self.me ^ 1;
        (partner < self.world).then_some(partner)
    }

    /// How many elements of a vector of so many are worked on: as many as make equal parts.
    pub(super) fn elements(&self, asked: u64) -> u64 {
        match (self.operation.parts(), self.operation) {
            (_, Operation::Barrier) => 0,
            (Some(false), _) => asked - asked % u64::from(self.world),
            _ => asked,
        }
    }

    /// The call on a vector of so many elements.
    pub(super) fn call(&self, asked: u64, place: Place) -> Call {
        let (me, root) = (self.me, self.root);
        let uneven = self.operation.parts();
        let parts = Parts::of(asked, self.world, uneven == Some(true));
        let len = self.elements(asked);
        let counts = match uneven {
            Some(true) => Counts::known(&parts.counts),
            _ => Counts::Equal,
        };
        let own = |from| Content::Of { rank: me, from };
        let all = |content| vec![Piece::new(len, content)];
        let is_root = me == root;
        let mine = parts.count(me);
        let (input, io, want) = match self.operation {
            Operation::AllReduce => (all(own(0)), all(own(0)), all(Content::Reduced { from: 0 })),
            Operation::Reduce => match (place, is_root) {
                (_, true) => (all(own(0)), all(own(0)), all(Content::Reduced { from: 0 })),
                (Place::In, false) => (vec![], all(own(0)), all(own(0))),
                (Place::Out, false) => (all(own(0)), vec![], vec![]),
            },
            Operation::Broadcast => {
                let theirs = || {
                    all(Content::Of {
                        rank: root,
                        from: 0,
                    })
                };
                let io = if is_root { theirs() } else { all(Content::Any) };
                (all(own(0)), io, theirs())
            }
            Operation::Gather | Operation::GatherV => {
                let part = || vec![Piece::new(mine, own(0))];
                let want = parts.each(|rank| Content::Of { rank, from: 0 });
                match (place, is_root) {
                    (_, true) => {
                        let there = |rank| match rank == me {
                            true => own(0),
                            false => Content::Any,
                        };
                        (part(), parts.each(there), want)
                    }
                    (Place::Out, false) => (part(), vec![], vec![]),
                    (Place::In, false) => (vec![], part(), vec![Piece::new(mine, Content::Any)]),
                }
            }
            Operation::Scatter | Operation::ScatterV => {
                let from = parts.start(me);
                let part = |content| vec![Piece::new(mine, content)];
                let theirs = Content::Of { rank: root, from };
                match (place, is_root) {
                    (Place::Out, _) => {
                        let input = if is_root { all(own(0)) } else { vec![] };
                        (input, part(Content::Any), part(theirs))
                    }
                    (Place::In, true) => {
                        let want = parts.each(|rank| match rank == me {
                            true => own(from),
                            false => Content::Any,
                        });
                        (vec![], all(own(0)), want)
                    }
                    (Place::In, false) => (vec![], part(Content::Any), part(theirs)),
                }
            }
            Operation::AllGather | Operation::AllGatherV => {
                let there = |rank| match rank == me {
                    true => own(0),
                    false => Content::Any,
                };
                let want = parts.each(|rank| Content::Of { rank, from: 0 });
                (vec![Piece::new(mine, own(0))], parts.each(there), want)
            }
            Operation::ReduceScatter | Operation::ReduceScatterV => {
                let from = parts.start(me);
                match place {
                    Place::Out => (
                        all(own(0)),
                        vec![Piece::new(mine, Content::Any)],
                        vec![Piece::new(mine, Content::Reduced { from })],
                    ),
                    Place::In => {
                        let want = parts.each(|rank| match rank == me {
                            true => Content::Reduced { from },
                            false => own(parts.start(rank)),
                        });
                        (vec![], all(own(0)), want)
                    }
                }
            }
            Operation::AllToAll | Operation::AllToAllV => {
                let from = parts.start(me);
                let want: Vec<Piece> = (0..self.world)
                    .map(|rank| Piece::new(mine, Content::Of { rank, from }))
                    .collect();
                let io = match place {
                    Place::In => all(own(0)),
                    Place::Out => vec![Piece::new(mine * u64::from(self.world), Content::Any)],
                };
                (all(own(0)), io, want)
            }
            Operation::Barrier => (vec![], vec![], vec![]),
            Operation::SendRecv => {
                let rank = (me + self.world - 1) % self.world;
                (
                    all(own(0)),
                    all(Content::Any),
                    all(Content::Of { rank, from: 0 }),
                )
            }
            Operation::Neighbour => {
                let want = all(Content::Mixed(self.weights(me)));
                (all(own(0)), all(own(0)), want)
            }
            Operation::NeighbourGather => {
                let from = self.round(me, 0).from;
                let want: Vec<Piece> = from
                    .iter()
                    .map(|(rank, _)| {
                        Piece::new(
                            len,
                            Content::Of {
                                rank: rank.0,
                                from: 0,
                            },
                        )
                    })
                    .collect();
                let io = vec![Piece::new(len * from.len() as u64, Content::Any)];
                (all(own(0)), io, want)
            }
            Operation::PairGossip => {
                let weights = match self.partner() {
                    Some(partner) => vec![(me, 0.5), (partner, 0.5)],
                    None => vec![(me, 1.0)],
                };
                (all(own(0)), all(own(0)), all(Content::Mixed(weights)))
            }
            Operation::Hierarchical => {
                let k = self.machine;
                let mut weights = Vec::new();
                for (machine, w) in self.weights(me / k) {
                    let ranks = machine * k..(machine + 1) * k;
                    weights.extend(ranks.map(|rank| (rank, w / f64::from(k))));
                }
                (all(own(0)), all(own(0)), all(Content::Mixed(weights)))
            }
        };
        // Out of place nothing of the contribution is where the result goes.
        let io = match place {
            Place::In => io,
            Place::Out => io
                .into_iter()
                .map(|piece| Piece::new(piece.len, Content::Any))
                .collect(),
        };
        let (ops, beside) = self.ops(&counts);
        Call {
            ops,
            beside,
            len,
            unit: match uneven {
                Some(false) => mine,
                _ => len,
            },
            input: (place == Place::Out).then_some(input),
            io,
            want,
        }
    }

    fn ops(&self, counts: &Counts) -> (Vec<Op>, Option<Op>) {
        const TAG: u32 = 1;
        let (root, reduce) = (Rank(self.root), self.reduce);
        let counts = || counts.clone();
        let (me, n) = (self.me, self.world);
        let rounds = |of: u32, kind: &dyn Fn(Round) -> Kind| -> Vec<Op> {
            (0..self.period())
                .map(|t| Op::new(kind(self.round(of, t))))
                .collect()
        };
        let kind = match self.operation {
            Operation::AllReduce => Kind::AllReduce(reduce),
            Operation::Reduce => Kind::Reduce { reduce, root },
            Operation::Broadcast => Kind::Broadcast { root },
            Operation::Gather | Operation::GatherV => Kind::Gather {
                root,
                counts: counts(),
            },
            Operation::Scatter | Operation::ScatterV => Kind::Scatter {
                root,
                counts: counts(),
            },
            Operation::AllGather | Operation::AllGatherV => Kind::AllGather(counts()),
            Operation::ReduceScatter | Operation::ReduceScatterV => Kind::ReduceScatter {
                reduce,
                counts: counts(),
            },
            Operation::AllToAll => Kind::AllToAll {
                send: Counts::Equal,
                recv: Counts::Equal,
            },
            Operation::AllToAllV => {
                let mine = match counts() {
                    Counts::Known(counts) => counts[me as usize],
                    _ => 0,
                };
                Kind::AllToAll {
                    send: counts(),
                    recv: Counts::known(&vec![mine; n as usize]),
                }
            }
            Operation::Barrier => Kind::Barrier,
            Operation::SendRecv => {
                let (to, from) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
                let send = Op::new(Kind::Send { to, tag: TAG });
                return (vec![send], Some(Op::new(Kind::Recv { from, tag: TAG })));
            }
            Operation::Neighbour => {
                return (rounds(me, &|round| Kind::Mix { round, t: 0 }), None);
            }
            Operation::NeighbourGather => {
                let ranks = |side: &[(Rank, f64)]| side.iter().map(|(r, _)| *r).collect();
                let kind = |round: Round| Kind::NeighbourGather {
                    from: ranks(&round.from),
                    to: ranks(&round.to),
                    counts: Counts::Equal,
                    t: 0,
                };
                // Another round may have other neighbours, and the output another length.
                let mut ops = rounds(me, &kind);
                ops.truncate(1);
                return (ops, None);
            }
            Operation::PairGossip => {
                let partner = self.partner().map(Rank);
                let w = if partner.is_some() { 0.5 } else { 0.0 };
                let round = Round {
                    from: partner.iter().map(|p| (*p, w)).collect(),
                    to: partner.iter().map(|p| (*p, 1.0)).collect(),
                    keep: 1.0 - w,
                    form: Form::Delta,
                };
                Kind::Mix { round, t: 0 }
            }
            Operation::Hierarchical => {
                let k = self.machine;
                let machines: Arc<[Vec<Rank>]> = (0..n / k)
                    .map(|m| (m * k..(m + 1) * k).map(Rank).collect())
                    .collect();
                let kind = |round| Kind::HierarchicalMix {
                    machines: Arc::clone(&machines),
                    round,
                    t: 0,
                };
                return (rounds(me / k, &kind), None);
            }
        };
        (vec![Op::new(kind)], None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(operation: Operation, world: u32) -> Setting {
        Setting {
            operation,
            world,
            me: 0,
            root: 0,
            reduce: Reduce::Sum,
            topology: gaggle_topology::by_name("ring", world as usize)
                .ok()
                .map(Arc::from),
            machine: 1,
        }
    }

    #[test]
    fn bus_bandwidth_has_the_factors_of_nccl_tests() {
        let factor = |name, world| {
            let named = Operation::parse(name).unwrap();
            setting(named.operation, world).bus_factor()
        };
        assert_eq!(factor("allreduce", 2), 1.0);
        assert_eq!(factor("all_reduce", 4), 1.5);
        for name in [
            "allgather",
            "reduce_scatter",
            "alltoall",
            "gather",
            "scatter",
            "all-gather-v",
        ] {
            assert_eq!(factor(name, 4), 0.75, "{name}");
            assert_eq!(factor(name, 1), 0.0, "{name}");
        }
        for name in ["reduce", "broadcast", "send/recv"] {
            assert_eq!(factor(name, 4), 1.0, "{name}");
        }
        assert_eq!(factor("barrier", 4), 0.0);
        // A rank of a ring sends to two others, of a pair to one.
        assert_eq!(factor("neighbor_ring", 5), 2.0);
        assert_eq!(factor("mix", 2), 1.0);
        assert_eq!(factor("pair-gossip", 3), 1.0);
    }

    #[test]
    fn every_name_is_understood_and_says_its_topology() {
        for operation in Operation::ALL {
            let named = Named {
                operation,
                topology: None,
            };
            assert_eq!(Operation::parse(operation.name()), Some(named));
        }
        let topology = |name| Operation::parse(name).and_then(|n| n.topology);
        assert_eq!(topology("neighbor_exp2"), Some("static-exp"));
        assert_eq!(topology("neighbor_onepeer"), Some("one-peer-exp"));
        assert_eq!(topology("neighbor_ring"), Some("ring"));
        assert_eq!(Operation::parse("sum"), None);
        assert_eq!(Operation::parse("neighbor_star"), None);
    }

    #[test]
    fn pieces_are_as_long_as_the_buffers_and_as_the_results() {
        let sum = |pieces: &[Piece]| pieces.iter().map(|p| p.len).sum::<u64>();
        for operation in Operation::ALL {
            for world in [1, 2, 3, 5, 8] {
                for len in [0, 1, 7, 8, 9, 127] {
                    for place in Place::BOTH.into_iter().filter(|p| operation.has(*p)) {
                        for me in 0..world {
                            let s = Setting {
                                me,
                                root: world - 1,
                                ..setting(operation, world)
                            };
                            let call = s.call(len, place);
                            assert_eq!(sum(&call.io), sum(&call.want), "{operation:?} {place:?}");
                            assert!(
                                call.len <= len && call.len + u64::from(world) > len
                                    || operation == Operation::Barrier
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn uneven_parts_are_uneven_and_whole() {
        let parts = Parts::of(13, 3, true);
        assert_eq!(parts.counts, [2, 4, 7]);
        assert_eq!((parts.counts.iter().sum::<u64>(), parts.start(2)), (13, 6));
        assert_eq!(Parts::of(1, 3, true).counts, [0, 0, 1]);
        assert_eq!(Parts::of(13, 3, false).counts, [4, 4, 4]);
    }
}
