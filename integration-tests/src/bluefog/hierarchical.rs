//! `torch_hierarchical`: machines of two ranks, exponential graph over machines.

use super::{
    Case, Scene, Worlds, case, expect,
    scene::{LENGTHS, MANY, around},
    typed,
};
use crate::work::{Number, Trouble};
use gaggle::{Float, Group, Kind, Mean, Op, Rank, Round};

/// L.
const LOCAL: u32 = 2;

const EVEN: Worlds = Worlds::EvenFrom(2);
/// Where there is another machine to talk to.
const MACHINES: Worlds = Worlds::EvenFrom(4);

pub(super) const CASES: &[Case] = &[
    case!("torch_hierarchical", local_size, EVEN, "min(2, n)"),
    case!("torch_hierarchical", local_rank, EVEN, "r mod 2"),
    typed!(
        "torch_hierarchical",
        hier_allreduce,
        F,
        EVEN,
        "x = r: r − l + (L − 1)/2"
    ),
    typed!(
        "torch_hierarchical",
        hier_allreduce_inplace,
        F,
        EVEN,
        "x = r: r − l + (L − 1)/2"
    ),
    typed!(
        "torch_hierarchical",
        hier_neighbor_allreduce,
        F,
        EVEN,
        "x = (r − (L − 1)/2)/L: (m + Σ in-machines)/(degree + 1)"
    ),
    typed!(
        "torch_hierarchical",
        hier_neighbor_allreduce_dynamic_move,
        F,
        MACHINES,
        "self 0, from {m + 1: 1}, to {m − 1}: (m + 1) mod M"
    ),
    typed!(
        "torch_hierarchical",
        hier_neighbor_allreduce_dst_weight,
        F,
        MACHINES,
        "self 0, from {m + 1: ½}, to {m − 1: 2}: (m + 1) mod M"
    ),
    typed!(
        "torch_hierarchical",
        hier_neighbor_allreduce_fusion,
        F,
        EVEN,
        "50 at once, x + i: as alone, + i"
    ),
    typed!(
        "torch_hierarchical",
        hier_neighbor_allreduce_dynamic_move_fusion,
        F,
        MACHINES,
        "50 at once, x + i: as alone, + i"
    ),
    typed!(
        "torch_hierarchical",
        hier_neighbor_allreduce_dst_weight_fusion,
        F,
        MACHINES,
        "50 at once, x + i: as alone, + i"
    ),
];

/// The ranks of this rank's machine as a group of their own.
fn machine(s: &Scene) -> Result<Group, Trouble> {
    let own = s.group.split(Some(s.me / LOCAL), i64::from(s.me))?;
    own.ok_or_else(|| "a rank without a machine".into())
}

fn machines(s: &Scene) -> Vec<Vec<Rank>> {
    (0..s.n / LOCAL)
        .map(|m| (m * LOCAL..(m + 1) * LOCAL).map(Rank).collect())
        .collect()
}

fn local_size(s: &Scene) -> Result<(), Trouble> {
    expect::length(machine(s)?.size(), LOCAL.min(s.n) as usize)
}

fn local_rank(s: &Scene) -> Result<(), Trouble> {
    expect::ranks("local rank", &[machine(s)?.rank()], &[s.me % LOCAL])
}

/// The mean of a machine's ranks.
fn machine_mean(s: &Scene) -> f64 {
    f64::from(s.me - s.me % LOCAL) + f64::from(LOCAL - 1) / 2.0
}

fn hier_allreduce<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let machine = machine(s)?;
    for len in LENGTHS {
        let x: Vec<T> = s.own(len);
        let mut y = vec![T::of(0.0); len];
        machine.all_reduce_into(&x, &mut y, Mean)?;
        expect::exactly(&x, &s.own::<T>(len))?;
        expect::near(&y, |_| machine_mean(s))?;
    }
    Ok(())
}

fn hier_allreduce_inplace<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let machine = machine(s)?;
    for len in LENGTHS {
        let mut x: Vec<T> = s.own(len);
        machine.all_reduce(&mut x, Mean)?;
        expect::near(&x, |_| machine_mean(s))?;
    }
    Ok(())
}

/// x whose mean over the machine is the machine's number, plus `offset`.
fn around_machine<T: Number>(s: &Scene, len: usize, offset: f64) -> Vec<T> {
    let own = (f64::from(s.me) - f64::from(LOCAL - 1) / 2.0) / f64::from(LOCAL);
    vec![T::of(own + offset); len]
}

/// This rank's machine, and how many there are.
fn place(s: &Scene) -> (u32, u32) {
    (s.me / LOCAL, s.n / LOCAL)
}

/// What of the exponential graph over machines comes to this one, and the mean of that.
fn exp2_over_machines(s: &Scene) -> (Round, f64) {
    let (m, count) = place(s);
    let powers: Vec<i32> = (0..31)
        .map(|b| 1 << b)
        .take_while(|p| (*p as u32) < count)
        .collect();
    let weight = 1.0 / (powers.len() + 1) as f64;
    let from: Vec<Rank> = powers.iter().map(|p| around(m, -p, count)).collect();
    let sum: u32 = m + from.iter().map(|r| r.0).sum::<u32>();
    let round = Round {
        from: from.into_iter().map(|r| (r, weight)).collect(),
        to: powers.iter().map(|p| (around(m, *p, count), 1.0)).collect(),
        keep: weight,
        ..Round::default()
    };
    (round, f64::from(sum) * weight)
}

/// The values move to the machine before; `src` · `dst` is 1.
fn move_down(s: &Scene, src: f64, dst: f64) -> (Round, f64) {
    let (m, count) = place(s);
    let next = around(m, 1, count);
    let round = Round {
        from: vec![(next, src)],
        to: vec![(around(m, -1, count), dst)],
        keep: 0.0,
        ..Round::default()
    };
    (round, f64::from(next.0))
}

fn one_by_one<T: Number + Float>(s: &Scene, (round, want): &(Round, f64)) -> Result<(), Trouble> {
    for len in LENGTHS {
        let mut x: Vec<T> = around_machine(s, len, 0.0);
        s.group
            .hierarchical_mix(&mut x, &machines(s), round, s.next_round())?;
        expect::near(&x, |_| *want)?;
    }
    Ok(())
}

fn all_at_once<T: Number + Float>(s: &Scene, (round, want): &(Round, f64)) -> Result<(), Trouble> {
    let start = |i: usize| {
        let op = Op::new(Kind::HierarchicalMix {
            machines: machines(s).into(),
            round: round.clone(),
            t: s.next_round(),
        });
        s.group
            .start(op, around_machine::<T>(s, LENGTHS[i % 2], i as f64))
    };
    let flying: Vec<_> = (0..MANY).map(start).collect();
    for (i, work) in flying.into_iter().enumerate() {
        let y = work.wait().map_err(|f| f.error)?;
        expect::near(&y, |_| want + i as f64)?;
    }
    Ok(())
}

fn hier_neighbor_allreduce<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    one_by_one::<T>(s, &exp2_over_machines(s))
}

fn hier_neighbor_allreduce_dynamic_move<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    one_by_one::<T>(s, &move_down(s, 1.0, 1.0))
}

fn hier_neighbor_allreduce_dst_weight<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    one_by_one::<T>(s, &move_down(s, 0.5, 2.0))
}

fn hier_neighbor_allreduce_fusion<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    all_at_once::<T>(s, &exp2_over_machines(s))
}

fn hier_neighbor_allreduce_dynamic_move_fusion<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    all_at_once::<T>(s, &move_down(s, 1.0, 1.0))
}

fn hier_neighbor_allreduce_dst_weight_fusion<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    all_at_once::<T>(s, &move_down(s, 0.5, 2.0))
}
