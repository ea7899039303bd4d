//! What an operation promises, compared with what all ranks hold at the end.

use super::interpret::Run;
use super::matching::{self, Event, Links};
use super::values::{Expr, RankSet, Stage, Value};
use super::{Fault, Folding, Where, World};
use crate::plan::{Buf, Call, Request};
use gaggle_core::{Codec, Counts, Rank, Reduce};

/// Where the parts of a vector end.
#[derive(Clone, Debug, Default)]
struct Ends(Vec<u64>);

impl Ends {
    /// A list that is too short counts as zeros.
    fn of(request: &Request, counts: &Counts, n: usize) -> Ends {
        let len = |idx: usize| match counts {
            Counts::Known(list) => list.get(idx).copied().unwrap_or(0),
            Counts::Equal | Counts::Discover => request.len,
        };
        let mut end = 0;
        let ends = (0..n).map(|idx| {
            end += len(idx);
            end
        });
        Ends(ends.collect())
    }

    fn all(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// Where part `idx` begins.
    fn start(&self, idx: usize) -> u64 {
        idx.checked_sub(1).map_or(0, |before| self.0[before])
    }

    fn len(&self, idx: usize) -> u64 {
        self.0[idx] - self.start(idx)
    }

    /// Which part element `at` is in, and where in it.
    fn part_of(&self, at: u64) -> Option<(usize, u64)> {
        let idx = self.0.partition_point(|&end| end <= at);
        (idx < self.0.len()).then(|| (idx, at - self.start(idx)))
    }
}

/// What a rank's buffers are for.
pub(super) struct Layout {
    /// Elements of the input; 0 in place.
    pub(super) input: u64,
    /// Elements of the buffer that is written.
    pub(super) user: u64,
    /// Whether an input that nobody reads, or a buffer that nobody writes, may be left out.
    pub(super) optional: bool,
    /// Which elements of the operation the rank contributes: the first, and how many.
    gives: (u64, u64),
    /// Where in the buffer they are, in place.
    at: u64,
    /// The parts of the vector; of an all-to-all, what comes from each.
    parts: Ends,
    /// Of an all-to-all, what goes to each.
    sent: Ends,
}

/// The layout of what the request asks for.
pub(super) fn layout(request: &Request) -> Layout {
    let n = request.world as usize;
    let (rank, len) = (request.rank.idx(), request.len);
    let of = |input: u64, user: u64, first: u64, at: u64| Layout {
        input: if request.out_of_place { input } else { 0 },
        user,
        optional: false,
        gives: (first, input),
        at,
        parts: Ends::default(),
        sent: Ends::default(),
    };
    match &request.call {
        Call::AllReduce { .. } | Call::Mix { .. } | Call::HierarchicalMix { .. } => {
            of(len, len, 0, 0)
        }
        Call::Reduce { root, .. } => Layout {
            optional: request.out_of_place && root.idx() != rank,
            ..of(len, len, 0, 0)
        },
        Call::Broadcast { root, .. } if root.idx() == rank => of(len, len, 0, 0),
        Call::Broadcast { .. } => Layout {
            optional: request.out_of_place,
            gives: (0, 0),
            ..of(len, len, 0, 0)
        },
        Call::Gather { root, counts, .. } => {
            let parts = Ends::of(request, counts, n);
            let (own, first) = (parts.len(rank), parts.start(rank));
            let of = match (root.idx() == rank, request.out_of_place) {
                (true, _) => of(own, parts.all(), first, first),
                (false, true) => of(own, 0, first, 0),
                (false, false) => of(own, own, first, 0),
            };
            Layout { parts, ..of }
        }
        Call::Scatter { root, counts, .. } => {
            let parts = Ends::of(request, counts, n);
            let of = match (root.idx() == rank, request.out_of_place) {
                (true, true) => of(parts.all(), parts.len(rank), 0, 0),
                (true, false) => of(parts.all(), parts.all(), 0, 0),
                (false, _) => of(0, parts.len(rank), 0, 0),
            };
            Layout { parts, ..of }
        }
        Call::AllGather { counts, .. } => {
            let parts = Ends::of(request, counts, n);
            let first = parts.start(rank);
            let of = of(parts.len(rank), parts.all(), first, first);
            Layout { parts, ..of }
        }
        Call::ReduceScatter { counts, .. } => {
            let parts = Ends::of(request, counts, n);
            let user = match request.out_of_place {
                true => parts.len(rank),
                false => parts.all(),
            };
            let of = of(parts.all(), user, 0, 0);
            Layout { parts, ..of }
        }
        Call::AllToAll { send, recv, .. } => {
            let (sent, parts) = (Ends::of(request, send, n), Ends::of(request, recv, n));
            let of = of(sent.all(), parts.all(), 0, 0);
            Layout { parts, sent, ..of }
        }
        Call::Barrier => of(0, 0, 0, 0),
        Call::NeighbourGather { from, counts, .. } => {
            let parts = Ends::of(request, counts, from.len());
            let of = of(len, parts.all(), 0, 0);
            Layout {
                input: len,
                parts,
                ..of
            }
        }
        Call::Send { .. } => match request.out_of_place {
            true => of(len, 0, 0, 0),
            false => of(len, len, 0, 0),
        },
        Call::Recv { .. } => of(0, len, 0, 0),
    }
}

impl Layout {
    /// Which element of the operation a rank's buffer holds at the start; `None` where its content is unspecified.
    pub(super) fn contribution(&self, request: &Request, buf: Buf, at: u64) -> Option<u64> {
        let (first, n) = self.gives;
        let within = match buf {
            Buf::Input => at,
            // Neighbours' gathering reads the input whatever else is said.
            Buf::User if self.input == 0 && !request.out_of_place => at.checked_sub(self.at)?,
            Buf::User | Buf::Scratch => return None,
        };
        (within < n).then_some(first + within)
    }
}

/// Whether weights matter.
pub(super) fn is_mean(request: &Request) -> bool {
    request.call.reduce() == Reduce::Mean
}

/// Whether each rank's end implies every rank's start.
pub(super) fn check_barrier(
    world: &World<'_>,
    links: &Links,
    order: &[Event],
) -> Result<(), Fault> {
    for (rank, heard) in matching::heard(world, links, order).iter().enumerate() {
        let unheard: Vec<Rank> = (0..heard.len())
            .filter(|&r| !heard[r])
            .map(|r| Rank(r as u32))
            .collect();
        if !unheard.is_empty() {
            return Err(Fault::Unheard {
                rank: Rank(rank as u32),
                n_steps: world.steps[rank].len() as u32,
                unheard,
            });
        }
    }
    Ok(())
}

/// What an element of the caller's buffer must hold at the end.
enum Want {
    /// Everybody's contribution to element `elem` of the operation, combined.
    Combined(u64),
    /// What it held at the start.
    AsBefore,
    /// What `owner` gave as element `elem`, as the codec decodes it.
    Given { owner: usize, elem: u64 },
    /// The average of the neighbours' values.
    Mixed,
    /// The average of the machines' means.
    MixedByMachine,
}

impl Run<'_> {
    fn last(&self, rank: usize, elem: u64) -> Option<Where> {
        let writer = self.memory[rank].user[elem as usize].writer;
        writer.map(|(rank, idx)| self.world.at(rank as usize, idx))
    }

    fn wrong(&self, rank: usize, elem: u64, what: &'static str) -> Fault {
        Fault::Wrong {
            rank: Rank(rank as u32),
            elem,
            what,
            last: self.last(rank, elem),
        }
    }

    fn unequal(&self, one: (usize, u64), other: (usize, u64)) -> Fault {
        Fault::Unequal {
            one: Rank(one.0 as u32),
            other: Rank(other.0 as u32),
            elem: other.1,
            last_one: self.last(one.0, one.1),
            last_other: self.last(other.0, other.1),
        }
    }

    /// Whether the execution has ended as promised.
    pub(super) fn check_end(&mut self) -> Result<(), Fault> {
        let promise = self.promise;
        for (rank, request) in promise.requests.iter().enumerate() {
            if is_mean(request) {
                self.check_total(rank)?;
            }
            if request.feedback {
                self.check_residual(rank)?;
            }
            for elem in 0..self.memory[rank].user.len() as u64 {
                self.check_element(rank, elem)?;
            }
        }
        Ok(())
    }

    /// Who gets the result knows the sum of all weights; who names a sum has it.
    fn check_total(&self, rank: usize) -> Result<(), Fault> {
        let total = self.world.plans[rank].total;
        match self.promise.requests[rank].call {
            Call::Reduce { root, .. } if root.idx() != rank && total.is_none() => return Ok(()),
            _ => {}
        }
        let all = RankSet::of(0..self.world.plans.len());
        let total = total.and_then(|t| self.memory[rank].slots.get(t as usize));
        let missing = all.without(&total.cloned().unwrap_or_default());
        if missing.is_empty() {
            return Ok(());
        }
        Err(Fault::Total {
            rank: Rank(rank as u32),
            missing: missing.ranks(),
        })
    }

    /// Where everybody contributes, every element that goes through the codec takes its residual with it.
    fn check_residual(&self, rank: usize) -> Result<(), Fault> {
        let n = self.world.plans.len();
        let request = &self.promise.requests[rank];
        if n == 1 || self.contributors != RankSet::of(0..n) || request.codec == Codec::None {
            return Ok(());
        }
        let own = match &request.call {
            // What this rank folds itself goes through no codec.
            Call::ReduceScatter { .. } => {
                let parts = &self.layouts[rank].parts;
                parts.start(rank)..parts.start(rank) + parts.len(rank)
            }
            Call::AllReduce { .. } => 0..0,
            _ => return Ok(()),
        };
        let left = (0..)
            .zip(&self.memory[rank].residual_used)
            .find(|(elem, used)| !**used && !own.contains(elem));
        match left {
            None => Ok(()),
            Some((elem, _)) => Err(Fault::ResidualLeft {
                rank: Rank(rank as u32),
                elem,
            }),
        }
    }

    fn want(&self, rank: usize, elem: u64) -> Want {
        let request = &self.promise.requests[rank];
        let Layout { parts, .. } = &self.layouts[rank];
        let given = |owner: usize, elem| Want::Given { owner, elem };
        match &request.call {
            Call::AllReduce { .. } => Want::Combined(elem),
            Call::Reduce { root, .. } if root.idx() == rank => Want::Combined(elem),
            Call::Reduce { .. } | Call::Barrier | Call::Send { .. } => Want::AsBefore,
            Call::Broadcast { root, .. } => given(root.idx(), elem),
            Call::Gather { root, .. } if root.idx() != rank => Want::AsBefore,
            Call::Gather { .. } | Call::AllGather { .. } => match parts.part_of(elem) {
                Some((owner, _)) => given(owner, elem),
                None => Want::AsBefore,
            },
            Call::Scatter { root, .. } => {
                if root.idx() == rank && !request.out_of_place {
                    return Want::AsBefore;
                }
                given(root.idx(), parts.start(rank) + elem)
            }
            Call::ReduceScatter { .. } => {
                let first = parts.start(rank);
                if request.out_of_place {
                    Want::Combined(first + elem)
                } else if (first..first + parts.len(rank)).contains(&elem) {
                    Want::Combined(elem)
                } else {
                    Want::AsBefore
                }
            }
            Call::AllToAll { .. } => match parts.part_of(elem) {
                Some((owner, at)) => given(owner, self.layouts[owner].sent.start(rank) + at),
                None => Want::AsBefore,
            },
            Call::Mix { .. } => Want::Mixed,
            Call::NeighbourGather { from, .. } => match parts.part_of(elem) {
                Some((place, at)) => given(from[place].idx(), at),
                None => Want::AsBefore,
            },
            Call::HierarchicalMix { .. } => Want::MixedByMachine,
            Call::Recv { from } => given(from.idx(), elem),
        }
    }

    fn check_element(&mut self, rank: usize, elem: u64) -> Result<(), Fault> {
        let cell = self.memory[rank].user[elem as usize];
        let value = cell.value;
        let request = &self.promise.requests[rank];
        let ok = |holds: bool, what| match holds {
            true => Ok(()),
            false => Err(self.wrong(rank, elem, what)),
        };
        match self.want(rank, elem) {
            Want::AsBefore => match self.layouts[rank].contribution(request, Buf::User, elem) {
                Some(own) => {
                    let own = self.values.input(rank, own);
                    let what = "changed, though it should stay as it was";
                    match value == own {
                        true => Ok(()),
                        false => Err(self.wrong(rank, elem, what)),
                    }
                }
                None => ok(
                    cell.writer.is_none(),
                    "written, though nothing should be written there",
                ),
            },
            Want::Combined(of) => {
                let n = self.world.plans.len();
                if n > 1 && !self.contributors.is_empty() {
                    return self.check_combined(rank, elem, of);
                }
                // Nobody contributes: unchanged, or a copy of the input.
                let nobody = self.contributors.is_empty();
                if nobody && request.out_of_place && cell.writer.is_none() {
                    return Ok(());
                }
                let own = self.values.input(rank, of);
                let what = "changed, though there is nothing to combine it with";
                match value == own {
                    true => Ok(()),
                    false => Err(self.wrong(rank, elem, what)),
                }
            }
            Want::Given { owner, elem: of } => {
                let given = self.values.input(owner, of);
                let request = &self.promise.requests[rank];
                let kept_plain = owner == rank
                    && value == given
                    && !matches!(
                        request.call,
                        Call::AllGather { .. } | Call::Broadcast { .. }
                    );
                let alone = self.world.plans.len() == 1 && value == given;
                if kept_plain || alone || self.values.is_sent_as(value, given, request.codec) {
                    return self.check_same(rank, elem);
                }
                let what = match request.call {
                    Call::Broadcast { .. } => "that is not the root's",
                    Call::AllGather { .. } => "that is not its owner's",
                    _ => "that is not what was sent for it",
                };
                Err(self.wrong(rank, elem, what))
            }
            Want::Mixed => {
                let holds = self.is_promised_mix(rank, elem, value);
                match holds {
                    true => Ok(()),
                    false => {
                        Err(self.wrong(rank, elem, "that is not the average of its neighbours'"))
                    }
                }
            }
            Want::MixedByMachine => self.check_machines_mix(rank, elem, value),
        }
    }

    /// Where all ranks are promised one value, they hold the same bits.
    fn check_same(&self, rank: usize, elem: u64) -> Result<(), Fault> {
        let request = &self.promise.requests[rank];
        let first = &self.memory[0].user;
        match request.call {
            Call::Broadcast { .. } | Call::AllGather { .. }
                if first.get(elem as usize).map(|c| c.value)
                    != Some(self.memory[rank].user[elem as usize].value) =>
            {
                Err(self.unequal((0, elem), (rank, elem)))
            }
            _ => Ok(()),
        }
    }

    /// The element holds everybody's contribution to element `of` of the operation.
    fn check_combined(&self, rank: usize, elem: u64, of: u64) -> Result<(), Fault> {
        let value = self.memory[rank].user[elem as usize].value;
        let facts = self.values.facts(value);
        let request = &self.promise.requests[rank];
        let missing = self.contributors.without(&facts.who);
        if !missing.is_empty() {
            return Err(Fault::Missing {
                rank: Rank(rank as u32),
                elem,
                missing: missing.ranks(),
                last: self.last(rank, elem),
            });
        }
        if facts.elem != of {
            return Err(self.wrong(rank, elem, "holding another element's result"));
        }
        match (request.call.reduce(), facts.stage) {
            (Reduce::Mean, Stage::Mean) => {}
            (Reduce::Mean, _) => {
                return Err(self.wrong(rank, elem, "not divided by the sum of the weights"));
            }
            (_, Stage::Plain) => {}
            _ => return Err(self.wrong(rank, elem, "that is not a plain reduction")),
        }
        if self.promise.folding != Folding::Any {
            let (ranks, at_once) = self.values.order_of(value);
            if !ranks.is_sorted() {
                return Err(self.wrong(rank, elem, "not combined in rank order"));
            }
            if self.promise.folding == Folding::AtOnce && !at_once {
                return Err(self.wrong(rank, elem, "combined from partial results"));
            }
        }
        let is_all_reduce = matches!(request.call, Call::AllReduce { .. });
        if is_all_reduce && self.memory[0].user[elem as usize].value != value {
            return Err(self.unequal((0, elem), (rank, elem)));
        }
        Ok(())
    }

    fn is_promised_mix(&mut self, rank: usize, elem: u64, value: Value) -> bool {
        let request = &self.promise.requests[rank];
        let own = self.values.input(rank, elem);
        let Call::Mix { from, form, .. } = &request.call else {
            return false;
        };
        let mut sent = Vec::with_capacity(from.len());
        for source in from {
            let mut value = self.values.input(source.idx(), elem);
            if let Some(Call::Mix {
                to, scaled: true, ..
            }) = self.promise.requests.get(source.idx()).map(|r| &r.call)
            {
                let place = to.iter().position(|r| r.idx() == rank);
                value = self
                    .values
                    .scaled(value, place.unwrap_or(usize::MAX) as u32);
            }
            sent.push(value);
        }
        let Expr::Mixed {
            own: mixed,
            operands,
            form: got_form,
            codec,
        } = self.values.expr(value)
        else {
            return false;
        };
        (*mixed, *got_form, *codec) == (own, *form, request.codec)
            && operands.len() == sent.len()
            && operands
                .iter()
                .zip(&sent)
                .all(|(&o, &s)| self.values.is_sent_as(o, s, *codec))
    }

    /// All ranks of a machine hold one value: the promised average of their machine's mean and those of its neighbours, each mean a fold in rank order.
    fn check_machines_mix(&mut self, rank: usize, elem: u64, value: Value) -> Result<(), Fault> {
        let promise = self.promise;
        let request = &promise.requests[rank];
        let Call::HierarchicalMix {
            machines,
            from,
            form,
            ..
        } = &request.call
        else {
            return Ok(());
        };
        let Some(me) = machines.iter().position(|m| m.contains(&Rank(rank as u32))) else {
            return Err(self.wrong(rank, elem, "of a rank without a machine"));
        };
        let first = machines[me][0].idx();
        if self.memory[first].user[elem as usize].value != value {
            return Err(self.unequal((first, elem), (rank, elem)));
        }
        let Some(own) = self.machine_mean(&machines[me], elem, value) else {
            return Err(self.wrong(rank, elem, "that does not start from its machine's mean"));
        };
        let not_it = "that is not the average of the machines' means";
        let mut sent = Vec::with_capacity(from.len());
        for &source in from {
            let members = &machines[source as usize];
            let theirs = members[0].idx();
            let held = self.memory[theirs].user[elem as usize].value;
            let Some(mut mean) = self.machine_mean(members, elem, held) else {
                return Err(self.wrong(
                    theirs,
                    elem,
                    "that does not start from its machine's mean",
                ));
            };
            if let Some(Call::HierarchicalMix {
                to, scaled: true, ..
            }) = promise.requests.get(theirs).map(|r| &r.call)
            {
                let place = to.iter().position(|&m| m as usize == me);
                mean = self.values.scaled(mean, place.unwrap_or(usize::MAX) as u32);
            }
            sent.push(mean);
        }
        let holds = match self.values.expr(self.mixed_of(value)) {
            Expr::Mixed {
                own: mixed,
                operands,
                form: got_form,
                codec,
            } => {
                (*mixed, *got_form, *codec) == (own, *form, request.codec)
                    && operands.len() == sent.len()
                    && operands
                        .iter()
                        .zip(&sent)
                        .all(|(&o, &s)| self.values.is_sent_as(o, s, *codec))
            }
            _ => false,
        };
        match holds {
            true => Ok(()),
            false => Err(self.wrong(rank, elem, not_it)),
        }
    }

    /// Without a rounding to the element type around it.
    fn mixed_of(&self, value: Value) -> Value {
        match *self.values.expr(value) {
            Expr::Rounded(inner) => inner,
            _ => value,
        }
    }

    /// A machine's mean, as the average in a value starts from it; `None` where that is not the mean of all members in rank order.
    fn machine_mean(&self, members: &[Rank], elem: u64, value: Value) -> Option<Value> {
        let Expr::Mixed { own, .. } = self.values.expr(self.mixed_of(value)) else {
            return None;
        };
        let facts = self.values.facts(*own);
        let stage = match members.len() {
            1 => Stage::Raw,
            _ => Stage::Mean,
        };
        let (ranks, _) = self.values.order_of(*own);
        let in_order = ranks.iter().copied().eq(members.iter().map(|r| r.0));
        (facts.stage == stage && facts.elem == elem && in_order).then_some(*own)
    }
}
