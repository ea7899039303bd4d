//! The driver over buckets: a rule's messages leave bucket by bucket, under backward and under forward.

use crate::{Pace, State, StateError};
use gaggle_core::{
    At, Cx, Error, Exchange, Float, Local, MixedMean, Mixer, MixingFacts, Place, Rule, Stability,
    Unstable,
};
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
    rule: Box<dyn Rule<T>>,
    mixer: Box<dyn Mixer<T>>,
    buckets: Vec<Range<usize>>,
    /// What the rule is given at a time: the buckets, or everything.
    spans: Vec<Range<usize>>,
    x: Vec<T>,
    g: Vec<T>,
    pace: Pace,
    cx: Cx,
    open: bool,
    exchanges: Vec<Exchange>,
    in_flight: Vec<Flying>,
    /// Spans that have what is due before the forward pass.
    n_forwarded: usize,
    /// Gradients of this step so far, by bucket.
    n_summed: Vec<u64>,
    /// Gradients that make a step.
    micro_batches: u64,
    failed: Option<Error>,
}

/// A message that was started and has not been taken in.
struct Flying {
    exchange: Exchange,
    span: usize,
    /// The step in which it is due.
    due: u64,
    /// Nothing was to be sent: the span has no elements in it.
    void: bool,
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
        let refused = |e: Unstable| Error::invalid(rule.name().to_owned(), e.to_string());
        let stability = rule.check(facts, lr).map_err(refused)?;
        Ok((Self::unchecked(rule, mixer, x, lens)?, stability))
    }

    /// Starts `rule` on parameters `x`, at step 0, stable or not; bucket b has `lens[b]` elements, in the order of `x`. Every rank has the same buckets.
    ///
    /// # Errors
    /// The buckets do not make up `x`.
    pub fn unchecked(
        mut rule: Box<dyn Rule<T>>,
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
        let place = Place {
            rank: mixer.rank(),
            world: mixer.world(),
        };
        rule.init(x.len(), place);
        let spans = match rule.whole() {
            true => std::iter::once(0..x.len()).collect(),
            false => buckets.clone(),
        };
        Ok(Bucketed {
            pace: Pace::new(rule.period().unwrap_or(1)),
            rule,
            mixer,
            spans,
            g: vec![T::from_f64(0.0); x.len()],
            x,
            cx: Cx::at(0, 0.0),
            open: false,
            exchanges: Vec::new(),
            in_flight: Vec::new(),
            n_forwarded: 0,
            n_summed: vec![0; buckets.len()],
            buckets,
            micro_batches: 1,
            failed: None,
        })
    }

    /// Asks the rule whether it is stable with this topology and step size.
    ///
    /// # Errors
    /// It is not; the text says what works.
    pub fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.rule.check(facts, lr)
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
        if period == 0 || (period > 1 && self.rule.period().is_none()) {
            return Err(self.mistake(format!(
                "a period of {period}: this rule has no steps without communication"
            )));
        }
        self.pace.period = period;
        Ok(())
    }

    /// Begins a step: starts what is sent before the forward pass, in forward order. Does not wait.
    ///
    /// # Errors
    /// The step before is not finished, or `lr` is no step size: nothing has changed. A peer or the network.
    pub fn begin_step(&mut self, lr: f64) -> Result<(), Error> {
        self.require_open(false, "begin_step")?;
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(self.mistake(format!(
                "step size is {lr}; it must be finite and not negative"
            )));
        }
        self.cx = self.pace.cx(lr);
        self.list_exchanges()?;
        self.open = true;
        self.n_forwarded = 0;
        self.n_summed.fill(0);
        let sent = (0..self.spans.len()).try_for_each(|span| self.emit(At::BeforeForward, span));
        self.remember(sent)
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
        let last = if self.rule.whole() { 0 } else { bucket };
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
            _ => {
                for (sum, g) in self.g[at].iter_mut().zip(g) {
                    *sum = T::from_f64(sum.to_f64() + g.to_f64());
                }
            }
        }
        self.n_summed[bucket] += 1;
        if self.n_summed[bucket] < self.micro_batches {
            return Ok(());
        }
        self.forward_to(self.spans.len())?;
        let sent = match self.rule.whole() {
            false => self.emit(At::AfterGradient, bucket),
            true if self.missing().is_empty() => self.emit(At::AfterGradient, 0),
            true => Ok(()),
        };
        self.remember(sent)
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
        self.forward_to(self.spans.len())?;
        let done = self.take_in();
        self.remember(done)?;
        self.pace.advance();
        self.open = false;
        Ok(&self.x)
    }

    fn take_in(&mut self) -> Result<(), Error> {
        self.each_span(At::AfterGradient, Self::absorb)?;
        if self.averages_twice() {
            self.each_span(At::AfterMean, Self::emit)?;
            self.each_span(At::AfterMean, Self::absorb)?;
        }
        Ok(())
    }

    fn each_span(
        &mut self,
        at: At,
        body: fn(&mut Self, At, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        (0..self.spans.len()).try_for_each(|span| body(self, at, span))
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
        self.pace
    }

    /// The rule.
    pub fn rule(&self) -> &dyn Rule<T> {
        &*self.rule
    }

    /// Everything but the parameters, to be written somewhere; [`Decentralised`](crate::Decentralised) can go on with it, and the other way round.
    ///
    /// # Errors
    /// A step is under way, or a message of a rule with late messages: take one more step and try again.
    pub fn save(&mut self) -> Result<State, StateError> {
        let step = self.pace.step;
        if self.open {
            return Err(StateError::MidStep { step });
        }
        if let Some(Flying { due, .. }) = self.in_flight.first() {
            return Err(StateError::InFlight { step, due: *due });
        }
        Ok(State::of(&mut *self.rule, self.x.len(), self.pace))
    }

    /// Goes on where [`Bucketed::save`] was called, on the same rule with the same settings, from parameters `x`.
    ///
    /// # Errors
    /// The state is another rule's or of other lengths, or a step is under way; nothing has changed.
    pub fn load(&mut self, state: &State, x: &[T]) -> Result<(), StateError> {
        if self.open || !self.in_flight.is_empty() || x.len() != self.x.len() {
            return Err(StateError::MidStep {
                step: self.pace.step,
            });
        }
        self.pace = state.restore(&mut *self.rule, self.x.len())?;
        self.x.copy_from_slice(x);
        Ok(())
    }

    /// Gives the parameters back.
    pub fn into_x(self) -> Vec<T> {
        self.x
    }

    fn mistake(&self, what: String) -> Error {
        let who = format!("{} step {}", self.rule.name(), self.pace.step);
        Error::invalid(who, what)
    }

    fn require_open(&self, open: bool, call: &str) -> Result<(), Error> {
        match &self.failed {
            Some(e) => Err(e.clone()),
            None if self.open == open => Ok(()),
            None if open => Err(self.mistake(format!("{call}: no step has begun"))),
            None => Err(self.mistake(format!("{call} in the middle of a step"))),
        }
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

    fn remember(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if let Err(e) = &result {
            self.failed = Some(e.clone());
        }
        result
    }

    fn list_exchanges(&mut self) -> Result<(), Error> {
        self.exchanges.clear();
        if self.cx.mixes {
            self.rule.exchanges(&self.cx, &mut self.exchanges);
        }
        let taken = |e: &&Exchange| self.in_flight.iter().any(|f| f.exchange.slot == e.slot);
        match self.exchanges.iter().find(taken) {
            None => Ok(()),
            Some(e) => Err(self.mistake(format!(
                "the rule lists slot {} while an earlier message of it is under way",
                e.slot
            ))),
        }
    }

    fn averages_twice(&self) -> bool {
        let second = |e: &Exchange| e.known == At::AfterMean || e.due == At::AfterMean;
        let now = |f: &Flying| f.due == self.cx.step && second(&f.exchange);
        self.exchanges.iter().any(second) || self.in_flight.iter().any(now)
    }

    /// What is due before the forward pass, for the first `n` spans.
    fn forward_to(&mut self, n: usize) -> Result<(), Error> {
        while self.n_forwarded < n.min(self.spans.len()) {
            let done = self.absorb(At::BeforeForward, self.n_forwarded);
            self.remember(done)?;
            self.n_forwarded += 1;
        }
        Ok(())
    }

    /// The mixer's slot for a message of a span.
    fn slot(&self, slot: usize, span: usize) -> usize {
        slot * self.spans.len() + span
    }

    fn emit(&mut self, at: At, span: usize) -> Result<(), Error> {
        for i in 0..self.exchanges.len() {
            let exchange = self.exchanges[i];
            if exchange.known != at {
                continue;
            }
            let range = exchange.within(self.spans[span].clone());
            let void = exchange.part.is_some() && range.is_empty() && exchange.extra == 0;
            if !void {
                let slot = self.slot(exchange.slot, span);
                let n = self.mixer.messages(&exchange) * exchange.len(range.len());
                let out = self.mixer.outbox(slot, n);
                let g = match at {
                    At::BeforeForward => &[][..],
                    _ => &self.g[range.clone()],
                };
                let local = Local {
                    x: &mut self.x[range.clone()],
                    g,
                    at: range,
                };
                self.rule.emit(&self.cx, exchange.slot, local, out);
                self.mixer.start(&exchange.slot(slot), self.cx.step)?;
            }
            self.in_flight.push(Flying {
                exchange,
                span,
                due: self.cx.step + exchange.late,
                void,
            });
        }
        Ok(())
    }

    /// Also when nothing is due: that is how local steps and CTA's second half are taken.
    fn absorb(&mut self, at: At, span: usize) -> Result<(), Error> {
        let step = self.cx.step;
        let due = |f: &&Flying| f.due == step && f.exchange.due == at && f.span == span;
        let n = self.spans.len();
        for f in self.in_flight.iter().filter(due).filter(|f| !f.void) {
            self.mixer.finish(f.exchange.slot * n + span)?;
        }
        let range = self.spans[span].clone();
        let means: Vec<MixedMean<'_, T>> = self
            .in_flight
            .iter()
            .filter(due)
            .map(|f| MixedMean {
                slot: f.exchange.slot,
                at: f.exchange.within(range.clone()),
                values: match f.void {
                    true => &[],
                    false => self.mixer.mean(f.exchange.slot * n + span),
                },
            })
            .collect();
        let g = match at {
            At::BeforeForward => &[][..],
            _ => &self.g[range.clone()],
        };
        let local = Local {
            x: &mut self.x[range.clone()],
            g,
            at: range,
        };
        self.rule.absorb(&self.cx, at, local, &means);
        self.in_flight.retain(|f| !due(&f));
        Ok(())
    }
}
