//! The driver: the only place in training that waits.

use crate::{
    Pace, State, StateError,
    course::{Course, add},
};
use gaggle_core::{At, Error, Float, Mixer, MixingFacts, Rule, Stability, Unstable};

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
    course: Course<T>,
    n: usize,
    stage: Stage,
    /// Gradients of the step's earlier micro-batches; empty when there are none.
    sum: Vec<T>,
    n_summed: u64,
    /// Micro-batches per step, where they are to be counted.
    expected: Option<u64>,
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

impl<T: Float> Decentralised<T> {
    /// Starts `rule` on `n` parameters, at step 0, whether or not it is stable with the mixer's topology: for those who know, and for those who call [`Decentralised::check`] themselves.
    pub fn unchecked(rule: Box<dyn Rule<T>>, mixer: Box<dyn Mixer<T>>, n: usize) -> Self {
        Decentralised {
            course: Course::new(rule, mixer, n),
            n,
            stage: Stage::New,
            sum: Vec::new(),
            n_summed: 0,
            expected: None,
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
        let driver = Self::unchecked(rule, mixer, n);
        let stability = driver.check(facts, lr)?;
        Ok((driver, stability))
    }

    /// Asks the rule whether it is stable with this topology and step size.
    ///
    /// # Errors
    /// It is not; the text says what works.
    pub fn check(&self, facts: &MixingFacts, lr: f64) -> Result<Stability, Unstable> {
        self.course.rule.check(facts, lr)
    }

    /// From the next step on every `period`-th step communicates, counted from the last that did. Every rank must do the same.
    ///
    /// # Errors
    /// The rule has no local steps, `period` is 0, or a step is under way.
    pub fn set_period(&mut self, period: u64) -> Result<(), Error> {
        self.require_between_steps("set_period")?;
        self.course.set_period(period)
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
        let Course {
            rule, mixer: old, ..
        } = &mut self.course;
        if (mixer.world(), mixer.rank()) != (old.world(), old.rank()) {
            let what = format!(
                "replace_mixer by one of {} ranks on rank {}, wanted {} ranks on rank {}",
                mixer.world(),
                mixer.rank(),
                old.world(),
                old.rank()
            );
            return Err(self.mistake(what));
        }
        rule.rewired();
        Ok(std::mem::replace(old, mixer))
    }

    /// What is due before the forward pass. Again in the same step (a second micro-batch) it does nothing.
    ///
    /// # Errors
    /// A wrong length or step size: nothing has changed. A peer or the network: see above.
    pub fn before_forward(&mut self, lr: f64, x: &mut [T]) -> Result<(), Error> {
        if self.stage == Stage::Ready {
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
        self.course.require_alive()?;
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
        self.sum_up(g);
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
            self.course.begin_step(lr)?;
            if at == At::AfterGradient {
                if self.course.comes_to(At::BeforeForward) {
                    return Err(self.mistake(
                        "before_forward was not called, and this rule averages parameters there"
                            .into(),
                    ));
                }
                self.course.absorb(At::BeforeForward, 0, x, &[])?;
                self.stage = Stage::Ready;
            }
        }
        self.course.cx.lr = lr;
        if at == At::AfterGradient && self.n_summed > 0 {
            self.sum_up(g);
        }
        self.stage = Stage::Begun(at);
        let g = pick(at, self.n_summed > 0, &self.sum, g);
        self.course.emit(at, 0, x, g)
    }

    /// The second half: waits for what is due and updates `x`. `x` and `g` are those of `begin`.
    ///
    /// # Errors
    /// `begin` is missing or a length is wrong: nothing has changed. A peer or the network: see above.
    pub fn end(&mut self, at: At, x: &mut [T], g: &[T]) -> Result<(), Error> {
        self.check_values(self.course.cx.lr, x, (at != At::BeforeForward).then_some(g))?;
        if self.stage != Stage::Begun(at) {
            return Err(self.mistake(format!("end of {at:?} without its begin")));
        }
        let g = pick(at, self.n_summed > 0, &self.sum, g);
        self.course.absorb(at, 0, x, g)?;
        match at {
            At::BeforeForward => self.stage = Stage::Ready,
            At::AfterGradient if self.course.comes_to(At::AfterMean) => {
                self.stage = Stage::Averaged
            }
            At::AfterGradient | At::AfterMean => {
                self.stage = Stage::New;
                self.course.pace.advance();
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
        self.course.pace.step
    }

    /// Steps, communications, and the local steps since the last one.
    pub fn pace(&self) -> Pace {
        self.course.pace
    }

    /// Goes on at step `step`, after parameters and state were loaded by the caller's own means; the step before it is taken to have communicated. Every rank must do the same, between two steps.
    ///
    /// # Errors
    /// A step is under way, a message is, or `step` is beyond [`Pace::MOST_STEPS`].
    pub fn resume_at(&mut self, step: u64) -> Result<(), Error> {
        self.require_between_steps("resume_at")?;
        self.require_nothing_in_flight("resume_at")?;
        if step > Pace::MOST_STEPS {
            return Err(self.mistake(format!(
                "resume_at({step}), wanted a step up to {}",
                Pace::MOST_STEPS
            )));
        }
        let period = self.course.pace.period;
        self.course.pace = Pace {
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
        self.require_whole_step()?;
        self.course.save()
    }

    /// Goes on where [`Decentralised::save`] was called, on the same rule with the same settings and parameters loaded by the caller: bit for bit as if nothing had happened.
    ///
    /// # Errors
    /// The state is another rule's or of other lengths, or a step or a message is under way; nothing has changed.
    pub fn load(&mut self, state: &State) -> Result<(), StateError> {
        self.require_whole_step()?;
        self.course.load(state)
    }

    /// Shows every vector of the rule's state by name, for saving and loading. Lengths stay as they are.
    pub fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<T>)) {
        self.course.rule.state(visit);
    }

    /// The rule.
    pub fn rule(&self) -> &dyn Rule<T> {
        &*self.course.rule
    }

    /// The mixer.
    pub fn mixer(&self) -> &dyn Mixer<T> {
        &*self.course.mixer
    }

    /// Gives rule and mixer back.
    pub fn into_parts(self) -> (Box<dyn Rule<T>>, Box<dyn Mixer<T>>) {
        (self.course.rule, self.course.mixer)
    }

    fn mistake(&self, what: String) -> Error {
        self.course.mistake(what)
    }

    fn require_between_steps(&self, call: &str) -> Result<(), Error> {
        self.course.require_alive()?;
        if self.is_open() {
            return Err(self.mistake(format!("{call} in the middle of a step")));
        }
        Ok(())
    }

    /// Neither within a step nor between its micro-batches.
    fn require_whole_step(&self) -> Result<(), StateError> {
        if self.is_open() || self.n_summed > 0 {
            return Err(StateError::MidStep { step: self.steps() });
        }
        Ok(())
    }

    fn require_nothing_in_flight(&self, call: &str) -> Result<(), Error> {
        match self.course.first_in_flight() {
            Some(f) => Err(self.mistake(format!(
                "{call} while the message of slot {} is under way until step {}",
                f.exchange.slot, f.due
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

    fn check_len(&self, what: &str, got: usize) -> Result<(), Error> {
        if got == self.n {
            return Ok(());
        }
        let want = self.n;
        Err(self.mistake(format!("{what} has {got} elements, wanted {want}")))
    }

    fn check_values(&self, lr: f64, x: &[T], g: Option<&[T]>) -> Result<(), Error> {
        self.course.require_alive()?;
        self.check_len("x", x.len())?;
        if let Some(g) = g {
            self.check_len("gradient", g.len())?;
        }
        self.course.check_lr(lr)
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

    fn sum_up(&mut self, g: &[T]) {
        if self.n_summed == 0 {
            self.sum.clear();
            self.sum.extend_from_slice(g);
        } else {
            add(&mut self.sum, g);
        }
        self.n_summed += 1;
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
