//! What both drivers share: a rule over a mixer, span by span, with the messages that are under way and the error that ended the run.

use crate::{Pace, State, StateError};
use gaggle_core::{At, Cx, Error, Exchange, Float, Local, MixedMean, Mixer, Place, Rule};
use std::ops::Range;

/// A run of a rule. Which point of which step comes next, and for which span, is its driver's; so are parameters and gradients.
pub(crate) struct Course<T: Float> {
    pub(crate) rule: Box<dyn Rule<T>>,
    pub(crate) mixer: Box<dyn Mixer<T>>,
    /// Parameters in all.
    n: usize,
    /// What the rule is given at a time.
    spans: Vec<Range<usize>>,
    pub(crate) pace: Pace,
    pub(crate) cx: Cx,
    /// This step's exchanges, as the rule listed them at its start.
    exchanges: Vec<Exchange>,
    in_flight: Vec<Flying>,
    failed: Option<Error>,
}

/// A message that was started and has not been taken in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) exchange: Exchange,
    span: usize,
    /// The step in which it is due.
    pub(crate) due: u64,
    /// Nothing was to be sent: the span has no elements in it.
    void: bool,
}

/// As many means are gathered without an allocation.
const FEW: usize = 4;

impl<T: Float> Course<T> {
    /// Begins `rule` on `n` parameters, which it is given in one span.
    pub(crate) fn new(mut rule: Box<dyn Rule<T>>, mixer: Box<dyn Mixer<T>>, n: usize) -> Self {
        let place = Place {
            rank: mixer.rank(),
            world: mixer.world(),
        };
        rule.init(n, place);
        Course {
            pace: Pace::new(rule.period().unwrap_or(1)),
            rule,
            mixer,
            n,
            spans: std::iter::once(0..n).collect(),
            cx: Cx::at(0, 0.0),
            exchanges: Vec::new(),
            in_flight: Vec::new(),
            failed: None,
        }
    }

    /// The rule is given these spans one at a time, unless it needs the whole vector.
    pub(crate) fn in_spans(mut self, spans: &[Range<usize>]) -> Self {
        if !self.rule.whole() {
            self.spans = spans.to_vec();
        }
        self
    }

    pub(crate) fn n_spans(&self) -> usize {
        self.spans.len()
    }

    /// The caller's mistake in the step at hand.
    pub(crate) fn mistake(&self, what: String) -> Error {
        let who = format!("{} step {}", self.rule.name(), self.pace.step);
        Error::invalid(who, what)
    }

    /// # Errors
    /// The one that ended the run.
    pub(crate) fn require_alive(&self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn check_lr(&self, lr: f64) -> Result<(), Error> {
        if lr.is_finite() && lr >= 0.0 {
            return Ok(());
        }
        Err(self.mistake(format!(
            "step size is {lr}; it must be finite and not negative"
        )))
    }

    pub(crate) fn set_period(&mut self, period: u64) -> Result<(), Error> {
        if period == 0 || (period > 1 && self.rule.period().is_none()) {
            return Err(self.mistake(format!(
                "a period of {period}: this rule has no steps without communication"
            )));
        }
        self.pace.period = period;
        Ok(())
    }

    /// The message that has been under way for longest.
    pub(crate) fn first_in_flight(&self) -> Option<&Flying> {
        self.in_flight.first()
    }

    /// Begins a step: asks the rule what it exchanges.
    pub(crate) fn begin_step(&mut self, lr: f64) -> Result<(), Error> {
        self.cx = self.pace.cx(lr);
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

    /// Whether something becomes known or due at `at` in this step.
    pub(crate) fn comes_to(&self, at: At) -> bool {
        let there = |e: &Exchange| e.known == at || e.due == at;
        let now = |f: &Flying| f.due == self.cx.step && there(&f.exchange);
        self.exchanges.iter().any(there) || self.in_flight.iter().any(now)
    }

    /// Writes and starts a span's messages that are known at `at`. `x` is the whole vector, `g` the whole gradient, empty before there is one.
    pub(crate) fn emit(&mut self, at: At, span: usize, x: &mut [T], g: &[T]) -> Result<(), Error> {
        let sent = self.try_emit(at, span, x, g);
        self.remember(sent)
    }

    fn try_emit(&mut self, at: At, span: usize, x: &mut [T], g: &[T]) -> Result<(), Error> {
        for exchange in self.exchanges.iter().filter(|e| e.known == at) {
            let range = exchange.within(self.spans[span].clone());
            let void = exchange.part.is_some() && range.is_empty() && exchange.extra == 0;
            if !void {
                let slot = exchange.slot * self.spans.len() + span;
                let n = self.mixer.messages(exchange) * exchange.len(range.len());
                let out = self.mixer.outbox(slot, n);
                let local = Local {
                    x: &mut x[range.clone()],
                    g: g.get(range.clone()).unwrap_or(&[]),
                    at: range,
                };
                self.rule.emit(&self.cx, exchange.slot, local, out);
                self.mixer.start(&exchange.slot(slot), self.cx.step)?;
            }
            self.in_flight.push(Flying {
                exchange: *exchange,
                span,
                due: self.cx.step.saturating_add(exchange.late),
                void,
            });
        }
        Ok(())
    }

    /// Waits for what is due for a span at `at`, and lets the rule take it in: also when nothing is due, for that is how local steps and CTA's second half are taken.
    pub(crate) fn absorb(
        &mut self,
        at: At,
        span: usize,
        x: &mut [T],
        g: &[T],
    ) -> Result<(), Error> {
        let taken = self.try_absorb(at, span, x, g);
        self.remember(taken)
    }

    fn try_absorb(&mut self, at: At, span: usize, x: &mut [T], g: &[T]) -> Result<(), Error> {
        let (step, n_spans, range) = (self.cx.step, self.spans.len(), self.spans[span].clone());
        let due = |f: &&Flying| f.due == step && f.exchange.due == at && f.span == span;
        let mut n_due = 0;
        for f in self.in_flight.iter().filter(due) {
            if !f.void {
                self.mixer.finish(f.exchange.slot * n_spans + span)?;
            }
            n_due += 1;
        }
        let (mut few, mut many) = ([const { nothing::<T>() }; FEW], Vec::new());
        let means = match few.get_mut(..n_due) {
            Some(means) => means,
            None => {
                many.resize_with(n_due, nothing);
                &mut many[..]
            }
        };
        for (mean, f) in means.iter_mut().zip(self.in_flight.iter().filter(due)) {
            let slot = f.exchange.slot * n_spans + span;
            let (values, weights) = match f.void {
                true => (&[][..], &[][..]),
                false => (self.mixer.mean(slot), self.mixer.weights(slot)),
            };
            *mean = MixedMean {
                slot: f.exchange.slot,
                at: f.exchange.within(range.clone()),
                values,
                weights,
            };
        }
        let local = Local {
            x: &mut x[range.clone()],
            g: g.get(range.clone()).unwrap_or(&[]),
            at: range,
        };
        self.rule.absorb(&self.cx, at, local, means);
        self.in_flight.retain(|f| !due(&f));
        Ok(())
    }

    /// The state of the run between two steps.
    pub(crate) fn save(&mut self) -> Result<State, StateError> {
        if let Some(Flying { due, .. }) = self.in_flight.first() {
            return Err(StateError::InFlight {
                step: self.pace.step,
                due: *due,
            });
        }
        Ok(State::of(&mut *self.rule, self.n, self.pace))
    }

    /// Goes on from a state.
    pub(crate) fn load(&mut self, state: &State) -> Result<(), StateError> {
        if let Some(Flying { due, .. }) = self.in_flight.first() {
            return Err(StateError::InFlight {
                step: self.pace.step,
                due: *due,
            });
        }
        self.pace = state.restore(&mut *self.rule, self.n)?;
        Ok(())
    }

    fn remember(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if let Err(e) = &result {
            self.failed = Some(e.clone());
        }
        result
    }
}

/// Adds the gradient of one more micro-batch.
pub(crate) fn add<T: Float>(sum: &mut [T], g: &[T]) {
    for (sum, g) in sum.iter_mut().zip(g) {
        *sum = T::from_f64(sum.to_f64() + g.to_f64());
    }
}

/// A place for a mean.
const fn nothing<'a, T>() -> MixedMean<'a, T> {
    MixedMean {
        slot: 0,
        at: 0..0,
        values: &[],
        weights: &[],
    }
}
