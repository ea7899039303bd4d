//! One rule among ranks, whatever drives it: as a whole over a matrix of weights, as a whole over the engine, and under data-parallel buckets.

use crate::work::Trouble;
use gaggle::{
    Float, Group, Rank,
    core::Topology,
    ddp::{BucketConfig, NeighbourMixer, ParamSpec, RuleDdp},
    optim::{Decentralised, RuleConfig, rule_by_name, testing},
    topology::by_name,
};
use std::sync::Arc;

/// Elements of the model's three parameters; one bucket each.
pub const LENS: [usize; 3] = [5, 1, 7];
/// Steps of a run, unless said.
pub const STEPS: u64 = 25;
/// Step size of a run, unless said.
pub const LR: f64 = 0.02;

/// Elements of the model.
pub fn total() -> usize {
    LENS.iter().sum()
}

/// A graph that each rule is for.
pub fn graph(rule: &str) -> &'static str {
    match rule {
        // Pairs.
        "noloco" => "random-matching:3",
        // Trees.
        "relaysgd" => "star",
        _ => "ring",
    }
}

/// So that in so few steps everything that the rule is made of happens: outer steps, late fragments, signs after the warm-up.
pub fn config(rule: &str) -> RuleConfig {
    let meets_rarely = [
        "local-sgd",
        "slowmo",
        "bmuf",
        "diloco",
        "streaming-diloco",
        "noloco",
    ];
    RuleConfig {
        period: meets_rarely.contains(&rule).then_some(6),
        fragments: 2,
        delay: 1,
        global_period: 3,
        warm_up: 4,
        lookahead_steps: 3,
        // Its signs move elements without a second moment by 1/ε: with 1e-8 they leave f32.
        eps: (rule == "one-bit-adam").then_some(1e-3),
        ..RuleConfig::default()
    }
}

/// Makes a graph for so many ranks.
pub type Make = Arc<dyn Fn(usize) -> Box<dyn Topology> + Send + Sync>;

/// The graph that users call so.
///
/// # Panics
/// The function that comes back: where there is no such graph for so many ranks.
pub fn named(name: &str) -> Make {
    let name = name.to_owned();
    Arc::new(move |n| by_name(&name, n).expect("a graph by that name"))
}

/// A run of a rule: with which settings, among whom, in which steps.
#[derive(Clone)]
pub struct Case {
    /// By name.
    pub rule: &'static str,
    /// Of the rule.
    pub config: RuleConfig,
    /// Whose neighbours.
    pub graph: Make,
    /// How many steps.
    pub steps: u64,
    /// γ of each.
    pub lr: Arc<dyn Fn(u64) -> f64 + Send + Sync>,
}

impl Case {
    /// Over the graph that the rule is for.
    pub fn of(rule: &'static str) -> Case {
        Case {
            rule,
            config: config(rule),
            graph: named(graph(rule)),
            steps: STEPS,
            lr: Arc::new(|_| LR),
        }
    }

    /// A rank that begins.
    ///
    /// # Errors
    /// The settings make no rule, or the graph no mixer.
    pub fn driver<T: Float>(&self, group: &Group) -> Result<Decentralised<T>, Trouble> {
        let rule = rule_by_name(self.rule, &self.config)?;
        let mixer = NeighbourMixer::new(group.clone(), (self.graph)(group.size()))?;
        Ok(Decentralised::unchecked(rule, Box::new(mixer), total()))
    }

    /// All ranks, in one thread.
    ///
    /// # Panics
    /// Where the settings make no rule.
    pub fn world<T: Float>(&self, n: usize) -> Vec<Decentralised<T>> {
        testing::DenseMixer::of(Arc::from((self.graph)(n)))
            .into_iter()
            .map(|mixer| {
                let rule = rule_by_name(self.rule, &self.config).expect("a rule");
                Decentralised::unchecked(rule, Box::new(mixer), total())
            })
            .collect()
    }
}

/// Parameters at the start, the same on all ranks.
pub fn start<T: Float>() -> Vec<T> {
    (0..total())
        .map(|k| T::from_f64((k as f64 * 0.7).sin()))
        .collect()
}

/// Rank r's loss is Σₖ cₖ(xₖ − r/2 − sin k)²/2.
pub fn gradients<T: Float>(rank: usize, x: &[T]) -> Vec<T> {
    x.iter()
        .enumerate()
        .map(|(k, x)| {
            let c = 0.5 + 0.1 * (k % 4) as f64;
            T::from_f64(c * (x.to_f64() - rank as f64 / 2.0 - (k as f64).sin()))
        })
        .collect()
}

/// A step of all ranks, in one thread.
///
/// # Panics
/// Where it fails.
pub fn together<T: Float>(ranks: &mut [Decentralised<T>], lr: f64, x: &mut [Vec<T>]) {
    testing::lockstep(ranks, lr, x, |r, x, g| g.copy_from_slice(&gradients(r, x)))
        .expect("a step of all ranks");
}

/// A step of this rank.
///
/// # Errors
/// Where it fails.
pub fn alone<T: Float>(
    driver: &mut Decentralised<T>,
    rank: usize,
    lr: f64,
    x: &mut [T],
) -> Result<(), Trouble> {
    driver.before_forward(lr, x)?;
    let g = gradients(rank, x);
    Ok(driver.step(lr, x, &g)?)
}

/// Every rank's parameters, over a dense matrix, in one thread.
pub fn over_a_matrix<T: Float>(case: &Case, n: usize) -> Vec<Vec<T>> {
    let (mut ranks, mut x) = (case.world(n), vec![start(); n]);
    for step in 0..case.steps {
        together(&mut ranks, (case.lr)(step), &mut x);
    }
    x
}

/// This rank's parameters, over the engine.
///
/// # Errors
/// A step fails.
pub fn over_the_engine<T: Float>(group: &Group, case: &Case) -> Result<Vec<T>, Trouble> {
    let (mut driver, mut x) = (case.driver(group)?, start());
    for step in 0..case.steps {
        alone(&mut driver, group.rank().idx(), (case.lr)(step), &mut x)?;
    }
    Ok(x)
}

/// This rank's parameters, over the engine, a bucket per parameter.
///
/// # Errors
/// A step fails.
pub fn under_buckets<T: Float>(group: &Group, case: &Case) -> Result<Vec<T>, Trouble> {
    let mixer = NeighbourMixer::new(group.clone(), (case.graph)(group.size()))?;
    let rule = rule_by_name(case.rule, &case.config)?;
    let specs: Vec<ParamSpec> = LENS
        .iter()
        .enumerate()
        .map(|(i, len)| ParamSpec::new(format!("p{i}"), [*len]))
        .collect();
    let each = BucketConfig {
        cap_bytes: 0,
        first_bytes: 0,
    };
    let mut ddp = RuleDdp::unchecked(&specs, &each, rule, Box::new(mixer), start())?;
    assert_eq!(ddp.buckets(), [0..5, 5..6, 6..13]);
    let feed = ddp.feed();
    let mut last: Vec<T> = vec![];
    for step in 0..case.steps {
        ddp.begin_step((case.lr)(step))?;
        // Forward: parameter by parameter.
        let mut x = vec![T::from_f64(0.0); total()];
        let mut rest = &mut x[..];
        for (idx, len) in LENS.iter().enumerate() {
            let (own, others) = rest.split_at_mut(*len);
            ddp.parameter(idx, own)?;
            rest = others;
        }
        let g = gradients(group.rank().idx(), &x);
        // Backward: the last one first.
        let mut end = total();
        for (idx, len) in LENS.iter().enumerate().rev() {
            feed.ready(idx, &g[end - len..end])?;
            end -= len;
        }
        last = ddp.finish()?.to_vec();
    }
    Ok(last)
}

/// Whether these are the same numbers, zeros by their signs.
pub fn same_bits<T: Float>(a: &[T], b: &[T]) -> bool {
    let bits = |x: &T| x.to_f64().to_bits();
    a.iter().map(bits).eq(b.iter().map(bits))
}

/// What a rank has to say against a case: nothing where all three ways give the same numbers.
///
/// # Errors
/// What it has to say.
fn complaint<T: Float>(group: &Group, case: &Case, dense: &[Vec<T>]) -> Result<(), Trouble> {
    let whole: Vec<T> = over_the_engine(group, case)?;
    // The lanes are the same ones, and their rounds begin again: a group of its own.
    let all: Vec<Rank> = (0..group.size() as u32).map(Rank).collect();
    let buckets = under_buckets(&group.subgroup(&all, "again")?, case)?;
    let matrix = &dense[group.rank().idx()];
    if !whole.iter().all(|x| x.to_f64().is_finite()) {
        return Err(format!("{whole:?}").into());
    }
    if !same_bits(&whole, &buckets) {
        return Err(format!("as a whole {whole:?}, in buckets {buckets:?}").into());
    }
    match same_bits(&whole, matrix) {
        true => Ok(()),
        false => Err(format!("over the engine {whole:?}, by matrix {matrix:?}").into()),
    }
}

/// What any rank of any of these worlds has to say against these cases.
pub fn complaints<T: Float>(worlds: &[usize], cases: impl Iterator<Item = Case>) -> Vec<String> {
    let mut wrong = Vec::new();
    for case in cases {
        for n in worlds {
            let dense = over_a_matrix::<T>(&case, *n);
            if let Err(e) = among(*n, |group| complaint(group, &case, &dense)) {
                wrong.push(format!("{} of {} in {n} ranks: {e}", case.rule, T::DTYPE));
            }
        }
    }
    wrong
}

/// What every one of `n` ranks gets, as threads.
///
/// # Errors
/// Those that fail, each with its reason.
///
/// # Panics
/// Where a rank does.
pub fn among<R: Send>(
    n: usize,
    body: impl Fn(&Group) -> Result<R, Trouble> + Sync,
) -> Result<Vec<R>, String> {
    let told = gaggle::local(n, |group| body(&group).map_err(|e| e.to_string()));
    let told = told.expect("ranks as threads").into_iter().enumerate();
    let (mut all, mut wrong) = (vec![], vec![]);
    for (rank, told) in told {
        match told {
            Ok(r) => all.push(r),
            Err(e) => wrong.push(format!("rank {rank}: {e}")),
        }
    }
    match wrong.is_empty() {
        true => Ok(all),
        false => Err(wrong.join("\n")),
    }
}
