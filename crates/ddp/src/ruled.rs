//! Update rules under backward: gradients in by parameter, a rule's messages out by bucket.
//!
//! The main type is [`RuleDdp`]; what it does with a full bucket is [`Bucketed`]'s.

use crate::{BucketConfig, DdpError, Layout, ParamSpec, Params};
use gaggle_core::{Error, Float, Mixer, MixingFacts, Rule, Stability, Unstable};
use gaggle_optim::Bucketed;
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Trains one model by an update rule, with its communication under forward and backward.
///
/// Parameters are packed into buckets as [`Ddp`](crate::Ddp) packs them.
/// A step is [`begin_step`](Self::begin_step); [`parameter`](Self::parameter) for each parameter as forward comes to it; one [`ready`](Self::ready) per parameter from within backward, in any order and from any thread; [`finish`](Self::finish).
/// The last gradient of a bucket starts the bucket's messages; what a rule sends before the forward pass starts in `begin_step`, and `parameter` waits for that of its bucket alone.
/// All buckets, and all ways to drive a rule, give the same digits.
///
/// The rule may move parameters while backward runs: the model computes on copies, which `parameter` and `finish` give.
///
/// The mixer's slots are numbered over all buckets: with a [`NeighbourMixer`](crate::NeighbourMixer) bucket b (from the front of the model) of B uses the lanes b, b + B, … after its first.
pub struct RuleDdp<T: Float> {
    shared: Arc<Shared<T>>,
    x: Vec<T>,
}

/// Hands gradients over from within backward; made by [`RuleDdp::feed`], cheap to clone, `Send + Sync`.
pub struct RuleFeed<T: Float>(Arc<Shared<T>>);

impl<T: Float> Clone for RuleFeed<T> {
    fn clone(&self) -> Self {
        RuleFeed(Arc::clone(&self.0))
    }
}

impl<T: Float> RuleFeed<T> {
    /// As [`RuleDdp::ready`].
    ///
    /// # Errors
    /// As [`RuleDdp::ready`].
    pub fn ready(&self, idx: usize, grad: &[T]) -> Result<(), DdpError> {
        self.0.ready(idx, grad)
    }
}

struct Shared<T: Float> {
    params: Params,
    /// Each parameter's bucket, from the front of the model, and its place in the flat vector.
    places: Vec<(usize, Range<usize>)>,
    step: Mutex<Step<T>>,
}

struct Step<T: Float> {
    driver: Bucketed<T>,
    /// Gradients of buckets that are not full yet, where their parameters lie.
    g: Vec<T>,
    /// By parameter, whether its gradient of this micro-batch is there.
    seen: Vec<bool>,
    /// By bucket, how many are not.
    missing: Vec<usize>,
}

impl<T: Float> RuleDdp<T> {
    /// As [`RuleDdp::unchecked`], where the rule is stable with step size `lr` on the topology that has these facts. What is known beyond that comes back too.
    ///
    /// # Errors
    /// As there; [`DdpError::Communication`] also where it is not stable: which limit is broken and what works.
    pub fn stable(
        params: &[ParamSpec],
        buckets: &BucketConfig,
        rule: Box<dyn Rule<T>>,
        mixer: Box<dyn Mixer<T>>,
        x: Vec<T>,
        (facts, lr): (&MixingFacts, f64),
    ) -> Result<(Self, Stability), DdpError> {
        let name = rule.name().to_owned();
        let made = Self::unchecked(params, buckets, rule, mixer, x)?;
        let refused = |e: Unstable| during("start")(Error::invalid(name, e.to_string()));
        let stability = made.check(facts, lr).map_err(refused)?;
        Ok((made, stability))
    }

    /// Starts `rule`, stable or not, on a model whose parameters, one after the other in the order of `params`, are `x`.
    ///
    /// Every rank gives the same parameters, settings and rule; [`compare_digests`](crate::compare_digests) tells whether they do.
    ///
    /// # Errors
    /// [`DdpError::DuplicateParameter`], [`DdpError::TooLarge`]; [`DdpError::Communication`] where `x` is not as long as the parameters together.
    pub fn unchecked(
        params: &[ParamSpec],
        buckets: &BucketConfig,
        rule: Box<dyn Rule<T>>,
        mixer: Box<dyn Mixer<T>>,
        x: Vec<T>,
    ) -> Result<Self, DdpError> {
        let params = Params::new(params)?;
        let layout = Layout::new(&params, T::DTYPE.size(), buckets);
        // Packed from the last parameter on; forward begins with the first.
        let count = layout.buckets().len();
        let forward = |b: usize| count - 1 - b;
        let lens: Vec<usize> = layout.buckets().iter().rev().map(|b| b.len_elems).collect();
        let missing = layout.buckets().iter().rev().map(|b| b.slots.len());
        let mut end = 0;
        let places = (0..params.count()).filter_map(|idx| {
            let (bucket, at) = layout.place(idx)?;
            let start = end;
            end += at.len();
            Some((forward(bucket), start..end))
        });
        let places: Vec<_> = places.collect();
        let driver = Bucketed::unchecked(rule, mixer, x.clone(), &lens).map_err(during("start"))?;
        let step = Step {
            driver,
            g: vec![T::from_f64(0.0); x.len()],
            seen: vec![false; params.count()],
            missing: missing.collect(),
        };
        Ok(RuleDdp {
            shared: Arc::new(Shared {
                params,
                places,
                step: Mutex::new(step),
            }),
            x,
        })
    }

    /// Asks the rule whether it is stable with this topology and step size.
    ///
    /// # Errors
    /// It is not; the text says what works.
    pub fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.shared.lock().driver.check(facts, lr)
    }

    /// From the next step on each takes the sum of the gradients of `n` micro-batches (0 counts as 1): `ready` is called as often for every parameter.
    ///
    /// # Errors
    /// [`DdpError::StepOpen`].
    pub fn set_micro_batches(&mut self, n: u64) -> Result<(), DdpError> {
        let mut step = self.shared.lock();
        if step.driver.is_open() {
            return Err(DdpError::StepOpen);
        }
        let set = step.driver.set_micro_batches(n);
        set.map_err(during("set_micro_batches"))
    }

    /// Begins a step with step size `lr`. Does not wait.
    ///
    /// # Errors
    /// [`DdpError::StepOpen`]; [`DdpError::Communication`], also for what is no step size.
    pub fn begin_step(&mut self, lr: f64) -> Result<(), DdpError> {
        let mut step = self.shared.lock();
        if step.driver.is_open() {
            return Err(DdpError::StepOpen);
        }
        step.driver.begin_step(lr).map_err(during("begin_step"))
    }

    /// Copies parameter `idx`, as forward is to use it, into `into`; waits for what is due for its bucket before the forward pass.
    ///
    /// # Errors
    /// [`DdpError::UnknownParameter`], [`DdpError::WrongLength`], [`DdpError::NoStep`]: nothing has changed. [`DdpError::Communication`].
    pub fn parameter(&mut self, idx: usize, into: &mut [T]) -> Result<(), DdpError> {
        let mut step = self.shared.lock();
        self.shared.params.check_len(idx, into.len())?;
        if !step.driver.is_open() {
            return Err(DdpError::NoStep { call: "parameter" });
        }
        let (bucket, at) = self.shared.places[idx].clone();
        step.driver
            .parameters(bucket)
            .map_err(during("what is due before the forward pass"))?;
        into.copy_from_slice(&step.driver.x()[at]);
        Ok(())
    }

    /// Hands over the complete gradient of parameter `idx`; the last one of a bucket starts the bucket's messages. Does not wait, but for what was due before the forward pass and was not asked for.
    ///
    /// # Errors
    /// [`DdpError::NoStep`], [`DdpError::UnknownParameter`], [`DdpError::WrongLength`], [`DdpError::ReadyTwice`]: nothing has changed. [`DdpError::Communication`].
    pub fn ready(&self, idx: usize, grad: &[T]) -> Result<(), DdpError> {
        self.shared.ready(idx, grad)
    }

    /// A handle for backward hooks, which outlive no borrow of this value.
    pub fn feed(&self) -> RuleFeed<T> {
        RuleFeed(Arc::clone(&self.shared))
    }

    /// Waits for everything that is due in this step, and shows the model's parameters after it, in the order of the model.
    ///
    /// # Errors
    /// [`DdpError::NoStep`]; [`DdpError::MissingGradients`]: the step stays open. [`DdpError::Communication`].
    pub fn finish(&mut self) -> Result<&[T], DdpError> {
        let mut step = self.shared.lock();
        if !step.driver.is_open() {
            return Err(DdpError::NoStep { call: "finish" });
        }
        self.shared.check_complete(&step)?;
        let x = step.driver.finish().map_err(during("finish"))?;
        self.x.copy_from_slice(x);
        drop(step);
        Ok(&self.x)
    }

    /// The model.
    pub fn params(&self) -> &Params {
        &self.shared.params
    }

    /// The buckets, from the front of the model, as ranges of its parameters.
    pub fn buckets(&self) -> Vec<Range<usize>> {
        self.shared.lock().driver.buckets().to_vec()
    }

    /// Looks at the driver, or saves and loads its state, between two steps.
    pub fn with_driver<R>(&self, f: impl FnOnce(&mut Bucketed<T>) -> R) -> R {
        f(&mut self.shared.lock().driver)
    }
}

fn during(what: &'static str) -> impl FnOnce(Error) -> DdpError {
    move |source| DdpError::Communication {
        during: what,
        source,
    }
}

impl<T: Float> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Step<T>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self, idx: usize, grad: &[T]) -> Result<(), DdpError> {
        let mut step = self.lock();
        if !step.driver.is_open() {
            return Err(DdpError::NoStep { call: "ready" });
        }
        self.params.check_len(idx, grad.len())?;
        let (bucket, at) = self.places[idx].clone();
        if step.seen[idx] || step.driver.is_complete(bucket) {
            return Err(DdpError::ReadyTwice {
                name: self.params.specs()[idx].name.clone(),
            });
        }
        step.g[at].copy_from_slice(grad);
        step.seen[idx] = true;
        step.missing[bucket] -= 1;
        if step.missing[bucket] > 0 {
            return Ok(());
        }
        // Full: for the next micro-batch or step it is empty again.
        for (param, (of, _)) in self.places.iter().enumerate() {
            if *of == bucket {
                step.seen[param] = false;
                step.missing[bucket] += 1;
            }
        }
        let range = step.driver.buckets()[bucket].clone();
        let Step { driver, g, .. } = &mut *step;
        driver.ready(bucket, &g[range]).map_err(during("ready"))
    }

    /// Refuses a step whose gradients are not all there.
    fn check_complete(&self, step: &Step<T>) -> Result<(), DdpError> {
        let lacks = |idx: &usize| !step.seen[*idx] && !step.driver.is_complete(self.places[*idx].0);
        let names: Vec<String> = (0..self.params.count())
            .filter(lacks)
            .map(|idx| self.params.specs()[idx].name.clone())
            .collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(DdpError::MissingGradients {
                names,
                count: self.params.count(),
            }),
        }
    }
}
