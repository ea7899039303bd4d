//! Which topologies and step sizes a rule refuses, and what works instead.

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

/// What every rule needs that averages parameters over neighbours.
pub(crate) fn check_mixing(facts: &MixingFacts) -> Result<(), Unstable> {
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
    if !facts.connected {
        return unstable(
            format!(
                "in {} rounds some rank never hears of another, so the ranks part for good",
                facts.period
            ),
            "use a connected topology, such as ring or one-peer-exp",
        );
    }
    if facts.contraction >= 1.0 - TOLERANCE {
        return unstable(
            format!(
                "in {} rounds disagreements shrink by a factor of {}, that is, not at all",
                facts.period, facts.contraction
            ),
            "let every rank keep a part of its own value",
        );
    }
    Ok(())
}

/// A step size and a topology for averaging parameters: all that most rules need.
pub(crate) fn check_gossip(facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
    check_mixing(facts)?;
    check_lr(lr)
}

/// What push-sum needs: senders' shares that sum to one, and ways from everybody to everybody.
pub(crate) fn check_push(facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
    if !facts.column_stochastic {
        return unstable(
            "the shares that some rank gives away do not sum to 1, so sums over the ranks are not kept",
            "column-stochastic weights: each sender divides by its own out-degree plus one (the push weights)",
        );
    }
    if !facts.connected {
        return check_mixing(facts).map(|()| Stability::Stable);
    }
    check_lr(lr)
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

/// AWC on a symmetric W: γL < (1 + β)(1 + λ_min). At the eigenvalue −1 of the recursion z² − (w + β − γh)z + βw, 1 + w + β + βw − γh must be positive for the smallest w and the largest h.
pub(crate) fn check_curvature(
    facts: &MixingFacts,
    lr: f64,
    smoothness: f64,
    momentum: f64,
) -> Result<(), Unstable> {
    let Some(min) = facts.lambda_min else {
        return Ok(());
    };
    let limit = (1.0 + momentum) * (1.0 + min) / smoothness;
    if lr < limit {
        return Ok(());
    }
    unstable(
        format!(
            "averaging while computing is known to be stable for step sizes below (1 + β)(1 + λ_min)/L = {limit:.3e}, not for {lr}"
        ),
        format!("take a step below {limit:.3e}, or the order atc"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::Modes;

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
            modes: Modes::Between(-1.0 / 3.0, 0.804_738),
        }
    }

    fn said(result: Result<(), Unstable>) -> String {
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
        let e = said(check_mixing(&bad(|f| f.contraction = 1.0)));
        assert!(e.contains("not at all") && e.contains("keep a part"), "{e}");
        let e = said(check_smallest_eigenvalue(&bad(|f| {
            f.lambda_min = Some(-1.0)
        })));
        assert!(e.contains("λ_min is -1") && e.contains("(I + W)/2"), "{e}");
        for lr in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(said(check_lr(lr).map(drop)).contains("step size"));
        }
    }

    /// L = 0.989975 on the ring of 8: limit (2/3)/L = 0.6734 without momentum, 1.9 times that with β = 0.9.
    #[test]
    fn curvature_limits_averaging_while_computing() {
        let l = 0.989_975;
        check_curvature(&ring8(), 0.67, l, 0.0).unwrap();
        let e = said(check_curvature(&ring8(), 0.68, l, 0.0));
        assert!(e.contains("6.734e-1") && e.contains("atc"), "{e}");
        check_curvature(&ring8(), 1.27, l, 0.9).unwrap();
        assert!(check_curvature(&ring8(), 1.28, l, 0.9).is_err());
        let directed = MixingFacts {
            lambda_min: None,
            ..ring8()
        };
        check_curvature(&directed, 100.0, l, 0.0).unwrap();
    }
}
