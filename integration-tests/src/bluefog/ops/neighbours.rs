//! Neighbour averages: every kind of weights, and many at once.

use super::{LENGTHS, Number, Scene, Trouble, expect};
use crate::bluefog::scene::MANY;
use gaggle::{Cause, Float, Kind, Op, Rank, Round};
use std::time::Duration;

/// 2^−256.
const TINY: f64 = 8.636_168_555_094_445e-78;

/// x = r, averaged in every length.
fn averaged<T: Number + Float>(s: &Scene, round: &Round, want: f64) -> Result<(), Trouble> {
    for len in LENGTHS {
        let y = s.mixed::<T>(&s.own(len), round)?;
        expect::near(&y, |_| want)?;
    }
    Ok(())
}

/// S/(D + 1).
fn closed_mean(s: &Scene) -> f64 {
    s.closed_sum() / f64::from(s.degree() + 1)
}

pub(super) fn neighbor_allreduce_sum_precision(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        let y = s.mixed(&vec![TINY; len], &s.exp2_with(1.0, 1.0, 1.0))?;
        expect::exactly(&y, &vec![f64::from(s.degree() + 1) * TINY; len])?;
    }
    Ok(())
}

pub(super) fn neighbor_allreduce_avg_precision(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        let y = s.mixed(&vec![TINY; len], &s.round_of("static-exp")?)?;
        expect::exactly(&y, &vec![TINY; len])?;
    }
    Ok(())
}

/// Both ends of an edge must name it. Where they do not, nobody hangs: whoever waits for a message that nobody sends is told so.
pub(super) fn neighbor_allreduce_dynamic_topo_check(s: &Scene) -> Result<(), Trouble> {
    // In a group of its own, since it is of no use afterwards.
    let apart = s.group.split(Some(0), i64::from(s.me))?;
    let apart = apart.ok_or("a rank without a group")?;
    let round = Round {
        from: vec![(s.at(-1), 1.0)],
        to: vec![(s.at(2), 1.0)],
        keep: 0.0,
        ..Round::default()
    };
    let op = Op::new(Kind::Mix { round, t: 0 }).within(Duration::from_millis(500));
    match apart.run(&op, &mut [f64::from(s.me); 23]) {
        Ok(_) => Err("the ranks disagree about who sends to whom, and nobody minds".into()),
        Err(e) => expect::that(
            matches!(
                e.cause(),
                Cause::Mismatch { .. } | Cause::Timeout { .. } | Cause::Invalid { .. }
            ),
            || format!("not an error about the round: {e}"),
        ),
    }
}

/// Everything moves from `from` to here, and from here to `to`.
fn moved<T: Number + Float>(s: &Scene, from: i32, to: i32) -> Result<(), Trouble> {
    let round = Round {
        from: vec![(s.at(from), 1.0)],
        to: vec![(s.at(to), 1.0)],
        keep: 0.0,
        ..Round::default()
    };
    averaged::<T>(s, &round, f64::from(s.at(from).0))
}

pub(super) fn neighbor_allreduce_outside_static_topo_move<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    moved::<T>(s, 1, -1)
}

pub(super) fn neighbor_allreduce_dynamic_topo_move<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    moved::<T>(s, -1, 1)
}

pub(super) fn neighbor_allreduce_empty_send_neighbors<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    let mut round = Round {
        keep: 1.0,
        ..Round::default()
    };
    let own = f64::from(s.me);
    if s.me.is_multiple_of(2) {
        round.to.push((s.at(1), 1.0));
        averaged::<T>(s, &round, own)
    } else {
        round.from.push((s.at(-1), 1.0));
        averaged::<T>(s, &round, 2.0 * own - 1.0)
    }
}

pub(super) fn neighbor_allreduce_dynamic_topo_avg<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    let w = 1.0 / f64::from(s.degree() + 1);
    averaged::<T>(s, &s.exp2_with(w, w, 1.0), closed_mean(s))
}

pub(super) fn neighbor_allreduce_avg<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    averaged::<T>(s, &s.round_of("static-exp")?, closed_mean(s))
}

/// Rows of the default grid: the largest divisor of n up to √n.
fn rows(n: u32) -> u32 {
    (1..=n)
        .filter(|r| r * r <= n && n.is_multiple_of(*r))
        .max()
        .unwrap_or(1)
}

pub(super) fn neighbor_allreduce_avg_meshgrid<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let columns = s.n / rows(s.n);
    let place = |r: u32| (r / columns, r % columns);
    let (row, column) = place(s.me);
    let beside = (0..s.n).filter(|r| {
        let (i, j) = place(*r);
        i.abs_diff(row) + j.abs_diff(column) == 1
    });
    let (count, sum) = beside.fold((1, s.me), |(count, sum), r| (count + 1, sum + r));
    let want = f64::from(sum) / f64::from(count);
    averaged::<T>(s, &s.unweighted("mesh")?, want)
}

pub(super) fn neighbor_allreduce_avg_biring<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let mut closed = vec![s.me, s.at(1).0, s.at(-1).0];
    closed.sort_unstable();
    closed.dedup();
    let want = f64::from(closed.iter().sum::<u32>()) / closed.len() as f64;
    averaged::<T>(s, &s.round_of("ring")?, want)
}

pub(super) fn neighbor_allreduce_avg_ring_1<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let want = f64::from(s.me + s.at(1).0) / 2.0;
    averaged::<T>(s, &s.round_of("uni-ring-left")?, want)
}

pub(super) fn neighbor_allreduce_avg_ring_2<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let want = f64::from(s.me + s.at(-1).0) / 2.0;
    averaged::<T>(s, &s.round_of("uni-ring")?, want)
}

pub(super) fn neighbor_allreduce_avg_star<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    for centre in 0..s.n {
        let want = match s.me == centre {
            true => super::mean_rank(s),
            false => f64::from(s.me + centre) / 2.0,
        };
        averaged::<T>(s, &s.unweighted(&format!("star:{centre}"))?, want)?;
    }
    Ok(())
}

pub(super) fn neighbor_allreduce_sum<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        let y = s.mixed::<T>(&s.own(len), &s.exp2_with(1.0, 1.0, 1.0))?;
        expect::exactly(&y, &vec![T::of(s.closed_sum()); len])?;
    }
    Ok(())
}

pub(super) fn neighbor_allreduce_dst_weight<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    averaged::<T>(s, &s.exp2_with(0.5, 1.0, 0.5), s.closed_sum() / 2.0)
}

pub(super) fn neighbor_allreduce_weighted_avg<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let want = match s.me {
        0 => super::mean_rank(s),
        r => f64::from(r) * (1.0 - 1.0 / f64::from(s.n)),
    };
    averaged::<T>(s, &s.round_of("star")?, want)
}

/// `count` averages in flight together; tensor i holds `x(i)`, and `want(i)` must come of it.
fn together<T: Number + Float>(
    s: &Scene,
    count: usize,
    round: &Round,
    x: impl Fn(usize) -> f64,
    want: impl Fn(usize) -> f64,
) -> Result<(), Trouble> {
    // Of unequal lengths, as BlueFog's are.
    let start = |i: usize| s.start_mix(vec![T::of(x(i)); LENGTHS[i % 2]], round);
    let flying: Vec<_> = (0..count).map(start).collect();
    for (i, work) in flying.into_iter().enumerate() {
        let y = work.wait().map_err(|f| f.error)?;
        expect::near(&y, |_| want(i))?;
    }
    Ok(())
}

pub(super) fn neighbor_allreduce_fusion<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let half = |i: usize| i as f64 / 2.0;
    let own = f64::from(s.me);
    let round = s.round_of("static-exp")?;
    together::<T>(
        s,
        2,
        &round,
        |i| own + half(i),
        |i| closed_mean(s) + half(i),
    )
}

pub(super) fn neighbor_allreduce_fusion_alot<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let own = f64::from(s.me);
    let round = s.round_of("static-exp")?;
    let want = |i| closed_mean(s) + i as f64;
    together::<T>(s, MANY, &round, |i| own + i as f64, want)
}

pub(super) fn neighbor_allreduce_dynamic_topo_fusion<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    let own = f64::from(s.me);
    let w = 1.0 / f64::from(s.degree() + 1);
    let want = |i| closed_mean(s) + i as f64;
    together::<T>(s, MANY, &s.exp2_with(w, w, 1.0), |i| own + i as f64, want)
}

pub(super) fn neighbor_allreduce_dst_weight_fusion<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    let (own, k) = (f64::from(s.me), MANY as f64);
    let entries = f64::from(s.degree() + 1);
    let want = |i| 0.5 * (k * s.closed_sum() + i as f64 * entries);
    let round = s.exp2_with(0.5, 1.0, 0.5);
    together::<T>(s, MANY, &round, |i| i as f64 + own * k, want)
}

/// The other rank of a pair of neighbouring numbers.
fn partner(s: &Scene) -> Rank {
    Rank(s.me ^ 1)
}

pub(super) fn pair_gossip<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let partner = partner(s);
    for len in LENGTHS {
        let mut x: Vec<T> = s.own(len);
        s.group.pair_gossip(&mut x, partner, s.next_round())?;
        expect::near(&x, |_| f64::from(s.me + partner.0) / 2.0)?;
    }
    Ok(())
}

pub(super) fn pair_gossip_weighted<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let partner = partner(s);
    let want = 0.25 * f64::from(s.me) + 0.75 * f64::from(partner.0);
    for len in LENGTHS {
        let mut x: Vec<T> = s.own(len);
        s.group
            .pair_gossip_weighted(&mut x, partner, 0.75, s.next_round())?;
        expect::near(&x, |_| want)?;
    }
    Ok(())
}
