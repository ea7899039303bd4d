//! `torch_optimizer`: a linear model learned by Adam on every rank, with every way to average; f64.
//!
//! Y = XA + E, 16 inputs, 3 outputs and an offset, E of size 10⁻⁵; 1024 samples per rank, batches of 128, 50 epochs, Adam with step size 0.01·max(n, 4).
//! Mean squared errors of the last three epochs, over all ranks, must come within 1.5 of the noise's (2 where nobody talks to anybody).

use super::{Case, Scene, Worlds, case, expect};
use crate::work::Trouble;
use gaggle::{
    Mean, Round,
    core::Topology,
    ddp::NeighbourMixer,
    optim::{Decentralised, RuleConfig, rule_by_name},
    topology::{Table, by_name},
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(super) const CASES: &[Case] = &[
    case!(
        "torch_optimizer",
        standard_empty_awc,
        Worlds::All,
        "errors below 2 · noise²",
        |s| learns(s, EMPTY_AWC)
    ),
    case!(
        "torch_optimizer",
        standard_empty_atc,
        Worlds::All,
        "errors below 2 · noise²",
        |s| learns(s, EMPTY_ATC)
    ),
    case!(
        "torch_optimizer",
        standard_allreduce_awc,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, ALL_AWC)
    ),
    case!(
        "torch_optimizer",
        standard_allreduce_atc,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, ALL_ATC)
    ),
    case!(
        "torch_optimizer",
        standard_neighbor_awc,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_AWC)
    ),
    case!(
        "torch_optimizer",
        standard_neighbor_atc,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_ATC)
    ),
    case!(
        "torch_optimizer",
        standard_gradient_allreduce,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, GRADIENT)
    ),
    case!(
        "torch_optimizer",
        dynamic_neighbor_awc,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, ONE_PEER_AWC)
    ),
    case!(
        "torch_optimizer",
        dynamic_neighbor_atc,
        Worlds::All,
        "errors below 1.5 · noise²",
        |s| learns(s, ONE_PEER_ATC)
    ),
    case!(
        "torch_optimizer",
        local_aggregation_empty_awc,
        Worlds::All,
        "micro-batches of 16: below 2 · noise²",
        |s| learns(s, EMPTY_AWC.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_empty_atc,
        Worlds::All,
        "micro-batches of 16: below 2 · noise²",
        |s| learns(s, EMPTY_ATC.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_allreduce_awc,
        Worlds::All,
        "micro-batches of 16: below 1.5 · noise²",
        |s| learns(s, ALL_AWC.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_allreduce_atc,
        Worlds::All,
        "micro-batches of 16: below 1.5 · noise²",
        |s| learns(s, ALL_ATC.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_neighbor_awc,
        Worlds::All,
        "micro-batches of 16: below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_AWC.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_neighbor_atc,
        Worlds::All,
        "micro-batches of 16: below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_ATC.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_gradient_allreduce,
        Worlds::All,
        "micro-batches of 16: below 1.5 · noise²",
        |s| learns(s, GRADIENT.in_parts(16))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_awc_4,
        Worlds::All,
        "micro-batches of 4: below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_AWC.in_parts(4))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_awc_8,
        Worlds::All,
        "micro-batches of 8: below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_AWC.in_parts(8))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_awc_32,
        Worlds::All,
        "micro-batches of 32: below 1.5 · noise²",
        |s| learns(s, NEIGHBOUR_AWC.in_parts(32))
    ),
    case!(
        "torch_optimizer",
        local_aggregation_duplicated_awc,
        Worlds::All,
        "a layer used twice: no complaint, and it learns",
        |s| duplicated(s, NEIGHBOUR_AWC)
    ),
    case!(
        "torch_optimizer",
        local_aggregation_duplicated_atc,
        Worlds::All,
        "a layer used twice: no complaint, and it learns",
        |s| duplicated(s, NEIGHBOUR_ATC)
    ),
    case!(
        "torch_optimizer",
        local_aggregation_duplicated_gradient_allreduce,
        Worlds::All,
        "a layer used twice: no complaint, and it learns",
        |s| duplicated(s, GRADIENT)
    ),
];

const INPUTS: usize = 16;
const OUTPUTS: usize = 3;
/// Weights by input, then the offsets.
const PARAMETERS: usize = (INPUTS + 1) * OUTPUTS;
const NOISE: f64 = 1e-5;
const SAMPLES: usize = 1024;
const BATCH: usize = 128;
const EPOCHS: usize = 50;
/// The last epochs, whose errors count.
const JUDGED: usize = 3;

/// A way to train.
#[derive(Clone, Copy)]
struct Way {
    rule: &'static str,
    /// Whom parameters are averaged with; nobody without a name.
    topology: Option<&'static str>,
    /// Samples per micro-batch; their gradients are summed.
    part: usize,
}

impl Way {
    const fn new(rule: &'static str, topology: Option<&'static str>) -> Way {
        Way {
            rule,
            topology,
            part: BATCH,
        }
    }

    const fn in_parts(self, part: usize) -> Way {
        Way { part, ..self }
    }
}

const AWC: &str = "dadamw-awc";
const ATC: &str = "dadamw-atc";
const EMPTY_AWC: Way = Way::new(AWC, None);
const EMPTY_ATC: Way = Way::new(ATC, None);
const ALL_AWC: Way = Way::new(AWC, Some("fully-connected"));
const ALL_ATC: Way = Way::new(ATC, Some("fully-connected"));
const NEIGHBOUR_AWC: Way = Way::new(AWC, Some("static-exp"));
const NEIGHBOUR_ATC: Way = Way::new(ATC, Some("static-exp"));
const ONE_PEER_AWC: Way = Way::new(AWC, Some("one-peer-exp"));
const ONE_PEER_ATC: Way = Way::new(ATC, Some("one-peer-exp"));
const GRADIENT: Way = Way::new("allreduce-adamw", Some("static-exp"));

/// Inputs and outputs, sample by sample.
struct Samples {
    x: Vec<[f64; INPUTS]>,
    y: Vec<[f64; OUTPUTS]>,
}

/// Near N(0, 1): twelve uniform numbers less six.
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
}

fn stream(number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(123_456);
    rng.set_stream(number);
    rng
}

impl Samples {
    /// Other ones for every number, of the same A.
    fn new(number: u64) -> Samples {
        let mut rng = stream(0);
        let a: [[f64; OUTPUTS]; INPUTS] =
            std::array::from_fn(|_| std::array::from_fn(|_| normal(&mut rng)));
        let mut rng = stream(1 + number);
        let mut all = Samples {
            x: vec![],
            y: vec![],
        };
        for _ in 0..SAMPLES {
            let x: [f64; INPUTS] = std::array::from_fn(|_| normal(&mut rng));
            let y = std::array::from_fn(|o| {
                let clean: f64 = x.iter().zip(&a).map(|(x, a)| x * a[o]).sum();
                clean + NOISE * normal(&mut rng)
            });
            all.x.push(x);
            all.y.push(y);
        }
        all
    }

    /// Mean squared error of these samples, and its gradient into `g` where there is room for one.
    fn loss(&self, w: &[f64], which: std::ops::Range<usize>, g: &mut [f64]) -> f64 {
        let share = 1.0 / (which.len() * OUTPUTS) as f64;
        g.fill(0.0);
        let mut sum = 0.0;
        for i in which {
            for o in 0..OUTPUTS {
                let inputs = self.x[i].iter().copied().chain([1.0]);
                let weights = w.iter().skip(o).step_by(OUTPUTS);
                let told: f64 = inputs.clone().zip(weights).map(|(x, w)| x * w).sum();
                let off = told - self.y[i][o];
                sum += share * off * off;
                for (g, x) in g.iter_mut().skip(o).step_by(OUTPUTS).zip(inputs) {
                    *g += 2.0 * share * off * x;
                }
            }
        }
        sum
    }
}

/// The driver of a way to train, on lanes of its own.
fn driver(s: &Scene, way: Way, parameters: usize) -> Result<Decentralised<f64>, Trouble> {
    let n = s.group.size();
    let alone = || Round {
        keep: 1.0,
        ..Round::default()
    };
    let topology: Box<dyn Topology> = match way.topology {
        Some(name) => by_name(name, n)?,
        None => Box::new(Table::new("nobody", vec![vec![alone(); n]])?),
    };
    let mixer = NeighbourMixer::on_lanes(s.group.clone(), topology, s.next_lanes())?;
    let rule = rule_by_name(way.rule, &RuleConfig::default())?;
    Ok(Decentralised::unchecked(rule, Box::new(mixer), parameters))
}

fn lr(s: &Scene) -> f64 {
    0.01 * f64::from(s.n.max(4))
}

fn learns(s: &Scene, way: Way) -> Result<(), Trouble> {
    let mut driver = driver(s, way, PARAMETERS)?;
    let train = Samples::new(u64::from(s.me));
    let test = Samples::new(1000 + u64::from(s.me));
    let mut rng = stream(2000);
    // The same start on every rank.
    let mut w: Vec<f64> = (0..PARAMETERS)
        .map(|_| rng.random_range(-0.25..0.25))
        .collect();
    let mut g = vec![0.0; PARAMETERS];
    let parts = BATCH / way.part;
    driver.expect_micro_batches(parts as u64)?;
    let mut errors = [0.0; 2];
    for epoch in 0..EPOCHS {
        let mut error = 0.0;
        for batch in (0..SAMPLES).step_by(BATCH) {
            driver.before_forward(lr(s), &mut w)?;
            for part in 0..parts {
                let from = batch + part * way.part;
                error += train.loss(&w, from..from + way.part, &mut g) * way.part as f64;
                if part + 1 < parts {
                    driver.accumulate(&g)?;
                }
            }
            driver.step(lr(s), &mut w, &g)?;
        }
        if epoch + JUDGED >= EPOCHS {
            errors[0] += error / SAMPLES as f64 / JUDGED as f64;
            errors[1] += test.loss(&w, 0..SAMPLES, &mut []) / JUDGED as f64;
        }
    }
    s.group.all_reduce(&mut errors, Mean)?;
    let most = match way.topology {
        None => 2.0,
        Some(_) => 1.5,
    };
    for (what, error) in ["training", "test"].into_iter().zip(errors) {
        let times = error / (NOISE * NOISE);
        expect::that(times < most, || {
            format!(
                "{} {what} error {times:.3} · noise², wanted below {most}",
                way.rule
            )
        })?;
    }
    Ok(())
}

/// y = u·u·x with one u, as when a layer is used twice in a forward pass: its gradient is the sum of two, and is handed over once.
fn duplicated(s: &Scene, way: Way) -> Result<(), Trouble> {
    let mut driver = driver(s, way, 1)?;
    let parts = 8;
    driver.expect_micro_batches(parts)?;
    let mut rng = stream(3000 + u64::from(s.me));
    let mut u = [0.5];
    for _ in 0..150 {
        driver.before_forward(0.02, &mut u)?;
        for part in 0..parts {
            let x = rng.random_range(0.5..1.5);
            // Of (u²x − 2x)²/2: once for the inner use of u, once for the outer one.
            let off = u[0] * u[0] * x - 2.0 * x;
            let g = [off * u[0] * x + off * x * u[0]];
            match part + 1 < parts {
                true => driver.accumulate(&g)?,
                false => driver.step(0.02, &mut u, &g)?,
            }
        }
    }
    let want = 2.0_f64.sqrt();
    expect::that((u[0] - want).abs() < 0.05, || {
        format!("{} ends at {}, wanted {want}", way.rule, u[0])
    })
}
