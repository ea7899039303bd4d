//! Where the memory of an operation lies: what tests of one path are parametrised by.

use gaggle::{Buffer, Element, Group, Rank};
use std::{fmt, str::FromStr};

/// Where the ranks' buffers lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// In memory that all ranks of the host have mapped ([`Group::buffer`]).
    Registered,
    /// In ordinary memory.
    Plain,
    /// Registered on ranks with even numbers in the job, ordinary on the others.
    Mixed,
}

impl Memory {
    /// All there are.
    pub const ALL: [Memory; 3] = [Memory::Registered, Memory::Plain, Memory::Mixed];

    /// Its name, as on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Registered => "registered",
            Memory::Plain => "plain",
            Memory::Mixed => "mixed",
        }
    }

    /// `n` zeros of this rank's.
    pub fn zeros<T: Element>(self, group: &Group, n: usize) -> Buffer<T> {
        let registered = match self {
            Memory::Registered => true,
            Memory::Plain => false,
            Memory::Mixed => world_rank(group, group.rank()).0.is_multiple_of(2),
        };
        match registered {
            true => group.buffer(n),
            false => Buffer::ordinary(n),
        }
    }

    /// Element i is `value(i)`.
    pub fn filled<T: Element>(
        self,
        group: &Group,
        n: usize,
        value: impl Fn(usize) -> T,
    ) -> Buffer<T> {
        let mut x = self.zeros(group, n);
        fill(&mut x, value);
        x
    }
}

/// Element i becomes `value(i)`.
pub fn fill<T>(x: &mut [T], value: impl Fn(usize) -> T) {
    for (i, x) in x.iter_mut().enumerate() {
        *x = value(i);
    }
}

/// A member's number in the job.
pub fn world_rank(group: &Group, member: Rank) -> Rank {
    let all = &group.communicator().info().world_ranks;
    all.get(member.idx()).copied().unwrap_or(member)
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Memory {
    type Err = String;
    fn from_str(name: &str) -> Result<Memory, String> {
        let found = Memory::ALL.into_iter().find(|m| m.name() == name);
        found.ok_or_else(|| format!("{name:?} is none of registered, plain, mixed"))
    }
}
