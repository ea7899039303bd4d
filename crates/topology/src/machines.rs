//! Topologies that know of machines: `local` ranks each, numbered machine by machine.

use crate::error::{TopologyError, checked_world};
use gaggle_core::{Form, Rank, Round, Topology};

fn checked_machines(
    name: &str,
    world: usize,
    local: usize,
    least: usize,
) -> Result<(u32, u32), TopologyError> {
    let n = checked_world(name, world)?;
    if local >= least && world.is_multiple_of(local) {
        return Ok((n / local as u32, local as u32));
    }
    Err(TopologyError::Parameter {
        topology: name.into(),
        what: format!("{world} ranks are not machines of {local}, at least {least} each"),
    })
}

/// ⌊log₂ x⌋ + 1 for x ≥ 1, and 1 for 0: how many powers of two there are up to x.
fn powers_up_to(x: u32) -> u64 {
    u64::from(x.max(1).ilog2() + 1)
}

/// Whether all but one local rank per round stay inside the machine at exponential or at ring distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exp,
    Ring,
}

/// In round t local rank t mod L of every machine sends to its like on another machine, the others send within the machine, past that rank; ½ and ½.
///
/// One message per rank and round, of which one per machine goes over the network. BlueFog's inner–outer schedules.
#[derive(Clone, Copy, Debug)]
pub struct InnerOuter {
    machines: u32,
    local: u32,
    kind: Kind,
}

impl InnerOuter {
    /// Machines at distances 1, 2, 4, … in turn, and so inside.
    ///
    /// # Errors
    /// Fewer than 3 ranks per machine, or a world that is not made of whole machines.
    pub fn exp(world: usize, local: usize) -> Result<InnerOuter, TopologyError> {
        InnerOuter::new("inner-outer-exp", world, local, Kind::Exp)
    }

    /// The next machine, and inside the next rank.
    ///
    /// # Errors
    /// As [`exp`](InnerOuter::exp).
    pub fn ring(world: usize, local: usize) -> Result<InnerOuter, TopologyError> {
        InnerOuter::new("inner-outer-ring", world, local, Kind::Ring)
    }

    fn new(name: &str, world: usize, local: usize, kind: Kind) -> Result<Self, TopologyError> {
        let (machines, local) = checked_machines(name, world, local, 3)?;
        Ok(InnerOuter {
            machines,
            local,
            kind,
        })
    }

    /// Powers of two that the distance between machines goes through.
    fn outer_turns(&self) -> u64 {
        match self.kind {
            Kind::Exp => powers_up_to(self.machines.saturating_sub(1)),
            Kind::Ring => 1,
        }
    }

    fn inner_turns(&self) -> u64 {
        match self.kind {
            Kind::Exp => powers_up_to(self.local - 2),
            Kind::Ring => 1,
        }
    }

    /// Whom `rank` sends to in round t; itself where there is one machine only.
    fn target(&self, rank: u32, t: u64) -> u32 {
        let (machine, r) = (rank / self.local, rank % self.local);
        let out = (t % u64::from(self.local)) as u32;
        if r == out {
            let distance = 1 << (t % self.outer_turns());
            return self.shifted(machine, distance) * self.local + r;
        }
        let mut distance = 1 << (t % self.inner_turns());
        // The rank that sends outwards is passed over.
        if distance >= (out + self.local - r) % self.local {
            distance += 1;
        }
        machine * self.local + (r + distance) % self.local
    }

    fn shifted(&self, machine: u32, distance: u32) -> u32 {
        ((u64::from(machine) + u64::from(distance)) % u64::from(self.machines)) as u32
    }

    fn source(&self, rank: u32, t: u64) -> u32 {
        let (machine, r) = (rank / self.local, rank % self.local);
        if u64::from(r) == t % u64::from(self.local) {
            let distance = (1 << (t % self.outer_turns())) % self.machines;
            return self.shifted(machine, self.machines - distance) * self.local + r;
        }
        let inside = machine * self.local..(machine + 1) * self.local;
        // Sends of one round are a permutation.
        inside
            .into_iter()
            .find(|peer| self.target(*peer, t) == rank)
            .unwrap_or(rank)
    }
}

impl Topology for InnerOuter {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Exp => "inner-outer-exp",
            Kind::Ring => "inner-outer-ring",
        }
    }
    fn world(&self) -> usize {
        self.machines as usize * self.local as usize
    }
    fn period(&self) -> Option<u64> {
        let both = lcm(self.outer_turns(), self.inner_turns());
        Some(lcm(u64::from(self.local), both))
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        out.from.clear();
        out.to.clear();
        let (to, from) = (self.target(rank.0, t), self.source(rank.0, t));
        out.keep = 1.0;
        out.form = Form::Delta;
        if to != rank.0 {
            out.keep = 0.5;
            out.from.push((Rank(from), 0.5));
            out.to.push((Rank(to), 1.0));
        }
    }
}

pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// What hierarchical averaging does, seen from the ranks: the mean of every machine, mixed by a topology over machines. W = W_M ⊗ J_L, and ρ is that of W_M.
///
/// Here to be measured and compared; the operation itself sends far less ([`Group::hierarchical_neighbor_average`](gaggle_core::Group)).
pub struct OverMachines<T> {
    over: T,
    local: u32,
}

impl<T: Topology> OverMachines<T> {
    /// `over` has one rank per machine; each has `local` ranks.
    ///
    /// # Errors
    /// No ranks per machine, or more than can be counted in all.
    pub fn new(over: T, local: usize) -> Result<OverMachines<T>, TopologyError> {
        let world = over.world().saturating_mul(local);
        let (_, local) = checked_machines(over.name(), world, local, 1)?;
        Ok(OverMachines { over, local })
    }
}

impl<T: Topology> Topology for OverMachines<T> {
    fn name(&self) -> &str {
        self.over.name()
    }
    fn world(&self) -> usize {
        self.over.world() * self.local as usize
    }
    fn period(&self) -> Option<u64> {
        self.over.period()
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let machine = Rank(rank.0 / self.local);
        self.over.round(machine, t, out);
        let share = 1.0 / f64::from(self.local);
        let from = std::mem::take(&mut out.from);
        let to = std::mem::take(&mut out.to);
        let all = |m: Rank| (m.0 * self.local..(m.0 + 1) * self.local).map(Rank);
        let mates = || all(machine).filter(|mate| *mate != rank);
        let weighed = from
            .iter()
            .flat_map(|(m, w)| all(*m).map(move |r| (r, w * share)));
        out.from.extend(mates().map(|r| (r, out.keep * share)));
        out.from.extend(weighed);
        out.to.extend(mates().map(|r| (r, 1.0)));
        out.to
            .extend(to.iter().flat_map(|(m, w)| all(*m).map(move |r| (r, *w))));
        out.keep *= share;
    }
}
