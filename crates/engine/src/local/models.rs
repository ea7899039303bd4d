//! The protocols on words that ranks of one host share, in every order in which two ranks can run: the very code of boards, over loom's words; `staged_models.rs` has that of staging memory.
//!
//! What lies between the words is [`Tracked`]: a test fails where an access to it is not ordered behind the other side's.
//! Locks are each rank's own, so nobody waits for one.

use super::{
    board::{Lines, Memory, Seen, Stream},
    raw_tracked::{Again, Tracked},
};
use gaggle_core::{
    Announced, Block, GroupInfo, OBSERVE, PUBLISH, Rank, SharedMemory, WindowMut, Words,
};
use gaggle_transport::heap::{MappedHeaps, heaps};
use loom::{
    model::Builder,
    sync::{
        Notify,
        atomic::{AtomicU64, fence},
    },
    thread,
};
use std::{
    collections::BTreeMap,
    ptr::NonNull,
    sync::{Arc, Mutex, atomic::Ordering},
};

/// Explores every order with at most so many preemptions. One is enough to find an order that a release, an acquire or a wait less would let in, which was tried; two where ranks sleep.
pub(super) fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Both sides of a model; the first runs on this thread.
pub(super) fn both<T: Send + Sync + 'static>(all: T, side: fn(&T, usize)) {
    let all = Arc::new(all);
    let there = Arc::clone(&all);
    let other = thread::spawn(move || side(&there, 1));
    side(&all, 0);
    other.join().unwrap();
}

/// Words by where they lie; there are only those that a test reaches.
#[derive(Default)]
pub(super) struct Sparse(BTreeMap<u64, AtomicU64>);

impl Sparse {
    pub(super) fn at(places: impl IntoIterator<Item = u64>) -> Sparse {
        let places = places.into_iter();
        Sparse(places.map(|at| (at, AtomicU64::new(0))).collect())
    }
}

/// What both ranks have mapped.
pub(super) struct Shared {
    /// By rank.
    words: [Sparse; 2],
    /// By rank: what it says of the one thing that it announces. 0: nothing so far, 1: it will never be there.
    announced: [AtomicU64; 2],
    /// By rank: what is written by it alone and read by the other, by place.
    cells: [BTreeMap<u64, Tracked>; 2],
}

/// Where both boards lie.
const BOARD: u64 = 1 << 16;

impl Shared {
    /// Heaps with boards whose slots have payloads of one word.
    fn boards() -> Arc<Shared> {
        let words = || {
            let slots = (0..4).flat_map(|slot| [0, 1, 2, 520].map(|at| 16 + 528 * slot + at));
            Sparse::at((0..3).chain(slots))
        };
        Shared::with([words(), words()], [BTreeMap::new(), BTreeMap::new()])
    }

    pub(super) fn with(words: [Sparse; 2], cells: [BTreeMap<u64, Tracked>; 2]) -> Arc<Shared> {
        Arc::new(Shared {
            words,
            announced: [0, 0].map(AtomicU64::new),
            cells,
        })
    }
}

/// One rank's view of it. Bytes are those of heaps; what orders them is the model's.
pub(super) struct Model {
    me: usize,
    shared: Arc<Shared>,
    heap: Arc<MappedHeaps>,
    has_board: bool,
    /// What it is given when it wants blocks, the last one first.
    pub(super) blocks: Mutex<Vec<Arc<dyn Block>>>,
}

/// A board's words.
pub(super) struct Board(Arc<Shared>, usize);

impl Words for Board {
    fn len(&self) -> usize {
        1 << 16
    }
    fn get(&self, i: usize, order: Ordering) -> u64 {
        self.0.words[self.1].0[&(i as u64)].load(order)
    }
    fn set(&self, i: usize, value: u64, order: Ordering) {
        self.0.words[self.1].0[&(i as u64)].store(value, order);
    }
}

impl Memory for Model {
    type Words = Board;
    fn lines(&self, rank: Rank, place: u64, _n: usize) -> Option<Board> {
        assert_eq!(
            place, BOARD,
            "what the other has announced is not seen whole"
        );
        Some(Board(Arc::clone(&self.shared), rank.idx()))
    }
    fn fence(order: Ordering) {
        fence(order);
    }
}

impl SharedMemory for Model {
    fn ranks(&self) -> &[Rank] {
        &[Rank(0), Rank(1)]
    }
    fn place(&self, at: NonNull<u8>, bytes: usize) -> Option<u64> {
        self.heap.place(at, bytes)
    }
    fn is_alone(&self, at: NonNull<u8>, bytes: usize) -> bool {
        self.heap.is_alone(at, bytes)
    }
    fn read(&self, rank: Rank, place: u64, out: &mut [u8]) -> bool {
        self.heap.read(rank, place, out)
    }
    fn write(&self, rank: Rank, place: u64, bytes: &[u8]) -> bool {
        self.heap.write(rank, place, bytes)
    }
    /// This rank writes to its own memory, and reads the other's.
    fn window(&self, rank: Rank, place: u64, bytes: usize) -> Option<WindowMut<'_>> {
        let cell = &self.shared.cells[rank.idx()][&place];
        match rank.idx() == self.me {
            true => cell.write(),
            false => cell.read(),
        }
        self.heap.window(rank, place, bytes)
    }
    fn sever(&self, at: NonNull<u8>, bytes: usize) -> Result<(), String> {
        self.heap.sever(at, bytes)
    }
    /// Nobody gives up here.
    fn given_up(&self, _rank: Rank) -> u64 {
        0
    }
    fn give_up(&self, op: u64) {
        panic!("{op} was given up");
    }
    fn has_given_up(&self, _rank: Rank, _op: u64, _since: u64) -> bool {
        false
    }
    fn load(&self, rank: Rank, place: u64) -> Option<u64> {
        Some(self.shared.words[rank.idx()].0[&place].load(OBSERVE))
    }
    fn store(&self, place: u64, value: u64) -> bool {
        self.shared.words[self.me].0[&place].store(value, PUBLISH);
        true
    }
    fn block(&self, bytes: usize) -> Option<Box<dyn Block>> {
        let block = self.blocks.lock().unwrap().pop()?;
        assert_eq!(block.len(), bytes);
        Some(Box::new(Again(block)))
    }
    fn reserve(&self, _bytes: usize) -> Option<u64> {
        self.has_board.then_some(BOARD)
    }
    // In place of the directory in a heap's header, which has models of its own.
    fn announce(&self, _name: u64, place: Option<u64>) {
        self.shared.announced[self.me].store(place.unwrap_or(1), PUBLISH);
    }
    fn announced(&self, rank: Rank, _name: u64) -> Announced {
        match self.shared.announced[rank.idx()].load(OBSERVE) {
            0 => Announced::NotYet,
            1 => Announced::Never,
            place => Announced::At(place),
        }
    }
}

pub(super) fn info(me: usize) -> GroupInfo {
    GroupInfo {
        id: 9,
        rank: Rank(me as u32),
        world_ranks: vec![Rank(0), Rank(1)],
        epoch: 0,
        initial_size: 2,
        incarnation: 0,
    }
}

/// Heaps for tests that reach no bytes of them, or reach them through the model alone.
pub(super) fn mapped() -> [Arc<MappedHeaps>; 2] {
    let mut heaps = heaps(2, 4 << 20).unwrap().into_iter().map(Arc::new);
    [heaps.next().unwrap(), heaps.next().unwrap()]
}

/// A rank with a board, the bells of both, and memory that both write to.
struct Seat {
    stream: Stream<Model>,
    bells: Arc<[Notify; 2]>,
    /// By rank whose memory it is, and rank that writes to it in a step.
    memory: Arc<[[Tracked; 2]; 2]>,
    me: usize,
}

pub(super) fn model_of(me: usize, shared: &Arc<Shared>, heaps: &[Arc<MappedHeaps>; 2]) -> Model {
    Model {
        me,
        shared: Arc::clone(shared),
        heap: Arc::clone(&heaps[me]),
        has_board: true,
        blocks: Mutex::default(),
    }
}

fn seats(heaps: &[Arc<MappedHeaps>; 2]) -> [Seat; 2] {
    let shared = Shared::boards();
    let bells = Arc::new([Notify::new(), Notify::new()]);
    let share = || [Tracked::new(), Tracked::new()];
    let memory = Arc::new([share(), share()]);
    [0, 1].map(|me| Seat {
        stream: Stream::open(&Arc::new(model_of(me, &shared, heaps)), &info(me), 5).unwrap(),
        bells: Arc::clone(&bells),
        memory: Arc::clone(&memory),
        me,
    })
}

impl Seat {
    fn peer(&self) -> usize {
        1 - self.me
    }

    /// As the engine does before and after a thread sleeps.
    fn sleep_until(&self, is: impl Fn(&mut Lines<'_, Model>) -> bool) {
        while !is(&mut self.stream.lines()) {
            self.stream.arm();
            if !is(&mut self.stream.lines()) {
                self.bells[self.me].wait();
            }
            self.stream.disarm();
        }
    }

    /// As it does after it has written.
    fn nudge(&self) {
        let sleepers = self.stream.lines().sleepers();
        for rank in sleepers {
            self.bells[rank.idx()].notify();
        }
    }

    /// Shows an operation.
    fn show(&self, seq: u64) {
        self.stream.lines().begin(seq);
        self.sleep_until(|lines| lines.may_post(seq));
        let mine = shown(self.me, seq).to_ne_bytes();
        self.stream.lines().post(seq, HASH, [&mine, &[]]);
        self.nudge();
    }

    /// Waits for the other's part of it.
    fn take(&self, seq: u64) {
        let peer = self.peer();
        self.sleep_until(|lines| match lines.seen(peer, seq, HASH) {
            Seen::NotYet => false,
            seen => {
                assert_eq!(seen, Seen::There);
                true
            }
        });
        let mut theirs = [0; 8];
        self.stream.lines().read(peer, seq, 0, &mut theirs);
        assert_eq!(u64::from_ne_bytes(theirs), shown(peer, seq), "{seq}");
    }

    /// It is over. `said`: the other is told now.
    fn end(&self, seq: u64, said: bool) {
        self.stream.lines().end(seq, said);
        self.nudge();
    }
}

const HASH: u64 = 77;

/// What a rank shows under a number.
fn shown(rank: usize, seq: u64) -> u64 {
    100 * (rank as u64 + 1) + seq
}

/// Numbers of one slot: those between go by messages.
const SAME_SLOT: [u64; 2] = [0, 4];

#[test]
fn loom_a_slot_is_used_again_when_all_are_through_and_no_sleeper_is_forgotten() {
    let heaps = mapped();
    explore(2, move || {
        both(seats(&heaps), |seats, me| {
            for seq in SAME_SLOT {
                seats[me].show(seq);
                seats[me].take(seq);
                seats[me].end(seq, true);
            }
        });
    });
}

/// A blocking call does not say that it is over: whoever waits for the slot hears of it when the other wants it, too.
#[test]
fn loom_ranks_that_wait_for_one_slot_hear_of_each_other() {
    let heaps = mapped();
    explore(2, move || {
        both(seats(&heaps), |seats, me| {
            for seq in SAME_SLOT {
                seats[me].show(seq);
                seats[me].take(seq);
                seats[me].end(seq, false);
            }
        });
    });
}

/// What is shown beside a number says which earlier ones are not over: their slots stay as they are.
#[test]
fn loom_a_slot_stays_while_an_earlier_operation_is_not_over() {
    let heaps = mapped();
    explore(1, move || {
        both(seats(&heaps), |seats, me| {
            let seat = &seats[me];
            seat.show(0);
            seat.show(1);
            seat.take(1);
            seat.end(1, false);
            seat.take(0);
            seat.end(0, true);
            seat.show(4);
            seat.take(4);
            seat.end(4, true);
        });
    });
}

/// Steps over the others' memory: it is the owner's again when all have gone through, and not before.
#[test]
fn loom_memory_is_its_owners_again_when_all_steps_are_over() {
    let heaps = mapped();
    explore(1, move || {
        both(seats(&heaps), |seats, me| {
            let seat = &seats[me];
            let own = &seat.memory[me];
            for seq in SAME_SLOT {
                own.iter().for_each(Tracked::write);
                seat.show(seq);
                seat.take(seq);
                for memory in &*seat.memory {
                    memory[me].write();
                }
                seat.stream.lines().go_through(seq);
                seat.nudge();
                let peer = seat.peer();
                seat.sleep_until(|lines| lines.is_through(peer, seq));
                own.iter().for_each(Tracked::read);
                seat.end(seq, true);
            }
        });
    });
}

/// Who has seen an operation given up never sees it well again, and what was shown is whole until then.
#[test]
fn loom_an_operation_that_was_given_up_stays_so() {
    let heaps = mapped();
    explore(2, move || {
        both(seats(&heaps), |seats, me| {
            let mut lines = seats[me].stream.lines();
            lines.begin(0);
            if me == 0 {
                assert!(lines.may_post(0));
                lines.post(0, HASH, [&shown(0, 0).to_ne_bytes(), &[]]);
                lines.give_up(0);
                return;
            }
            let mut last = Seen::NotYet;
            for _ in 0..3 {
                let seen = lines.seen(0, 0, HASH);
                let may = match last {
                    Seen::NotYet => &[Seen::NotYet, Seen::There, Seen::GaveUp][..],
                    Seen::There => &[Seen::There, Seen::GaveUp],
                    _ => &[Seen::GaveUp],
                };
                assert!(may.contains(&seen), "{last:?}, then {seen:?}");
                if seen == Seen::There {
                    let mut theirs = [0; 8];
                    lines.read(0, 0, 0, &mut theirs);
                    assert_eq!(u64::from_ne_bytes(theirs), shown(0, 0));
                }
                last = seen;
            }
        });
    });
}

/// Boards that are made while others look for them.
fn opened_meanwhile(second_has_one: bool) {
    let heaps = mapped();
    explore(2, move || {
        let shared = Shared::boards();
        let models = [0, 1].map(|me| {
            let mut model = model_of(me, &shared, &heaps);
            model.has_board = me == 0 || second_has_one;
            (Arc::new(model), second_has_one)
        });
        both(models, |models, me| {
            let (model, second_has_one) = &models[me];
            let stream = Stream::open(model, &info(me), 5);
            let Some(stream) = stream else {
                return assert!(me == 1 && !second_has_one, "{me} has none");
            };
            let (mut lines, peer) = (stream.lines(), 1 - me);
            lines.begin(0);
            if lines.may_post(0) && !lines.is_never() {
                lines.post(0, HASH, [&shown(me, 0).to_ne_bytes(), &[]]);
            }
            let want = match second_has_one {
                true => Seen::There,
                false => Seen::Never,
            };
            loop {
                match lines.seen(peer, 0, HASH) {
                    Seen::NotYet => thread::yield_now(),
                    seen => break assert_eq!(seen, want),
                }
            }
            assert_eq!(lines.is_never(), !second_has_one);
        });
    });
}

#[test]
fn loom_boards_are_found_whole_while_they_are_made() {
    opened_meanwhile(true);
}

#[test]
fn loom_a_board_that_will_never_be_is_waited_for_by_nobody() {
    opened_meanwhile(false);
}
