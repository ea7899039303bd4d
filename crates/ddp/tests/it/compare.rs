//! Models and values that differ between ranks, and distances.

use crate::ranks::{BACKENDS, Backend, WORLDS, run};
use gaggle_core::Rank;
use gaggle_ddp::{
    BucketConfig, Ddp, DdpConfig, DdpError, ParamSpec, PlainMean, compare_digests,
    consensus_distance, digest, gather_digests,
};
use std::sync::Arc;

fn model(n: usize) -> Vec<ParamSpec> {
    (0..n)
        .map(|i| ParamSpec::new(format!("layer{i}"), [i + 1, 2]))
        .collect()
}

/// Every rank builds its model by `specs`; all get one error.
fn mismatch(backend: Backend, n: u32, specs: impl Fn(u32) -> Vec<ParamSpec> + Sync) -> DdpError {
    let mut errors = run(backend, n, |group| {
        let mine = specs(group.rank().0);
        Ddp::<f32>::new(group, &mine, Arc::new(PlainMean), DdpConfig::default()).unwrap_err()
    });
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|t| t == &texts[0]), "{texts:?}");
    errors.remove(0)
}

#[test]
fn the_first_differing_parameter_and_the_ranks_are_named() {
    for &backend in BACKENDS {
        for odd_one in [0usize, 1, 6, 9] {
            let e = mismatch(backend, 3, |rank| {
                let mut m = model(10);
                if rank == 1 {
                    m[odd_one].shape[1] = 3;
                }
                m
            });
            assert_eq!(
                e.to_string(),
                format!(
                    "rank 1 differs: parameter {odd_one}: ranks 0 and 2 have \"layer{odd_one}\" [{0}, 2]; rank 1 has \"layer{odd_one}\" [{0}, 3]",
                    odd_one + 1
                )
            );
            assert_eq!(e.culprits(), [Rank(1)]);
        }
    }
}

#[test]
fn swapped_and_missing_parameters_are_found() {
    for &backend in BACKENDS {
        let e = mismatch(backend, 5, |rank| {
            let mut m = vec![ParamSpec::new("a", [2]), ParamSpec::new("b", [2])];
            if rank == 4 {
                m.swap(0, 1);
            }
            m
        });
        assert_eq!(
            e.to_string(),
            "rank 4 differs: parameter 0: ranks 0, 1, 2 and 3 have \"a\" [2]; rank 4 has \"b\" [2]"
        );
        let e = mismatch(backend, 2, |rank| model(3 - rank as usize));
        assert_eq!(
            e.to_string(),
            "ranks 0 and 1 differ: parameter 2: rank 0 has \"layer2\" [3, 2]; rank 1 has only 2 parameters"
        );
        let e = mismatch(backend, 3, |rank| model(if rank == 2 { 0 } else { 1 }));
        assert_eq!(e.culprits(), [Rank(2)]);
        assert!(
            e.to_string().ends_with("rank 2 has only 0 parameters"),
            "{e}"
        );
    }
}

#[test]
fn other_settings_and_types_are_found_before_anything_else() {
    for &backend in BACKENDS {
        let errors = run(backend, 3, |group| {
            let mut config = DdpConfig::default();
            if group.rank() == Rank(0) {
                config.buckets = BucketConfig {
                    cap_bytes: 7,
                    ..config.buckets
                };
            }
            Ddp::<f32>::new(group, &model(2), Arc::new(PlainMean), config).unwrap_err()
        });
        for e in errors {
            assert!(e.to_string().starts_with("rank 0 differs: settings"), "{e}");
            assert!(e.to_string().contains("buckets of 7 bytes"), "{e}");
        }
        let errors = run(backend, 3, |group| {
            let config = DdpConfig::default();
            if group.rank() == Rank(2) {
                Ddp::<f64>::new(group, &model(2), Arc::new(PlainMean), config).map(drop)
            } else {
                Ddp::<f32>::new(group, &model(2), Arc::new(PlainMean), config).map(drop)
            }
            .unwrap_err()
            .to_string()
        });
        assert_eq!(
            errors,
            ["rank 2 differs: element type: ranks 0 and 1 have f32; rank 2 has f64"; 3]
        );
    }
}

#[test]
fn broadcast_makes_values_equal_and_verify_says_whether_they_are() {
    for &backend in BACKENDS {
        for n in WORLDS {
            run(backend, n, |group| {
                let rank = group.rank().0;
                let root = Rank(n - 1);
                let specs = [ParamSpec::new("a", [3]), ParamSpec::new("b", [2])];
                let ddp = Ddp::<f32>::new(group, &specs, Arc::new(PlainMean), DdpConfig::default())
                    .unwrap();
                let a = [1.0f32; 3];
                let mut b = [rank as f32; 2];
                if n > 1 {
                    let e = ddp.verify_values(&[&a, &b]).unwrap_err();
                    assert!(e.to_string().contains(": parameter 1: "), "{e}");
                    assert!(e.to_string().contains("\"b\" with digest"), "{e}");
                }
                let mut a = a;
                ddp.broadcast_from(root, &mut [&mut a, &mut b]).unwrap();
                assert_eq!(b, [(n - 1) as f32; 2]);
                ddp.verify_values(&[&a, &b]).unwrap();
                assert!(matches!(
                    ddp.verify_values(&[&a]),
                    Err(DdpError::WrongCount { want: 2, got: 1 })
                ));
                assert!(matches!(
                    ddp.verify_values(&[&a, &a]),
                    Err(DdpError::WrongLength { .. })
                ));
            });
        }
    }
}

#[test]
fn digests_are_compared_and_the_odd_one_named() {
    for &backend in BACKENDS {
        for n in WORLDS {
            run(backend, n, |group| {
                let rank = group.rank().0;
                compare_digests(&group, "parameters", digest(&[1.5f32, 2.0])).unwrap();
                let mine = digest(&[f64::from(rank)]);
                let all = gather_digests(&group, mine).unwrap();
                assert_eq!(all.len(), n as usize);
                assert_eq!(all[rank as usize], mine);
                if n > 2 {
                    let odd = digest(&[u8::from(rank == 1)]);
                    let e = compare_digests(&group, "parameters", odd).unwrap_err();
                    assert_eq!(e.culprits(), [Rank(1)]);
                    assert!(
                        e.to_string().starts_with("rank 1 differs: parameters: "),
                        "{e}"
                    );
                }
            });
        }
    }
}

/// xᵢ = (i, 0): the variance of 0..n−1 is (n² − 1)/12.
#[test]
fn consensus_distance_is_the_root_mean_square() {
    for &backend in BACKENDS {
        for n in WORLDS {
            let d = run(backend, n, |group| {
                let x = [group.rank().0 as f32, 0.0];
                (
                    consensus_distance(&group, &x).unwrap(),
                    consensus_distance::<f32>(&group, &[]).unwrap(),
                    consensus_distance(&group, &[0.1f64]).unwrap(),
                )
            });
            let want = (f64::from(n * n - 1) / 12.0).sqrt();
            for (d, empty, equal) in d {
                assert!((d - want).abs() < 1e-12, "{d} for {want}");
                assert_eq!(empty, 0.0);
                assert!(equal < 1e-15, "{equal}");
            }
        }
    }
}
