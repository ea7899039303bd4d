//! When each step of all ranks' plans would happen, by the links' table: for predictions, and for drawing them.
//!
//! Each rank has one thread, which sends, takes, folds, encodes and copies one step after the other, in the order in which they can begin; one link out and one link in, which carry one message at a time; the ranks of a host share its link to the others.
//! Ranks of one host on different memory nodes use the links inside it, at what is said of nodes.
//! A message is on its way for the latency and its bytes' time, and holds both ends' links for the latter.
//! Nothing is measured here; equal plans and tables give equal times.

use crate::check::matching::Links;
use crate::check::{Fault, World};
use crate::plan::{Action, Arrive, Buf, Plan, Span};
use crate::select::{LinkClass, Places, Tables};
use gaggle_core::{Codec, DType, Rank};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

/// When a step happens, in nanoseconds from the common start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct When {
    /// When it begins: a receive when its message begins to arrive.
    pub begins: u64,
    /// When it is over.
    pub ends: u64,
}

/// When everything happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// By rank and step.
    pub steps: Vec<Vec<When>>,
    /// The sender's step of each receive, by rank and step.
    pub senders: Vec<Vec<Option<(Rank, u32)>>>,
    /// When the last step is over, in nanoseconds.
    pub nanoseconds: u64,
}

/// When all steps of `plans`, one per rank, would happen on elements of `dtype`.
///
/// Takes time proportional to the steps of all plans, times their number's logarithm.
///
/// # Errors
/// The plans do not fit each other.
///
/// ```
/// use gaggle_collectives::{Call, Promise, Request, plan, select::{Places, Tables}, timeline};
/// use gaggle_core::{Algorithm, DType, Rank};
///
/// let call = Call::Broadcast { root: Rank(0), algorithm: Algorithm::Binomial };
/// let promise = Promise::of_all(&Request::new(call, Rank(0), 4, 1000));
/// let plans: Vec<_> = promise.requests().iter().map(plan).collect::<Result<_, _>>()?;
/// let times = timeline(&plans, DType::F32, &Tables::threads(), Places::default())?;
/// // Two messages one after the other, each of at least the latency.
/// assert!(times.nanoseconds >= 2 * Tables::threads().between.latency_ns);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn timeline(
    plans: &[Plan],
    dtype: DType,
    tables: &Tables,
    places: Places<'_>,
) -> Result<Timeline, Fault> {
    let world = World::of(plans);
    let links = crate::check::fit_together(&world)?;
    let mut clock = Clock::new(&world, &links, dtype, tables, places);
    clock.run();
    let Clock { when, .. } = clock;
    let ends = when.iter().flatten().map(|w| w.ends);
    Ok(Timeline {
        nanoseconds: ends.max().unwrap_or(0),
        senders: senders(&world, &links),
        steps: when,
    })
}

fn senders(world: &World<'_>, links: &Links) -> Vec<Vec<Option<(Rank, u32)>>> {
    let of = |(rank, steps): (u32, &Vec<crate::plan::Step>)| {
        (0..)
            .zip(steps)
            .map(|(idx, step)| match step.action {
                Action::Recv { .. } => links.other((rank, idx)).map(|(r, i)| (Rank(r), i)),
                _ => None,
            })
            .collect()
    };
    (0..).zip(&world.steps).map(of).collect()
}

/// A step of a rank.
type Item = (u32, u32);

/// What happens at some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A resource has done with a step.
    Done(Resource, Item),
    /// A message's first byte is at its receiver's link; the step is the receive.
    Comes(Item),
}

/// What does one thing after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    /// A rank's thread.
    Thread(u32),
    /// A rank's link out to its host's others, and in.
    Inside(u32, bool),
    /// A host's link out to other hosts, and in.
    Between(u32, bool),
}

/// What waits for a resource.
#[derive(Default)]
struct Queue {
    busy: bool,
    waiting: VecDeque<Item>,
}

struct Clock<'a> {
    world: &'a World<'a>,
    links: &'a Links,
    dtype: DType,
    tables: &'a Tables,
    hosts: Vec<u32>,
    nodes: Vec<u32>,
    waits: Vec<Vec<u32>>,
    then: Vec<Vec<Vec<Item>>>,
    /// Of receives: whether what they wait for is over, and whether their message has come.
    ready: Vec<Vec<bool>>,
    arrived: Vec<Vec<bool>>,
    when: Vec<Vec<When>>,
    queues: BTreeMap<Resource, Queue>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl<'a> Clock<'a> {
    fn new(
        world: &'a World<'a>,
        links: &'a Links,
        dtype: DType,
        tables: &'a Tables,
        places: Places<'_>,
    ) -> Self {
        let n = world.steps.len();
        let fits =
            |numbers: Option<&[u32]>| numbers.filter(|all| all.len() == n).map(<[u32]>::to_vec);
        let hosts = fits(places.hosts).unwrap_or_else(|| (0..n as u32).collect());
        let nodes = fits(places.nodes).unwrap_or_else(|| vec![0; n]);
        fn per_step<T: Clone>(world: &World<'_>, value: T) -> Vec<Vec<T>> {
            let of = |steps: &Vec<_>| vec![value.clone(); steps.len()];
            world.steps.iter().map(of).collect()
        }
        let mut clock = Clock {
            world,
            links,
            dtype,
            tables,
            hosts,
            nodes,
            waits: per_step(world, 0),
            then: per_step(world, Vec::new()),
            ready: per_step(world, false),
            arrived: per_step(world, false),
            when: per_step(world, When::default()),
            queues: BTreeMap::new(),
            events: BinaryHeap::new(),
        };
        for (rank, steps) in (0u32..).zip(&world.steps) {
            for (idx, step) in (0u32..).zip(steps) {
                let own = step.after.iter().map(|&a| (rank, a));
                for (r, i) in own.chain(links.awaited(&step.action)) {
                    clock.then[r as usize][i as usize].push((rank, idx));
                    clock.waits[rank as usize][idx as usize] += 1;
                }
            }
        }
        clock
    }

    fn run(&mut self) {
        for (rank, waits) in (0u32..).zip(self.waits.clone()) {
            for (idx, _) in (0u32..).zip(waits).filter(|(_, waits)| *waits == 0) {
                self.begin(0, (rank, idx));
            }
        }
        while let Some(Reverse((now, event))) = self.events.pop() {
            match event {
                Event::Comes(recv) => {
                    let send = self.links.other(recv);
                    let resource = send.map(|send| self.link(recv.0, send.0, true));
                    if let Some(resource) = resource {
                        self.enter(now, resource, recv);
                    }
                }
                Event::Done(resource, item) => {
                    self.done(now, resource, item);
                    self.queues.entry(resource).or_default().busy = false;
                    self.next(now, resource);
                }
            }
        }
    }

    fn action(&self, (rank, idx): Item) -> &'a Action {
        &self.world.steps[rank as usize][idx as usize].action
    }

    fn when(&mut self, (rank, idx): Item) -> &mut When {
        &mut self.when[rank as usize][idx as usize]
    }

    /// What a step waited for is over.
    fn begin(&mut self, now: u64, item: Item) {
        let (r, i) = (item.0 as usize, item.1 as usize);
        if let Action::Recv { .. } = self.action(item) {
            self.ready[r][i] = true;
            if !self.arrived[r][i] {
                return;
            }
        }
        self.enter(now, Resource::Thread(item.0), item);
    }

    fn enter(&mut self, now: u64, resource: Resource, item: Item) {
        let queue = self.queues.entry(resource).or_default();
        queue.waiting.push_back(item);
        self.next(now, resource);
    }

    /// The resource turns to what has waited longest.
    fn next(&mut self, now: u64, resource: Resource) {
        let queue = self.queues.entry(resource).or_default();
        if queue.busy {
            return;
        }
        let Some(item) = queue.waiting.pop_front() else {
            return;
        };
        queue.busy = true;
        let takes = match resource {
            Resource::Thread(_) => {
                let begun = matches!(self.action(item), Action::Recv { .. });
                if !begun {
                    self.when(item).begins = now;
                }
                self.duration(item.0, item.1)
            }
            Resource::Inside(_, coming) | Resource::Between(_, coming) => {
                let send = match coming {
                    true => self.links.other(item).unwrap_or(item),
                    false => item,
                };
                if coming {
                    self.when(item).begins = now;
                } else if let Some(recv) = self.links.other(item) {
                    let latency = self.class(item.0, recv.0).latency_ns;
                    self.events
                        .push(Reverse((now.saturating_add(latency), Event::Comes(recv))));
                }
                self.passes(send)
            }
        };
        let ends = now.saturating_add(takes);
        self.events
            .push(Reverse((ends, Event::Done(resource, item))));
    }

    fn done(&mut self, now: u64, resource: Resource, item: Item) {
        match (resource, self.action(item)) {
            (Resource::Thread(_), Action::Send { to, .. }) => {
                let resource = self.link(item.0, to.0, false);
                self.enter(now, resource, item);
            }
            (Resource::Inside(_, true) | Resource::Between(_, true), _) => {
                let (r, i) = (item.0 as usize, item.1 as usize);
                self.arrived[r][i] = true;
                if self.ready[r][i] {
                    self.enter(now, Resource::Thread(item.0), item);
                }
            }
            _ => {
                self.when(item).ends = now;
                let (r, i) = (item.0 as usize, item.1 as usize);
                for later in std::mem::take(&mut self.then[r][i]) {
                    let waits = &mut self.waits[later.0 as usize][later.1 as usize];
                    *waits -= 1;
                    if *waits == 0 {
                        self.begin(now, later);
                    }
                }
            }
        }
    }

    fn class(&self, rank: u32, peer: u32) -> &'a LinkClass {
        let alike = |of: &[u32]| of[rank as usize] == of[peer as usize];
        match (alike(&self.hosts), alike(&self.nodes)) {
            (true, true) => &self.tables.inside,
            (true, false) => &self.tables.across,
            (false, _) => &self.tables.between,
        }
    }

    /// A rank's link to a peer, or from one.
    fn link(&self, rank: u32, peer: u32, coming: bool) -> Resource {
        let host = self.hosts[rank as usize];
        match host == self.hosts[peer as usize] {
            true => Resource::Inside(rank, coming),
            false => Resource::Between(host, coming),
        }
    }

    /// How long a message's bytes take to pass.
    fn passes(&self, send: Item) -> u64 {
        match *self.action(send) {
            Action::Send {
                to,
                src,
                wire,
                codec,
                ..
            } => {
                let bytes = self.wire_bytes(send.0, src, wire, codec);
                through(bytes, self.class(send.0, to.0).bytes_per_us)
            }
            _ => 0,
        }
    }

    fn size(&self, rank: u32, buf: Buf) -> u64 {
        let dtype = match buf {
            Buf::User | Buf::Input => self.dtype,
            Buf::Scratch => self.world.plans[rank as usize]
                .kind
                .scratch_type(self.dtype),
        };
        dtype.size() as u64
    }

    fn wire_bytes(&self, rank: u32, span: Span, wire: Buf, codec: Codec) -> u64 {
        let plain = span.len.saturating_mul(self.size(rank, wire));
        codec
            .wire_bytes(self.dtype, span.len)
            .map_or(plain, |b| match codec {
                Codec::None => plain,
                _ => b,
            })
    }

    /// How long the rank's thread is at it.
    fn duration(&self, rank: u32, idx: u32) -> u64 {
        let action = &self.world.steps[rank as usize][idx as usize].action;
        let bytes = |span: Span| span.len.saturating_mul(self.size(rank, span.buf));
        let inside = &self.tables.inside;
        let folded = |bytes: u64| through(bytes, inside.fold_bytes_per_us);
        let coded = |bytes: u64| through(bytes, inside.codec_bytes_per_us);
        let code = |codec: Codec, span: Span| match codec {
            Codec::None => 0,
            _ => coded(bytes(span)),
        };
        match action {
            Action::Send { to, src, codec, .. } => {
                self.class(rank, to.0).message_ns + code(*codec, *src)
            }
            Action::Recv {
                from,
                dst,
                codec,
                arrive,
                ..
            } => {
                let fold = match arrive {
                    Arrive::Store => 0,
                    Arrive::Fold { .. } => folded(bytes(*dst)),
                };
                self.class(rank, from.0).message_ns + code(*codec, *dst) + fold
            }
            Action::Fold { operands, .. } => folded(operands.iter().map(|o| bytes(o.span)).sum()),
            Action::Mix { own, operands, .. } => {
                folded(bytes(*own) + operands.iter().map(|&o| bytes(o)).sum::<u64>())
            }
            Action::Weigh { span, .. } | Action::Divide { span, .. } => folded(bytes(*span)),
            Action::Copy { dst, .. } => folded(bytes(*dst)),
            Action::Recode { span, .. } | Action::Compensate { span, .. } => {
                coded(bytes(*span).saturating_mul(2))
            }
            Action::Arrive { .. } => inside.message_ns,
            // Hearing of the last arrival takes a link's latency.
            Action::AwaitAll { .. } => match self.world.plans.len() {
                1 => 0,
                _ => inside.latency_ns,
            },
            // Every member's elements are read, and written.
            Action::GroupFold { from, at, len, .. } => {
                let span = Span {
                    buf: *from,
                    at: *at,
                    len: *len,
                };
                folded(bytes(span).saturating_mul(2 * self.world.plans.len() as u64))
            }
            Action::GroupCopy { dst, .. } => folded(bytes(*dst)),
        }
    }
}

fn through(bytes: u64, per_us: u64) -> u64 {
    let ns = u128::from(bytes) * 1000 / u128::from(per_us.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
