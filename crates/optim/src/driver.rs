//! The driver: the only place in training that waits.

use crate::{Pace, State, StateError};
use gaggle_core::{
    At, Cx, Error, Exchange, Float, Local, MixedMean, Mixer, MixingFacts, Place, Rule, Stability,
    Unstable,
};

/// Runs a rule over a mixer: starts each exchange when its message is known, waits for it when its mean is due.
///
/// One training step is `before_forward`, forward and backward by the caller, `step`.
/// Rules that exchange nothing before the forward pass (all-reduce, ATC, QG) do without `before_forward`.
/// Micro-batches are summed: [`Decentralised::accumulate`] for all but the last, whose gradient `step` takes; [`Decentralised::expect_micro_batches`] makes another number of them an error.
/// Local steps, without communication, lie between those that communicate where the period is above 1 ([`Decentralised::set_period`]).
///
/// To drive several ranks from one thread, `begin` and `end` are the two halves of each call: begin on all ranks, then end on all; [`Decentralised::is_open`] tells whether [`At::AfterMean`] is still to come ([`testing::lockstep`](crate::testing::lockstep) does all that).
///
/// A caller's mistake (wrong length, wrong order) is an error and changes nothing.
/// After an error of the network the parameters are between two steps: every later call returns that error again. Take rule and mixer out with [`Decentralised::into_parts`], rebuild the group, load parameters and state from somewhere sound.
///
/// Means are read where the mixer keeps them; after the first step nothing is allocated (for up to four means due at once).
///
/// ```
/// use gaggle_optim::{Decentralised, RuleConfig, rule_by_name, testing::DenseMixer};
///
/// let rule = rule_by_name("dmsgd", &RuleConfig::default())?;
/// let alone = DenseMixer::world(1, |_, _, _| 1.0).remove(0);
/// let mut training = Decentralised::unchecked(rule, Box::new(alone), 2);
/// let mut x = vec![1.0_f64, -1.0];
/// training.step(0.1, &mut x, &[1.0, 0.0])?;
/// assert_eq!(x, [0.9, -1.0]);
/// # Ok::<(), gaggle_core::Error>(())
/// ```
pub struct Decentralised<T: Float> {
    rule: Box<dyn Rule<T>>,
    mixer: Box<dyn Mixer<T>>,
    n: usize,
    pace: Pace,
    cx: Cx,
    stage: Stage,
    /// This step's exchanges, as the rule listed them at its start.
    exchanges: Vec<Exchange>,
    /// What was started and has not been taken in, with the step in which it is due.
    in_flight: Vec<(Exchange, u64)>,
    /// Gradients of the step's earlier micro-batches; empty when there are none.
    sum: Vec<T>,
    n_summed: u64,
    /// Micro-batches per step, where they are to be counted.
    expected: Option<u64>,
    failed: Option<Error>,
}

/// How far the step at hand has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing done.
    New,
    /// Begun, not ended.
    Begun(At),
    /// `BeforeForward` is done, the gradient may be taken.
    Ready,
    /// `AfterGradient` is done, `AfterMean` is to come.
    Averaged,
}

/// As many means are gathered without an allocation.
const FEW: usize = 4;

impl<T: Float> Decentralised<T> {
    /// Starts `rule` on `n` parameters, at step 0, whether or not it is stable with the mixer's topology: for those who know, and for those who call [`Decentralised::check`] themselves.
    pub fn unchecked(mut rule: Box<dyn Rule<T>>, mixer: Box<dyn Mixer<T>>, n: usize) -> Self {
        let place = Place {
            rank: mixer.rank(),
            world: mixer.world(),
        };
        rule.init(n, place);
        Decentralised {
            pace: Pace::new(rule.period().unwrap_or(1)),
            rule,
            mixer,
            n,
            cx: Cx::at(0, 0.0),
            stage: Stage::New,
            exchanges: Vec::new(),
            in_flight: Vec::new(),
            sum: Vec::new(),
            n_summed: 0,
            expected: None,
            failed: None,
        }
    }

    /// As [`Decentralised::unchecked`], where the rule is stable with step size `lr` on the topology that has these facts. What is known beyond that comes back too.
    ///
    /// # Errors
    /// It is not; the text says which limit is broken and what works.
    pub fn stable(
        rule: Box<dyn Rule<T>>,
        mixer: Box<dyn Mixer<T>>,
        n: usize,
        facts: &MixingFacts,
        lr: f64,
    ) -> Result<(Self, Stability), Unstable> {
        let stability = rule.check(facts, lr)?;
        Ok((Self::unchecked(rule, mixer, n), stability))
    }

    /// Asks the rule whether it is stable with this topology and step size.
    ///
    /// # Errors
    /// It is not; the text says what works.
    pub fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.rule.check(facts, lr)
    }

    /// From the next step on every `period`-th step communicates, counted from the last that did. Every rank must do the same.
    ///
    /// # Errors
    /// The rule has no local steps, `period` is 0, or a step is under way.
    pub fn set_period(&mut self, period: u64) -> Result<(), Error> {
        self.require_between_steps("set_period")?;
        if period == 0 || (period > 1 && self.rule.period().is_none()) {
            return Err(self.mistake(format!(
                "a period of {period}: this rule has no steps without communication"
            )));
        }
        self.pace.period = period;
        Ok(())
    }

    /// From now on each step takes the gradients of `n` micro-batches, n − 1 of them through [`Decentralised::accumulate`]; more or fewer are an error. 0 takes the limit away.
    ///
    /// # Errors
    /// Some have been summed already.
    pub fn expect_micro_batches(&mut self, n: u64) -> Result<(), Error> {
        if self.n_summed > 0 {
            return Err(self.mistake("expect_micro_batches in the middle of a step".into()));
        }
        self.expected = (n > 0).then_some(n);
        Ok(())
    }

    /// Goes on over another mixer: other neighbours, other weights, another group of as many ranks. Every rank must do the same.
    /// The first mixer comes back. Whether the rule is stable there is for [`Decentralised::check`] to tell.
    ///
    /// # Errors
    /// A step is under way, a message is (rules with late messages), or the number of ranks is another; nothing has changed.
    pub fn replace_mixer(&mut self, mixer: Box<dyn Mixer<T>>) -> Result<Box<dyn Mixer<T>>, Error> {
        self.require_between_steps("replace_mixer")?;
        self.require_nothing_in_flight("replace_mixer")?;
        if (mixer.world(), mixer.rank()) != (self.mixer.world(), self.mixer.rank()) {
            let (got, want) = (mixer.world(), self.mixer.world());
            return Err(self.mistake(format!(
                "replace_mixer by one of {got} ranks on rank {}, wanted {want} ranks on rank {}",
                mixer.rank(),
                self.mixer.rank()
            )));
        }
        self.rule.rewired();
        Ok(std::mem::replace(&mut self.mixer, mixer))
    }

    /// What is due before the forward pass. Again in the same step (a second micro-batch) it does nothing.
    ///
    /// # Errors
    /// A wrong length or step size: nothing has changed. A peer or the network: see above.
    pub fn before_forward(&mut self, lr: f64, x: &mut [T]) -> Result<(), Error> {
        if self.stage == Stage::Ready && self.failed.is_none() {
            return self.check_values(lr, x, None);
        }
        self.begin(At::BeforeForward, lr, x, &[])?;
        self.end(At::BeforeForward, x, &[])
    }

    /// Adds the gradient of a micro-batch to those that the next `step` takes. A sum, as when PyTorch adds to `.grad`: scale the losses if you want the mean.
    ///
    /// # Errors
    /// A wrong length: nothing has changed.
    pub fn accumulate(&mut self, g: &[T]) -> Result<(), Error> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        self.check_len("gradient", g.len())?;
        if let Stage::Begun(at) = self.stage {
            return Err(self.mistake(format!("accumulate between begin and end of {at:?}")));
        }
        if self.stage == Stage::Averaged {
            return Err(self.mistake("accumulate before AfterMean has ended".into()));
        }
        if let Some(n) = self.expected.filter(|n| self.n_summed + 1 >= *n) {
            return Err(self.mistake(format!(
                "accumulate for micro-batch {} of {n}: the last one is for step",
                self.n_summed + 1
            )));
        }
        self.add(g);
        Ok(())
    }

    /// The step with gradient `g`, plus what was accumulated.
    ///
    /// # Errors
    /// A wrong length or step size, or `before_forward` is missing where the rule needs it: nothing has changed. A peer or the network: see above.
    pub fn step(&mut self, lr: f64, x: &mut [T], g: &[T]) -> Result<(), Error> {
        self.begin(At::AfterGradient, lr, x, g)?;
        self.end(At::AfterGradient, x, g)?;
        if self.stage == Stage::Averaged {
            self.begin(At::AfterMean, lr, x, g)?;
            self.end(At::AfterMean, x, g)?;
        }
        Ok(())
    }

    /// The first half of `before_forward` (with `g` empty) or `step`: messages are written and started. Does not wait.
    ///
    /// # Errors
    /// As of `before_forward` and `step`.
    pub fn begin(&mut self, at: At, lr: f64, x: &mut [T], g: &[T]) -> Result<(), Error> {
        self.check_values(lr, x, (at != At::BeforeForward).then_some(g))?;
        self.check_stage(at)?;
        if at == At::AfterGradient {
            self.check_micro_batches()?;
        }
        if self.stage == Stage::New {
            self.cx = self.pace.cx(lr);
            self.list_exchanges()?;
            if at == At::AfterGradient {
                self.require_nothing_before()?;
                self.absorb(At::BeforeForward, x, &[])?;
                self.stage = Stage::Ready;
            }
        }
        self.cx.lr = lr;
        if at == At::AfterGradient && self.n_summed > 0 {
            self.add(g);
        }
        self.stage = Stage::Begun(at);
        let result = self.emit(at, x, g);
        self.remember(result)
    }

    /// The second half: waits for what is due and updates `x`. `x` and `g` are those of `begin`.
    ///
    /// # Errors
    /// `begin` is missing or a length is wrong: nothing has changed. A peer or the network: see above.
    pub fn end(&mut self, at: At, x: &mut [T], g: &[T]) -> Result<(), Error> {
        self.check_values(self.cx.lr, x, (at != At::BeforeForward).then_some(g))?;
        if self.stage != Stage::Begun(at) {
            return Err(self.mistake(format!("end of {at:?} without its begin")));
        }
        let result = self.absorb(at, x, g);
        self.remember(result)?;
        match at {
            At::BeforeForward => self.stage = Stage::Ready,
            At::AfterGradient if self.averages_twice() => self.stage = Stage::Averaged,
            At::AfterGradient | At::AfterMean => {
                self.stage = Stage::New;
                self.pace.advance();
                self.n_summed = 0;
            }
        }
        Ok(())
    }

    /// Whether a step has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.stage != Stage::New
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.pace.step
    }

    /// Steps, communications, and the local steps since the last one.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Goes on at step `step`, after parameters and state were loaded by the caller's own means; the step before it is taken to have communicated. Every rank must do the same, between two steps.
    ///
    /// # Errors
    /// A step is under way.
    pub fn resume_at(&mut self, step: u64) -> Result<(), Error> {
        self.require_between_steps("resume_at")?;
        let period = self.pace.period;
        self.pace = Pace {
            step,
            round: step / period,
            since: 0,
            period,
        };
        Ok(())
    }

    /// Everything but the parameters, to be written somewhere: the rule's state and where the run is.
    ///
    /// # Errors
    /// A step is under way, or a message of a rule with late messages: take one more step and try again.
    pub fn save(&mut self) -> Result<State, StateError> {
        if self.is_open() || self.n_summed > 0 {
            return Err(StateError::MidStep {
                step: self.pace.step,
            });
        }
        if let Some((_, due)) = self.in_flight.first() {
            return Err(StateError::InFlight {
                step: self.pace.step,
                due: *due,
            });
        }
        Ok(State::of(&mut *self.rule, self.n, self.pace))
    }

    /// Goes on where [`Decentralised::save`] was called, on the same rule with the same settings and parameters loaded by the caller: bit for bit as if nothing had happened.
    ///
    /// # Errors
    /// The state is another rule's or of other lengths, or a step is under way; nothing has changed.
    pub fn load(&mut self, state: &State) -> Result<(), StateError> {
        if self.is_open() || self.n_summed > 0 || !self.in_flight.is_empty() {
            return Err(StateError::MidStep {
                step: self.pace.step,
            });
        }
        self.pace = state.restore(&mut *self.rule, self.n)?;
        Ok(())
    }

    /// Shows every vector of the rule's state by name, for saving and loading. Lengths stay as they are.
    pub fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.rule.state(visit);
    }

    /// The rule.
    pub fn rule(&self) -> &dyn Rule<T> {
        &*self.rule
    }

    /// The mixer.
    pub fn mixer(&self) -> &dyn Mixer<T> {
        &*self.mixer
    }

    /// Gives rule and mixer back.
    pub fn into_parts(self) -> (Box<dyn Rule<T>>, Box<dyn Mixer<T>>) {
        (self.rule, self.mixer)
    }

    fn mistake(&self, what: String) -> Error {
        Error::invalid(
            format!("{} step {}", self.rule.name(), self.pace.step),
            what,
        )
    }

    fn require_between_steps(&self, call: &str) -> Result<(), Error> {
        match &self.failed {
            Some(e) => Err(e.clone()),
            None if self.is_open() => Err(self.mistake(format!("{call} in the middle of a step"))),
            None => Ok(()),
        }
    }

    fn require_nothing_in_flight(&self, call: &str) -> Result<(), Error> {
        match self.in_flight.first() {
            Some((e, due)) => Err(self.mistake(format!(
                "{call} while the message of slot {} is under way until step {due}",
                e.slot
            ))),
            None => Ok(()),
        }
    }

    fn check_micro_batches(&self) -> Result<(), Error> {
        match self.expected {
            Some(n) if self.n_summed + 1 != n => Err(self.mistake(format!(
                "step takes micro-batch {} of {n}, {} come before it",
                self.n_summed + 1,
                n - 1
            ))),
            _ => Ok(()),
        }
    }

    fn list_exchanges(&mut self) -> Result<(), Error> {
        self.exchanges.clear();
        if self.cx.mixes {
            self.rule.exchanges(&self.cx, &mut self.exchanges);
        }
        let taken = |e: &&Exchange| self.in_flight.iter().any(|(f, _)| f.slot == e.slot);
        if let Some(e) = self.exchanges.iter().find(taken) {
            let slot = e.slot;
            return Err(self.mistake(format!(
                "the rule lists slot {slot} while an earlier message of it is under way"
            )));
        }
        Ok(())
    }

    fn averages_twice(&self) -> bool {
        let second = |e: &Exchange| e.known == At::AfterMean || e.due == At::AfterMean;
        let now = |(e, due): &(Exchange, u64)| *due == self.cx.step && second(e);
        self.exchanges.iter().any(second) || self.in_flight.iter().any(now)
    }

    fn check_len(&self, what: &str, got: usize) -> Result<(), Error> {
        if got == self.n {
            return Ok(());
        }
        let want = self.n;
        Err(self.mistake(format!("{what} has {got} elements, wanted {want}")))
    }

    fn check_values(&self, lr: f64, x: &[T], g: Option<&[T]>) -> Result<(), Error> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        self.check_len("x", x.len())?;
        if let Some(g) = g {
            self.check_len("gradient", g.len())?;
        }
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(self.mistake(format!(
                "step size is {lr}; it must be finite and not negative"
            )));
        }
        Ok(())
    }

    fn check_stage(&self, at: At) -> Result<(), Error> {
        match (self.stage, at) {
            (Stage::Begun(open), _) => {
                Err(self.mistake(format!("begin of {at:?}, but {open:?} has not ended")))
            }
            (Stage::Ready, At::BeforeForward) => {
                Err(self.mistake("begin of BeforeForward twice in one step".into()))
            }
            (Stage::Averaged, At::AfterMean) => Ok(()),
            (Stage::Averaged, _) => Err(self.mistake(format!(
                "begin of {at:?}, but AfterMean of the step before has not come"
            ))),
            (_, At::AfterMean) => {
                Err(self.mistake("begin of AfterMean, where nothing is exchanged".into()))
            }
            _ => Ok(()),
        }
    }

    fn require_nothing_before(&self) -> Result<(), Error> {
        let early = |e: &Exchange| e.known == At::BeforeForward || e.due == At::BeforeForward;
        let late = |(e, due): &(Exchange, u64)| *due == self.cx.step && early(e);
        if self.exchanges.iter().any(early) || self.in_flight.iter().any(late) {
            return Err(self.mistake(
                "before_forward was not called, and this rule averages parameters there".into(),
            ));
        }
        Ok(())
    }

    fn remember(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if let Err(e) = &result {
            self.failed = Some(e.clone());
        }
        result
    }

    fn add(&mut self, g: &[T]) {
        if self.n_summed == 0 {
            self.sum.clear();
            self.sum.extend_from_slice(g);
        } else {
            for (sum, g) in self.sum.iter_mut().zip(g) {
                *sum = T::from_f64(sum.to_f64() + g.to_f64());
            }
        }
        self.n_summed += 1;
    }

    fn emit(&mut self, at: At, x: &mut [T], g: &[T]) -> Result<(), Error> {
        let g = pick(at, self.n_summed > 0, &self.sum, g);
        for e in self.exchanges.iter().filter(|e| e.known == at) {
            let span = e.within(0..self.n);
            let messages = self.mixer.messages(e);
            let out = self.mixer.outbox(e.slot, messages * e.len(span.len()));
            let local = Local {
                x: &mut x[span.clone()],
                g: g.get(span.clone()).unwrap_or(&[]),
                at: span,
            };
            self.rule.emit(&self.cx, e.slot, local, out);
            self.mixer.start(e, self.cx.step)?;
            let due = self.cx.step.saturating_add(e.late);
            self.in_flight.push((*e, due));
        }
        Ok(())
    }

    /// Also when nothing is due: that is how local steps and CTA's second half are taken.
    fn absorb(&mut self, at: At, x: &mut [T], g: &[T]) -> Result<(), Error> {
        let step = self.cx.step;
        let due = |(e, due): &&(Exchange, u64)| *due == step && e.due == at;
        let mut n_due = 0;
        for (e, _) in self.in_flight.iter().filter(due) {
            self.mixer.finish(e.slot)?;
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
        for (mean, (e, _)) in means.iter_mut().zip(self.in_flight.iter().filter(due)) {
            *mean = MixedMean {
                slot: e.slot,
                at: e.within(0..self.n),
                values: self.mixer.mean(e.slot),
            };
        }
        let g = pick(at, self.n_summed > 0, &self.sum, g);
        let local = Local {
            at: 0..self.n,
            x,
            g,
        };
        self.rule.absorb(&self.cx, at, local, means);
        self.in_flight.retain(|flying| !due(&flying));
        Ok(())
    }
}

/// The gradient that counts: what was accumulated, where something was; none before there is one.
fn pick<'a, T>(at: At, has_sum: bool, sum: &'a [T], g: &'a [T]) -> &'a [T] {
    match (at, has_sum) {
        (At::BeforeForward, _) => &[],
        (_, true) => sum,
        (_, false) => g,
    }
}

/// A place for a mean.
const fn nothing<'a, T>() -> MixedMean<'a, T> {
    MixedMean {
        slot: 0,
        at: 0..0,
        values: &[],
    }
}
