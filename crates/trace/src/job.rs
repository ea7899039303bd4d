//! The recordings of one job, put together: [`Job`].

use crate::{
    clocks::{self, ClockFit},
    recording::{Group, Operation, Recording, State},
};
use gaggle_core::{Class, OpId, Rank, name_ranks};
use std::{collections::BTreeMap, path::PathBuf};

/// A recording that was found somewhere.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where.
    pub path: PathBuf,
    /// What it says.
    pub recording: Recording,
    /// Whether its process lives.
    pub alive: bool,
}

/// One run of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RunId {
    job: String,
    run: u64,
    epoch: u32,
    world: u32,
}

impl RunId {
    fn of(recording: &Recording) -> RunId {
        let h = &recording.header;
        RunId {
            job: h.job.clone(),
            run: h.run,
            epoch: h.epoch,
            world: h.world,
        }
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (run {:016x}", self.job, self.run)?;
        if self.epoch > 0 {
            write!(f, ", restart {}", self.epoch)?;
        }
        write!(f, ", {} ranks)", self.world)
    }
}

/// Of what lies in a directory, the recordings of the job that began last, and the names of the other jobs.
pub fn choose_latest(candidates: Vec<Candidate>) -> (Vec<Candidate>, Vec<String>) {
    let latest = candidates
        .iter()
        .max_by_key(|c| c.recording.header.wall_start)
        .map(|c| RunId::of(&c.recording));
    let (mut chosen, mut others) = (vec![], Vec::<RunId>::new());
    for candidate in candidates {
        let run = RunId::of(&candidate.recording);
        if Some(&run) == latest.as_ref() {
            chosen.push(candidate);
        } else if !others.contains(&run) {
            others.push(run);
        }
    }
    (chosen, others.iter().map(RunId::to_string).collect())
}

/// Recordings that do not go together.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There are none.
    #[error("no recordings")]
    Nothing,
    /// They are of several jobs, or of several runs of one.
    #[error("the recordings are of different jobs: {}", jobs.join("; "))]
    DifferentJobs {
        /// Each one.
        jobs: Vec<String>,
    },
    /// Two are of one rank.
    #[error("{} and {} are both of {rank}", first.display(), second.display())]
    Twice {
        /// Which.
        rank: Rank,
        /// One.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// What an operation is known by on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpKey {
    /// Its identity.
    pub id: OpId,
    /// Its group's incarnation.
    pub incarnation: u32,
    /// Its membership record.
    pub epoch: u32,
}

impl OpKey {
    /// The operation's.
    pub fn of(op: &Operation) -> OpKey {
        OpKey {
            id: op.descriptor.id,
            incarnation: op.descriptor.incarnation,
            epoch: op.descriptor.epoch,
        }
    }

    pub(crate) fn stream(&self) -> Stream {
        let id = self.id;
        (id.group, id.lane, id.class, self.incarnation, self.epoch)
    }
}

/// Operations that are numbered one after the other.
pub(crate) type Stream = (u64, u32, Class, u32, u32);

/// Who has called each operation: a rank's place in [`Job::ranks`], and the operation's in its recording.
pub(crate) type Calls = BTreeMap<OpKey, Vec<(usize, usize)>>;

/// One rank's part of a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RankTrace {
    /// Where its recording lies.
    pub path: PathBuf,
    /// What it says.
    pub recording: Recording,
    /// Whether its process lives.
    pub alive: bool,
}

impl RankTrace {
    /// Its number in the job.
    pub fn rank(&self) -> Rank {
        self.recording.header.rank
    }

    /// The group of one of its operations, where it is known.
    pub fn group(&self, op: &Operation) -> Option<&Group> {
        self.recording.groups.get(op.group?)
    }

    /// How it ended, in words.
    pub fn fate(&self) -> &'static str {
        match (self.alive, self.recording.header.state) {
            (true, State::Troubled) => "alive, with failures",
            (true, _) => "alive",
            (false, State::Left) => "left after failures",
            (false, State::Troubled) => "ended without leaving, after failures",
            (false, State::Running) => "ended without leaving",
        }
    }
}

/// The recordings of one job, on one time line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Job {
    /// The job's name.
    pub name: String,
    /// Which run of it.
    pub run: u64,
    /// After how many restarts.
    pub epoch: u32,
    /// How many ranks it has.
    pub world: u32,
    /// Those that left a recording, by rank.
    pub ranks: Vec<RankTrace>,
    /// The hosts' clocks; the first is the reference.
    pub clocks: Vec<ClockFit>,
    /// Whose clock each of `ranks` has: an index into `clocks`.
    pub clock_of: Vec<usize>,
    pub(crate) calls: Calls,
    /// For each of `ranks`: the last number of each stream of operations.
    pub(crate) latest: Vec<BTreeMap<Stream, u64>>,
    /// The earliest time, in the reference's nanoseconds.
    base: i128,
}

impl Job {
    /// Puts recordings together.
    ///
    /// # Errors
    /// There are none, or they are not of one run of one job, or two are of one rank.
    pub fn merge(candidates: Vec<Candidate>) -> Result<Job, MergeError> {
        let mut runs: Vec<RunId> = vec![];
        for candidate in &candidates {
            let run = RunId::of(&candidate.recording);
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        let run = match runs.as_slice() {
            [] => return Err(MergeError::Nothing),
            [one] => one.clone(),
            many => {
                let jobs = many.iter().map(RunId::to_string).collect();
                return Err(MergeError::DifferentJobs { jobs });
            }
        };
        let mut ranks: Vec<RankTrace> = candidates
            .into_iter()
            .map(|c| RankTrace {
                path: c.path,
                recording: c.recording,
                alive: c.alive,
            })
            .collect();
        ranks.sort_by_key(RankTrace::rank);
        if let Some(two) = ranks.windows(2).find(|w| w[0].rank() == w[1].rank()) {
            return Err(MergeError::Twice {
                rank: two[0].rank(),
                first: two[0].path.clone(),
                second: two[1].path.clone(),
            });
        }
        let mut calls = Calls::new();
        for (r, rank) in ranks.iter().enumerate() {
            for (o, op) in rank.recording.operations.iter().enumerate() {
                calls.entry(OpKey::of(op)).or_default().push((r, o));
            }
        }
        let latest = ranks.iter().map(|rank| {
            let mut latest = BTreeMap::new();
            for op in &rank.recording.operations {
                let key = OpKey::of(op);
                let last = latest.entry(key.stream()).or_insert(key.id.seq);
                *last = key.id.seq.max(*last);
            }
            latest
        });
        let latest = latest.collect();
        let (clocks, clock_of) = clocks::fit(&ranks, &calls);
        let mut job = Job {
            name: run.job,
            run: run.run,
            epoch: run.epoch,
            world: run.world,
            ranks,
            clocks,
            clock_of,
            calls,
            latest,
            base: 0,
        };
        job.base = job.earliest();
        Ok(job)
    }

    fn earliest(&self) -> i128 {
        let starts = self.ranks.iter().enumerate().flat_map(|(r, rank)| {
            let ops = rank.recording.operations.iter().map(|op| op.started);
            let first = ops.min().unwrap_or(rank.recording.header.start);
            std::iter::once(self.on_reference(r, first))
        });
        starts.min().unwrap_or(0)
    }

    fn on_reference(&self, r: usize, t: u64) -> i128 {
        i128::from(t) + i128::from(self.clocks[self.clock_of[r]].offset)
    }

    /// A time of one of [`ranks`](Job::ranks), in nanoseconds since the job's earliest recorded operation.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn time(&self, r: usize, t: u64) -> i64 {
        let t = self.on_reference(r, t).saturating_sub(self.base);
        t.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// The latest time that any rank has noted, counted as by [`time`](Job::time).
    pub fn end(&self) -> i64 {
        let times = self.ranks.iter().enumerate().flat_map(|(r, rank)| {
            let ops = rank.recording.operations.iter();
            ops.flat_map(move |op| {
                [Some(op.started), op.last_arrival, op.finished]
                    .into_iter()
                    .flatten()
                    .map(move |t| self.time(r, t))
            })
        });
        times.max().unwrap_or(0)
    }

    /// Ranks without a recording: they have left in order, or were never there, or it is elsewhere.
    pub fn absent(&self) -> Vec<Rank> {
        // A header may claim any number of ranks; whoever reads the list needs a few.
        const ENOUGH: usize = 10_000;
        let here = |rank: &Rank| {
            self.ranks
                .binary_search_by_key(rank, RankTrace::rank)
                .is_ok()
        };
        (0..self.world)
            .map(Rank)
            .filter(|r| !here(r))
            .take(ENOUGH)
            .collect()
    }

    /// Where a rank stands in [`ranks`](Job::ranks).
    pub fn find(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search_by_key(&rank, RankTrace::rank).ok()
    }

    /// One line: which job this is.
    pub fn title(&self) -> String {
        let absent = self.absent();
        let mut title = format!("job {}", self.name);
        if self.epoch > 0 {
            title += &format!(", restart {}", self.epoch);
        }
        title += &format!(
            ": {} of {} ranks have left a recording",
            self.ranks.len(),
            self.world
        );
        if !absent.is_empty() && absent.len() <= 16 {
            title += &format!(", not {}", name_ranks(&absent));
        }
        title
    }

    /// An operation of a rank.
    pub(crate) fn op(&self, (r, o): (usize, usize)) -> &Operation {
        &self.ranks[r].recording.operations[o]
    }
}
