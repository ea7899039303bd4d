//! Which send meets which receive, and an order in which everything can happen.

use super::{Fault, Where, World};
use crate::plan::Action;
use gaggle_core::Rank;
use std::collections::HashMap;

/// How the ranks' steps belong together.
pub(crate) struct Links {
    /// The other side of each message: by rank and step, as (rank, step); `None` for steps that are no message.
    others: Vec<Vec<Option<Event>>>,
    /// Each rank's step that arrives at a phase, in rank order.
    arrivals: HashMap<u32, Vec<u32>>,
}

impl Links {
    /// The other side of a message.
    pub(crate) fn other(&self, (rank, idx): Event) -> Option<Event> {
        self.others[rank as usize][idx as usize]
    }

    /// The arrivals that a step of another rank waits for.
    pub(crate) fn awaited(&self, action: &Action) -> impl Iterator<Item = Event> + '_ {
        let arrivals = match action {
            Action::AwaitAll { phase } => self.arrivals.get(phase),
            _ => None,
        };
        let arrivals = arrivals.into_iter().flatten();
        (0..).zip(arrivals).map(|(rank, &idx)| (rank, idx))
    }
}

/// One event: a local step, or a message, named by its send.
pub(crate) type Event = (u32, u32);

/// Finds the counterpart of every message.
pub(super) fn match_messages(world: &World<'_>) -> Result<Links, Fault> {
    let sends = by_key(world, true)?;
    let recvs = by_key(world, false)?;
    let mut links: Vec<Vec<Option<Event>>> =
        world.steps.iter().map(|s| vec![None; s.len()]).collect();
    for (rank, steps) in world.steps.iter().enumerate() {
        for idx in 0..steps.len() as u32 {
            let Some((key, is_send)) = key_of(world, rank, idx) else {
                continue;
            };
            let other = if is_send { &recvs } else { &sends };
            let Some(&(other_rank, other_idx)) = other.get(&key) else {
                let at = world.at(rank, idx);
                return Err(if is_send {
                    Fault::NoReceive {
                        send: at,
                        to: Rank(key.1),
                    }
                } else {
                    Fault::NoSend {
                        recv: at,
                        from: Rank(key.0),
                    }
                });
            };
            links[rank][idx as usize] = Some((other_rank, other_idx));
            if is_send {
                check_pair(world, (rank as u32, idx), (other_rank, other_idx))?;
            }
        }
    }
    Ok(Links {
        others: links,
        arrivals: find_arrivals(world)?,
    })
}

/// Every rank arrives at every phase once, and at none for nobody.
fn find_arrivals(world: &World<'_>) -> Result<HashMap<u32, Vec<u32>>, Fault> {
    let n = world.plans.len();
    let mut found: HashMap<u32, Vec<Option<u32>>> = HashMap::new();
    let mut awaits: HashMap<u32, Event> = HashMap::new();
    for (rank, steps) in world.steps.iter().enumerate() {
        for (idx, step) in (0..).zip(steps) {
            match step.action {
                Action::Arrive { phase } => {
                    let of_phase = found.entry(phase).or_insert_with(|| vec![None; n]);
                    if let Some(first) = of_phase[rank].replace(idx) {
                        return Err(Fault::ArrivesTwice {
                            first: world.at(rank, first),
                            second: world.at(rank, idx),
                            phase,
                        });
                    }
                }
                Action::AwaitAll { phase } => {
                    awaits.entry(phase).or_insert((rank as u32, idx));
                }
                _ => {}
            }
        }
    }
    // In the order of the phases, so that a fault is the same one every time.
    let mut awaited: Vec<_> = awaits.into_iter().collect();
    awaited.sort_unstable();
    let mut arrivals = HashMap::new();
    for (phase, (rank, idx)) in awaited {
        let of_phase = found.remove(&phase).unwrap_or_else(|| vec![None; n]);
        let absent = |r: &usize| of_phase[*r].is_none();
        let missing: Vec<Rank> = (0..n).filter(absent).map(|r| Rank(r as u32)).collect();
        if !missing.is_empty() {
            return Err(Fault::NeverArrives {
                at: world.at(rank as usize, idx),
                phase,
                missing,
            });
        }
        arrivals.insert(phase, of_phase.into_iter().flatten().collect());
    }
    let unused = found
        .values()
        .flat_map(|of_phase| of_phase.iter().enumerate());
    let unused = unused.filter_map(|(rank, idx)| Some((rank, (*idx)?))).min();
    match unused {
        Some((rank, idx)) => Err(Fault::Idle {
            at: world.at(rank, idx),
        }),
        None => Ok(arrivals),
    }
}

/// From, to, tag.
type Key = (u32, u32, u32);

fn key_of(world: &World<'_>, rank: usize, idx: u32) -> Option<(Key, bool)> {
    match world.steps[rank][idx as usize].action {
        Action::Send { to, tag, .. } => Some(((rank as u32, to.0, tag), true)),
        Action::Recv { from, tag, .. } => Some(((from.0, rank as u32, tag), false)),
        _ => None,
    }
}

fn by_key(world: &World<'_>, sends: bool) -> Result<HashMap<Key, Event>, Fault> {
    let mut all = HashMap::new();
    for (rank, steps) in world.steps.iter().enumerate() {
        for idx in 0..steps.len() as u32 {
            let Some((key, is_send)) = key_of(world, rank, idx) else {
                continue;
            };
            if is_send != sends {
                continue;
            }
            let peer = if is_send { key.1 } else { key.0 };
            if peer as usize == rank || peer as usize >= world.plans.len() {
                return Err(Fault::BadPeer {
                    at: world.at(rank, idx),
                    peer: Rank(peer),
                });
            }
            if let Some((_, first)) = all.insert(key, (rank as u32, idx)) {
                return Err(Fault::TagTwice {
                    first: world.at(rank, first),
                    second: world.at(rank, idx),
                    tag: key.2,
                });
            }
        }
    }
    Ok(all)
}

fn check_pair(world: &World<'_>, s: Event, r: Event) -> Result<(), Fault> {
    let action = |e: Event| &world.steps[e.0 as usize][e.1 as usize].action;
    let at = |e: Event| world.at(e.0 as usize, e.1);
    let (
        Action::Send {
            src,
            wire: sent_as,
            codec: encoded,
            weight: carried,
            ..
        },
        Action::Recv {
            dst,
            wire,
            codec,
            weight,
            ..
        },
    ) = (action(s), action(r))
    else {
        return Ok(());
    };
    if src.len != dst.len {
        return Err(Fault::Length {
            send: at(s),
            recv: at(r),
            sent: src.len,
            expected: dst.len,
        });
    }
    let differ = if encoded != codec {
        "codec"
    } else if sent_as != wire {
        "the type on the wire"
    } else if carried.is_some() != weight.is_some() {
        "whether a weight travels"
    } else {
        return Ok(());
    };
    Err(Fault::Disagree {
        send: at(s),
        recv: at(r),
        what: differ,
    })
}

/// The event that a step is part of.
fn event_of(world: &World<'_>, links: &Links, rank: usize, idx: u32) -> Event {
    match (
        &world.steps[rank][idx as usize].action,
        links.other((rank as u32, idx)),
    ) {
        (Action::Recv { .. }, Some(send)) => send,
        _ => (rank as u32, idx),
    }
}

/// The steps that an event consists of.
fn sides(links: &Links, event: Event) -> impl Iterator<Item = (usize, u32)> {
    let other = links.other(event);
    [event]
        .into_iter()
        .chain(other)
        .map(|(r, i)| (r as usize, i))
}

/// The events before an event, each with the step that waits for it.
fn before<'a>(
    world: &'a World<'_>,
    links: &'a Links,
    event: Event,
) -> impl Iterator<Item = (Event, (usize, u32))> + 'a {
    sides(links, event).flat_map(move |(rank, idx)| {
        let step = &world.steps[rank][idx as usize];
        let own = step.after.iter();
        let own = own.map(move |&a| event_of(world, links, rank, a));
        own.chain(links.awaited(&step.action))
            .map(move |earlier| (earlier, (rank, idx)))
    })
}

/// Every event once, none before those that it waits for.
pub(super) fn order(world: &World<'_>, links: &Links) -> Result<Vec<Event>, Fault> {
    // Events are numbered by their step, counted through all ranks.
    let mut first = Vec::with_capacity(world.steps.len());
    let mut n_all = 0;
    for steps in &world.steps {
        first.push(n_all);
        n_all += steps.len();
    }
    let number = |(rank, idx): Event| first[rank as usize] + idx as usize;
    let mut waits = vec![0u32; n_all];
    let mut then: Vec<Vec<Event>> = vec![Vec::new(); n_all];
    let mut order = Vec::with_capacity(n_all);
    let mut n_events = 0;
    for (rank, steps) in world.steps.iter().enumerate() {
        for idx in 0..steps.len() as u32 {
            let event = event_of(world, links, rank, idx);
            if event != (rank as u32, idx) {
                continue;
            }
            n_events += 1;
            for (earlier, _) in before(world, links, event) {
                waits[number(event)] += 1;
                then[number(earlier)].push(event);
            }
            if waits[number(event)] == 0 {
                order.push(event);
            }
        }
    }
    let mut next = 0;
    while let Some(&event) = order.get(next) {
        next += 1;
        for later in std::mem::take(&mut then[number(event)]) {
            waits[number(later)] -= 1;
            if waits[number(later)] == 0 {
                order.push(later);
            }
        }
    }
    if order.len() == n_events {
        return Ok(order);
    }
    let stuck = |event: Event| waits[number(event)] > 0;
    Err(find_cycle(world, links, stuck))
}

/// Follows waiting events backwards until one comes again.
fn find_cycle(world: &World<'_>, links: &Links, stuck: impl Fn(Event) -> bool) -> Fault {
    let all = world.steps.iter().enumerate().flat_map(|(rank, steps)| {
        (0..steps.len() as u32).map(move |idx| event_of(world, links, rank, idx))
    });
    let mut path: Vec<Event> = all.filter(|&e| stuck(e)).take(1).collect();
    let mut cycle: Vec<Vec<Where>> = Vec::new();
    while let Some(&event) = path.last() {
        // An event that is stuck waits for one that is stuck, or it would not be.
        let Some((earlier, (rank, idx))) = before(world, links, event).find(|&(e, _)| stuck(e))
        else {
            break;
        };
        // The side whose counterpart it is comes first, then the side that waits.
        let mut words: Vec<Where> = sides(links, event)
            .filter(|&side| side != (rank, idx))
            .map(|(r, i)| world.at(r, i))
            .collect();
        words.push(world.at(rank, idx));
        cycle.push(words);
        if let Some(start) = path.iter().position(|&e| e == earlier) {
            cycle.drain(..start);
            break;
        }
        path.push(earlier);
    }
    Fault::Deadlock {
        cycle: cycle.into_iter().flatten().collect(),
    }
}

/// Length of the longest chain of messages, each sent only once the one before has come. A send is over, as far as the chain goes, when it has left.
pub(super) fn longest_chain(world: &World<'_>, links: &Links, order: &[Event]) -> u64 {
    let mut depth: Vec<Vec<u64>> = world.steps.iter().map(|s| vec![0; s.len()]).collect();
    for &event in order {
        // The send first, then its receive, which is one message further.
        let mut arrives = 0;
        for (rank, idx) in sides(links, event) {
            let step = &world.steps[rank][idx as usize];
            let own = step.after.iter().map(|&a| depth[rank][a as usize]);
            // Hearing of all arrivals takes as long as a message.
            let heard = links.awaited(&step.action);
            let heard = heard.map(|(r, i)| depth[r as usize][i as usize] + 1);
            let starts = own.chain(heard).max().unwrap_or(0);
            depth[rank][idx as usize] = starts.max(arrives);
            arrives = starts + 1;
        }
    }
    depth.iter().flatten().copied().max().unwrap_or(0)
}

/// For each rank, whose start its end implies: a receive knows what the sender's step knew, a send learns nothing from its receiver.
pub(super) fn heard(world: &World<'_>, links: &Links, order: &[Event]) -> Vec<Vec<bool>> {
    let n = world.plans.len();
    let mut known: Vec<Vec<Vec<bool>>> = world
        .steps
        .iter()
        .map(|s| vec![Vec::new(); s.len()])
        .collect();
    let join = |into: &mut Vec<bool>, other: &[bool]| {
        for (a, b) in into.iter_mut().zip(other) {
            *a |= b;
        }
    };
    for &event in order {
        let mut told: Vec<bool> = vec![false; n];
        // The send first, then its receive, which learns what was sent.
        for (rank, idx) in sides(links, event) {
            let mut mine = told.clone();
            mine[rank] = true;
            for &a in &world.steps[rank][idx as usize].after {
                join(&mut mine, &known[rank][a as usize]);
            }
            for (r, i) in links.awaited(&world.steps[rank][idx as usize].action) {
                join(&mut mine, &known[r as usize][i as usize]);
            }
            told.clone_from(&mine);
            known[rank][idx as usize] = mine;
        }
    }
    let at_end = |(rank, steps): (usize, &Vec<Vec<bool>>)| {
        let mut all = vec![false; n];
        all[rank] = true;
        for step in steps {
            join(&mut all, step);
        }
        all
    };
    known.iter().enumerate().map(at_end).collect()
}
