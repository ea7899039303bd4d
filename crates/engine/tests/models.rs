//! The protocols on words that ranks of one host share, in every order in which two of them can run: boards with slots that are used again, sleeping and nudging, staging memory with its flags.
//!
//! They mirror what `local` does, word by word and order by order, with as few slots and slices as have every case in them; the words are loom's.
//! Payloads are relaxed words: where an order does not hold, somebody sees an old one.

#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use loom::{
    model::Builder,
    sync::{
        Arc, Notify,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread,
};

/// Explores with at most so many preemptions: two find every order that matters here, more take minutes.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// Both sides of a model; the first runs on this thread.
fn both<T: Send + Sync + 'static>(make: fn() -> T, side: fn(&T, usize)) {
    explore(move || {
        let shared = Arc::new(make());
        let there = Arc::clone(&shared);
        let other = thread::spawn(move || side(&there, 1));
        side(&shared, 0);
        other.join().unwrap();
    });
}

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

/// A rank's board with one slot, and the bell that wakes it.
struct Board {
    /// All of its operations with a smaller number are over.
    over: AtomicU64,
    sleeps: AtomicU64,
    /// Number + 1 of what the slot holds; written last.
    code: AtomicU64,
    payload: [AtomicU64; 2],
    bell: Notify,
}

fn boards() -> [Board; 2] {
    let board = || Board {
        over: word(),
        sleeps: word(),
        code: word(),
        payload: [word(), word()],
        bell: Notify::new(),
    };
    [board(), board()]
}

/// What a rank shows under a number.
fn shown(rank: usize, seq: u64) -> u64 {
    100 * (rank as u64 + 1) + seq
}

/// After something was written: a peer that sleeps is woken.
fn nudge(peer: &Board) {
    fence(SeqCst);
    if peer.sleeps.load(Acquire) != 0 {
        peer.bell.notify();
    }
}

/// Waits until it is so: first the word that it sleeps, then a look, then sleep.
fn sleep_until(own: &Board, is: impl Fn() -> bool) {
    while !is() {
        own.sleeps.store(1, Release);
        fence(SeqCst);
        if !is() {
            own.bell.wait();
        }
        own.sleeps.store(0, Release);
    }
}

/// Two operations through one slot; every wait is asleep.
fn operations(all: &[Board; 2], me: usize) {
    let (own, peer) = (&all[me], &all[1 - me]);
    for seq in 0..2 {
        if seq > 0 {
            // The slot is written again once the peer is through with what it held.
            sleep_until(own, || peer.over.load(Acquire) >= seq);
        }
        for word in &own.payload {
            word.store(shown(me, seq), Relaxed);
        }
        own.code.store(seq + 1, Release);
        nudge(peer);
        sleep_until(own, || peer.code.load(Acquire) == seq + 1);
        for word in &peer.payload {
            assert_eq!(word.load(Relaxed), shown(1 - me, seq), "operation {seq}");
        }
        own.over.store(seq + 1, Release);
        nudge(peer);
    }
}

#[test]
fn loom_a_slot_is_used_again_when_all_are_through_and_no_sleeper_is_forgotten() {
    both(boards, operations);
}

/// A rank that has given up marks its slot, then lets its memory be filled with something else; the peer reads the memory, then looks at the mark.
#[test]
fn loom_who_reads_after_a_slot_was_given_up_knows() {
    const GAVE_UP: u64 = 1 << 7;
    explore(|| {
        let [board, _] = boards();
        board.code.store(1 << 8, Release);
        let board = Arc::new(board);
        let there = Arc::clone(&board);
        let straggler = thread::spawn(move || {
            let read = there.payload[0].load(Relaxed);
            fence(SeqCst);
            read == 0 || there.code.load(Acquire) & GAVE_UP != 0
        });
        board.code.store(1 << 8 | GAVE_UP, Release);
        fence(SeqCst);
        board.payload[0].store(9, Relaxed);
        assert!(
            straggler.join().unwrap(),
            "it took what came later for good"
        );
    });
}

/// A rank's staging memory with one slot, and its flags: how many slices were filled, folded and read.
struct Staging {
    slot: AtomicU64,
    result: AtomicU64,
    filled: AtomicU64,
    folded: AtomicU64,
    read: AtomicU64,
}

fn stagings() -> [Staging; 2] {
    let staging = || Staging {
        slot: word(),
        result: word(),
        filled: word(),
        folded: word(),
        read: word(),
    };
    [staging(), staging()]
}

fn reached(flag: &AtomicU64, n: u64) {
    while flag.load(Acquire) < n {
        thread::yield_now();
    }
}

/// Slices through one slot and one place for results: what the peer owns of mine goes in, one slice ahead; what I own of both is folded; what the peer has folded comes out.
fn slices(all: &[Staging; 2], me: usize) {
    const N: u64 = 2;
    let (own, peer) = (&all[me], &all[1 - me]);
    let fill = |k: u64| {
        own.slot.store(shown(me, k), Relaxed);
        own.filled.store(k + 1, Release);
    };
    fill(0);
    for k in 0..N {
        reached(&peer.filled, k + 1);
        let theirs = peer.slot.load(Relaxed);
        assert_eq!(theirs, shown(1 - me, k), "slice {k} of the peer");
        // The result of the slice before has been read.
        reached(&peer.read, k);
        own.result.store(1000 + theirs, Relaxed);
        own.folded.store(k + 1, Release);
        // The peer has folded what the slot held.
        reached(&peer.folded, k + 1);
        if k + 1 < N {
            fill(k + 1);
        }
        let result = peer.result.load(Relaxed);
        assert_eq!(result, 1000 + shown(me, k), "the peer's result of {k}");
        own.read.store(k + 1, Release);
    }
}

#[test]
fn loom_a_staging_slot_is_filled_again_when_all_have_read_it() {
    both(stagings, slices);
}
