//! Known runs of the rules here, to be repeated with any mixer: eight ranks, two small problems, numbers from an independent implementation.
//!
//! For tests of this workspace; not part of the promise.

mod problem;
mod rows;

pub use problem::{Kind, Problem};

use crate::{AdamW, AdamWConfig, Diffusion, Order, RuleConfig, rule_by_name};
use gaggle_core::{Codec, Rule};

/// A method of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All-reduce SGD.
    Psgd,
    /// DSGD, average while computing.
    DsgdAwc,
    /// DSGD, combine then adapt.
    DsgdCta,
    /// DSGD, adapt then combine.
    DsgdAtc,
    /// DmSGD with local momentum, ATC.
    Dmsgd,
    /// The same with Nesterov's momentum.
    DmsgdNesterov,
    /// DmSGD with local momentum, AWC.
    DmsgdAwc,
    /// QG-DSGDm.
    Qg,
    /// QG-DSGDm-N.
    QgNesterov,
    /// Decentralised Adam, ATC, without decay.
    AdamAtc,
    /// Decentralised Adam, AWC, without decay.
    AdamAwc,
}

/// A topology of the table, on eight ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graph {
    /// Both neighbours, a third each.
    Ring,
    /// Receives from i − 1, i − 2 and i − 4, a quarter each.
    StaticExp,
    /// Receives from i − 2^(t mod 3), one half.
    OnePeerExp,
}

impl Graph {
    /// As users type it.
    pub fn name(self) -> &'static str {
        match self {
            Graph::Ring => "ring",
            Graph::StaticExp => "static-exp",
            Graph::OnePeerExp => "one-peer-exp",
        }
    }

    /// W\[i, j\] of round `t`, for i ≠ j.
    pub fn weight(self, t: u64, i: usize, j: usize) -> f64 {
        match (self, (i + 8 - j) % 8) {
            (Graph::Ring, 1 | 7) => 1.0 / 3.0,
            (Graph::StaticExp, 1 | 2 | 4) => 0.25,
            (Graph::OnePeerExp, back) if back == 1 << (t % 3) => 0.5,
            _ => 0.0,
        }
    }
}

/// One run: 1000 steps from x = 0.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which losses.
    pub problem: Kind,
    /// Which method.
    pub method: Method,
    /// On which graph.
    pub graph: Graph,
    /// x_0\[0\] and x_5\[2\] after 3 steps.
    x3: (f64, f64),
    /// Error and consensus distance after 10, 100 and 1000 steps, as printed.
    checks: [(&'static str, &'static str); 3],
}

const fn row(
    problem: Kind,
    method: Method,
    graph: Graph,
    x3: (f64, f64),
    checks: [(&'static str, &'static str); 3],
) -> Row {
    Row {
        problem,
        method,
        graph,
        x3,
        checks,
    }
}

/// All rows.
pub fn rows() -> &'static [Row] {
    &rows::ROWS
}

/// After these steps a row says something.
pub const STEPS: [u64; 4] = [3, 10, 100, 1000];

impl Row {
    /// For messages: `Lin Dmsgd on ring`.
    pub fn label(&self) -> String {
        format!(
            "{:?} {:?} on {}",
            self.problem,
            self.method,
            self.graph.name()
        )
    }

    /// γ: 0.1 on LIN and 0.5 on LOG, a tenth of it with momentum.
    pub fn lr(&self) -> f64 {
        let with_momentum = !matches!(
            self.method,
            Method::Psgd | Method::DsgdAwc | Method::DsgdCta | Method::DsgdAtc
        );
        match (self.problem, with_momentum) {
            (Kind::Lin, false) => 0.1,
            (Kind::Lin, true) => 0.01,
            (Kind::Log, false) => 0.5,
            (Kind::Log, true) => 0.05,
        }
    }

    /// The rule, with β = μ = 0.9.
    pub fn rule(&self) -> Box<dyn Rule<f64>> {
        let (name, nesterov) = match self.method {
            Method::Psgd => ("allreduce-sgd", false),
            Method::DsgdAwc => ("dsgd-awc", false),
            Method::DsgdCta => ("dsgd-cta", false),
            Method::DsgdAtc => ("dsgd-atc", false),
            Method::Dmsgd => ("dmsgd", false),
            Method::DmsgdNesterov => ("dmsgd", true),
            Method::DmsgdAwc => ("dmsgd-awc", false),
            Method::Qg => ("qg-dmsgd", false),
            Method::QgNesterov => ("qg-dmsgd", true),
            Method::AdamAtc => return adam(Order::Atc),
            Method::AdamAwc => return adam(Order::Awc),
        };
        let config = RuleConfig {
            nesterov,
            ..RuleConfig::default()
        };
        rule_by_name(name, &config).expect("the names above exist, the defaults are in range")
    }

    /// Compares everybody's parameters after `k` steps, k one of [`STEPS`].
    ///
    /// Tolerances: parameters 1e-10; error 1e-9 relative or 1e-14; consensus distance half a unit of its last printed digit, and "below 1e-9" where it has converged.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn verify(&self, problem: &Problem, k: u64, x: &[Vec<f64>]) -> Result<(), String> {
        let label = self.label();
        let far = |what: &str, got: f64, want: f64| {
            Err(format!(
                "{label}, step {k}: {what} is {got:.12e}, wanted {want:.12e}"
            ))
        };
        let Some(at) = STEPS.iter().position(|&s| s == k) else {
            return Err(format!("{label}: nothing is known of step {k}"));
        };
        let Some(at) = at.checked_sub(1) else {
            let ((a, b), (want_a, want_b)) = ((x[0][0], x[5][2]), self.x3);
            return match ((a - want_a).abs() < 1e-10, (b - want_b).abs() < 1e-10) {
                (false, _) => far("x_0[0]", a, want_a),
                (_, false) => far("x_5[2]", b, want_b),
                _ => Ok(()),
            };
        };
        let (error, consensus) = (problem.error(x), consensus(x));
        let want = number(self.checks[at].0);
        if (error - want).abs() > (1e-9 * want).max(1e-14) || error.is_nan() {
            return far("error", error, want);
        }
        let want = number(self.checks[at].1);
        let near = if want < 1e-9 {
            consensus < 1e-9
        } else {
            (consensus - want).abs() <= half_unit(self.checks[at].1) * 1.000_001
        };
        if near {
            Ok(())
        } else {
            far("consensus distance", consensus, want)
        }
    }
}

fn adam(order: Order) -> Box<dyn Rule<f64>> {
    let config = AdamWConfig {
        weight_decay: 0.0,
        ..AdamWConfig::default()
    };
    let local = AdamW::new(config).expect("the defaults are in range");
    let rule = Diffusion::new(order, Box::new(local), Codec::None);
    Box::new(rule.expect("the plain codec carries everything"))
}

/// √(mean over ranks of |x_i − x̄|²).
pub fn consensus(x: &[Vec<f64>]) -> f64 {
    let n = x.len() as f64;
    let d = x.first().map_or(0, Vec::len);
    let mean: Vec<f64> = (0..d)
        .map(|k| x.iter().map(|x| x[k]).sum::<f64>() / n)
        .collect();
    distance(x, &mean)
}

/// √(mean over ranks of |x_i − to|²).
fn distance(x: &[Vec<f64>], to: &[f64]) -> f64 {
    let square = |x: &Vec<f64>| -> f64 { x.iter().zip(to).map(|(a, b)| (a - b).powi(2)).sum() };
    (x.iter().map(square).sum::<f64>() / x.len() as f64).sqrt()
}

fn number(printed: &str) -> f64 {
    printed.parse().expect("the table holds numbers")
}

/// Half a unit of the last digit of `1.234e-5`: 0.0005e-5.
fn half_unit(printed: &str) -> f64 {
    let (mantissa, exponent) = printed.split_once('e').unwrap_or((printed, "0"));
    let decimals = mantissa.split_once('.').map_or(0, |(_, d)| d.len()) as i32;
    let exponent: i32 = exponent.parse().expect("the table holds numbers");
    0.5 * 10_f64.powi(exponent - decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_units_follow_the_printed_digits() {
        assert_eq!(half_unit("1.848e-01"), 0.5e-4);
        assert_eq!(half_unit("8.886e-02"), 0.5e-5);
        assert_eq!(half_unit("1"), 0.5);
    }

    #[test]
    fn a_run_that_is_off_is_rejected() {
        let problem = Problem::new(Kind::Lin);
        let row = &rows()[0];
        let off = vec![vec![0.0; 4]; 8];
        for k in STEPS {
            assert!(row.verify(&problem, k, &off).is_err(), "step {k}");
        }
        assert!(
            row.verify(&problem, 4, &off)
                .unwrap_err()
                .contains("step 4")
        );
        let mut near = vec![vec![0.0; 4]; 8];
        (near[0][0], near[5][2]) = row.x3;
        row.verify(&problem, 3, &near).unwrap();
        near[5][2] += 2e-10;
        assert!(
            row.verify(&problem, 3, &near)
                .unwrap_err()
                .contains("x_5[2]")
        );
    }

    #[test]
    fn every_method_meets_every_graph_on_both_problems() {
        // All-reduce has no graph; eight others run on three, and Adam on two, on LIN alone.
        assert_eq!(rows().len(), 2 * (1 + 8 * 3) + 4);
    }
}
