//! Rules under buckets: the same digits as without, and mistakes by name.

use crate::ranks::{BACKENDS, WORLDS, run};
use gaggle_core::{Group, Lane};
use gaggle_ddp::{BucketConfig, DdpError, NeighbourMixer, ParamSpec, RuleDdp};
use gaggle_optim::{Decentralised, RuleConfig, rule_by_name};
use gaggle_topology::by_name;

const LENS: [usize; 4] = [3, 1, 0, 4];
const TOTAL: usize = 8;

fn specs() -> Vec<ParamSpec> {
    let spec = |(i, len): (usize, &usize)| ParamSpec::new(format!("p{i}"), [*len]);
    LENS.iter().enumerate().map(spec).collect()
}

/// Two parameters in the last bucket, the others each in one.
const PAIRED: BucketConfig = BucketConfig {
    cap_bytes: 0,
    first_bytes: 4 * 8,
};

fn ddp(group: &Group, rule: &str, lane: u32) -> RuleDdp<f64> {
    let topology = by_name("one-peer-exp", group.size()).unwrap();
    let mixer = NeighbourMixer::on_lanes(group.clone(), topology, Lane(lane)).unwrap();
    let rule = rule_by_name(rule, &RuleConfig::default()).unwrap();
    RuleDdp::unchecked(&specs(), &PAIRED, rule, Box::new(mixer), vec![0.5; TOTAL]).unwrap()
}

fn gradient(group: &Group, x: &[f64]) -> Vec<f64> {
    let own = f64::from(group.rank().0);
    x.iter()
        .enumerate()
        .map(|(k, x)| x - own - k as f64)
        .collect()
}

/// Gradients from the back of the model, and from another thread.
fn step(ddp: &mut RuleDdp<f64>, group: &Group) -> Vec<f64> {
    ddp.begin_step(0.1).unwrap();
    let mut x = vec![0.0; TOTAL];
    let mut rest = &mut x[..];
    for (idx, len) in LENS.iter().enumerate() {
        let (own, others) = rest.split_at_mut(*len);
        ddp.parameter(idx, own).unwrap();
        rest = others;
    }
    let g = gradient(group, &x);
    let feed = ddp.feed();
    std::thread::scope(|s| {
        s.spawn(move || {
            let mut end = TOTAL;
            for (idx, len) in LENS.iter().enumerate().rev() {
                feed.ready(idx, &g[end - len..end]).unwrap();
                end -= len;
            }
        });
    });
    ddp.finish().unwrap().to_vec()
}

#[test]
fn buckets_and_threads_change_no_digit() {
    for &backend in BACKENDS {
        for n in WORLDS {
            run(backend, n, |group| {
                for (lane, rule) in [(600, "dmsgd"), (700, "dmsgd-awc"), (800, "dsgd-cta")] {
                    let mut ddp = ddp(&group, rule, lane);
                    let topology = by_name("one-peer-exp", n as usize).unwrap();
                    let other = Lane(lane + 50);
                    let mixer = NeighbourMixer::on_lanes(group.clone(), topology, other);
                    let rule = rule_by_name(rule, &RuleConfig::default()).unwrap();
                    let mut whole = Decentralised::unchecked(rule, Box::new(mixer.unwrap()), TOTAL);
                    let mut x = vec![0.5; TOTAL];
                    for _ in 0..6 {
                        whole.before_forward(0.1, &mut x).unwrap();
                        let g = gradient(&group, &x);
                        whole.step(0.1, &mut x, &g).unwrap();
                        assert_eq!(step(&mut ddp, &group), x);
                    }
                }
            });
        }
    }
}

#[test]
fn mistakes_are_named_and_change_nothing() {
    run(BACKENDS[0], 1, |group| {
        let mut ddp = ddp(&group, "dmsgd", 600);
        assert_eq!(ddp.buckets(), [0..3, 3..4, 4..8]);
        let e = ddp.ready(0, &[0.0; 3]).unwrap_err();
        assert!(matches!(e, DdpError::NoStep { call: "ready" }), "{e}");
        assert!(matches!(
            ddp.finish(),
            Err(DdpError::NoStep { call: "finish" })
        ));
        let e = ddp.parameter(0, &mut [0.0; 3]).unwrap_err();
        assert!(matches!(e, DdpError::NoStep { call: "parameter" }), "{e}");
        ddp.begin_step(0.1).unwrap();
        assert!(matches!(ddp.begin_step(0.1), Err(DdpError::StepOpen)));
        assert!(matches!(ddp.set_micro_batches(2), Err(DdpError::StepOpen)));
        let e = ddp.ready(4, &[]).unwrap_err();
        assert!(
            matches!(e, DdpError::UnknownParameter { idx: 4, count: 4 }),
            "{e}"
        );
        let e = ddp.ready(3, &[0.0; 3]).unwrap_err();
        assert!(
            matches!(&e, DdpError::WrongLength { name, want: 4, got: 3 } if name == "p3"),
            "{e}"
        );
        ddp.ready(3, &[1.0; 4]).unwrap();
        let e = ddp.ready(3, &[1.0; 4]).unwrap_err();
        assert!(
            matches!(&e, DdpError::ReadyTwice { name } if name == "p3"),
            "{e}"
        );
        ddp.ready(1, &[1.0]).unwrap();
        let e = ddp.finish().unwrap_err();
        assert!(
            matches!(&e, DdpError::MissingGradients { names, count: 4 } if *names == ["p0", "p2"]),
            "{e}"
        );
        ddp.ready(2, &[]).unwrap();
        ddp.ready(0, &[1.0; 3]).unwrap();
        // The bucket is full, and on its way.
        let e = ddp.ready(0, &[1.0; 3]).unwrap_err();
        assert!(matches!(e, DdpError::ReadyTwice { .. }), "{e}");
        assert_eq!(ddp.finish().unwrap(), [0.4; TOTAL]);

        let short = vec![0.0; 5];
        let rule = || rule_by_name("dmsgd", &RuleConfig::default()).unwrap();
        let mixer = NeighbourMixer::new(group.clone(), by_name("ring", 1).unwrap()).unwrap();
        let made = RuleDdp::unchecked(&specs(), &PAIRED, rule(), Box::new(mixer), short);
        let text = made.err().unwrap().to_string();
        assert!(text.contains("8 elements, there are 5"), "{text}");
    });
}

#[test]
fn micro_batches_count_by_parameter() {
    run(BACKENDS[0], 1, |group| {
        let mut ddp = ddp(&group, "dsgd-atc", 600);
        ddp.set_micro_batches(2).unwrap();
        ddp.begin_step(1.0).unwrap();
        for g in [1.0, 10.0] {
            for (idx, len) in LENS.iter().enumerate() {
                ddp.ready(idx, &vec![g; *len]).unwrap();
            }
        }
        assert_eq!(ddp.finish().unwrap(), [-10.5; TOTAL]);
    });
}
