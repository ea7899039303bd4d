//! Plans that are written down step by step: what must be over before a step follows from what the steps touch.
//!
//! A planner calls [`Build`] in the order in which one rank would do things alone: send, receive, fold, copy.
//! The builder cuts vectors into slices, numbers messages and weight slots, and lets each step wait for exactly those earlier ones that it must not overtake: the writers of what it reads, the readers and writers of what it writes, the writers of its weights.
//! So slices flow through all rounds without waiting for each other, and a plan is composed by calling one planner's function after another's.
//!
//! Both ends of a link number their messages in the order of their calls: planners call in the same order on both sides, and cut equal lengths.
//!
//! The steps are kept as a list. Plans of many rounds around many ranks are generators of their own ([`Program`](crate::program::Program)).

use crate::check::local::{slots, touched};
use crate::plan::{
    Action, Arrive, Buf, Call, Operand, Plan, PlanError, Request, Slot, Span, Step, Steps,
};
use crate::program::{n_slices, share};
use gaggle_core::{Algorithm, Codec, Rank, Reduce};
use smallvec::{SmallVec, smallvec};
use std::{collections::BTreeMap, rc::Rc, sync::Arc};

/// More steps than a list of them should have.
const MAX_STEPS: usize = 1 << 22;

/// Who takes part in a piece of a plan: group ranks, and which of them is this rank.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    ranks: Vec<Rank>,
    pub me: u32,
}

impl Team {
    /// Everybody, in rank order.
    pub fn all(req: &Request) -> Team {
        Team {
            ranks: (0..req.world).map(Rank).collect(),
            me: req.rank.0,
        }
    }

    /// Everybody, counted from `root`.
    pub fn from_root(req: &Request, root: Rank) -> Team {
        let world = req.world;
        let ranks = (0..world)
            .map(|v| Rank(crate::program::forward(root.0, v, world)))
            .collect();
        Team {
            ranks,
            me: crate::program::back(req.rank.0, root.0, world),
        }
    }

    /// These, of which number `me` is this rank.
    pub fn of(ranks: Vec<Rank>, me: u32) -> Team {
        Team { ranks, me }
    }

    pub fn len(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub fn rank(&self, idx: u32) -> Rank {
        self.ranks[idx as usize]
    }

    /// The others, as numbers in the team, nearest after this one first: nobody is everybody's first.
    pub fn after_me(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, n) = (self.me, self.len());
        (1..n).map(move |i| crate::program::forward(me, i, n))
    }

    /// The others, nearest before this one first.
    pub fn before_me(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, n) = (self.me, self.len());
        (1..n).map(move |i| crate::program::back(me, i, n))
    }
}

/// Elements with the weight that belongs to them.
///
/// Weights are slots by element; all of a value's slots hold the same weight, each as soon as its elements are there.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub span: Span,
    marks: Option<Rc<[Mark]>>,
}

/// Elements `lo..hi` of the value's buffer have their weight in `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    lo: u64,
    hi: u64,
    slot: Slot,
}

impl Value {
    /// Elements `at..at + len` of it.
    pub fn part(&self, (at, len): (u64, u64)) -> Value {
        Value {
            span: sub(self.span, (at, len)),
            marks: self.marks.clone(),
        }
    }

    /// The slot of the weight of elements `span`.
    fn slot(&self, span: Span) -> Option<Slot> {
        let marks = self.marks.as_ref()?;
        let next = marks.partition_point(|m| m.lo <= span.at);
        Some(marks[next.saturating_sub(1)].slot)
    }

    /// `parts`, which lie in `span` beside each other, as one.
    pub fn join(span: Span, parts: &[Value]) -> Value {
        let mut marks: Vec<Mark> = Vec::new();
        let mut weighted = false;
        for part in parts {
            weighted |= part.marks.is_some();
            marks.extend(part.marks.iter().flat_map(|m| m.iter()));
        }
        marks.sort_unstable();
        marks.dedup();
        Value {
            span,
            marks: weighted.then(|| marks.into()),
        }
    }
}

/// Elements `at..at + len` of a span.
pub(crate) fn sub(span: Span, (at, len): (u64, u64)) -> Span {
    Span {
        buf: span.buf,
        at: span.at + at,
        len,
    }
}

/// One rank's plan in the making.
#[derive(Debug)]
pub(crate) struct Build<'r> {
    req: &'r Request,
    weighted: bool,
    /// Whether messages carry weights from here on, where there are weights.
    pub carries: bool,
    /// How messages are written from here on.
    pub codec: Codec,
    steps: Vec<Step>,
    memory: [Touches; 3],
    /// By which step each slot is written.
    slots: Vec<Option<u32>>,
    scratch_len: u64,
    n_sent: BTreeMap<Rank, u32>,
    n_received: BTreeMap<Rank, u32>,
    fault: Option<PlanError>,
}

impl<'r> Build<'r> {
    pub fn new(req: &'r Request) -> Build<'r> {
        Build {
            req,
            weighted: reduction(req) == Reduce::Mean,
            carries: true,
            codec: Codec::None,
            steps: Vec::new(),
            memory: Default::default(),
            slots: vec![None],
            scratch_len: 0,
            n_sent: BTreeMap::new(),
            n_received: BTreeMap::new(),
            fault: None,
        }
    }

    /// What this rank gives: `len` elements of the input, or in place of the caller's buffer from `at` on.
    pub fn contribution(&self, at: u64, len: u64) -> Value {
        let span = if self.req.out_of_place {
            Span::input(0, len)
        } else {
            Span::user(at, len)
        };
        let own = Mark {
            lo: 0,
            hi: u64::MAX,
            slot: 0,
        };
        Value {
            span,
            marks: self.weighted.then(|| [own].into()),
        }
    }

    /// What is planned.
    pub fn request(&self) -> &'r Request {
        self.req
    }

    /// Elements without a weight.
    pub fn plain(&self, span: Span) -> Value {
        Value { span, marks: None }
    }

    /// New scratch.
    pub fn room(&mut self, len: u64) -> Span {
        let at = self.scratch_len;
        match at.checked_add(len) {
            Some(end) => {
                self.scratch_len = end;
                Span::scratch(at, len)
            }
            None => {
                self.fault.get_or_insert(PlanError::BadNumber {
                    field: "len",
                    got: self.req.len,
                    want: "small enough for the scratch to be counted in 64 bits",
                });
                Span::scratch(0, len)
            }
        }
    }

    /// `value` to `to`, with its elements in `wire`'s type.
    pub fn send(&mut self, to: Rank, value: &Value, wire: Buf) {
        self.send_scaled(to, value, wire, None);
    }

    /// The same, multiplied by the sender's factor number `scale`.
    pub fn send_scaled(&mut self, to: Rank, value: &Value, wire: Buf, scale: Option<u32>) {
        for part in self.cut(value.span) {
            let tag = count(&mut self.n_sent, to);
            self.push(Action::Send {
                to,
                tag,
                src: part,
                wire,
                codec: self.codec,
                weight: value.slot(part),
                scale,
            });
        }
    }

    /// A value from `from`, which goes to `dst`.
    pub fn recv(&mut self, from: Rank, dst: Span, wire: Buf) -> Value {
        let mut marks = Vec::new();
        for part in self.cut(dst) {
            let tag = count(&mut self.n_received, from);
            let weight = self.mark(part, &mut marks);
            self.push(Action::Recv {
                from,
                tag,
                dst: part,
                wire,
                codec: self.codec,
                arrive: Arrive::Store,
                weight,
            });
        }
        self.value(dst, marks)
    }

    /// `dst` = the reduction of `operands` in this order, rounded once. A single one is copied where it is not there already.
    pub fn fold(&mut self, dst: Span, operands: &[Value]) -> Value {
        if let [one] = operands {
            return self.place(dst, one);
        }
        let mut marks = Vec::new();
        for part in self.cut(dst) {
            let sum = self.mark(part, &mut marks);
            let operand = |v: &Value| {
                let span = sub(v.span, (part.at - dst.at, part.len));
                Operand {
                    span,
                    slot: v.slot(span),
                }
            };
            let operands = operands.iter().map(operand).collect();
            self.push(Action::Fold {
                dst: part,
                operands,
                sum,
            });
        }
        self.value(dst, marks)
    }

    /// The same elements in `dst`, copied where they are not there already, unless their weight is 0.
    pub fn place(&mut self, dst: Span, value: &Value) -> Value {
        if value.span == dst {
            return value.clone();
        }
        let mut marks = Vec::new();
        for part in self.cut(dst) {
            let src = sub(value.span, (part.at - dst.at, part.len));
            let slot = value.slot(src);
            if let Some(slot) = slot {
                marks.push(Mark {
                    lo: part.at,
                    hi: part.end(),
                    slot,
                });
            }
            if part.len > 0 {
                self.push(Action::Copy {
                    src,
                    dst: part,
                    unless_zero: slot,
                });
            }
        }
        self.value(dst, marks)
    }

    /// Replaces a value by what the others decode of it.
    pub fn recode(&mut self, value: &Value) {
        for part in self.cut(value.span) {
            self.push(Action::Recode {
                span: part,
                codec: self.codec,
                unless_zero: value.slot(part),
            });
        }
    }

    /// Adds what the codec lost the last time to a value that is about to leave, and keeps what it loses now. `residual`: where the value begins in the caller's buffer.
    pub fn compensate(&mut self, value: &Value, residual: u64) {
        for part in self.cut(value.span) {
            self.push(Action::Compensate {
                span: part,
                residual: residual + (part.at - value.span.at),
                codec: self.codec,
                unless_zero: value.slot(part),
            });
        }
    }

    /// Any other step.
    pub fn push(&mut self, action: Action) {
        self.push_after(action, &[]);
    }

    /// A step that waits for `also`, too; its number.
    pub fn push_after(&mut self, action: Action, also: &[u32]) -> u32 {
        self.add(action, also);
        (self.steps.len() as u32).saturating_sub(1)
    }

    fn add(&mut self, action: Action, also: &[u32]) {
        if self.fault.is_some() {
            return;
        }
        if self.steps.len() >= MAX_STEPS {
            self.fault = Some(too_long(self.req.slice));
            return;
        }
        let idx = self.steps.len() as u32;
        let mut after: Before = also.into();
        let all = touched(&action);
        for pass in [false, true] {
            for &(span, writes) in all.iter().filter(|t| t.1 == pass && t.0.len > 0) {
                let memory = &mut self.memory[span.buf as usize];
                memory.touch(span, writes, idx, &mut after);
            }
        }
        let (reads, write) = slots(&action);
        after.extend(reads.iter().filter_map(|&s| self.slots[s as usize]));
        if let Some(slot) = write {
            self.slots[slot as usize] = Some(idx);
        }
        let after = self.necessary(after, idx);
        self.steps.push(Step { action, after });
    }

    /// Into which slices a span is cut, at least one, so that every link carries a message.
    pub fn cut(&mut self, span: Span) -> impl Iterator<Item = Span> + use<> {
        let n = match n_slices(span.len, self.req.slice) {
            Ok(n) if (n as usize) <= MAX_STEPS => n,
            _ => {
                self.fault = Some(too_long(self.req.slice));
                0
            }
        };
        (0..n).map(move |i| {
            let (lo, hi) = share(span.len, n, i);
            sub(span, (lo, hi - lo))
        })
    }

    /// A new slot for a weight that a step makes, for means.
    pub fn slot(&mut self) -> Option<Slot> {
        self.mark(Span::user(0, 0), &mut Vec::new())
    }

    /// An empty value whose weight is in `slot`.
    pub fn weight(&self, slot: Option<Slot>) -> Value {
        let mark = |slot| Mark { lo: 0, hi: 0, slot };
        self.value(Span::user(0, 0), slot.map(mark).into_iter().collect())
    }

    /// A new slot for the weight of `part`.
    fn mark(&mut self, part: Span, marks: &mut Vec<Mark>) -> Option<Slot> {
        if !(self.weighted && self.carries) {
            return None;
        }
        let slot = self.slots.len() as Slot;
        self.slots.push(None);
        marks.push(Mark {
            lo: part.at,
            hi: part.end(),
            slot,
        });
        Some(slot)
    }

    fn value(&self, span: Span, marks: Vec<Mark>) -> Value {
        Value {
            span,
            marks: (!marks.is_empty()).then(|| marks.into()),
        }
    }

    /// Drops those that others wait for anyway, as far as a short look tells.
    fn necessary(&self, mut all: Before, idx: u32) -> SmallVec<[u32; 4]> {
        const LOOK: usize = 48;
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        let mut kept: SmallVec<[u32; 4]> = SmallVec::new();
        for a in all {
            if a == idx {
                continue;
            }
            let mut open: SmallVec<[u32; 64]> = kept.iter().rev().take(LOOK).copied().collect();
            let mut looks = 0;
            let mut implied = false;
            while let Some(next) = open.pop() {
                looks += 1;
                if next == a || looks > LOOK {
                    implied = next == a;
                    break;
                }
                let before = &self.steps[next as usize].after;
                open.extend(before.iter().copied().filter(|&b| b >= a).take(LOOK));
            }
            if !implied {
                kept.push(a);
            }
        }
        kept.reverse();
        kept
    }

    /// The plan. `result`: the value whose weight is Σw at the end, for means.
    ///
    /// # Errors
    /// More steps or elements than a plan can have.
    pub fn finish(self, algorithm: Algorithm, result: Option<&Value>) -> Result<Plan, PlanError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let (input_len, user_len) = self.req.lens()?;
        Ok(Plan {
            kind: self.req.call.kind(),
            algorithm,
            reduce: reduction(self.req),
            rank: self.req.rank,
            world: self.req.world,
            input_len,
            user_len,
            scratch_len: self.scratch_len,
            n_slots: if self.weighted {
                self.slots.len() as u32
            } else {
                0
            },
            total: result.and_then(|v| v.slot(v.span)),
            steps: Arc::new(self.steps) as Arc<dyn Steps>,
        })
    }
}

/// How a plan's folds combine: in a machine, members' values are averaged.
fn reduction(req: &Request) -> Reduce {
    match req.call {
        Call::HierarchicalMix { .. } => Reduce::Mean,
        _ => req.call.reduce(),
    }
}

fn too_long(slice: u64) -> PlanError {
    PlanError::BadNumber {
        field: "slice",
        got: slice,
        want: "large enough for fewer than 2^22 steps in a plan that is a list",
    }
}

/// The number of the next message to or from a rank.
fn count(counts: &mut BTreeMap<Rank, u32>, rank: Rank) -> u32 {
    let next = counts.entry(rank).or_default();
    *next += 1;
    *next - 1
}

type Before = SmallVec<[u32; 8]>;

/// Who touched the elements of a buffer last.
#[derive(Debug)]
struct Touches(BTreeMap<u64, Piece>);

/// Elements from the key to `end`.
#[derive(Clone, Debug)]
struct Piece {
    end: u64,
    writer: Option<u32>,
    /// Since then.
    readers: SmallVec<[u32; 2]>,
}

impl Default for Touches {
    fn default() -> Touches {
        let all = Piece {
            end: u64::MAX,
            writer: None,
            readers: smallvec![],
        };
        Touches([(0, all)].into())
    }
}

impl Touches {
    /// Notes that step `idx` reads or writes `span`; adds the steps that it must not overtake.
    fn touch(&mut self, span: Span, writes: bool, idx: u32, after: &mut Before) {
        self.split(span.at);
        self.split(span.end());
        for (_, piece) in self.0.range_mut(span.at..span.end()) {
            if writes && !piece.readers.is_empty() {
                // They wait for the writer.
                after.extend(piece.readers.iter().copied().filter(|&r| r != idx));
                if piece.readers.contains(&idx) {
                    after.extend(piece.writer);
                }
            } else {
                after.extend(piece.writer.filter(|&w| w != idx));
            }
            if !writes && piece.readers.last() != Some(&idx) {
                piece.readers.push(idx);
            }
        }
        if writes {
            let inside: SmallVec<[u64; 8]> = self
                .0
                .range(span.at..span.end())
                .map(|(&at, _)| at)
                .collect();
            for at in inside {
                self.0.remove(&at);
            }
            let piece = Piece {
                end: span.end(),
                writer: Some(idx),
                readers: smallvec![],
            };
            self.0.insert(span.at, piece);
        }
    }

    fn split(&mut self, at: u64) {
        let Some((&start, piece)) = self.0.range_mut(..=at).next_back() else {
            return;
        };
        if start == at || piece.end <= at {
            return;
        }
        let right = piece.clone();
        piece.end = at;
        self.0.insert(at, right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slice: u64) -> Request {
        Request {
            slice,
            ..Request::new(
                Call::AllReduce {
                    reduce: Reduce::Sum,
                    algorithm: Algorithm::Direct,
                },
                Rank(0),
                3,
                8,
            )
        }
    }

    fn after(b: &Build<'_>) -> Vec<Vec<u32>> {
        b.steps.iter().map(|s| s.after.to_vec()).collect()
    }

    #[test]
    fn a_slice_waits_for_its_own_alone() {
        let req = request(4);
        let mut b = Build::new(&req);
        let room = b.room(8);
        let came = b.recv(Rank(1), room, Buf::User);
        let own = b.contribution(0, 8);
        let all = b.fold(Span::user(0, 8), &[own, came]);
        b.send(Rank(2), &all, Buf::User);
        assert_eq!(
            after(&b),
            [vec![], vec![], vec![0], vec![1], vec![2], vec![3]]
        );
    }

    #[test]
    fn writers_wait_for_readers_and_readers_for_writers() {
        let req = request(8);
        let mut b = Build::new(&req);
        let own = b.contribution(0, 8);
        b.send(Rank(1), &own, Buf::User);
        b.send(Rank(2), &own.part((0, 4)), Buf::User);
        let half = b.recv(Rank(1), Span::user(4, 4), Buf::User);
        let low = b.recv(Rank(2), Span::user(0, 4), Buf::User);
        let both = Value::join(Span::user(0, 8), &[low, half]);
        b.send(Rank(1), &both, Buf::User);
        b.recv(Rank(2), Span::user(0, 8), Buf::User);
        assert_eq!(
            after(&b),
            [vec![], vec![], vec![0], vec![0, 1], vec![2, 3], vec![4]]
        );
    }

    #[test]
    fn messages_are_numbered_by_link_and_weights_by_slice() {
        let req = Request {
            call: Call::AllReduce {
                reduce: Reduce::Mean,
                algorithm: Algorithm::Direct,
            },
            ..request(4)
        };
        let mut b = Build::new(&req);
        let room = b.room(8);
        let came = b.recv(Rank(1), room, Buf::User);
        assert_eq!(came.slot(Span::scratch(0, 8)), Some(1));
        assert_eq!(came.slot(Span::scratch(3, 1)), Some(1));
        assert_eq!(came.slot(Span::scratch(4, 1)), Some(2));
        assert_eq!(came.part((8, 0)).slot(Span::scratch(8, 0)), Some(2));
        let tags: Vec<u32> = b
            .steps
            .iter()
            .filter_map(|s| match s.action {
                Action::Recv { tag, .. } => Some(tag),
                _ => None,
            })
            .collect();
        assert_eq!(tags, [0, 1]);
    }
}
