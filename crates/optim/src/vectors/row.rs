//! One known run: its rule, its graph, and what must come out.

use super::{Graph, Kind, Problem, consensus};
use crate::{
    Compressor, Decentralised, Fill, LocalKind, RuleConfig, choco::ChocoOrder, rule_by_name,
};
use gaggle_core::Rule;

/// One run from x = 0.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which losses.
    pub problem: Kind,
    /// How many ranks.
    pub ranks: usize,
    /// The rule's name and its settings, as in the table.
    pub method: String,
    /// The graph's name.
    pub graph: String,
    /// Step size.
    lr: f64,
    config: RuleConfig,
    /// The vector of state that is looked at, in place of the parameters.
    view: Option<String>,
    /// Steps per tabulated k.
    unit: u64,
    /// k, x_0\[0\] and x_5\[2\].
    point: Option<(u64, f64, f64)>,
    /// k, error and consensus distance, as printed.
    checks: Vec<(u64, String, String)>,
    /// The step in which some |x| first exceeds 1e12.
    diverges: Option<u64>,
}

/// What |x| means divergence.
const FAR: f64 = 1e12;

impl Row {
    /// From a line of the table.
    ///
    /// # Errors
    /// What cannot be read.
    pub(super) fn parse(line: &str) -> Result<Row, String> {
        let wrong = |what: &str| format!("{what} in {line:?}");
        let mut cells = line.split('|').map(str::trim);
        let mut cell = |what: &str| cells.next().ok_or_else(|| wrong(what));
        let (problem, ranks) = cell("no problem")?
            .split_once(' ')
            .ok_or_else(|| wrong("no ranks"))?;
        let problem = match problem {
            "lin" => Kind::Lin,
            "log" => Kind::Log,
            _ => return Err(wrong("unknown problem")),
        };
        let method = cell("no method")?.to_owned();
        let graph = cell("no graph")?.to_owned();
        let unit = parsed(cell("no unit")?)?;
        let point = match cell("no point")? {
            "-" => None,
            cell => {
                let [k, a, b] = words(cell)?;
                Some((parsed(k)?, parsed(a)?, parsed(b)?))
            }
        };
        let (mut checks, mut diverges) = (Vec::new(), None);
        for cell in cells {
            if let Some(k) = cell.strip_prefix("div ") {
                diverges = Some(parsed(k)?);
                continue;
            }
            let [k, error, consensus] = words(cell)?;
            checks.push((parsed(k)?, error.to_owned(), consensus.to_owned()));
        }
        let mut row = Row {
            problem,
            ranks: parsed(ranks)?,
            method: method.clone(),
            graph,
            lr: 0.0,
            config: RuleConfig::default(),
            view: None,
            unit,
            point,
            checks,
            diverges,
        };
        for setting in method.split(' ').skip(1) {
            row.set(setting)?;
        }
        Ok(row)
    }

    fn set(&mut self, setting: &str) -> Result<(), String> {
        let c = &mut self.config;
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        match name {
            "lr" => self.lr = parsed(value)?,
            "view" => self.view = Some(value.into()),
            "nesterov" => c.nesterov = true,
            "heavy_ball" => c.outer_nesterov = false,
            "released" => c.choco_order = ChocoOrder::Released,
            "momentum" => c.momentum = parsed(value)?,
            "weight_decay" => c.weight_decay = parsed(value)?,
            "beta2" => c.beta2 = Some(parsed(value)?),
            "eps" => c.eps = Some(parsed(value)?),
            "period" => c.period = Some(parsed(value)?),
            "global_period" => c.global_period = parsed(value)?,
            "alpha" => c.alpha = Some(parsed(value)?),
            "outer_lr" => c.outer_lr = Some(parsed(value)?),
            "outer_momentum" => c.outer_momentum = Some(parsed(value)?),
            "fragments" => c.fragments = parsed(value)?,
            "delay" => c.delay = parsed(value)?,
            "push_delay" => c.push_delay = parsed(value)?,
            "consensus_step" => c.consensus_step = parsed(value)?,
            "warm_up" => c.warm_up = parsed(value)?,
            "local" => {
                c.local = Some(LocalKind::by_name(value).map_err(|e| e.to_string())?);
            }
            "compressor" if value == "sign" => c.compressor = Compressor::Sign,
            "compressor" if value == "identity" => c.compressor = Compressor::Identity,
            "fill" if value == "start" => c.fill = Fill::Start,
            _ => return Err(format!("unknown setting {setting:?}")),
        }
        Ok(())
    }

    /// For messages: `Lin dmsgd lr=0.01 on ring`.
    pub fn label(&self) -> String {
        format!("{:?} {} on {}", self.problem, self.method, self.graph)
    }

    /// γ.
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// The rule.
    ///
    /// # Panics
    /// Where the table names a rule that is not there.
    pub fn rule(&self) -> Box<dyn Rule<f64>> {
        let name = self.method.split(' ').next().unwrap_or_default();
        rule_by_name(name, &self.config).expect("the table's rules and settings exist")
    }

    /// The graph.
    ///
    /// # Panics
    /// Where the table names a graph that is not there.
    pub fn topology(&self) -> Graph {
        Graph::by_name(&self.graph, self.ranks).expect("the table's graphs exist")
    }

    /// What the row speaks of: the parameters, or a vector of the rule's state.
    pub fn look(&self, driver: &mut Decentralised<f64>, x: &[f64]) -> Vec<f64> {
        let mut seen = x.to_vec();
        if let Some(view) = &self.view {
            driver.state(&mut |name, v| {
                if name == view {
                    seen.clone_from(v);
                }
            });
        }
        seen
    }

    /// After these steps, in order, the row says something.
    pub fn steps(&self) -> Vec<u64> {
        let point = self.point.iter().map(|p| p.0 * self.unit);
        let checks = self.checks.iter().map(|c| c.0 * self.unit);
        let far = self.diverges.iter().flat_map(|k| [k - 1, *k]);
        let mut all: Vec<u64> = point.chain(checks).chain(far).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Compares what [`Row::look`] gave on every rank after `step` steps, one of [`Row::steps`].
    ///
    /// Tolerances: parameters 1e-10; error 1e-9 relative or 1e-14 absolute (1e-6 relative where push-diging with γ = 0.05 and relaysgd are near 1e-7), and "below 1e-9" where it has converged; consensus distance half a unit of its last printed digit, and "below 1e-9" where it has converged.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn verify(&self, problem: &Problem, step: u64, x: &[Vec<f64>]) -> Result<(), String> {
        let far = |what: &str, got: f64, want: f64| {
            let label = self.label();
            Err(format!(
                "{label}, step {step}: {what} is {got:.12e}, wanted {want:.12e}"
            ))
        };
        if !self.steps().contains(&step) {
            let label = self.label();
            return Err(format!("{label}: nothing is known of step {step}"));
        }
        if let Some(k) = self.diverges {
            let largest = x.iter().flatten().fold(0.0, |m: f64, v| m.max(v.abs()));
            let is_far = largest > FAR || x.iter().flatten().any(|v| !v.is_finite());
            if is_far != (step >= k) {
                return far("the largest", largest, FAR);
            }
        }
        if let Some((_, want_a, want_b)) = self.point.filter(|p| p.0 * self.unit == step) {
            let (a, b) = (x[0][0], x[5][2]);
            match ((a - want_a).abs() < 1e-10, (b - want_b).abs() < 1e-10) {
                (false, _) => return far("x_0[0]", a, want_a),
                (_, false) => return far("x_5[2]", b, want_b),
                _ => {}
            }
        }
        for (_, want_error, want_apart) in self.checks.iter().filter(|c| c.0 * self.unit == step) {
            let (error, want) = (problem.error(x), number(want_error));
            let near = match want < 1e-9 {
                true => error < 1e-9,
                false => (error - want).abs() <= (self.relative(want) * want).max(1e-14),
            };
            if !near {
                return far("error", error, want);
            }
            if want_apart == "-" {
                continue;
            }
            let (apart, want) = (consensus(x), number(want_apart));
            let near = match want < 1e-9 {
                true => apart < 1e-9,
                false => (apart - want).abs() <= half_unit(want_apart) * 1.000_001,
            };
            if !near {
                return far("consensus distance", apart, want);
            }
        }
        Ok(())
    }

    /// How near to `want` an error must be. Some runs are tabulated on their way down, so far below the size of x that rounding shows in the first digits.
    fn relative(&self, want: f64) -> f64 {
        let loose = self.method.starts_with("relaysgd") || self.method == "push-diging lr=0.05";
        match loose && (1e-8..1e-6).contains(&want) {
            true => 1e-6,
            false => 1e-9,
        }
    }
}

fn words(cell: &str) -> Result<[&str; 3], String> {
    let words: Vec<&str> = cell.split_whitespace().collect();
    let three = words.try_into();
    three.map_err(|_| format!("{cell:?} has not three words"))
}

fn parsed<V: std::str::FromStr>(word: &str) -> Result<V, String> {
    word.parse().map_err(|_| format!("{word:?} is no number"))
}

fn number(printed: &str) -> f64 {
    printed.parse().unwrap_or(f64::NAN)
}

/// Half a unit of the last digit of `1.234e-5`: 0.0005e-5.
fn half_unit(printed: &str) -> f64 {
    let (mantissa, exponent) = printed.split_once('e').unwrap_or((printed, "0"));
    let decimals = mantissa.split_once('.').map_or(0, |(_, d)| d.len()) as i32;
    let exponent: i32 = exponent.parse().unwrap_or(0);
    0.5 * 10_f64.powi(exponent - decimals)
}

#[cfg(test)]
mod tests {
    use super::super::rows;
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
        for k in row.steps() {
            assert!(row.verify(&problem, k, &off).is_err(), "step {k}");
        }
        let e = row.verify(&problem, 4, &off).unwrap_err();
        assert!(e.contains("step 4"));
        let mut near = vec![vec![0.0; 4]; 8];
        (near[0][0], near[5][2]) = (0.0639675068, -0.0042259041);
        row.verify(&problem, 3, &near).unwrap();
        near[5][2] += 2e-10;
        let e = row.verify(&problem, 3, &near).unwrap_err();
        assert!(e.contains("x_5[2]"));
        let diverging = rows().iter().find(|r| r.diverges.is_some()).unwrap();
        let k = diverging.diverges.unwrap();
        assert!(diverging.verify(&problem, k, &off).is_err());
        diverging.verify(&problem, k - 1, &off).unwrap();
    }

    #[test]
    fn lines_that_are_none_are_told() {
        for line in [
            "lin 8",
            "cubic 8 | d2 lr=0.1 | ring | 1 | -",
            "lin 8 | d2 ls=0.1 | ring | 1 | -",
            "lin 8 | d2 lr=0.1 | ring | 1 | 3 0.1",
        ] {
            assert!(Row::parse(line).is_err(), "{line}");
        }
        Row::parse("lin 8 | d2 lr=0.1 | ring | 1 | -").unwrap();
    }
}
