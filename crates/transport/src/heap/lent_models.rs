//! A message that stays in its sender's heap, from its frame to the answer that it is taken, in every order in which two ranks can run: the code of rings and of marks, over loom's words.

use super::marks::{Marks, give_up, given_up, has_given_up};
use crate::{
    models::{AtomicU64, thread},
    shm::raw_ring::{Reader, Rings, Writer},
    sync::Shared,
};
use std::sync::{
    Arc,
    atomic::Ordering::{self, Relaxed},
};

/// What the message is called by whoever gives it up.
const NAME: u64 = 7;
/// What is lent, and what takes its place.
const LENT: u64 = 1;
const LATER: u64 = 9;

/// Two rings of one byte, the sender's marks, and a word of its heap.
struct Pair {
    words: [AtomicU64; 6],
    count: AtomicU64,
    names: [AtomicU64; 2],
    memory: AtomicU64,
}

impl Pair {
    fn new() -> Arc<Pair> {
        let word = |_| AtomicU64::new(0);
        Arc::new(Pair {
            words: [0; 6].map(word),
            count: word(0),
            names: [0; 2].map(word),
            memory: word(0),
        })
    }
}

impl Shared for Pair {
    type Word = AtomicU64;
    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

impl Rings for Pair {
    fn size(&self) -> usize {
        1
    }
    fn head(&self, ring: usize) -> &AtomicU64 {
        &self.words[ring]
    }
    fn tail(&self, ring: usize) -> &AtomicU64 {
        &self.words[2 + ring]
    }
    fn sleeps(&self, side: usize) -> &AtomicU64 {
        &self.words[4 + side]
    }
}

impl Marks for Pair {
    const N_NAMES: u64 = 2;
    fn count(&self) -> &AtomicU64 {
        &self.count
    }
    fn name(&self, n: u64) -> &AtomicU64 {
        &self.names[n as usize]
    }
}

/// A frame in this ring: where the message lies, or that it is taken.
fn say(pair: &Arc<Pair>, ring: usize) {
    let mut writer = Writer::new(Arc::clone(pair), ring);
    writer.filled(1);
    writer.publish();
}

/// Whether such a frame has come.
fn is_said(reader: &mut Reader<Pair>) -> bool {
    reader.look().unwrap();
    reader.len() > 0
}

/// The receiver: reads what is lent once it knows where, looks whether it was taken back meanwhile, and answers. What it has got.
fn receive(pair: &Arc<Pair>) -> Option<u64> {
    let mut frames = Reader::new(Arc::clone(pair), 0);
    while !is_said(&mut frames) {
        thread::yield_now();
    }
    let got = pair.memory.load(Relaxed);
    let whole = !has_given_up(&**pair, NAME, 0);
    say(pair, 1);
    whole.then_some(got)
}

fn explore(send: fn(&Arc<Pair>) -> bool) {
    loom::model(move || {
        let pair = Pair::new();
        let there = Arc::clone(&pair);
        let receiver = thread::spawn(move || receive(&there));
        assert_eq!(given_up(&*pair), 0);
        pair.memory.store(LENT, Relaxed);
        say(&pair, 0);
        let must_be_whole = send(&pair);
        pair.memory.store(LATER, Relaxed);
        let got = receiver.join().unwrap();
        assert!(got.is_none_or(|got| got == LENT), "{got:?}");
        assert!(got.is_some() || !must_be_whole, "it was there to the end");
    });
}

#[test]
fn loom_what_is_lent_stays_until_it_is_taken() {
    explore(|pair| {
        let mut answers = Reader::new(Arc::clone(pair), 1);
        while !is_said(&mut answers) {
            thread::yield_now();
        }
        true
    });
}

#[test]
fn loom_what_is_taken_back_while_it_is_read_does_not_count() {
    explore(|pair| {
        give_up(&**pair, NAME);
        false
    });
}
