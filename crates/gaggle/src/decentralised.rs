//! A rule over a graph in one call.

use gaggle_core::{Error, Float, Group, Rule, Topology};
use gaggle_ddp::NeighbourMixer;
use gaggle_optim::{Decentralised, Stability};
use gaggle_topology::facts;

/// Runs `rule` over `graph` among the ranks of `group`, on `n` parameters, if that is stable with step size `lr`.
///
/// It is the three steps that it takes otherwise: the [`facts`] of the graph, a [`NeighbourMixer`], and [`Decentralised::stable`].
/// Its messages take the lanes from [`NeighbourMixer::FIRST_LANE`] on: one run after another is fine, two at a time in one group need [`NeighbourMixer::on_lanes`].
/// Where nothing is against it and something is to be known all the same, such as a limit that is only just kept, a warning says so.
///
/// # Errors
/// [`Cause::Invalid`](crate::Cause::Invalid): the graph is made for another number of ranks, or the rule is not stable on it: which limit is broken, and what works. [`Decentralised::unchecked`] runs it all the same.
///
/// ```
/// use gaggle::{optim::{RuleConfig, rule_by_name}, topology::by_name};
///
/// let means = gaggle::local(3, |group| -> Result<f32, gaggle::Error> {
///     let rule = rule_by_name("dsgd-atc", &RuleConfig::default()).expect("a rule");
///     let graph = by_name("fully-connected", 3).expect("a graph");
///     let mut driver = gaggle::decentralised(&group, rule, graph, 1, 0.5)?;
///     let mut x = [group.rank().0 as f32];
///     driver.step(0.5, &mut x, &[0.0])?;
///     Ok(x[0])
/// })?;
/// assert!(means.into_iter().all(|x| x.is_ok_and(|x| (x - 1.0).abs() < 1e-6)));
/// # Ok::<(), gaggle::Error>(())
/// ```
pub fn decentralised<T: Float>(
    group: &Group,
    rule: Box<dyn Rule<T>>,
    graph: Box<dyn Topology>,
    n: usize,
    lr: f64,
) -> Result<Decentralised<T>, Error> {
    let (name, on) = (rule.name().to_owned(), graph.name().to_owned());
    let known = facts(&*graph);
    let mixer = Box::new(NeighbourMixer::new(group.clone(), graph)?);
    let (driver, stability) = Decentralised::stable(rule, mixer, n, &known, lr)
        .map_err(|refused| Error::invalid(name.clone(), refused.to_string()))?;
    match stability {
        Stability::Stable => {}
        Stability::Marginal(what) | Stability::Unchecked(what) => {
            tracing::warn!("{name} over {on}: {what}");
        }
        other => tracing::warn!("{name} over {on}: {other:?}"),
    }
    Ok(driver)
}
