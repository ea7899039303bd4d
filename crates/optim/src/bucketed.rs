//! The driver over buckets: a rule's messages leave bucket by bucket, under backward and under forward.

use crate::{
    Pace, State, StateError,
    course::{Course, add},
};
use gaggle_core::{At, Error, Float, Mixer, MixingFacts, Rule, Stability, Unstable};
use std::ops::Range;

/// Runs a rule over a mixer as [`Decentralised`](crate::Decentralised) does, with the same digits, for parameters whose gradients come bucket by bucket.
///
/// It owns the parameters, one flat vector; bucket 0 is what forward uses first.
/// A step is [`begin_step`](Self::begin_step); [`parameters`](Self::parameters) of each bucket as forward comes to it; [`ready`](Self::ready) for each bucket as backward has its gradient, in any order; [`finish`](Self::finish).
/// What a rule sends before the forward pass starts in `begin_step`, bucket 0's first, and is waited for bucket by bucket in `parameters`; what it sends of a gradient starts in `ready`, while backward goes on with the other buckets; everything else is waited for in `finish`.
/// A rule that needs the whole vector at once ([`Rule::whole`]) gets it when the last gradient is there.
///
/// A rule may move parameters while it writes a message: forward and backward work on copies, or on what `parameters` gave before the first `ready`.
///
/// Message `s` of bucket b of B has the mixer's slot s·B + b, so that as many are under way at once.
///
/// A caller's mistake (wrong length, wrong order) is an error and changes nothing.
/// After an error of the network every later call returns that error again.
///
/// ```
/// use gaggle_optim::{Bucketed, RuleConfig, rule_by_name, testing::DenseMixer};
///
/// let rule = rule_by_name("dmsgd", &RuleConfig::default())?;
/// let alone = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
/// let mut training = Bucketed::unchecked(rule, Box::new(alone), vec![1.0_f64, -1.0, 3.0], &[2, 1])?;
/// training.begin_step(0.1)?;
/// assert_eq!(training.parameters(0)?, [1.0, -1.0]);
/// training.ready(1, &[-1.0])?; // the last layer's gradient comes first
/// training.ready(0, &[1.0, 0.0])?;
/// assert_eq!(training.finish()?, [0.9, -1.0, 3.1]);
/// # Ok::<(), gaggle_core::Error>(())
/// ```
pub struct Bucketed<T: Float> {
    /// Its spans are the buckets, or one of everything.
    course: Course<T>,
    buckets: Vec<Range<usize>>,
    x: Vec<T>,
    g: Vec<T>,
    open: bool,
    /// Spans that have what is due before the forward pass.
    n_forwarded: usize,
    /// Gradients of this step so far, by bucket.
    n_summed: Vec<u64>,
    /// Gradients that make a step.
    micro_batches: u64,
}

impl<T: Float> Bucketed<T> {
    /// As [`Bucketed::unchecked`], where the rule is stable with step size `lr` on the topology that has these facts. What is known beyond that comes back too.
    ///
    /// # Errors
    /// It is not: which limit is broken and what works. The buckets do not make up `x`.
    pub fn stable(
        rule: Box<dyn Rule<T>>,
        mixer: Box<dyn Mixer<T>>,
        x: Vec<T>,
        lens: &[usize],
        (facts, lr): (&MixingFacts, f64),
    ) -> Result<(Self, Stability), Error> {
        let made = Self::unchecked(rule, mixer, x, lens)?;
        let name = || made.course.rule.name().to_owned();
        let refused = |e: Unstable| Error::invalid(name(), e.to_string());
        let stability = made.check(facts, lr).map_err(refused)?;
        Ok((made, stability))
    }

    /// Starts `rule` on parameters `x`, at step 0, stable or not; bucket b has `lens[b]` elements, in the order of `x`. Every rank has the same buckets.
    ///
    /// # Errors
    /// The buckets do not make up `x`.
    pub fn unchecked(
        rule: Box<dyn Rule<T>>,
        mixer: Box<dyn Mixer<T>>,
        x: Vec<T>,
        lens: &[usize],
    ) -> Result<Self, Error> {
        let mut end = 0_usize;
        let buckets: Vec<Range<usize>> = lens
            .iter()
            .map(|len| {
                let start = end;
                end = end.saturating_add(*len);
                start..end
            })
            .collect();
        if end != x.len() {
            let what = format!("buckets have {end} elements, there are {}", x.len());
            return Err(Error::invalid(rule.name().to_owned(), what));
        }
        Ok(Bucketed {
            course: Course::new(rule, mixer, x.len()).in_spans(&buckets),
            g: vec![T::from_f64(0.0); x.len()],
            x,
            open: false,
            n_forwarded: 0,
            n_summed: vec![0; buckets.len()],
            buckets,
            micro_batches: 1,
        })
    }

    /// Asks the rule whether it is stable with this topology and step size.
    ///
    /// # Errors
    /// It is not; the text says what works.
    pub fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.course.rule.check(facts, lr)
    }

    /// From the next step on each takes the sum of the gradients of `n` micro-batches (0 counts as 1): `ready` is called as often for every bucket, and messages leave with the last.
    ///
    /// # Errors
    /// A step is under way.
    pub fn set_micro_batches(&mut self, n: u64) -> Result<(), Error> {
        self.require_open(false, "set_micro_batches")?;
        self.micro_batches = n.max(1);
        Ok(())
    }

    /// From the next step on every `period`-th step communicates, counted from the last that did. Every rank must do the same.
    ///
    /// # Errors
    /// The rule has no local steps, `period` is 0, or a step is under way.
    pub fn set_period(&mut self, period: u64) -> Result<(), Error> {
        self.require_open(false, "set_period")?;
        self.course.set_period(period)
    }

    /// Begins a step: starts what is sent before the forward pass, in forward order. Does not wait.
    ///
    /// # Errors
    /// The step before is not finished, or `lr` is no step size: nothing has changed. A peer or the network.
    pub fn begin_step(&mut self, lr: f64) -> Result<(), Error> {
        self.require_open(false, "begin_step")?;
        self.course.check_lr(lr)?;
        self.course.begin_step(lr)?;
        self.open = true;
        self.n_forwarded = 0;
        self.n_summed.fill(0);
        self.each_span(|course, span, x, _| course.emit(At::BeforeForward, span, x, &[]))
    }

    /// The parameters of a bucket as forward is to use them; waits for what is due for it and for the buckets before it. Again in the same step it gives the same.
    ///
    /// # Errors
    /// There is no such bucket, no step has begun, or its gradient was handed over already: nothing has changed. A peer or the network.
    pub fn parameters(&mut self, bucket: usize) -> Result<&[T], Error> {
        self.require_open(true, "parameters")?;
        let at = self.bucket(bucket)?;
        if self.n_summed[bucket] >= self.micro_batches {
            return Err(self.mistake(format!("parameters of bucket {bucket} after its gradient")));
        }
        let last = if self.is_whole() { 0 } else { bucket };
        self.forward_to(last + 1)?;
        Ok(&self.x[at])
    }

    /// Takes a bucket's complete gradient; with the last micro-batch's its messages start. Does not wait, but for what was due before the forward pass.
    ///
    /// # Errors
    /// There is no such bucket, its length is another, no step has begun, or it has all its gradients: nothing has changed. A peer or the network.
    pub fn ready(&mut self, bucket: usize, g: &[T]) -> Result<(), Error> {
        self.require_open(true, "ready")?;
        let at = self.bucket(bucket)?;
        if g.len() != at.len() {
            return Err(self.mistake(format!(
                "gradient of bucket {bucket} has {} elements, wanted {}",
                g.len(),
                at.len()
            )));
        }
        let n = self.n_summed[bucket];
        if n >= self.micro_batches {
            return Err(self.mistake(format!(
                "gradient {} of bucket {bucket}, wanted {}",
                n + 1,
                self.micro_batches
            )));
        }
        match n {
            0 => self.g[at].copy_from_slice(g),
            _ => add(&mut self.g[at], g),
        }
        self.n_summed[bucket] += 1;
        if self.n_summed[bucket] < self.micro_batches {
            return Ok(());
        }
        self.forward_to(self.course.n_spans())?;
        let span = match self.is_whole() {
            false => bucket,
            true if self.missing().is_empty() => 0,
            true => return Ok(()),
        };
        let Bucketed { course, x, g, .. } = self;
        course.emit(At::AfterGradient, span, x, g)
    }

    /// Waits for everything that is due in this step, and shows all parameters after it.
    ///
    /// # Errors
    /// No step has begun, or gradients are missing: the step stays open. A peer or the network.
    pub fn finish(&mut self) -> Result<&[T], Error> {
        self.require_open(true, "finish")?;
        let missing = self.missing();
        if !missing.is_empty() {
            return Err(self.mistake(format!("gradients of buckets {missing:?} are missing")));
        }
        // Without buckets nobody has been ready.
        self.forward_to(self.course.n_spans())?;
        self.each_span(|course, span, x, g| course.absorb(At::AfterGradient, span, x, g))?;
        if self.course.comes_to(At::AfterMean) {
            self.each_span(|course, span, x, g| course.emit(At::AfterMean, span, x, g))?;
            self.each_span(|course, span, x, g| course.absorb(At::AfterMean, span, x, g))?;
        }
        self.course.pace.advance();
        self.open = false;
        Ok(&self.x)
    }

    fn each_span(
        &mut self,
        mut body: impl FnMut(&mut Course<T>, usize, &mut [T], &[T]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Bucketed { course, x, g, .. } = self;
        (0..course.n_spans()).try_for_each(|span| body(course, span, x, g))
    }

    /// All parameters: between steps as the last one left them, within a step as far as it is.
    pub fn x(&self) -> &[T] {
        &self.x
    }

    /// The buckets, as ranges of the parameters.
    pub fn buckets(&self) -> &[Range<usize>] {
        &self.buckets
    }

    /// Whether a bucket has all gradients of the step at hand; false for a bucket that is none.
    pub fn is_complete(&self, bucket: usize) -> bool {
        let n = self.n_summed.get(bucket);
        self.open && n.is_some_and(|n| *n >= self.micro_batches)
    }

    /// Whether a step has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Steps, communications, and the local steps since the last one.
    pub fn pace(&self) -> Pace {
        self.course.pace
    }

    /// The rule.
    pub fn rule(&self) -> &dyn Rule<T> {
        &*self.course.rule
    }

    /// Everything but the parameters, to be written somewhere; [`Decentralised`](crate::Decentralised) can go on with it, and the other way round.
    ///
    /// # Errors
    /// A step is under way, or a message of a rule with late messages: take one more step and try again.
    pub fn save(&mut self) -> Result<State, StateError> {
        self.require_closed()?;
        self.course.save()
    }

    /// Goes on where [`Bucketed::save`] was called, on the same rule with the same settings, from parameters `x`.
    ///
    /// # Errors
    /// The state is another rule's or of other lengths, `x` has another length, or a step or a message is under way; nothing has changed.
    pub fn load(&mut self, state: &State, x: &[T]) -> Result<(), StateError> {
        self.require_closed()?;
        if x.len() != self.x.len() {
            return Err(StateError::Shape {
                what: "number of parameters given",
                got: x.len() as u64,
                want: self.x.len() as u64,
            });
        }
        self.course.load(state)?;
        self.x.copy_from_slice(x);
        Ok(())
    }

    /// Gives the parameters back.
    pub fn into_x(self) -> Vec<T> {
        self.x
    }

    fn mistake(&self, what: String) -> Error {
        self.course.mistake(what)
    }

    fn is_whole(&self) -> bool {
        self.course.rule.whole()
    }

    fn require_open(&self, open: bool, call: &str) -> Result<(), Error> {
        self.course.require_alive()?;
        match self.open == open {
            true => Ok(()),
            false if open => Err(self.mistake(format!("{call}: no step has begun"))),
            false => Err(self.mistake(format!("{call} in the middle of a step"))),
        }
    }

    fn require_closed(&self) -> Result<(), StateError> {
        if self.open {
            let step = self.course.pace.step;
            return Err(StateError::MidStep { step });
        }
        Ok(())
    }

    fn bucket(&self, bucket: usize) -> Result<Range<usize>, Error> {
        let there = self.buckets.get(bucket).cloned();
        there.ok_or_else(|| {
            let count = self.buckets.len();
            self.mistake(format!("there is no bucket {bucket}, there are {count}"))
        })
    }

    fn missing(&self) -> Vec<usize> {
        (0..self.buckets.len())
            .filter(|b| self.n_summed[*b] < self.micro_batches)
            .collect()
    }

    /// What is due before the forward pass, for the first `n` spans.
    fn forward_to(&mut self, n: usize) -> Result<(), Error> {
        let Bucketed { course, x, .. } = self;
        while self.n_forwarded < n.min(course.n_spans()) {
            course.absorb(At::BeforeForward, self.n_forwarded, x, &[])?;
            self.n_forwarded += 1;
        }
        Ok(())
    }
}
