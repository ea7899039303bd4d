//! Which topologies and step sizes a rule refuses, and what works instead.

use crate::recursion::{MARGIN, Recursion};
use gaggle_core::{MixingFacts, Stability, Unstable};

/// How near to 1 a contraction, or to −1 an eigenvalue, counts as being there.
const TOLERANCE: f64 = 1e-12;

pub(crate) fn unstable<R>(
    limit: impl Into<String>,
    instead: impl Into<String>,
) -> Result<R, Unstable> {
    Err(Unstable {
        limit: limit.into(),
        instead: instead.into(),
    })
}

pub(crate) fn check_lr(lr: f64) -> Result<Stability, Unstable> {
    if lr.is_finite() && lr >= 0.0 {
        return Ok(Stability::Stable);
    }
    unstable(
        format!("a step size of {lr} moves nowhere good"),
        "take a finite one that is not negative",
    )
}

/// What averages need that keep what the ranks have in common.
pub(crate) fn check_sums(facts: &MixingFacts) -> Result<(), Unstable> {
    if !facts.row_stochastic {
        return unstable(
            "the weights that some rank receives with do not sum to 1, so equal parameters would change",
            "scale every row to a sum of 1",
        );
    }
    if !facts.column_stochastic {
        return unstable(
            "the weights put on some rank do not sum to 1, so the average drifts towards the ranks that weigh more",
            "use doubly stochastic weights, as ring, static-exp and one-peer-exp have, or push weights with sgp",
        );
    }
    Ok(())
}

fn check_connected(facts: &MixingFacts) -> Result<(), Unstable> {
    if facts.connected {
        return Ok(());
    }
    unstable(
        format!(
            "in {} rounds some rank never hears of another, so the ranks part for good",
            facts.period
        ),
        "use a connected topology, such as ring or one-peer-exp",
    )
}

/// What averages need that keep what the ranks have in common and bring it to everybody.
pub(crate) fn check_means(facts: &MixingFacts) -> Result<(), Unstable> {
    check_sums(facts)?;
    check_connected(facts)
}

/// What every rule needs that averages parameters over neighbours. Within 10⁻⁹ of the circle it is [`Stability::Marginal`], as everywhere.
pub(crate) fn check_mixing(facts: &MixingFacts) -> Result<Stability, Unstable> {
    check_means(facts)?;
    if facts.contraction < 1.0 - MARGIN {
        return Ok(Stability::Stable);
    }
    if !facts.repeats {
        return Ok(Stability::Unchecked(format!(
            "the topology never repeats, and in its first {} rounds some disagreement does not shrink",
            facts.period
        )));
    }
    if facts.cycle == 0 {
        return unstable(
            format!(
                "in whatever order the {} rounds follow each other, what some rank has never reaches another, so the ranks part for good",
                facts.period
            ),
            KEEP,
        );
    }
    // A round that is no contraction in the norm may still be one over several rounds: then its spectrum says so.
    let average = Recursion::new([[0.0; 2]; 2], [[1.0, 0.0], [0.0, 0.0]]);
    average.check("averaging", facts, KEEP)
}

/// What helps where values only go round.
const KEEP: &str = "let every rank keep a part of its own value";

/// A step size and a topology for averaging parameters: all that most rules need.
///
/// Where what the ranks have only goes round, between groups of them, W has an eigenvalue on the circle away from 1, and gradients that come in beside the average (x⁺ = Wx − γh·x) push such a disagreement outwards, however small they are: that is refused, not only warned of.
pub(crate) fn check_gossip(facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
    check_lr(lr)?;
    let mixing = check_mixing(facts)?;
    if matches!(mixing, Stability::Marginal(_)) && facts.cycle != 1 {
        return unstable(
            format!(
                "in {} rounds disagreements shrink by a factor of {}, that is, not at all: values only go round among the ranks",
                facts.period, facts.contraction
            ),
            KEEP,
        );
    }
    Ok(mixing)
}

/// What push-sum needs: senders' shares that sum to one, and that in the end everybody has a part of everything, always: C^k → v1ᵀ with v above 0, as primitive matrices do.
pub(crate) fn check_push(facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
    check_lr(lr)?;
    if !facts.column_stochastic {
        return unstable(
            "the shares that some rank gives away do not sum to 1, so sums over the ranks are not kept",
            "column-stochastic weights: each sender divides by its own out-degree plus one (the push weights)",
        );
    }
    check_connected(facts)?;
    match facts.cycle {
        1 => Ok(Stability::Stable),
        0 => unstable(
            format!(
                "over {} rounds the shares are not strongly connected: what some rank has never reaches another, or some rank is left with nothing in a round, and there is nothing to divide by",
                facts.period
            ),
            "let every rank keep a share of its own",
        ),
        c => unstable(
            format!(
                "the shares are periodic: what the ranks have only goes round between {c} groups of them, and the push-sum weights oscillate for ever"
            ),
            "let some rank keep a share of its own, as all do with the push weights",
        ),
    }
}

/// AWC: x⁺ = Wx − γ∇f(x) grows without bound for every γ > 0 where W has the eigenvalue −1.
pub(crate) fn check_smallest_eigenvalue(facts: &MixingFacts) -> Result<(), Unstable> {
    match facts.lambda_min {
        Some(min) if min <= -1.0 + TOLERANCE => unstable(
            format!("averaging while computing needs 1 + λ_min(W) > 0, and λ_min is {min}"),
            "use the lazy weights (I + W)/2, or the orders atc or cta",
        ),
        _ => Ok(()),
    }
}

/// AWC on a symmetric W: γ < c(1 + λ_min), c the local step's [limit](crate::LocalRule::step_limit). With heavy ball c = (1 + β)/L: at the eigenvalue −1 of the recursion z² − (w + β − γh)z + βw, 1 + w + β + βw − γh must be positive for the smallest w and the largest h.
pub(crate) fn check_curvature(
    facts: &MixingFacts,
    lr: f64,
    step_limit: Option<f64>,
) -> Result<Stability, Unstable> {
    let (Some(min), Some(c)) = (facts.lambda_min, step_limit) else {
        return Ok(Stability::Unchecked(
            "which step sizes the curvature allows is known for SGD on symmetric weights only"
                .into(),
        ));
    };
    let limit = c * (1.0 + min);
    if lr < limit {
        return Ok(Stability::Stable);
    }
    unstable(
        format!(
            "averaging while computing is known to be stable for step sizes below {limit:.3e}, which 1 + λ_min and the curvature allow, not for {lr}"
        ),
        format!("take a step below {limit:.3e}, or the order atc"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalRule, Sgd, SgdConfig};
    use gaggle_core::{Modes, SparseMatrix};

    fn ring8() -> MixingFacts {
        MixingFacts {
            world: 8,
            period: 1,
            row_stochastic: true,
            column_stochastic: true,
            symmetric: true,
            connected: true,
            contraction: 0.804_738,
            lambda_min: Some(-1.0 / 3.0),
            repeats: true,
            tree: false,
            drawn: None,
            cycle: 1,
            keeps_nothing: None,
            modes: Modes::Between(-1.0 / 3.0, 0.804_738),
        }
    }

    fn said<R: std::fmt::Debug>(result: Result<R, Unstable>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn sound_facts_pass() {
        check_mixing(&ring8()).unwrap();
        check_smallest_eigenvalue(&ring8()).unwrap();
        check_lr(0.0).unwrap();
        let alone = MixingFacts {
            world: 1,
            contraction: 0.0,
            lambda_min: Some(1.0),
            ..ring8()
        };
        check_mixing(&alone).unwrap();
    }

    #[test]
    fn each_refusal_names_the_limit_and_the_way_out() {
        let bad = |change: fn(&mut MixingFacts)| {
            let mut facts = ring8();
            change(&mut facts);
            facts
        };
        let e = said(check_mixing(&bad(|f| f.row_stochastic = false)));
        assert!(
            e.contains("do not sum to 1, so equal parameters") && e.contains("scale every row")
        );
        let e = said(check_mixing(&bad(|f| f.column_stochastic = false)));
        assert!(
            e.contains("average drifts") && e.contains("one-peer-exp"),
            "{e}"
        );
        let e = said(check_mixing(&bad(|f| f.connected = false)));
        assert!(e.contains("part for good") && e.contains("ring"), "{e}");
        let e = said(check_gossip(
            &bad(|f| {
                f.contraction = 1.0;
                f.cycle = 2;
                f.modes = Modes::Between(-1.0, 0.5);
            }),
            0.1,
        ));
        assert!(e.contains("not at all") && e.contains("keep a part"), "{e}");
        // What is not known is not refused.
        let unknown = bad(|f| {
            f.contraction = 1.0;
            f.modes = Modes::Unknown;
        });
        assert!(matches!(
            check_mixing(&unknown),
            Ok(Stability::Unchecked(_))
        ));
        let e = said(check_smallest_eigenvalue(&bad(|f| {
            f.lambda_min = Some(-1.0)
        })));
        assert!(e.contains("λ_min is -1") && e.contains("(I + W)/2"), "{e}");
        for lr in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(said(check_lr(lr).map(drop)).contains("step size"));
        }
    }

    /// One band for all: within 10⁻⁹ of the circle a slow graph is let pass with a word, whatever the gradients do, and what is farther inside without one.
    #[test]
    fn slow_graphs_within_the_band_are_marginal_and_not_refused() {
        let slow = |gap: f64| MixingFacts {
            contraction: 1.0 - gap,
            modes: Modes::Between(-0.3, 1.0 - gap),
            ..ring8()
        };
        for gap in [1e-10, 1e-13, 0.0] {
            for checked in [check_mixing(&slow(gap)), check_gossip(&slow(gap), 0.1)] {
                let Ok(Stability::Marginal(why)) = checked else {
                    panic!("{gap}: {checked:?}");
                };
                assert!(why.contains("does not shrink"), "{why}");
            }
        }
        for gap in [1e-8, 1e-3] {
            assert_eq!(check_mixing(&slow(gap)).unwrap(), Stability::Stable);
            assert_eq!(check_gossip(&slow(gap), 0.1).unwrap(), Stability::Stable);
        }
        let over = MixingFacts {
            contraction: 1.1,
            modes: Modes::Between(-1.1, 0.5),
            ..ring8()
        };
        assert!(said(check_mixing(&over)).contains("grows by a factor of 1.1"));
    }

    /// L = 0.989975 on the ring of 8: limit (2/3)/L = 0.6734 without momentum, 1.9 times that with β = 0.9, 1.9/2.8 times with Nesterov's step.
    #[test]
    fn curvature_limits_averaging_while_computing() {
        let l = 0.989_975;
        let limit = |momentum, nesterov, weight_decay| {
            let sgd: Sgd<f64> = Sgd::new(SgdConfig {
                momentum,
                nesterov,
                weight_decay,
                ..SgdConfig::default()
            })
            .unwrap();
            sgd.step_limit(l)
        };
        for (limit, below, above) in [
            (limit(0.0, false, 0.0), 0.67, 0.68),
            (limit(0.9, false, 0.0), 1.27, 1.28),
            (limit(0.9, true, 0.0), 0.45, 0.46),
            (limit(0.0, false, 0.1), 0.61, 0.62),
        ] {
            check_curvature(&ring8(), below, limit).unwrap();
            let e = said(check_curvature(&ring8(), above, limit).map(drop));
            assert!(e.contains("atc"), "{e}");
        }
        let e = said(check_curvature(&ring8(), 0.68, limit(0.0, false, 0.0)).map(drop));
        assert!(e.contains("6.734e-1"), "{e}");
        let directed = MixingFacts {
            lambda_min: None,
            ..ring8()
        };
        for unknown in [
            check_curvature(&directed, 100.0, limit(0.0, false, 0.0)),
            check_curvature(&ring8(), 100.0, None),
        ] {
            assert!(matches!(unknown, Ok(Stability::Unchecked(_))));
        }
    }
    /// Every rank hears of two others with weight ½ each: W² = J, though ‖W − J‖ is 1. And a ring without own values only turns.
    #[test]
    fn what_averages_over_several_rounds_is_told_from_what_never_does() {
        let bruijn = |i: usize, j: usize| match j == 2 * i % 4 || j == (2 * i + 1) % 4 {
            true => 0.5,
            false => 0.0,
        };
        let turning = |i: usize, j: usize| f64::from(u8::from((i + 1) % 4 == j));
        let facts = |w: &dyn Fn(usize, usize) -> f64| MixingFacts {
            world: 4,
            symmetric: false,
            contraction: 1.0,
            lambda_min: None,
            cycle: 1,
            modes: Modes::Sparse(vec![SparseMatrix::new(4, |i| {
                (0..4).map(|j| (j, w(i, j))).collect::<Vec<_>>()
            })]),
            ..ring8()
        };
        check_mixing(&facts(&bruijn)).unwrap();
        check_push(&facts(&bruijn), 0.1).unwrap();
        let turning = MixingFacts {
            cycle: 4,
            ..facts(&turning)
        };
        let e = said(check_gossip(&turning, 0.1));
        assert!(e.contains("not at all"), "{e}");
        assert!(matches!(check_mixing(&turning), Ok(Stability::Marginal(_))));
        let e = said(check_push(&turning, 0.1));
        assert!(e.contains("periodic") && e.contains("4 groups"), "{e}");
    }
}
