//! The mixer over a group against dense matrices.

use crate::ranks::{BACKENDS, Numbers, WORLDS, run};
use gaggle_core::{Codec, Cx, Exchange, Form, Mixer, Rank, Round, Topology, With};
use gaggle_ddp::NeighbourMixer;
use gaggle_optim::{
    Decentralised, RuleConfig, rule_by_name,
    testing::{DenseMixer, lockstep},
};
use gaggle_topology::by_name;
use std::sync::Arc;

/// Rank r averages with r − 2^(t mod τ), half and half: the one-peer exponential graph, written out here so that the test depends on no other crate's.
struct OnePeer(usize);

impl OnePeer {
    fn hops(&self) -> Vec<usize> {
        (0..).map(|k| 1 << k).take_while(|h| *h < self.0).collect()
    }

    fn hop(&self, t: u64) -> Option<usize> {
        let hops = self.hops();
        (!hops.is_empty()).then(|| hops[t as usize % hops.len()])
    }
}

impl Topology for OnePeer {
    fn name(&self) -> &str {
        "one-peer"
    }
    fn world(&self) -> usize {
        self.0
    }
    fn period(&self) -> Option<u64> {
        Some(self.hops().len().max(1) as u64)
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        out.from.clear();
        out.to.clear();
        out.form = Form::Delta;
        out.keep = 1.0;
        if let Some(h) = self.hop(t) {
            let (n, r) = (self.0, rank.idx());
            out.keep = 0.5;
            out.from.push((Rank(((r + n - h) % n) as u32), 0.5));
            out.to.push((Rank(((r + h) % n) as u32), 1.0));
        }
    }
}

fn exchange(slot: usize, with: With, codec: Codec) -> impl Fn(u64) -> Exchange {
    move |t| Exchange::new(with, &Cx::at(t, 0.1)).slot(slot).coded(codec)
}

fn message(rank: usize, t: u64, slot: usize, len: usize) -> Vec<f64> {
    let mut numbers = Numbers::new(1 + rank as u64 + 31 * t + 1009 * slot as u64);
    (0..len).map(|_| numbers.unit()).collect()
}

#[test]
fn two_slots_at_once_equal_the_dense_means() {
    const LEN: usize = 11;
    for &backend in BACKENDS {
        for n in WORLDS {
            run(backend, n, |group| {
                let (rank, world) = (group.rank().idx(), n as usize);
                let mut mixer =
                    NeighbourMixer::<f64>::new(group, Box::new(OnePeer(world))).unwrap();
                let meter = mixer.meter();
                assert_eq!((mixer.rank().idx(), mixer.world()), (rank, world));
                for t in 0..7 {
                    for (slot, with) in [(0, With::Neighbours), (1, With::Everyone)] {
                        mixer
                            .outbox(slot, LEN)
                            .copy_from_slice(&message(rank, t, slot, LEN));
                        mixer
                            .start(&exchange(slot, with, Codec::None)(t), t)
                            .unwrap();
                    }
                    // Finished in the other order than started.
                    mixer.finish(1).unwrap();
                    mixer.finish(0).unwrap();
                    let from = OnePeer(world)
                        .hop(t)
                        .map_or(rank, |h| (rank + world - h) % world);
                    let (own, theirs) = (message(rank, t, 0, LEN), message(from, t, 0, LEN));
                    for i in 0..LEN {
                        let want = (own[i] + theirs[i]) / 2.0;
                        assert!((mixer.mean(0)[i] - want).abs() < 1e-15);
                        let all: f64 = (0..world).map(|r| message(r, t, 1, LEN)[i]).sum();
                        assert!((mixer.mean(1)[i] - all / f64::from(n)).abs() < 1e-14);
                    }
                }
                assert_eq!(meter.report().exchanges, 14);
            });
        }
    }
}

#[test]
fn bf16_is_passed_on() {
    for &backend in BACKENDS {
        run(backend, 3, |group| {
            let rank = group.rank().idx();
            let mut mixer = NeighbourMixer::<f32>::new(group, Box::new(OnePeer(3))).unwrap();
            for (t, with) in [(0, With::Neighbours), (1, With::Everyone)] {
                mixer.outbox(0, 1)[0] = 1.0 + rank as f32 / 8.0 + 1e-4;
                mixer.start(&exchange(0, with, Codec::Bf16)(t), t).unwrap();
                mixer.finish(0).unwrap();
            }
            // Multiples of 1/8 near 1 are bf16 numbers, the 1e-4 is below its resolution.
            assert!((mixer.mean(0)[0] - 1.125).abs() < 1e-6);
        });
    }
}

#[test]
fn calls_out_of_order_are_refused() {
    let group = crate::fake::world(1, std::time::Duration::from_secs(60)).remove(0);
    let e = NeighbourMixer::<f64>::new(group.clone(), Box::new(OnePeer(2)))
        .map(drop)
        .unwrap_err();
    assert_eq!(
        e.to_string(),
        "mixer: topology one-peer is made for 2 ranks, the group has 1"
    );
    let mut mixer = NeighbourMixer::<f64>::new(group, Box::new(OnePeer(1))).unwrap();
    let x = exchange(0, With::Neighbours, Codec::None)(0);
    assert!(mixer.finish(0).is_err());
    assert!(mixer.start(&x, 0).is_err());
    mixer.outbox(0, 2).fill(3.0);
    assert!(mixer.finish(0).is_err());
    mixer.start(&x, 0).unwrap();
    assert!(mixer.start(&x, 1).is_err());
    mixer.finish(0).unwrap();
    assert_eq!(mixer.mean(0), [3.0, 3.0]);
}

const DIM: usize = 3;
const STEPS: u64 = 40;

/// f(x) = Σᵢ aᵢ(xᵢ − cᵢ)²/2 with other a and c on every rank.
fn gradient(rank: usize, x: &[f64]) -> Vec<f64> {
    x.iter()
        .enumerate()
        .map(|(i, x)| (1.0 + 0.1 * i as f64) * (x - (rank * DIM + i) as f64))
        .collect()
}

/// Settings with which rare exchanges come within these steps.
fn config() -> RuleConfig {
    RuleConfig {
        fragments: 2,
        delay: 1,
        ..RuleConfig::default()
    }
}

/// All ranks in one thread, phase by phase, on the dense matrix.
fn dense(rule: &str, topology: &str, n: usize) -> Vec<Vec<f64>> {
    let mut drivers: Vec<_> = DenseMixer::of(Arc::from(by_name(topology, n).unwrap()))
        .into_iter()
        .map(|mixer| {
            let rule = rule_by_name::<f64>(rule, &config()).unwrap();
            Decentralised::unchecked(rule, Box::new(mixer), DIM)
        })
        .collect();
    let mut x = vec![vec![0.0; DIM]; n];
    for _ in 0..STEPS {
        lockstep(&mut drivers, 0.05, &mut x, |r, x, g| {
            g.copy_from_slice(&gradient(r, x))
        })
        .unwrap();
    }
    x
}

#[test]
fn rules_over_the_group_equal_the_dense_computation() {
    for &backend in BACKENDS {
        for n in WORLDS {
            for (rule, topology) in [
                ("dmsgd", "one-peer-exp"),
                ("dmsgd", "ring"),
                ("dmsgd-awc", "static-exp"),
                ("qg-dmsgd", "one-peer-exp"),
                ("allreduce-msgd", "ring"),
                // Two messages one after the other, two vectors in one, a scalar behind them.
                ("gt-atc", "one-peer-exp"),
                ("momentum-tracking", "ring"),
                ("push-diging", "static-exp"),
                ("gossip-pga", "ring"),
            ] {
                let want = dense(rule, topology, n as usize);
                let got = run(backend, n, |group| {
                    let rank = group.rank().idx();
                    let graph = by_name(topology, n as usize).unwrap();
                    let mixer = NeighbourMixer::<f64>::new(group, graph).unwrap();
                    let rule = rule_by_name::<f64>(rule, &config()).unwrap();
                    let mut driver = Decentralised::unchecked(rule, Box::new(mixer), DIM);
                    let mut x = vec![0.0; DIM];
                    for _ in 0..STEPS {
                        driver.before_forward(0.05, &mut x).unwrap();
                        let g = gradient(rank, &x);
                        driver.step(0.05, &mut x, &g).unwrap();
                    }
                    x
                });
                for (got, want) in got.concat().iter().zip(want.concat()) {
                    // |x| is below 50 and rounding errors contract with the iteration.
                    assert!(
                        (got - want).abs() < 1e-11,
                        "{backend:?} {rule} on {topology} of {n}: {got} for {want}"
                    );
                }
            }
        }
    }
}
