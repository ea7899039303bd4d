//! The control plane of ranks that are threads of one process: one table behind a lock.

use super::{BACKLOG_MAX, Event, Life};
use gaggle_core::{Armed, Control, ControlSink, Rank, Wake};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What an event costs beside its payload.
const EVENT_COST: usize = 64;

struct Seat {
    life: Life,
    queue: VecDeque<Event>,
    bytes: usize,
    wake: Option<Arc<dyn Wake>>,
}

struct Hub(Mutex<Vec<Seat>>);

/// A rank's place in the control plane of one process. Dropped without [`Control::leave`], the rank counts as lost.
pub struct InprocControl {
    me: Rank,
    world: u32,
    hub: Arc<Hub>,
    polling: Mutex<()>,
    left: AtomicBool,
}

/// The control plane of `n` ranks that are threads.
pub fn inproc(n: u32) -> Vec<InprocControl> {
    let seats = (0..n)
        .map(|_| Seat {
            life: Life::Alive,
            queue: VecDeque::new(),
            bytes: 0,
            wake: None,
        })
        .collect();
    let hub = Arc::new(Hub(Mutex::new(seats)));
    (0..n)
        .map(|me| InprocControl {
            me: Rank(me),
            world: n,
            hub: Arc::clone(&hub),
            polling: Mutex::new(()),
            left: AtomicBool::new(false),
        })
        .collect()
}

fn cost(event: &Event) -> usize {
    EVENT_COST
        + match event {
            Event::Message { payload, .. } => payload.len(),
            Event::Lost { why, .. } => why.len(),
            Event::Left { .. } => 0,
        }
}

impl Hub {
    /// Gives `event` to all but `except`, and wakes them once the lock is free.
    fn publish(
        &self,
        except: Option<Rank>,
        event: &Event,
        mut change: impl FnMut(&mut [Seat]) -> bool,
    ) {
        let mut wakes = Vec::new();
        {
            let mut seats = self.0.lock();
            if !change(&mut seats) {
                return;
            }
            let mut deaf = Vec::new();
            give(&mut seats, except, event, &mut wakes, &mut deaf);
            while let Some(rank) = deaf.pop() {
                let why = unread();
                let event = Event::Lost { rank, why };
                match seats.get_mut(rank.idx()) {
                    Some(seat) if seat.life == Life::Alive => {
                        seat.life = Life::Lost;
                        seat.queue.clear();
                        seat.bytes = 0;
                        seat.queue.push_back(event.clone());
                    }
                    _ => continue,
                }
                give(&mut seats, None, &event, &mut wakes, &mut deaf);
            }
        }
        // Outside the lock: a wake is foreign code.
        for wake in wakes {
            wake.wake();
        }
    }

    fn bury(&self, rank: Rank, why: &str) {
        let event = Event::Lost {
            rank,
            why: why.to_owned(),
        };
        self.publish(None, &event, |seats| {
            let Some(seat) = seats.get_mut(rank.idx()) else {
                return false;
            };
            if seat.life != Life::Alive {
                return false;
            }
            seat.life = Life::Lost;
            // The last thing it hears is that it is lost.
            seat.queue.push_back(event.clone());
            true
        });
    }
}

fn unread() -> String {
    format!("it has left {BACKLOG_MAX} bytes of control messages unread")
}

fn give(
    seats: &mut [Seat],
    except: Option<Rank>,
    event: &Event,
    wakes: &mut Vec<Arc<dyn Wake>>,
    deaf: &mut Vec<Rank>,
) {
    for (seat, rank) in seats.iter_mut().zip(0..).map(|(s, r)| (s, Rank(r))) {
        if seat.life != Life::Alive || Some(rank) == except {
            // Those that are lost have heard so already and need only be woken.
            if seat.life == Life::Lost {
                wakes.extend(seat.wake.clone());
            }
            continue;
        }
        let cost = cost(event);
        if seat.bytes + cost > BACKLOG_MAX {
            deaf.push(rank);
            continue;
        }
        seat.bytes += cost;
        seat.queue.push_back(event.clone());
        wakes.extend(seat.wake.clone());
    }
}

impl Control for InprocControl {
    fn me(&self) -> Rank {
        self.me
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn broadcast(&self, payload: &[u8]) {
        let payload = super::fitting(payload);
        let event = Event::Message {
            from: self.me,
            payload: payload.to_vec(),
        };
        self.hub.publish(Some(self.me), &event, |seats| {
            seats
                .get(self.me.idx())
                .is_some_and(|s| s.life == Life::Alive)
        });
    }

    fn declare_lost(&self, rank: Rank, why: &str) {
        let alive = |s: &Seat| s.life == Life::Alive;
        if self.hub.0.lock().get(self.me.idx()).is_some_and(alive) {
            self.hub.bury(rank, super::wire::short(why));
        }
    }

    fn poll(&self, sink: &mut dyn ControlSink) -> u64 {
        let Some(_polling) = self.polling.try_lock() else {
            return 0;
        };
        let events = {
            let mut seats = self.hub.0.lock();
            let Some(seat) = seats.get_mut(self.me.idx()) else {
                return 0;
            };
            seat.bytes = 0;
            std::mem::take(&mut seat.queue)
        };
        for event in &events {
            event.report(sink);
        }
        events.len() as u64
    }

    fn arm(&self) -> Armed<'_> {
        let pending = |s: &Seat| !s.queue.is_empty();
        if self.hub.0.lock().get(self.me.idx()).is_some_and(pending) {
            Armed::MoreToDo
        } else {
            Armed::Wakes
        }
    }

    fn attach(&self, wake: Arc<dyn Wake>) {
        if let Some(seat) = self.hub.0.lock().get_mut(self.me.idx()) {
            seat.wake = Some(wake);
        }
    }

    fn leave(&self) {
        // Relaxed: `drop`, the only other reader, has exclusive access.
        self.left.store(true, Ordering::Relaxed);
        let event = Event::Left { rank: self.me };
        self.hub.publish(Some(self.me), &event, |seats| {
            let Some(seat) = seats.get_mut(self.me.idx()) else {
                return false;
            };
            let alive = seat.life == Life::Alive;
            if alive {
                seat.life = Life::Left;
            }
            alive
        });
    }
}

impl Drop for InprocControl {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed) {
            self.hub.bury(
                self.me,
                &format!("{}'s thread ended without leaving", self.me),
            );
        }
        if let Some(seat) = self.hub.0.lock().get_mut(self.me.idx()) {
            seat.wake = None;
            seat.queue.clear();
        }
    }
}
