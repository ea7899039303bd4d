//! Update rules by name: the library's, and those that a program brings along.
//!
//! The main type is [`Rules`].

use gaggle::{
    core::Rule,
    optim::{self, Clipped, ConfigError, Every, RuleConfig, rule_by_name},
};
use std::fmt;

/// Makes a rule from the settings that all rules have.
pub type Make = fn(&RuleConfig) -> Result<Box<dyn Rule<f32>>, ConfigError>;

/// A rule of somebody else's.
#[derive(Clone, Copy)]
struct Added {
    name: &'static str,
    about: &'static str,
    make: Make,
}

/// All rules that a run can be asked for.
///
/// ```
/// use gaggle_demo::rules::Rules;
/// use gaggle::optim::rule_by_name;
///
/// let rules = Rules::default().with("mine", "DmSGD by another name", |config| {
///     rule_by_name("dmsgd", config)
/// });
/// assert!(rules.names().any(|name| name == "mine") && rules.names().any(|name| name == "dmsgd"));
/// ```
#[derive(Clone, Default)]
pub struct Rules {
    added: Vec<Added>,
}

impl Rules {
    /// Also this one: `about` says in one line what it is for, `make` makes one for a rank. A name that there is already means this one from now on.
    #[must_use]
    pub fn with(mut self, name: &'static str, about: &'static str, make: Make) -> Self {
        self.added.retain(|a| a.name != name);
        self.added.push(Added { name, about, make });
        self
    }

    /// Their names: those that were added, then the library's.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let added = self.added.iter().map(|a| a.name);
        let others = optim::NAMES.into_iter().filter(|n| self.find(n).is_none());
        added.chain(others)
    }

    /// All of them, in the order of [`names`](Rules::names), each with what it is for.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let others = optim::CATALOGUE
            .into_iter()
            .filter(|e| self.find(e.name).is_none());
        self.added().chain(others.map(|e| (e.name, e.about)))
    }

    /// Those that were added, each with what it is for.
    pub fn added(&self) -> impl Iterator<Item = (&str, &str)> {
        self.added.iter().map(|a| (a.name, a.about))
    }

    /// The rule of that name. Those that were added get a communication period and clipped gradients like the library's, where they do not see to that themselves, as [`Rule::own_period`] and [`Rule::clips`] tell: a rule around another one passes those on.
    ///
    /// # Errors
    /// There is none, its settings make no sense, or a period is asked for and the rule has no local steps.
    pub fn make(&self, name: &str, config: &RuleConfig) -> Result<Box<dyn Rule<f32>>, ConfigError> {
        let Some(added) = self.find(name) else {
            return rule_by_name(name, config);
        };
        let mut rule = (added.make)(config)?;
        if let Some(period) = config.period
            && rule.period().or(rule.own_period()).unwrap_or(1) != period
        {
            rule = Box::new(Every::new(rule, period)?);
        }
        if let Some(clip) = config.clip.filter(|_| !rule.clips()) {
            rule = Box::new(Clipped::new(rule, clip)?);
        }
        Ok(rule)
    }

    fn find(&self, name: &str) -> Option<&Added> {
        self.added.iter().find(|a| a.name == name)
    }
}

/// The names that were added: what else there is, is the same everywhere.
impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.added().map(|(name, _)| name))
            .finish()
    }
}

/// By the names that were added.
impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        self.added()
            .map(|(name, _)| name)
            .eq(other.added().map(|(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags that the library's rules understand mean the same for one from outside.
    #[test]
    fn added_rules_get_periods_and_clipping() {
        let plain = |_: &RuleConfig| rule_by_name("dsgd-atc", &RuleConfig::default());
        let without = |_: &RuleConfig| rule_by_name("d2", &RuleConfig::default());
        let rules = Rules::default().with("mine", "with local steps", plain);
        let rules = rules.with("rigid", "without", without);
        let three = RuleConfig {
            period: Some(3),
            ..RuleConfig::default()
        };
        assert_eq!(rules.make("mine", &three).unwrap().period(), Some(3));
        let e = rules.make("rigid", &three).err().unwrap().to_string();
        assert_eq!(e, "period is 3; every step of d2 communicates");
        let cut = |limit| RuleConfig {
            clip: Some(optim::Clip::Norm(limit)),
            ..RuleConfig::default()
        };
        assert!(rules.make("mine", &cut(1.0)).unwrap().whole());
        assert!(rules.make("mine", &cut(-1.0)).is_err());
    }

    /// A rule of the library by another name, as a rule around it would be: it counts its steps itself and cuts its gradients itself.
    #[test]
    fn added_rules_around_the_librarys_keep_their_periods_and_clip_once() {
        let rules = Rules::default()
            .with("mine", "streaming", |c| rule_by_name("streaming-diloco", c))
            .with("fixed", "ten steps whatever is said", |_| {
                let ten = RuleConfig {
                    period: Some(10),
                    fragments: 2,
                    delay: 1,
                    ..RuleConfig::default()
                };
                rule_by_name("streaming-diloco", &ten)
            });
        let config = RuleConfig {
            period: Some(20),
            fragments: 2,
            delay: 1,
            clip: Some(optim::Clip::Norm(1.0)),
            ..RuleConfig::default()
        };
        let mine = rules.make("mine", &config).unwrap();
        assert_eq!((mine.period(), mine.own_period()), (None, Some(20)));
        assert!(mine.clips());
        // Both make the same exchanges, and see the same gradients.
        let mut one = mine;
        let mut other = rule_by_name::<f32>("streaming-diloco", &config).unwrap();
        let place = gaggle::core::Place {
            rank: gaggle::Rank(0),
            world: 1,
        };
        for rule in [&mut one, &mut other] {
            rule.init(5, place);
        }
        let (mut a, mut b) = (vec![], vec![]);
        for step in 0..50 {
            let cx = gaggle::core::Cx::at(step, 0.1);
            one.exchanges(&cx, &mut a);
            other.exchanges(&cx, &mut b);
        }
        assert!(a == b && a.len() == 5, "{a:?}");
        let e = rules.make("fixed", &config).err().unwrap().to_string();
        assert_eq!(
            e,
            "period is 20; streaming-diloco counts its steps itself, and was made for 10"
        );
    }

    #[test]
    fn what_is_added_comes_first_and_takes_the_place_of_its_name() {
        let rules = Rules::default()
            .with("mine", "first", |c| rule_by_name("dsgd-atc", c))
            .with("dmsgd", "in its place", |c| rule_by_name("dsgd-awc", c))
            .with("mine", "second", |c| rule_by_name("dsgd-cta", c));
        let config = RuleConfig::default();
        let made = |name: &str| rules.make(name, &config).unwrap().name().to_owned();
        assert_eq!(
            (made("mine"), made("dmsgd")),
            ("dsgd-cta".into(), "dsgd-awc".into())
        );
        assert_eq!(made("qg-dmsgd"), "qg-dmsgd");
        assert_eq!(rules.names().filter(|n| *n == "dmsgd").count(), 1);
        assert_eq!(format!("{rules:?}"), "[\"dmsgd\", \"mine\"]");
        assert!(rules.make("nobody", &config).is_err());
        assert!(rules != Rules::default() && rules == rules.clone());
    }
}
