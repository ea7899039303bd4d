//! A plan, unrolled for running: its steps with their successors, so that a finished step finds what it releases without a search.

use foldhash::HashMap;
use gaggle_collectives::{Action, Arrive, Buf, Plan, PlanError, Request, Span, Step, plan};
use gaggle_core::{Algorithm, Codec, GroupInfo, Rank};
use smallvec::SmallVec;

use crate::sync::Arc;

/// A plan ready to run. Shared by all runs with the same request.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) plan: Plan,
    /// Whether it came from the planner, whose plans the checker has proved: only then may memory be lent to peers.
    pub(crate) proven: bool,
    pub(crate) steps: Vec<Step>,
    /// How many steps each one waits for.
    pub(crate) waits: Vec<u32>,
    /// How many steps receive.
    pub(crate) n_receives: u32,
    /// `successors[starts[i]..starts[i + 1]]` wait for step `i`.
    starts: Vec<u32>,
    successors: Vec<u32>,
    /// Bit r: something is to come from rank r of the group; 0 in groups of more than 64.
    pub(crate) sources: u64,
}

impl Program {
    /// From a caller's own plan, once every number in it is known to lie in its range.
    pub(crate) fn unproven(plan: Plan, group: &GroupInfo, len: usize) -> Result<Program, String> {
        if plan.world as usize != group.world_ranks.len() || plan.rank != group.rank {
            return Err(format!("is for {} of {}", plan.rank, plan.world));
        }
        if plan.user_len != len as u64 {
            return Err(format!(
                "works on {} elements, the buffer has {len}",
                plan.user_len
            ));
        }
        if plan.input_len > 0 {
            return Err(format!(
                "reads {} elements of an input that it is not given",
                plan.input_len
            ));
        }
        let bound = (len as u64 + u64::from(plan.world)).saturating_mul(u64::from(plan.world) + 1);
        if plan.scratch_len > bound.saturating_mul(4) {
            return Err(format!(
                "wants scratch of {} elements, more than four times all members' buffers",
                plan.scratch_len
            ));
        }
        if plan.total.is_some_and(|slot| slot >= plan.n_slots) {
            return Err("names a total that is no slot".into());
        }
        for (idx, step) in plan.iter().enumerate() {
            if let Some(what) = fault(&plan, idx, &step) {
                return Err(format!("step {idx} ({}): {what}", step.action));
            }
        }
        Ok(Program::new(plan, false))
    }

    fn new(plan: Plan, proven: bool) -> Program {
        let steps = match plan.algorithm {
            Algorithm::Fused => met_by_messages(&plan),
            _ => plan.iter().collect(),
        };
        let mut starts = vec![0u32; steps.len() + 1];
        for step in &steps {
            for before in &step.after {
                starts[*before as usize + 1] += 1;
            }
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut successors = vec![0u32; starts[steps.len()] as usize];
        for (i, step) in steps.iter().enumerate() {
            for before in &step.after {
                successors[next[*before as usize] as usize] = i as u32;
                next[*before as usize] += 1;
            }
        }
        let sources = sources(&plan, &steps);
        let waits = steps.iter().map(|s| s.after.len() as u32).collect();
        let receives = |s: &&Step| matches!(s.action, Action::Recv { .. });
        let n_receives = steps.iter().filter(receives).count() as u32;
        Program {
            plan,
            proven,
            steps,
            waits,
            n_receives,
            starts,
            successors,
            sources,
        }
    }

    /// Whether no element of it goes by messages: they bring weights, or say that somebody has come.
    pub(crate) fn is_memory_only(&self) -> bool {
        self.steps.iter().all(|step| match step.action {
            Action::Send { src, .. } => src.len == 0,
            Action::Recv { dst, .. } => dst.len == 0,
            _ => true,
        })
    }

    pub(crate) fn successors(&self, step: u32) -> &[u32] {
        let (lo, hi) = (self.starts[step as usize], self.starts[step as usize + 1]);
        &self.successors[lo as usize..hi as usize]
    }

    /// World-independent: the group ranks this plan receives from or sends to, ascending.
    pub(crate) fn peers(&self) -> Vec<Rank> {
        let mut peers: Vec<_> = self
            .steps
            .iter()
            .filter_map(|s| match s.action {
                Action::Send { to, .. } => Some(to),
                Action::Recv { from, .. } => Some(from),
                _ => None,
            })
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// The steps of a fused plan, in which all have met before it begins; later meetings are messages of no bytes from everybody to everybody.
///
/// The link orders what a sender did before a message, in its own memory or in another's, before what its receiver does after it.
fn met_by_messages(plan: &Plan) -> Vec<Step> {
    let mut steps = Vec::new();
    // Which steps stand for each of the plan's.
    let mut stand: Vec<SmallVec<[u32; 4]>> = Vec::new();
    let others = || (0..plan.world).map(Rank).filter(|r| *r != plan.rank);
    let none = Span::user(0, 0);
    for step in plan.iter() {
        let before = step.after.iter().flat_map(|b| stand[*b as usize].iter());
        let mut after: SmallVec<[u32; 4]> = before.copied().collect();
        after.sort_unstable();
        after.dedup();
        let lo = steps.len() as u32;
        match step.action {
            Action::Arrive { phase: 0 } | Action::AwaitAll { phase: 0 } => {
                stand.push(after);
                continue;
            }
            Action::Arrive { phase } => steps.extend(others().map(|to| Step {
                action: Action::Send {
                    to,
                    tag: meeting_tag(phase),
                    src: none,
                    wire: Buf::User,
                    codec: Codec::None,
                    weight: None,
                    scale: None,
                },
                after: after.clone(),
            })),
            Action::AwaitAll { phase } => steps.extend(others().map(|from| Step {
                action: Action::Recv {
                    from,
                    tag: meeting_tag(phase),
                    dst: none,
                    wire: Buf::User,
                    codec: Codec::None,
                    arrive: Arrive::Store,
                    weight: None,
                },
                after: SmallVec::new(),
            })),
            action => steps.push(Step { action, after }),
        }
        stand.push((lo..steps.len() as u32).collect());
    }
    steps
}

/// No plan has that many messages on one link.
fn meeting_tag(phase: u32) -> u32 {
    u32::MAX - phase
}

fn sources(plan: &Plan, steps: &[Step]) -> u64 {
    if plan.world > 64 {
        return 0;
    }
    steps.iter().fold(0, |bits, step| match step.action {
        Action::Recv { from, .. } => bits | 1 << from.0,
        _ => bits,
    })
}

/// What of a step lies out of range.
fn fault(plan: &Plan, idx: usize, step: &Step) -> Option<&'static str> {
    if step.after.iter().any(|before| *before as usize >= idx) {
        return Some("waits for a step that does not come before it");
    }
    let peer = |rank: Rank| rank.0 < plan.world && rank != plan.rank;
    let mut spans: Vec<Span> = vec![];
    let mut slots: Vec<Option<u32>> = vec![];
    match &step.action {
        Action::Send {
            to,
            src,
            weight,
            scale,
            ..
        } => {
            if !peer(*to) {
                return Some("no such peer");
            }
            if scale.is_some() {
                return Some("factors of neighbours are the planner's");
            }
            spans.push(*src);
            slots.push(*weight);
        }
        Action::Recv {
            from,
            dst,
            weight,
            arrive,
            ..
        } => {
            if !peer(*from) {
                return Some("no such peer");
            }
            spans.push(*dst);
            slots.push(*weight);
            if let Arrive::Fold { there, .. } = arrive {
                slots.push(*there);
            }
        }
        Action::Fold { dst, operands, sum } => {
            spans.push(*dst);
            slots.push(*sum);
            spans.extend(operands.iter().map(|o| o.span));
            slots.extend(operands.iter().map(|o| o.slot));
            let clash = |o: &gaggle_collectives::Operand| o.span != *dst && o.span.overlaps(*dst);
            if operands.iter().any(clash) {
                return Some("an operand overlaps the result");
            }
            if operands.iter().any(|o| o.span.len != dst.len) {
                return Some("operands of other lengths");
            }
        }
        Action::Weigh { span, slot } | Action::Divide { span, slot } => {
            spans.push(*span);
            slots.push(Some(*slot));
        }
        Action::Copy {
            src,
            dst,
            unless_zero,
        } => {
            spans.extend([*src, *dst]);
            slots.push(*unless_zero);
            if src.len != dst.len || (src != dst && src.overlaps(*dst)) {
                return Some("copies between spans that do not fit");
            }
        }
        Action::Recode {
            span, unless_zero, ..
        } => {
            spans.push(*span);
            slots.push(*unless_zero);
        }
        Action::Compensate { .. }
        | Action::Arrive { .. }
        | Action::AwaitAll { .. }
        | Action::GroupFold { .. }
        | Action::GroupCopy { .. } => return Some("is the planner's alone"),
        Action::Mix {
            dst, own, operands, ..
        } => {
            spans.extend([*dst, *own]);
            spans.extend(operands.iter().copied());
            let fits = |o: &Span| o.len == dst.len && !o.overlaps(*dst);
            if !operands.iter().all(fits) || (own != dst && !fits(own)) {
                return Some("operands that do not fit");
            }
        }
    }
    let limit = |span: &Span| match span.buf {
        Buf::Input => plan.input_len,
        Buf::User => plan.user_len,
        Buf::Scratch => plan.scratch_len,
    };
    let outside = |span: &Span| {
        span.at
            .checked_add(span.len)
            .is_none_or(|end| end > limit(span))
    };
    if spans.iter().any(outside) {
        return Some("a span lies outside its buffer");
    }
    if slots.iter().flatten().any(|slot| *slot >= plan.n_slots) {
        return Some("no such weight slot");
    }
    None
}

/// Programs by request, so that a training loop plans once.
#[derive(Default)]
pub(crate) struct Programs {
    known: HashMap<Request, Arc<Program>>,
}

/// More than any training job uses; a caller with ever new lengths must not grow the table for ever.
const MAX_KNOWN: usize = 512;

impl Programs {
    /// Whether that has been planned before.
    pub(crate) fn knows(&self, request: &Request) -> bool {
        self.known.contains_key(request)
    }

    pub(crate) fn find(&mut self, request: &Request) -> Result<Arc<Program>, PlanError> {
        if let Some(p) = self.known.get(request) {
            return Ok(Arc::clone(p));
        }
        let program = Arc::new(Program::new(plan(request)?, true));
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(request.clone(), Arc::clone(&program));
        Ok(program)
    }
}
