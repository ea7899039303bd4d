//! Counts that are discovered: two operations under one number. In the first the ranks tell each other how much is theirs; the second moves the data into memory that is made in between.
//!
//! The second one's identity differs from the first's by its class alone, so that operations of the same lane that are called meanwhile keep their numbers, and a rank that is ahead may send data before the others know all counts.

use crate::{
    fused::Fused,
    op::{OpStart, OpState},
    places::Places,
    protocol::{Blame, Word},
    raw_memory::OpMemory,
    select::{Choice, choose, choose_plain},
    state::{After, Later, State, control_word},
    sync::Arc,
};
use gaggle_collectives::Span;
use gaggle_core::{
    Algorithm, Class, Counts, Error, Kind, Op, OpId, Owned, Rank, Region, descriptor::stable_hash,
};

/// What follows once the counts are known.
pub(crate) struct Then {
    /// As the caller gave it.
    pub(crate) op: Op,
    /// The caller's: the input, and an output of no elements.
    pub(crate) memory: OpMemory,
    pub(crate) places: Places,
    /// What follows a meeting, where there are no counts to be discovered.
    pub(crate) fused: Option<Box<Fused>>,
}

/// The identity of the data of an operation that discovers its counts.
pub(crate) fn data_id(id: OpId) -> OpId {
    let class = match id.class {
        Class::Neighbour | Class::NeighbourData => Class::NeighbourData,
        _ => Class::CollectiveData,
    };
    OpId { class, ..id }
}

/// The identity of the counts that come before the data `id`; `None` where it is no data.
pub(crate) fn counts_id(id: OpId) -> Option<OpId> {
    let class = match id.class {
        Class::CollectiveData => Class::Collective,
        Class::NeighbourData => Class::Neighbour,
        _ => return None,
    };
    Some(OpId { class, ..id })
}

/// The memory of the first operation: what this rank has for each, and room for the others' answers.
pub(crate) fn counts_memory(op: &Op, choice: &Choice) -> Result<OpMemory, Error> {
    let own = match &op.kind {
        Kind::AllToAll {
            send: Counts::Known(send),
            ..
        } => send.to_vec(),
        _ => vec![choice.extent.len],
    };
    let answers = match &op.kind {
        Kind::NeighbourGather { from, .. } => from.len(),
        _ => choice.request.world as usize,
    };
    OpMemory::owned(Owned {
        input: Some(Region::new(own)),
        io: Region::new(vec![0u64; answers]),
    })
    .map_err(|(error, _)| error)
}

/// The same operation with its counts, and how many elements come.
fn with_counts(op: &Op, me: Rank, counts: &[u64]) -> Result<(Op, u64), Error> {
    let mut op = op.clone();
    let known = Counts::known(counts);
    let mut here = true;
    match &mut op.kind {
        Kind::Gather { root, counts } => {
            here = *root == me;
            *counts = known;
        }
        Kind::AllGather(counts)
        | Kind::NeighbourGather { counts, .. }
        | Kind::AllToAll { recv: counts, .. } => *counts = known,
        other => return Err(Error::internal(format!("{other:?} discovers no counts"))),
    }
    if !here {
        return Ok((op, 0));
    }
    let sum = counts.iter().try_fold(0u64, |n, c| n.checked_add(*c));
    let total = sum.ok_or_else(|| {
        let what = format!("the counts {counts:?} add up to more than 64 bits hold");
        Error::invalid(op.kind.op_kind().name(), what)
    })?;
    Ok((op, total))
}

impl State {
    /// The counts are there: the data follows, under the same number.
    pub(crate) fn second_phase(&mut self, mut first: OpState) {
        let Some(mut then) = first.then.take() else {
            return;
        };
        if let Some(fused) = then.fused.take() {
            return self.after_meeting(first, then, *fused);
        }
        let n = first.memory.shape().io;
        let counts: Vec<u64> = first
            .memory
            .bytes(Span::user(0, n))
            .chunks_exact(8)
            .map(|b| b.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
            .collect();
        match self.plan_data(&first, &then, &counts) {
            Ok((choice, program, output)) => self.start_data(first, *then, choice, program, output),
            Err(error) => {
                // The others are on their way to it.
                let id = data_id(first.id);
                let blame = Blame::Other(error.to_string());
                control_word(&mut self.later, Word::Failed(id, first.all_peers(), blame));
                self.forget_data(id);
                first.then = Some(then);
                self.hand_back(Box::new(first), Err(error));
            }
        }
    }

    /// Nothing of the data will be wanted.
    pub(crate) fn forget_data(&mut self, id: OpId) {
        let early = self.take_early(&id);
        self.give_early(early);
        self.troubles.failed(&id);
        self.later.push_back(Later::Forget(id));
    }

    fn plan_data(
        &mut self,
        first: &OpState,
        then: &Then,
        counts: &[u64],
    ) -> Result<Planned, Error> {
        let name = first.descriptor.kind.name();
        let (op, total) = with_counts(&then.op, first.group.rank, counts)?;
        let mut shape = then.memory.shape();
        shape.io = total;
        // Before the plan, which grows with it: the number has come from others.
        let output = Region::zeroed(shape.dtype, total).ok_or_else(|| {
            let what = format!("no memory for the {total} {} that come", shape.dtype);
            Error::invalid(name, what)
        })?;
        let places = &then.places;
        let mut choice = choose(&op, &first.group, places, &shape, &self.config)?;
        if choice.request.call.algorithm() == Algorithm::Fused {
            // Nobody has told where its memory is, and there is no number for that any more.
            choice = choose_plain(&op, &first.group, places, &shape, &self.config)?;
        }
        let program = self
            .programs
            .find(&choice.request)
            .map_err(|e| crate::comm::plan_error(name, &e))?;
        Ok((choice, program, output))
    }

    fn start_data(
        &mut self,
        first: OpState,
        then: Then,
        choice: Choice,
        program: Arc<crate::program::Program>,
        output: Region,
    ) {
        let counts = match &choice.request.call {
            gaggle_collectives::Call::AllGather { counts, .. }
            | gaggle_collectives::Call::NeighbourGather { counts, .. }
            | gaggle_collectives::Call::AllToAll { recv: counts, .. } => known(counts),
            gaggle_collectives::Call::Gather { root, counts, .. } if *root == first.group.rank => {
                known(counts)
            }
            _ => vec![],
        };
        let descriptor = choice.descriptor(
            data_id(first.id),
            &then.op,
            &first.group,
            then.memory.shape().dtype,
        );
        self.after.extend(then.op.user.map(After::Release));
        let (_, empty, input) = then.memory.into_parts();
        self.after.extend(empty.map(After::Drop));
        let memory = match OpMemory::owned(Owned { input, io: output }) {
            Ok(memory) => memory,
            Err((error, memory)) => {
                // Host memory of one type: it was taken before.
                let (waker, _) = first.completion.set(gaggle_core::Finished {
                    io: Some(memory.io),
                    input: memory.input,
                    result: Err(error),
                });
                self.after.extend(waker.map(After::Wake));
                return;
            }
        };
        let serial = self.next_serial();
        let warn_at = self.now.saturating_add(self.config.warn_after);
        self.recycle(first.memory);
        self.start(OpStart {
            serial,
            hash: stable_hash(&[&descriptor.to_bytes()]),
            descriptor,
            group: first.group,
            program,
            memory,
            mix: choice.mix,
            pairs: choice.pairs,
            then: None,
            counts,
            weight: choice.weight,
            user: None,
            tensor: None,
            result: None,
            started: first.started,
            deadline: first.deadline,
            warn_at,
            tolerant: false,
            members: None,
            touched: false,
            completion: first.completion,
        });
    }
}

type Planned = (Choice, Arc<crate::program::Program>, Region);

fn known(counts: &Counts) -> Vec<u64> {
    match counts {
        Counts::Known(list) => list.to_vec(),
        _ => vec![],
    }
}
