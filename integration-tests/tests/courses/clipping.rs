//! Gradients that are cut: every rank its own, over all its parameters together, before anything is exchanged.

use crate::{
    differences,
    plain::{Plain, Rows, Weights, gradient},
};
use gaggle::optim::{Clip, RuleConfig};
use gaggle_integration_tests::drive::{Case, LR, STEPS, named};
use std::cell::Cell;

/// Some ranks are above it in some steps, others are not.
const LONGEST: f64 = 2.5;

fn norm(g: &[f64]) -> f64 {
    g.iter().map(|g| g * g).sum::<f64>().sqrt()
}

#[test]
fn each_rank_cuts_its_own_gradient_over_all_its_parameters() {
    let mut wrong = vec![];
    for rule in [
        "allreduce-sgd",
        "dsgd-atc",
        "dsgd-awc",
        "dmsgd",
        "qg-dmsgd",
        "d2",
        "gt-atc",
        "momentum-tracking",
        "dadamw-atc",
    ] {
        for n in [1, 2, 3, 5, 8] {
            // How many gradients were cut, of how many.
            let (cut, all) = (Cell::new(0), Cell::new(0));
            let cut_rows = |x: &Rows| {
                let row = |g: Vec<f64>| -> Vec<f64> {
                    let long = norm(&g);
                    all.set(all.get() + 1);
                    if long <= LONGEST {
                        return g;
                    }
                    cut.set(cut.get() + 1);
                    g.iter().map(|g| g * (LONGEST / long)).collect()
                };
                Rows(gradient(x).0.into_iter().map(row).collect())
            };
            let plain = Plain {
                n,
                steps: STEPS,
                w: Weights::ring(n).lazy(),
                gamma: &|_| LR,
                gradient: &cut_rows,
            };
            let want = plain.run(rule);
            let some = cut.get() > 0 && cut.get() < all.get();
            assert!(n < 5 || some, "{rule} of {n}: {cut:?} of {all:?} are cut");
            let case = Case {
                config: RuleConfig {
                    clip: Some(Clip::Norm(LONGEST)),
                    ..RuleConfig::default()
                },
                graph: named("lazy-ring"),
                ..Case::of(rule)
            };
            wrong.extend(differences(&case, &want));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
