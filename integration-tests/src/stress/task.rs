//! One random operation, the same on all ranks, whose result is checked.

use crate::memory::{Memory, fill};
use gaggle::{Buffer, Error, Form, Group, Max, Rank, Round, Sum};
use rand::{Rng, seq::IndexedRandom};
use std::collections::VecDeque;

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Sum,
    SumInto,
    Max,
    Mix,
    Broadcast,
    Reduce,
    AllGather,
    Gather,
    ReduceScatter,
    Scatter,
    AllToAll,
    Pass,
    Barrier,
}

/// Often and seldom ones.
const MENU: [What; 17] = [
    What::Sum,
    What::Sum,
    What::Sum,
    What::SumInto,
    What::SumInto,
    What::Max,
    What::Mix,
    What::Mix,
    What::Broadcast,
    What::Reduce,
    What::AllGather,
    What::Gather,
    What::ReduceScatter,
    What::Scatter,
    What::AllToAll,
    What::Pass,
    What::Barrier,
];

/// An operation of all members.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    what: What,
    /// Elements of each rank's contribution, or of each part.
    n: usize,
    root: u32,
}

/// Why a task has not ended well.
#[derive(Debug)]
pub enum Trouble {
    /// What the library says.
    Failed(Error),
    /// A result is not what it must be.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Trouble {
        Trouble::Failed(e)
    }
}

/// Buffers of operations that have failed, filled with a pattern: nobody may write to them any more.
#[derive(Default)]
pub struct Graves {
    kept: VecDeque<Buffer<f32>>,
}

impl Graves {
    fn pattern(i: usize) -> f32 {
        -((i % 100_003) as f32) - 1.0
    }

    fn bury(&mut self, mut x: Buffer<f32>) {
        fill(&mut x, Graves::pattern);
        self.kept.push_back(x);
        if self.kept.len() > 4 {
            self.kept.pop_front();
        }
    }

    /// # Errors
    /// A byte has changed.
    pub fn check(&self) -> Result<(), Trouble> {
        for x in &self.kept {
            let changed = (0..x.len()).find(|i| x[*i].to_bits() != Graves::pattern(*i).to_bits());
            if let Some(i) = changed {
                let what = format!("written late: element {i} of {} is {}", x.len(), x[i]);
                return Err(Trouble::Wrong(what));
            }
        }
        Ok(())
    }
}

/// What a rank of the job gives to the k-th task: whole numbers, whose sums are exact in any order.
fn given(rank: Rank, k: u64, i: usize) -> f32 {
    ((i * 7 + k as usize * 13 + rank.idx() * 31) % 1000) as f32
}

/// One rank's side of a task.
struct Side<'a> {
    group: &'a Group,
    /// The members' numbers in the job.
    members: &'a [Rank],
    memory: Memory,
    k: u64,
}

impl Task {
    /// The next one; the same draws on every rank.
    pub fn draw(rng: &mut impl Rng, world: usize) -> Task {
        let what = *MENU.choose(rng).unwrap_or(&What::Barrier);
        // Up to 4 MiB, small ones as often as large ones.
        let n = match rng.random_range(0..32u32) {
            0 => 0,
            1 => world,
            20.. => rng.random_range(1..=1 << 10),
            bits => rng.random_range(1..=1usize << (bits + 1)),
        };
        let shared = matches!(
            what,
            What::AllGather | What::Gather | What::ReduceScatter | What::Scatter | What::AllToAll
        );
        Task {
            what,
            n: if shared { n / world } else { n },
            root: rng.random_range(0..world as u32),
        }
    }

    /// Carries it out and looks at every element.
    ///
    /// # Errors
    /// It failed: then its buffers are among the `graves`. It ended well with something wrong.
    pub fn run(
        self,
        group: &Group,
        members: &[Rank],
        memory: Memory,
        k: u64,
        graves: &mut Graves,
    ) -> Result<(), Trouble> {
        let side = Side {
            group,
            members,
            memory,
            k,
        };
        side.run(self, graves)
    }
}

impl Side<'_> {
    fn own(&self) -> Rank {
        self.members[self.group.rank().idx()]
    }

    fn buffer(&self, n: usize) -> Buffer<f32> {
        let me = self.own();
        self.memory.filled(self.group, n, |i| given(me, self.k, i))
    }

    fn from(&self, member: usize, i: usize) -> f32 {
        given(self.members[member], self.k, i)
    }

    fn sum(&self, i: usize) -> f32 {
        self.members.iter().map(|r| given(*r, self.k, i)).sum()
    }

    fn is(&self, task: Task, x: &[f32], want: impl Fn(usize) -> f32) -> Result<(), Trouble> {
        match (0..x.len()).find(|i| x[*i] != want(*i)) {
            None => Ok(()),
            Some(i) => Err(Trouble::Wrong(format!(
                "element {i} of {} of task {} ({task:?}, members {:?}) is {}, not {}",
                x.len(),
                self.k,
                self.members.iter().map(|r| r.0).collect::<Vec<_>>(),
                x[i],
                want(i)
            ))),
        }
    }

    /// In place; what has failed is buried.
    fn in_place(
        &self,
        x: &mut Option<Buffer<f32>>,
        graves: &mut Graves,
        call: impl FnOnce(&mut [f32]) -> Result<(), Error>,
    ) -> Result<(), Trouble> {
        let Some(buffer) = x else {
            return Ok(());
        };
        match call(buffer) {
            Ok(()) => Ok(()),
            Err(e) => {
                graves.bury(x.take().unwrap_or_else(|| Buffer::ordinary(0)));
                Err(e.into())
            }
        }
    }

    fn run(&self, task: Task, graves: &mut Graves) -> Result<(), Trouble> {
        let (group, n) = (self.group, task.n);
        let (me, world) = (group.rank(), group.size());
        let root = Rank(task.root);
        let on_root = me == root;
        let mut x = Some(self.buffer(n));
        let given_whole = || self.buffer(n * world);
        match task.what {
            What::Sum => {
                self.in_place(&mut x, graves, |x| group.all_reduce(x, Sum).map(drop))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| self.sum(i))
            }
            What::Max => {
                self.in_place(&mut x, graves, |x| group.all_reduce(x, Max).map(drop))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| {
                    (0..world).map(|m| self.from(m, i)).fold(0.0, f32::max)
                })
            }
            What::SumInto => {
                let input = self.buffer(n);
                self.in_place(&mut x, graves, |y| {
                    group.all_reduce_into(&input, y, Sum).map(drop)
                })?;
                self.is(task, &input, |i| self.from(me.idx(), i))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| self.sum(i))
            }
            What::Mix => {
                let (next, last) = ((me.idx() + 1) % world, (me.idx() + world - 1) % world);
                let mut with = vec![next, last];
                with.retain(|m| *m != me.idx());
                with.dedup();
                let round = Round {
                    from: with.iter().map(|m| (Rank(*m as u32), 0.25)).collect(),
                    to: with.iter().map(|m| (Rank(*m as u32), 1.0)).collect(),
                    keep: 1.0 - 0.25 * with.len() as f64,
                    form: Form::Delta,
                };
                self.in_place(&mut x, graves, |x| group.mix(x, &round, self.k).map(drop))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| {
                    let own = self.from(me.idx(), i);
                    with.iter()
                        .fold(own, |y, m| y + 0.25 * (self.from(*m, i) - own))
                })
            }
            What::Broadcast => {
                self.in_place(&mut x, graves, |x| group.broadcast(x, root).map(drop))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| {
                    self.from(root.idx(), i)
                })
            }
            What::Reduce => {
                self.in_place(&mut x, graves, |x| group.reduce(x, root, Sum).map(drop))?;
                match on_root {
                    true => self.is(task, x.as_deref().unwrap_or_default(), |i| self.sum(i)),
                    false => Ok(()),
                }
            }
            What::AllGather => {
                let x = self.buffer(n);
                let got = group.all_gather(&x)?;
                self.is(task, &got, |i| self.from(i / n, i % n))
            }
            What::Gather => {
                let x = self.buffer(n);
                let got = group.gather(&x, root)?;
                self.is(task, &got, |i| self.from(i / n, i % n))
            }
            What::ReduceScatter => {
                let input = given_whole();
                self.in_place(&mut x, graves, |y| {
                    group.reduce_scatter(&input, y, Sum).map(drop)
                })?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| {
                    self.sum(me.idx() * n + i)
                })
            }
            What::Scatter => {
                let input = if on_root {
                    given_whole()
                } else {
                    self.buffer(0)
                };
                self.in_place(&mut x, graves, |y| group.scatter(&input, y, root).map(drop))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| {
                    self.from(root.idx(), me.idx() * n + i)
                })
            }
            What::AllToAll => {
                let input = given_whole();
                let mut y = Some(given_whole());
                self.in_place(&mut y, graves, |y| group.all_to_all(&input, y).map(drop))?;
                self.is(task, y.as_deref().unwrap_or_default(), |i| {
                    self.from(i / n, me.idx() * n + i % n)
                })
            }
            What::Pass if world > 1 => {
                let (next, last) = ((me.idx() + 1) % world, (me.idx() + world - 1) % world);
                let sent = group.start_send(self.buffer(n), Rank(next as u32), 3);
                self.in_place(&mut x, graves, |x| {
                    group.recv(x, Rank(last as u32), 3).map(drop)
                })?;
                let own = sent.wait().map_err(|failed| failed.error)?;
                self.is(task, &own, |i| self.from(me.idx(), i))?;
                self.is(task, x.as_deref().unwrap_or_default(), |i| {
                    self.from(last, i)
                })
            }
            What::Pass | What::Barrier => Ok(group.barrier()?),
        }
    }
}
