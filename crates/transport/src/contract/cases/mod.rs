//! The promises, one function each.

mod early;
mod ending;
mod matching;
mod threads;

use super::{Bench, Tier};
use gaggle_core::LinkStats;

type Case = (&'static str, fn(&Tier) -> bool, fn(&mut Bench<'_>));

pub(super) const ALL: &[Case] = &[
    ("all to all in any order", |_| true, matching::all_to_all),
    ("large messages with odd sizes", |_| true, matching::large),
    ("small sips", |_| true, matching::sips),
    ("later messages overtake", |_| true, matching::overtaking),
    ("misuse is refused", |_| true, matching::misuse),
    ("lengths are compared", |_| true, matching::lengths),
    ("early data is kept", |_| true, early::early),
    (
        "exhausted credit stops nothing that is posted",
        |_| true,
        early::exhausted,
    ),
    (
        "credit that comes back is for whoever waits",
        |t| t.tagged > 0,
        early::returning,
    ),
    ("refusals", |_| true, early::refusals),
    ("forgotten operations", |_| true, early::forgotten),
    ("cancelled sends", |_| true, ending::cancelled_sends),
    ("cancelled receives", |_| true, ending::cancelled_receives),
    ("many seeds of everything", |_| true, ending::mixture),
    ("death of a sender", |t| t.deaths, ending::death_of_sender),
    (
        "death of a receiver",
        |t| t.deaths,
        ending::death_of_receiver,
    ),
    ("a polite end", |t| t.deaths, ending::polite),
    ("priorities", |t| t.priorities, matching::priorities),
    ("two threads make progress", |t| t.threads, threads::threads),
    ("sleepers miss nothing", |t| t.sleepers, threads::sleepers),
];

/// Small numbers that look like chance.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) as usize) % n
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.roll(i + 1));
        }
    }
}

/// Bytes of messages received, over a link or where they lie.
fn taken(s: &LinkStats) -> u64 {
    s.payload_received + s.lent_received
}

fn settled(s: &LinkStats) {
    assert_eq!(
        s.lent_sent, s.lent_received,
        "what is lent is counted alike on both sides"
    );
    assert_eq!(
        s.payload_sent, s.payload_received,
        "payload is counted alike on both sides"
    );
    assert_eq!(
        s.header_sent, s.header_received,
        "headers are counted alike on both sides"
    );
    assert_eq!(
        s.control_sent, s.control_received,
        "control is counted alike on both sides"
    );
    assert_eq!(
        s.frames_sent, s.frames_received,
        "frames are counted alike on both sides"
    );
}
