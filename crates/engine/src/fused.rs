//! Operations over memory that all members have mapped of each other: two operations under one number, as where counts are discovered.
//!
//! In the first, under the operation's own number, the ranks tell each other where their memory is, or that it is ordinary memory.
//! All see the same records, so all go on alike: where everybody's is mapped by the fused plan, whose last meeting is a message of no bytes from everybody to everybody; else by a plan of messages that folds in the same order, so that the result has the same bits.
//!
//! # When it fails
//! A rank that is behind may be reading or writing this rank's memory when the operation has failed here.
//! So before memory is handed back, the operation is marked as given up where peers can see it, and what they might write to is severed ([`SharedMemory::sever`]).
//! After each step over others' memory a rank looks for such marks: what it has read may be of another time, so it neither says that it is done nor ends well, and waits for the word of why.

use crate::{
    discover::{Then, data_id},
    local::{Member, StagingRecord},
    op::{OpStart, OpState},
    program::Program,
    protocol::{Blame, Word},
    raw_memory::OpMemory,
    select::{Choice, choose_plain},
    state::{State, control_word},
    sync::Arc,
};
use gaggle_collectives::{Call, Request, Span};
use gaggle_core::{
    Algorithm, Counts, Error, GroupInfo, OpId, OpKind, Owned, Rank, Reduce, Region, SharedMemory,
    Stores, Visit, Weight, Window, WindowMut, copy_window, descriptor::stable_hash,
};
use gaggle_kernels as kernels;
use smallvec::SmallVec;
use std::cell::RefCell;

/// Bytes that are converted at a time.
const TILE: usize = 16 << 10;

/// Where a rank's memory is, for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Whether all that others need of it is in the rank's heap.
    pub(crate) mapped: bool,
    /// The place of its contribution.
    contribution: u64,
    /// By which number it is lent, where it is ordinary memory, whose places count from its beginning; 0: it is in the heap.
    contribution_lent: u64,
    /// Which element of the whole vector the contribution begins with.
    first: u64,
    /// The place of its result, where others write to it.
    result: u64,
    /// As `contribution_lent`.
    result_lent: u64,
    /// How many operations it had given up before.
    given_up: u64,
    weight: u64,
    /// Its staging memory, where it has some for this.
    staging: StagingRecord,
}

impl Record {
    pub(crate) fn set_weight(&mut self, weight: Weight) {
        self.weight = weight.bits();
    }

    /// What it says of its staging memory.
    pub(crate) fn set_staging(&mut self, staging: StagingRecord) {
        self.staging = staging;
    }

    /// What matters of it where the operation passes through staging memory.
    pub(crate) fn member(&self) -> Member {
        Member {
            staging: self.staging,
            weight: Weight::from_bits(self.weight),
            given_up: self.given_up,
        }
    }

    pub(crate) const WORDS: usize = 8 + StagingRecord::WORDS;

    pub(crate) fn to_words(self) -> [u64; Record::WORDS] {
        let mapped = u64::from(self.mapped);
        let [place, base, bytes] = self.staging.to_words();
        [
            mapped,
            self.contribution,
            self.contribution_lent,
            self.first,
            self.result,
            self.result_lent,
            self.given_up,
            self.weight,
            place,
            base,
            bytes,
        ]
    }

    pub(crate) fn of_words(w: &[u64]) -> Option<Record> {
        let [
            mapped,
            contribution,
            contribution_lent,
            first,
            result,
            result_lent,
            given_up,
            weight,
            ref staging @ ..,
        ] = *w
        else {
            return None;
        };
        Some(Record {
            mapped: mapped == 1,
            contribution,
            contribution_lent,
            first,
            result,
            result_lent,
            given_up,
            weight,
            staging: StagingRecord::of_words(staging)?,
        })
    }
}

/// What follows once all have met.
pub(crate) struct Fused {
    choice: Choice,
    program: Arc<Program>,
    /// Where this rank's result of a reduction will be.
    result: Option<Span>,
    own: Record,
}

impl Fused {
    pub(crate) fn is_mapped(&self) -> bool {
        self.own.mapped
    }
}

/// The members' memory, for the steps of a fused plan.
pub(crate) struct Members {
    shared: Arc<dyn SharedMemory>,
    /// What all ranks call the operation.
    name: u64,
    records: Vec<Record>,
    /// Somebody had given up when a step over its memory was over.
    pub(crate) void: bool,
}

/// A member's bytes, where they are.
enum There<'a> {
    Mapped(WindowMut<'a>),
    Lent(Visit<'a>),
    /// The member has taken them back: the operation has failed there.
    Recalled,
}

impl There<'_> {
    /// `None` where they have been taken back.
    fn window(&self) -> Option<WindowMut<'_>> {
        match self {
            There::Mapped(window) => Some(*window),
            There::Lent(visit) => Some(visit.window()),
            There::Recalled => None,
        }
    }
}

/// What all ranks call an operation where they mark it as given up.
pub(crate) fn name_of(id: OpId) -> u64 {
    let id = data_id(id);
    let class = id.class as u8;
    stable_hash(&[
        &id.group.to_le_bytes(),
        &id.lane.to_le_bytes(),
        &[class],
        &id.seq.to_le_bytes(),
    ])
}

/// Whether a choice is carried out over mapped memory.
pub(crate) fn is_fused(choice: &Choice, program: &Program) -> bool {
    choice.request.call.algorithm() == Algorithm::Fused
        && choice.request.world > 1
        && program.proven
        && program.plan.algorithm == Algorithm::Fused
}

/// Whether this rank's part of a fused plan is carried out where its buffers lie. Not where what comes belongs where what others read is: staging memory holds that, without another copy.
pub(crate) fn reads_where_it_lies(choice: &Choice) -> bool {
    choice.kind != OpKind::AllToAll || choice.request.out_of_place
}

/// Whether ordinary memory of ranks of one process is taken where it lies.
pub(crate) fn takes_lent(choice: &Choice) -> bool {
    choice.algorithm != Algorithm::Staged && reads_where_it_lies(choice)
}

/// What the first operation does: each tells everybody its record.
pub(crate) fn meeting(choice: &Choice) -> Request {
    let call = Call::AllGather {
        counts: Counts::Equal,
        algorithm: Algorithm::Direct,
    };
    let mut request = Request::new(
        call,
        choice.request.rank,
        choice.request.world,
        Record::WORDS as u64,
    );
    request.out_of_place = true;
    request
}

/// Where a contribution begins in the whole vector: 0, but for the part of an all-gather out of place, and what a root gathers.
fn first_element(request: &Request) -> u64 {
    let me = request.rank.idx();
    let before = |counts: &Counts| match counts {
        Counts::Known(list) => list.iter().take(me).sum(),
        _ => request.len * me as u64,
    };
    match &request.call {
        Call::AllGather { counts, .. } if request.out_of_place => before(counts),
        Call::Gather { root, counts, .. } if *root != request.rank => before(counts),
        _ => 0,
    }
}

/// The memory of the first operation, and what follows it.
pub(crate) fn prepare(
    choice: Choice,
    program: Arc<Program>,
    result: Option<Span>,
    memory: &mut OpMemory,
    group: &GroupInfo,
    shared: Option<&Arc<dyn SharedMemory>>,
) -> Result<(OpMemory, Box<Fused>), Error> {
    let own = record(&choice, memory, group, shared);
    let world = choice.request.world as usize;
    let records = OpMemory::owned(Owned {
        input: Some(Region::new(own.to_words().to_vec())),
        io: Region::new(vec![0u64; Record::WORDS * world]),
    })
    .map_err(|(error, _)| error)?;
    let fused = Fused {
        choice,
        program,
        result,
        own,
    };
    Ok((records, Box::new(fused)))
}

pub(crate) fn record(
    choice: &Choice,
    memory: &mut OpMemory,
    group: &GroupInfo,
    shared: Option<&Arc<dyn SharedMemory>>,
) -> Record {
    let mut record = Record {
        mapped: false,
        contribution: 0,
        contribution_lent: 0,
        first: first_element(&choice.request),
        result: 0,
        result_lent: 0,
        given_up: 0,
        weight: choice.weight.bits(),
        staging: StagingRecord::default(),
    };
    let Some(shared) = shared else {
        return record;
    };
    let ranks = shared.ranks();
    if !group.world_ranks.iter().all(|r| ranks.contains(r)) {
        return record;
    }
    record.given_up = shared.given_up(group.world_ranks[group.rank.idx()]);
    if !takes_lent(choice) {
        return record;
    }
    // In the heap, or lent.
    type Place = Option<(u64, u64)>;
    let place = |(at, bytes)| match bytes {
        0 => Some(0),
        _ => shared.place(at, bytes),
    };
    let read = match choice.kind {
        OpKind::Broadcast | OpKind::Scatter => choice.root == group.rank,
        OpKind::Gather => choice.root != group.rank,
        _ => true,
    };
    let contribution: Place = match read {
        true => match place(memory.contribution()) {
            Some(place) => Some((place, 0)),
            None => memory.lend_contribution(shared).map(|lent| (0, lent)),
        },
        false => Some((0, 0)),
    };
    let result: Place = match choice.kind {
        // Others write to it: it is severed, or recalled, if that goes wrong.
        OpKind::AllReduce => {
            let (at, bytes) = memory.result();
            let severable = |_: &u64| bytes == 0 || shared.is_alone(at, bytes);
            match place((at, bytes)).filter(severable) {
                Some(place) => Some((place, 0)),
                None => memory.lend_result(shared).map(|lent| (0, lent)),
            }
        }
        _ => Some((0, 0)),
    };
    match (contribution, result) {
        (Some((place, lent)), Some((to, to_lent))) => {
            (record.contribution, record.contribution_lent) = (place, lent);
            (record.result, record.result_lent) = (to, to_lent);
            record.mapped = true;
        }
        // Nobody is told of it.
        _ => memory.recall(),
    }
    record
}

impl State {
    /// All have met: the operation itself follows, under the same number.
    pub(crate) fn after_meeting(&mut self, mut first: OpState, mut then: Box<Then>, fused: Fused) {
        let n = first.memory.shape().io;
        let words: Vec<u64> = first
            .memory
            .bytes(Span::user(0, n))
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| u64::from_ne_bytes(*b))
            .collect();
        let records: Vec<Record> = words
            .chunks(Record::WORDS)
            .filter_map(Record::of_words)
            .collect();
        let id = data_id(first.id);
        match self.plan_after(&first, &then, fused, records) {
            Ok((choice, program, result, members)) => {
                let dtype = then.memory.shape().dtype;
                let descriptor = choice.descriptor(id, &then.op, &first.group, dtype);
                let serial = self.next_serial();
                let warn_at = self.now.saturating_add(self.config.warn_after);
                self.recycle(first.memory);
                let written = choice.kind == OpKind::AllReduce && members.is_some();
                self.start(OpStart {
                    serial,
                    hash: stable_hash(&[&descriptor.to_bytes()]),
                    descriptor,
                    group: first.group,
                    program,
                    memory: then.memory,
                    mix: choice.mix,
                    pairs: choice.pairs,
                    then: None,
                    counts: vec![],
                    weight: choice.weight,
                    user: None,
                    tensor: None,
                    result,
                    started: first.started,
                    deadline: first.deadline,
                    warn_at,
                    tolerant: false,
                    members,
                    // The others may be at it already.
                    touched: written,
                    completion: first.completion,
                });
            }
            Err(error) => {
                // The others are on their way to it.
                let blame = Blame::Other(error.to_string());
                control_word(&mut self.later, Word::Failed(id, first.all_peers(), blame));
                self.forget_data(id);
                then.fused = None;
                first.then = Some(then);
                self.hand_back(Box::new(first), Err(error));
            }
        }
    }

    fn plan_after(
        &mut self,
        first: &OpState,
        then: &Then,
        fused: Fused,
        records: Vec<Record>,
    ) -> Result<Followed, Error> {
        let all =
            records.len() == first.group.world_ranks.len() && records.iter().all(|r| r.mapped);
        if let Some(shared) = self.shared.clone().filter(|_| all) {
            let members = Some(Box::new(Members::new(shared, first.id, records)));
            return Ok((fused.choice, fused.program, fused.result, members));
        }
        let shape = then.memory.shape();
        let choice = choose_plain(&then.op, &first.group, &then.places, &shape, &self.config)?;
        let name = choice.kind.name();
        let program = self
            .programs
            .find(&choice.request)
            .map_err(|e| crate::comm::plan_error(name, &e))?;
        Ok((choice, program, fused.result, None))
    }

    /// Before the memory of a failed operation is handed back: what peers have read of it since counts for nothing, and none of them can write to it any more.
    pub(crate) fn retreat(&self, op: &mut OpState) {
        let Some(shared) = self.shared.as_deref() else {
            return;
        };
        let kind = op.descriptor.kind;
        if let Some(local) = &op.local {
            local.give_up();
            if local.is_exposed() {
                shared.give_up(name_of(op.id));
                if kind == OpKind::AllReduce && local.is_written() {
                    op.memory.sever(shared);
                }
            }
            return;
        }
        let memory = match (&mut op.then, &op.members) {
            (Some(then), _) if then.fused.as_ref().is_some_and(|f| f.is_mapped()) => {
                &mut then.memory
            }
            (None, Some(_)) => &mut op.memory,
            _ => return,
        };
        shared.give_up(name_of(op.id));
        if kind == OpKind::AllReduce {
            memory.sever(shared);
        }
    }
}

type Followed = (Choice, Arc<Program>, Option<Span>, Option<Box<Members>>);

impl Members {
    pub(crate) fn new(shared: Arc<dyn SharedMemory>, id: OpId, records: Vec<Record>) -> Members {
        Members {
            shared,
            name: name_of(id),
            records,
            void: false,
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.records.len() as u64
    }

    /// The weight of a member's contribution.
    pub(crate) fn weight(&self, member: Rank) -> u64 {
        self.records.get(member.idx()).map_or(0, |r| r.weight)
    }

    /// Where elements of the whole vector are in a member's contribution.
    fn contribution(
        &self,
        world: Rank,
        member: usize,
        at: u64,
        bytes: usize,
        size: u64,
    ) -> Result<There<'_>, Error> {
        let r = &self.records[member];
        let place = at
            .checked_sub(r.first)
            .and_then(|n| n.checked_mul(size))
            .and_then(|n| n.checked_add(r.contribution));
        self.there(world, r.contribution_lent, place, bytes)
    }

    /// Where elements are in a member's result.
    fn result(
        &self,
        world: Rank,
        member: usize,
        at: u64,
        bytes: usize,
        size: u64,
    ) -> Result<There<'_>, Error> {
        let r = &self.records[member];
        let place = at.checked_mul(size).and_then(|n| n.checked_add(r.result));
        self.there(world, r.result_lent, place, bytes)
    }

    fn there(
        &self,
        world: Rank,
        lent: u64,
        place: Option<u64>,
        bytes: usize,
    ) -> Result<There<'_>, Error> {
        let place = place.ok_or_else(|| outside(world))?;
        if lent == 0 {
            let window = self.shared.window(world, place, bytes);
            return window.map(There::Mapped).ok_or_else(|| outside(world));
        }
        let visit = Visit::begin(&*self.shared, world, lent, place, bytes);
        Ok(visit.map_or(There::Recalled, There::Lent))
    }

    /// Looks whether somebody has given up; then nothing that was read counts.
    fn look(&mut self, group: &GroupInfo) {
        let members = self.records.iter().zip(&group.world_ranks);
        self.void |= members
            .into_iter()
            .any(|(record, world)| self.shared.has_given_up(*world, self.name, record.given_up));
    }
}

fn outside(world: Rank) -> Error {
    Error::internal(format!(
        "world {world} has said that its memory is where none of its heap is"
    ))
}

/// Room for a tile.
fn with_tiles<R>(bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static ROOM: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    ROOM.with(|room| {
        let mut room = room.take();
        let words = bytes.div_ceil(8);
        if room.len() < words {
            room.resize(words, 0);
        }
        let result = f(&mut gaggle_core::raw::bytes_of_mut(&mut room[..])[..bytes]);
        ROOM.with(|kept| kept.replace(room));
        result
    })
}

impl OpState {
    /// A step over all members' memory: folds elements of every contribution in rank order and writes them to every result. `false` where the sum of weights leaves the range.
    pub(crate) fn group_fold(&mut self, at: u64, len: u64, sum: Option<u32>) -> bool {
        let Some(mut members) = self.members.take() else {
            self.broken = Some(Error::internal("a fused step without the members' memory"));
            return true;
        };
        let fits = match sum {
            None => Ok(true),
            Some(slot) => {
                let mut weights = members.records.iter().map(|r| r.weight);
                let total = weights.try_fold(0u64, |n, w| n.checked_add(w));
                self.set_slot(slot, total.unwrap_or(0));
                total.map(|t| t > 0).ok_or(())
            }
        };
        if fits == Ok(true) && len > 0 {
            match self.fold_windows(&members, at, len) {
                Ok(all_there) => members.void |= !all_there,
                Err(error) => {
                    self.broken.get_or_insert(error);
                }
            }
            members.look(&self.group);
        }
        self.members = Some(members);
        fits.is_ok()
    }

    /// `false`: somebody has taken its memory back, and nothing was written.
    fn fold_windows(&mut self, members: &Members, at: u64, len: u64) -> Result<bool, Error> {
        let dtype = self.memory.shape().dtype;
        let size = dtype.size() as u64;
        let (me, world) = (self.group.rank.idx(), members.records.len());
        let reduce = self.program.plan.reduce;
        let weight = |r: &Record| (reduce == Reduce::Mean).then(|| Weight::from_bits(r.weight));
        let how = self.how();
        let in_place = self.memory.shape().input.is_none();
        let stores = self.stores(world as u64);
        let (to, beside) = self.memory.split(Span::user(at, len));
        let to = WindowMut::from(to);
        // All of them first: nobody's memory is kept while another's is waited for, since nobody waits.
        let mut there = SmallVec::<[(There<'_>, Option<There<'_>>); 16]>::new();
        for (m, record) in members.records.iter().enumerate().filter(|(m, _)| *m != me) {
            let peer = self.group.world_ranks[m];
            let result = members.result(peer, m, at, to.len(), size)?;
            // It is not read, so that there need be none.
            let read = weight(record) != Some(Weight::ZERO);
            let contribution = read.then(|| members.contribution(peer, m, at, to.len(), size));
            there.push((result, contribution.transpose()?));
        }
        let mut outputs = SmallVec::<[WindowMut<'_>; 16]>::new();
        let mut terms = SmallVec::<[kernels::Term<'_>; 16]>::new();
        // This rank's own first: it is where the operand of this rank is, in place.
        outputs.push(to);
        let mut others = there.iter();
        for (m, record) in members.records.iter().enumerate() {
            let weight = weight(record);
            let window = if m == me {
                match in_place {
                    true => to.into(),
                    false => Window::from(beside.get(Span::input(at, len)).unwrap_or(&[])),
                }
            } else {
                let Some((result, contribution)) = others.next() else {
                    return Ok(false);
                };
                let Some(result) = result.window() else {
                    return Ok(false);
                };
                outputs.push(result);
                match contribution {
                    None => to.into(),
                    Some(contribution) => match contribution.window() {
                        Some(window) => window.into(),
                        None => return Ok(false),
                    },
                }
            };
            let source = kernels::Source::Window { window, dtype };
            terms.push(kernels::Term { source, weight });
        }
        kernels::fold_windows(dtype, reduce, &outputs, &terms, how, stores);
        Ok(true)
    }

    /// How results are stored that lie elsewhere than what they come from, where all members read and write as much as this one.
    pub(crate) fn stores(&self, world: u64) -> Stores {
        let shape = self.memory.shape();
        let elements = shape.io.saturating_add(shape.input.unwrap_or(0));
        Stores::of(
            elements
                .saturating_mul(shape.dtype.size() as u64)
                .saturating_mul(world),
        )
    }

    /// A step that reads elements of one member's contribution into this rank's own memory.
    pub(crate) fn group_copy(&mut self, from: Rank, src: Span, dst: Span) {
        let Some(mut members) = self.members.take() else {
            self.broken = Some(Error::internal("a fused step without the members' memory"));
            return;
        };
        if dst.len > 0 {
            self.touch(dst);
            // The place in the whole vector: of a reduction, whose room is scratch, and where everybody gets something else, that in the contribution.
            let at = match self.descriptor.kind {
                OpKind::ReduceScatter | OpKind::AllToAll | OpKind::Scatter => src.at,
                _ => dst.at,
            };
            match self.copy_tiles(&members, from, at, dst) {
                Ok(all_there) => members.void |= !all_there,
                Err(error) => {
                    self.broken.get_or_insert(error);
                }
            }
            members.look(&self.group);
        }
        self.members = Some(members);
    }

    /// `false`: the member has taken its memory back.
    fn copy_tiles(
        &mut self,
        members: &Members,
        from: Rank,
        at: u64,
        dst: Span,
    ) -> Result<bool, Error> {
        let dtype = self.memory.shape().dtype;
        let (size, to_type) = (dtype.size(), self.memory.type_of(dst.buf));
        let (peer, member) = (self.group.world_ranks[from.idx()], from.idx());
        if to_type == dtype {
            let stores = self.stores(members.records.len() as u64);
            let to = WindowMut::from(self.memory.bytes_mut(dst));
            let from = members.contribution(peer, member, at, to.len(), size as u64)?;
            let Some(window) = from.window() else {
                return Ok(false);
            };
            copy_window(to, window.into(), stores);
            return Ok(true);
        }
        // 16-bit elements are combined in a wider type.
        let tile = TILE / size;
        with_tiles(tile * size, |room| {
            let mut done = 0;
            while done < dst.len {
                let n = (dst.len - done).min(tile as u64);
                let room = &mut room[..n as usize * size];
                let (lo, bytes) = (at + done, room.len());
                let from = members.contribution(peer, member, lo, bytes, size as u64)?;
                let Some(window) = from.window() else {
                    return Ok(false);
                };
                Window::from(window).read(0, room);
                drop(from);
                let span = Span {
                    at: dst.at + done,
                    len: n,
                    ..dst
                };
                kernels::convert(self.memory.bytes_mut(span), to_type, room, dtype);
                done += n;
            }
            Ok(true)
        })
    }
}
