//! Where BlueFog's own code goes wrong, from reports and from reading it; here the right outcome.

use super::{
    Case, Scene, Worlds, expect,
    scene::{LENGTHS, MANY},
    typed,
};
use crate::work::{Number, Trouble};
use gaggle::{Float, Rank, Round};

pub(super) const CASES: &[Case] = &[
    typed!(
        "trial_15",
        weights_for_a_subset_of_the_in_neighbours,
        F,
        Worlds::From(2),
        "each weight meets its own rank, whoever else sends"
    ),
    typed!(
        "trial_15",
        uniform_weights_for_a_subset_of_the_in_neighbours,
        F,
        Worlds::From(2),
        "the mean of the subset and oneself, not of all"
    ),
    typed!(
        "trial_15",
        fused_tensors_on_a_star_around_any_rank,
        F,
        Worlds::All,
        "centre (n − 1)/2 + i, leaf (r + c)/2 + i: nobody's memory is sized by another's degree"
    ),
    typed!(
        "trial_15",
        no_sources,
        F,
        Worlds::All,
        "½r, and the input is not modified"
    ),
];

/// Which of a rank's in-neighbours count: all but the first, or, where there is only one, none.
fn chosen(s: &Scene, rank: u32) -> Vec<u32> {
    s.in_exp2(rank).split_off(1)
}

/// x = 1 + r², so that no two sets of ranks are taken for each other.
fn distinct(rank: u32) -> f64 {
    f64::from(1 + rank * rank)
}

/// The average with `weight` for the chosen, and `keep` for the own value: once all in-neighbours send, and those left out weigh nothing; once only the chosen send.
fn subset<T: Number + Float>(
    s: &Scene,
    keep: f64,
    weight: impl Fn(u32) -> f64,
) -> Result<(), Trouble> {
    let chosen_here = chosen(s, s.me);
    let others: f64 = chosen_here.iter().map(|j| weight(*j) * distinct(*j)).sum();
    let want = keep * distinct(s.me) + others;
    let all_send = Round {
        from: s
            .in_exp2(s.me)
            .into_iter()
            .map(|j| {
                (
                    Rank(j),
                    if chosen_here.contains(&j) {
                        weight(j)
                    } else {
                        0.0
                    },
                )
            })
            .collect(),
        to: s
            .out_exp2(s.me)
            .into_iter()
            .map(|j| (Rank(j), 1.0))
            .collect(),
        keep,
        ..Round::default()
    };
    let chosen_send = Round {
        from: chosen_here.iter().map(|j| (Rank(*j), weight(*j))).collect(),
        to: s
            .out_exp2(s.me)
            .into_iter()
            .filter(|j| chosen(s, *j).contains(&s.me))
            .map(|j| (Rank(j), 1.0))
            .collect(),
        keep,
        ..Round::default()
    };
    for round in [all_send, chosen_send] {
        for len in LENGTHS {
            let x = vec![T::of(distinct(s.me)); len];
            expect::near(&s.mixed(&x, &round)?, |_| want)?;
        }
    }
    Ok(())
}

fn weights_for_a_subset_of_the_in_neighbours<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    subset::<T>(s, 0.25, |j| 1.0 / f64::from(2 + j))
}

fn uniform_weights_for_a_subset_of_the_in_neighbours<T: Number + Float>(
    s: &Scene,
) -> Result<(), Trouble> {
    let w = 1.0 / (chosen(s, s.me).len() + 1) as f64;
    subset::<T>(s, w, |_| w)
}

fn fused_tensors_on_a_star_around_any_rank<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    for centre in 0..s.n {
        let round = s.unweighted(&format!("star:{centre}"))?;
        let want = match s.me == centre {
            true => f64::from(s.n - 1) / 2.0,
            false => f64::from(s.me + centre) / 2.0,
        };
        let tensor = |i: usize| vec![T::of(f64::from(s.me) + i as f64); LENGTHS[i % 2]];
        let flying: Vec<_> = (0..MANY).map(|i| s.start_mix(tensor(i), &round)).collect();
        for (i, work) in flying.into_iter().enumerate() {
            let y = work.wait().map_err(|f| f.error)?;
            expect::near(&y, |_| want + i as f64)?;
        }
    }
    Ok(())
}

fn no_sources<T: Number + Float>(s: &Scene) -> Result<(), Trouble> {
    let round = Round {
        keep: 0.5,
        ..Round::default()
    };
    for len in LENGTHS {
        // `mixed` compares the input with what it was.
        let y = s.mixed::<T>(&s.own(len), &round)?;
        expect::near(&y, |_| f64::from(s.me) / 2.0)?;
    }
    Ok(())
}
