//! Several operations in flight at once, started in another order by every rank, over links with little room.

use super::interpret::{Happening, check_happenings};
use super::matching::{Event, Links};
use super::{Fault, Promise, World, local, matching, remote};
use crate::plan::{Action, Plan};
use std::collections::HashMap;

/// How operations in flight meet.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// For each rank the operations, as numbers, in the order in which it starts them. Starting waits for nothing.
    pub starts: Vec<Vec<usize>>,
    /// How many messages, of whatever operation, a link keeps for a receiver that is not ready for them. One that it is ready for always goes through.
    pub credit: u32,
    /// Whether a rank starts the next operation only once nothing else can happen anywhere.
    pub late: bool,
    /// Which of the things that can happen happens next.
    pub seed: u64,
}

/// Whether all of `operations` end as promised on every rank, whatever order they are started in.
///
/// Unlike in [`check`](super::check()), a send may end before its receive begins, so that a receiver works on what was true earlier; and the messages of all operations share the links' credit.
/// Returns how many messages were kept at most on one link.
///
/// # Errors
/// A fault of one of them, or [`Fault::Stalled`].
///
/// # Panics
/// If a rank does not start every operation once.
pub fn check_in_flight(
    operations: &[(&[Plan], &Promise)],
    schedule: &Schedule,
) -> Result<u32, Fault> {
    let mut flights = Vec::with_capacity(operations.len());
    for (plans, promise) in operations {
        super::check_fit(plans, promise)?;
        let world = World::of(plans);
        for rank in 0..plans.len() {
            local::check_rank(&world, rank)?;
        }
        let links = matching::match_messages(&world)?;
        let order = matching::order(&world, &links)?;
        remote::check_remote(&world, &links, &order)?;
        flights.push((world, links));
    }
    for starts in &schedule.starts {
        let mut sorted = starts.clone();
        sorted.sort_unstable();
        assert!(
            sorted.iter().copied().eq(0..operations.len()),
            "every rank starts every operation once"
        );
    }
    let mut sky = Sky::new(&flights, schedule);
    sky.run();
    if let Some(waiting) = sky.stalled() {
        return Err(Fault::Stalled { waiting });
    }
    let Sky {
        happened,
        most_kept,
        ..
    } = sky;
    for ((world, links), (happened, (_, promise))) in
        flights.iter().zip(happened.iter().zip(operations))
    {
        check_happenings(world, links, happened, promise)?;
    }
    Ok(most_kept)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Done,
}

/// One operation's progress.
struct Flight {
    /// How many steps each step still waits for, its rank's start among them.
    waits: Vec<Vec<u32>>,
    /// Who waits for it.
    then: Vec<Vec<Vec<Event>>>,
    state: Vec<Vec<State>>,
}

/// All operations together.
struct Sky<'a> {
    worlds: &'a [(World<'a>, Links)],
    flights: Vec<Flight>,
    schedule: &'a Schedule,
    n_started: Vec<usize>,
    /// Steps that may be tried: (operation, step).
    pool: Vec<(usize, Event)>,
    /// Sends that found no room, by link.
    held: HashMap<(u32, u32), Vec<(usize, Event)>>,
    /// Messages that are kept, by link.
    kept: HashMap<(u32, u32), u32>,
    most_kept: u32,
    happened: Vec<Vec<Happening>>,
    random: u64,
}

impl<'a> Sky<'a> {
    fn new(worlds: &'a [(World<'a>, Links)], schedule: &'a Schedule) -> Self {
        let flights = worlds.iter().map(|(world, links)| {
            let mut then: Vec<Vec<Vec<Event>>> = world
                .steps
                .iter()
                .map(|s| vec![Vec::new(); s.len()])
                .collect();
            let mut waits: Vec<Vec<u32>> = world.steps.iter().map(|s| vec![1; s.len()]).collect();
            for (rank, steps) in (0u32..).zip(&world.steps) {
                for (idx, step) in (0u32..).zip(steps) {
                    let own = step.after.iter().map(|&a| (rank, a));
                    for (r, i) in own.chain(links.awaited(&step.action)) {
                        then[r as usize][i as usize].push((rank, idx));
                        waits[rank as usize][idx as usize] += 1;
                    }
                }
            }
            let state = world
                .steps
                .iter()
                .map(|s| vec![State::Waiting; s.len()])
                .collect();
            Flight { waits, then, state }
        });
        Sky {
            worlds,
            flights: flights.collect(),
            schedule,
            n_started: vec![0; schedule.starts.len()],
            pool: Vec::new(),
            held: HashMap::new(),
            kept: HashMap::new(),
            most_kept: 0,
            happened: vec![Vec::new(); worlds.len()],
            random: schedule.seed,
        }
    }

    /// Some number below `n` (Steele, Lea and Flood 2014: SplitMix).
    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn run(&mut self) {
        loop {
            let to_start: Vec<usize> = (0..self.n_started.len())
                .filter(|&r| self.n_started[r] < self.schedule.starts[r].len())
                .collect();
            let n_starts = match self.schedule.late && !self.pool.is_empty() {
                true => 0,
                false => to_start.len(),
            };
            let n = self.pool.len() + n_starts;
            if n == 0 {
                return;
            }
            let which = self.below(n);
            if which < self.pool.len() {
                let (op, step) = self.pool.swap_remove(which);
                self.try_step(op, step);
            } else {
                self.start(to_start[which - self.pool.len()]);
            }
        }
    }

    fn start(&mut self, rank: usize) {
        let op = self.schedule.starts[rank][self.n_started[rank]];
        self.n_started[rank] += 1;
        for idx in 0..self.flights[op].waits[rank].len() as u32 {
            self.one_less(op, (rank as u32, idx));
        }
    }

    fn one_less(&mut self, op: usize, step: Event) {
        let (rank, idx) = (step.0 as usize, step.1 as usize);
        let flight = &mut self.flights[op];
        flight.waits[rank][idx] -= 1;
        if flight.waits[rank][idx] == 0 {
            flight.state[rank][idx] = State::Ready;
            self.pool.push((op, step));
        }
    }

    fn state(&self, op: usize, step: Event) -> State {
        self.flights[op].state[step.0 as usize][step.1 as usize]
    }

    fn action(&self, op: usize, step: Event) -> &'a Action {
        &self.worlds[op].0.steps[step.0 as usize][step.1 as usize].action
    }

    fn try_step(&mut self, op: usize, step: Event) {
        if self.state(op, step) != State::Ready {
            // It was tried with its counterpart.
            return;
        }
        let other = self.worlds[op].1.other(step);
        match (self.action(op, step), other) {
            (Action::Send { .. }, Some(recv)) => {
                let link = (step.0, recv.0);
                let kept = self.kept.get(&link).copied().unwrap_or(0);
                if self.state(op, recv) == State::Ready {
                    self.done(op, step, Happening::Sent(step));
                    self.done(op, recv, Happening::Received(recv));
                } else if kept < self.schedule.credit {
                    self.kept.insert(link, kept + 1);
                    self.most_kept = self.most_kept.max(kept + 1);
                    self.done(op, step, Happening::Sent(step));
                } else {
                    self.held.entry(link).or_default().push((op, step));
                }
            }
            (Action::Recv { .. }, Some(send)) => match self.state(op, send) {
                State::Done => {
                    let link = (send.0, step.0);
                    if let Some(kept) = self.kept.get_mut(&link) {
                        *kept -= 1;
                    }
                    self.done(op, step, Happening::Received(step));
                    // There is room again.
                    let held = self.held.remove(&link);
                    self.pool.extend(held.into_iter().flatten());
                }
                State::Ready => {
                    self.done(op, send, Happening::Sent(send));
                    self.done(op, step, Happening::Received(step));
                }
                // The send will find it ready.
                State::Waiting => {}
            },
            _ => self.done(op, step, Happening::Local(step)),
        }
    }

    fn done(&mut self, op: usize, step: Event, how: Happening) {
        self.happened[op].push(how);
        let (rank, idx) = (step.0 as usize, step.1 as usize);
        self.flights[op].state[rank][idx] = State::Done;
        for later in std::mem::take(&mut self.flights[op].then[rank][idx]) {
            self.one_less(op, later);
        }
    }

    /// The first step of each rank that can go no further; `None` where all have ended.
    fn stalled(&self) -> Option<Vec<super::Where>> {
        let mut waiting = Vec::new();
        for (flight, (world, _)) in self.flights.iter().zip(self.worlds) {
            for (rank, states) in flight.state.iter().enumerate() {
                if let Some(idx) = states.iter().position(|&s| s != State::Done) {
                    waiting.push(world.at(rank, idx as u32));
                }
            }
        }
        (!waiting.is_empty()).then_some(waiting)
    }
}
