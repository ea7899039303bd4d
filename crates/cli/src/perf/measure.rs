//! Measuring: every rank runs the same sizes; each size is checked once, warmed up, and then timed call by call.

use super::{
    check::{Numbers, Piece},
    number::with_type,
    operation::{Call, Operation, Place, Setting},
};
use gaggle::{Group, Max, Min, Sum};
use gaggle_core::{
    Algorithm, Borrowed, Codec, DType, Done, Error, Kind, LinkStats, Op, Owned, Pending, Reduce,
    Region, Space, View,
};
use std::time::{Duration, Instant};

/// How many calls are timed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Iterations {
    Fixed(u32),
    /// As many as take about so long, within limits.
    Budget {
        seconds: f64,
        least: u32,
        most: u32,
    },
}

/// What is measured, the same on every rank.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Wishes {
    /// Of the vector, in bytes.
    pub(super) sizes: Vec<u64>,
    pub(super) places: Vec<Place>,
    pub(super) iterations: Iterations,
    /// Calls before the clock runs; `None`: by size.
    pub(super) warm: Option<u32>,
    pub(super) check: bool,
    pub(super) dtype: DType,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) codec: Codec,
    pub(super) force_codec: bool,
    /// Whether all local ranks have the buffers mapped.
    pub(super) registered: bool,
}

/// What was measured of one size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Of the vector, as measured.
    pub(super) bytes: u64,
    pub(super) elements: u64,
    pub(super) dtype: DType,
    pub(super) reduce: Reduce,
    pub(super) root: u32,
    /// By place, in the order of [`Wishes::places`].
    pub(super) measured: Vec<(Place, Measured)>,
}

/// What was measured of one size in one place.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Of each call in order, in nanoseconds: the mean over the ranks, or of the slowest.
    pub(super) samples: Vec<f64>,
    /// Elements of all ranks that were not right; `None` where that was not looked at.
    pub(super) wrong: Option<u64>,
    /// Bytes that the rank which sends most sends per call: payload, headers and control.
    pub(super) wire: f64,
    /// What the cost model says.
    pub(super) predicted: Option<Duration>,
    pub(super) algorithm: Algorithm,
    pub(super) codec: Codec,
}

/// Runs all sizes; `tell` hears of each as it is done, on every rank.
pub(super) fn measure(
    group: &Group,
    setting: &Setting,
    wishes: &Wishes,
    tell: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, Error> {
    // Rounds of neighbour operations are numbered through the whole run.
    let mut round = 0;
    let mut rows = Vec::with_capacity(wishes.sizes.len());
    for bytes in &wishes.sizes {
        let asked = bytes / wishes.dtype.size() as u64;
        let mut row = Row {
            bytes: 0,
            elements: 0,
            dtype: wishes.dtype,
            reduce: setting.reduce,
            root: setting.root,
            measured: Vec::new(),
        };
        for place in &wishes.places {
            let call = wished(setting, wishes, asked, *place);
            row.elements = call.len;
            row.bytes = call.len * wishes.dtype.size() as u64;
            let measured = Bench::new(group, setting, wishes, call, &mut round)?.run(row.bytes)?;
            row.measured.push((*place, measured));
        }
        tell(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// One size in one place.
struct Bench<'a> {
    group: &'a Group,
    setting: &'a Setting,
    wishes: &'a Wishes,
    call: Call,
    memory: Memory,
    round: &'a mut u64,
}

/// A call's buffers; away while the engine has them.
struct Memory {
    input: Option<Region>,
    io: Option<Region>,
}

fn region(group: &Group, wishes: &Wishes, pieces: &[Piece]) -> Result<Region, Error> {
    let dtype = wishes.dtype;
    let len: u64 = pieces.iter().map(|p| p.len).sum();
    let none = |what: &str| {
        Error::invalid(
            "perf",
            format!("there is no {what} for a buffer of {len} {dtype}"),
        )
    };
    if !wishes.registered {
        return Region::zeroed(dtype, len).ok_or_else(|| none("memory"));
    }
    let n = usize::try_from(len).map_err(|_| none("memory"))?;
    let region = with_type!(dtype, T => Region::new(group.buffer::<T>(n)));
    if len > 0 && region.space() != Space::Registered {
        return Err(none(
            "memory that local ranks have mapped (--registered; it needs ranks that share a host's memory, and as much memory left as all of them want together)",
        ));
    }
    Ok(region)
}

fn away() -> Error {
    Error::internal("a buffer did not come back from an operation")
}

impl<'a> Bench<'a> {
    fn new(
        group: &'a Group,
        setting: &'a Setting,
        wishes: &'a Wishes,
        call: Call,
        round: &'a mut u64,
    ) -> Result<Bench<'a>, Error> {
        let input = match &call.input {
            Some(pieces) => Some(region(group, wishes, pieces)?),
            None => None,
        };
        let memory = Memory {
            input,
            io: Some(region(group, wishes, &call.io)?),
        };
        Ok(Bench {
            group,
            setting,
            wishes,
            call,
            memory,
            round,
        })
    }

    fn run(&mut self, bytes: u64) -> Result<Measured, Error> {
        let wrong = match self.wishes.check {
            true => Some(self.checked()?),
            false => None,
        };
        self.clear();
        let warm = self.wishes.warm.unwrap_or(match bytes {
            0..=65_536 => 50,
            65_537..=67_108_864 => 3,
            _ => 1,
        });
        let mut best = f32::MAX;
        for _ in 0..warm {
            let start = Instant::now();
            self.once()?;
            best = best.min(start.elapsed().as_secs_f32());
        }
        let n = self.iterations(best)?;
        let mut samples = Vec::with_capacity(n as usize);
        // Whoever is late with the warm-up is waited for here and not in the first sample.
        self.group.barrier()?;
        let before = self.group.stats();
        for _ in 0..n {
            if self.setting.operation.is_one_sided() {
                self.group.all_reduce(&mut [0f32], Sum)?;
            }
            let start = Instant::now();
            self.once()?;
            samples.push(start.elapsed().as_nanos() as f64);
        }
        let sent = self.group.stats().since(&before);
        let wire = self.wire(&sent, n)?;
        if self.setting.operation.is_one_sided() {
            self.group.all_reduce(&mut samples, Max)?;
        } else {
            self.group.all_reduce(&mut samples, Sum)?;
            for sample in &mut samples {
                *sample /= f64::from(self.setting.world);
            }
        }
        self.group.barrier()?;
        let comm = self.group.communicator();
        let len = usize::try_from(self.call.unit).unwrap_or(usize::MAX);
        let op = &self.call.ops[0];
        let descriptor = comm.describe(op, self.wishes.dtype, len)?;
        Ok(Measured {
            samples,
            wrong,
            wire,
            predicted: comm.predict(op, self.wishes.dtype, len)?,
            algorithm: descriptor.algorithm,
            codec: descriptor.codec,
        })
    }

    /// The same number on every rank.
    fn iterations(&self, best: f32) -> Result<u32, Error> {
        let (seconds, least, most) = match self.wishes.iterations {
            Iterations::Fixed(n) => return Ok(n),
            Iterations::Budget {
                seconds,
                least,
                most,
            } => (seconds, least, most),
        };
        // Without a warm-up nothing is known of how long a call takes.
        let best = if best == f32::MAX {
            seconds as f32
        } else {
            best
        };
        let mut mean = [best];
        self.group.all_reduce(&mut mean, Sum)?;
        let mean = f64::from(mean[0] / self.setting.world as f32).max(5e-8);
        Ok(((seconds / mean) as u32).clamp(least, most))
    }

    /// Per call, of the rank that sends most.
    fn wire(&mut self, sent: &LinkStats, n: u32) -> Result<f64, Error> {
        /// Where calls were timed one at a time, so many are counted without what was between them.
        const COUNTED: u32 = 3;
        let (sent, n) = if self.setting.operation.is_one_sided() {
            self.group.barrier()?;
            let before = self.group.stats();
            for _ in 0..COUNTED {
                self.once()?;
            }
            (self.group.stats().since(&before), COUNTED)
        } else {
            (*sent, n)
        };
        let bytes = sent.payload_sent + sent.header_sent + sent.control_sent;
        let mut most = [bytes as f64 / f64::from(n.max(1))];
        self.group.all_reduce(&mut most, Max)?;
        Ok(most[0])
    }

    /// One call, blocking.
    fn once(&mut self) -> Result<Done, Error> {
        let at = (*self.round % self.call.ops.len() as u64) as usize;
        let op = &mut self.call.ops[at];
        number(op, *self.round);
        *self.round += 1;
        let comm = self.group.communicator();
        let Some(beside) = &self.call.beside else {
            let io = self.memory.io.as_mut().ok_or_else(away)?;
            let input = self.memory.input.as_mut();
            return comm.run(
                op,
                Borrowed {
                    input: input.map(|region| View::from(region.erased())),
                    io: io.erased(),
                },
            );
        };
        let sent = self.memory.input.take().ok_or_else(away)?;
        let received = self.memory.io.take().ok_or_else(away)?;
        let first = comm.start(op.clone(), Owned::from(sent));
        let second = comm.start(beside.clone(), Owned::from(received));
        let first = first.wait();
        let second = Pending::wait(second);
        self.memory.input = first.io;
        self.memory.io = second.io;
        first.result?;
        second.result
    }

    /// One call on known numbers; how many elements are wrong on all ranks together.
    fn checked(&mut self) -> Result<u64, Error> {
        // The first round of the topology is what is known.
        let period = self.call.ops.len() as u64;
        *self.round = self.round.next_multiple_of(period);
        let (world, reduce) = (self.setting.world, self.setting.reduce);
        let dtype = self.wishes.dtype;
        let mut wrong = [0u64];
        with_type!(dtype, T => {
            let numbers = Numbers::new::<T>(world, reduce, self.wishes.codec);
            let input = self.memory.input.as_mut().zip(self.call.input.as_ref());
            let io = self.memory.io.as_mut().ok_or_else(away)?;
            if let Some((region, pieces)) = input
                && !numbers.fill::<T>(region, pieces)
            {
                return Err(Error::internal("a checked input of another length"));
            }
            if !numbers.fill::<T>(io, &self.call.io) {
                return Err(Error::internal("a checked buffer of another length"));
            }
            self.once()?;
            let io = self.memory.io.as_mut().ok_or_else(away)?;
            wrong[0] = match self.call.want.is_empty() {
                true => 0,
                false => numbers.wrong::<T>(io, &self.call.want),
            };
            // The contribution is not to be touched.
            if let Some((region, pieces)) = self.memory.input.as_mut().zip(self.call.input.as_ref())
                && !pieces.is_empty()
            {
                wrong[0] += numbers.wrong::<T>(region, pieces);
            }
        });
        self.group.all_reduce(&mut wrong, Sum)?;
        Ok(wrong[0])
    }

    /// Zeros, so that no number grows without bound, or is slow to compute with.
    fn clear(&mut self) {
        let both = [&mut self.memory.input, &mut self.memory.io];
        for region in both.into_iter().flatten() {
            with_type!(self.wishes.dtype, T => {
                if let Some(x) = region.typed::<T>() {
                    x.fill(<T as super::number::Number>::of(0));
                }
            });
        }
    }
}

/// Gives a neighbour operation its round.
fn number(op: &mut Op, round: u64) {
    match &mut op.kind {
        Kind::Mix { t, .. } | Kind::NeighbourGather { t, .. } | Kind::HierarchicalMix { t, .. } => {
            *t = round;
        }
        _ => {}
    }
}

/// The call on so many elements, by the algorithm and in the codec that are wished for.
fn wished(setting: &Setting, wishes: &Wishes, asked: u64, place: Place) -> Call {
    let mut call = setting.call(asked, place);
    for op in call.ops.iter_mut().chain(&mut call.beside) {
        op.algorithm = wishes.algorithm;
        op.codec = wishes.codec;
        op.codec_forced = wishes.force_codec;
    }
    call
}

/// Whether every size can be carried out as it is wished for; the same on all ranks, and nothing is sent.
///
/// # Errors
/// What the engine has against it.
pub(super) fn check_wishes(group: &Group, setting: &Setting, wishes: &Wishes) -> Result<(), Error> {
    if wishes.algorithm.is_none() && wishes.codec == Codec::None {
        return Ok(());
    }
    for bytes in &wishes.sizes {
        let asked = bytes / wishes.dtype.size() as u64;
        for place in &wishes.places {
            let call = wished(setting, wishes, asked, *place);
            let len = usize::try_from(call.unit).unwrap_or(usize::MAX);
            let comm = group.communicator();
            comm.describe(&call.ops[0], wishes.dtype, len)?;
        }
    }
    Ok(())
}

/// Whether all ranks get memory that the others have mapped.
pub(super) fn can_register(group: &Group) -> Result<bool, Error> {
    let mut all = [u8::from(group.buffer::<u8>(1).is_registered())];
    group.all_reduce(&mut all, Min)?;
    Ok(all[0] == 1)
}

/// Whether an operation runs in a world of this size, and why not.
pub(super) fn possible(operation: Operation, world: u32) -> Result<(), String> {
    match operation {
        Operation::SendRecv if world < 2 => {
            Err("send-recv needs at least 2 ranks: a rank sends no messages to itself".into())
        }
        _ => Ok(()),
    }
}
