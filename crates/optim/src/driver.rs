//! The driver: the only place in training that waits.

use gaggle_core::{
    At, Cx, Error, Exchange, Float, Local, MixedMean, Mixer, MixingFacts, Rule, Unstable,
};

/// Runs a rule over a mixer: starts each exchange when its message is known, waits for it when its mean is due.
///
/// One training step is `before_forward`, forward and backward by the caller, `step`.
/// Rules that exchange nothing before the forward pass (all-reduce, ATC, QG) do without `before_forward`.
/// Micro-batches are summed: [`Decentralised::accumulate`] for all but the last, whose gradient `step` takes.
///
/// To drive several ranks from one thread, `begin` and `end` are the two halves of each call: begin on all ranks, then end on all.
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
/// let mut training = Decentralised::new(rule, Box::new(alone), 2);
/// let mut x = vec![1.0_f64, -1.0];
/// training.step(0.1, &mut x, &[1.0, 0.0])?;
/// assert_eq!(x, [0.9, -1.0]);
/// # Ok::<(), gaggle_core::Error>(())
/// ```
pub struct Decentralised<T: Float> {
    rule: Box<dyn Rule<T>>,
    mixer: Box<dyn Mixer<T>>,
    n: usize,
    cx: Cx,
    stage: Stage,
    /// This step's exchanges, as the rule listed them at its start.
    exchanges: Vec<Exchange>,
    /// Gradients of the step's earlier micro-batches; empty when there are none.
    sum: Vec<T>,
    has_sum: bool,
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
}

/// As many means are gathered without an allocation.
const FEW: usize = 4;

impl<T: Float> Decentralised<T> {
    /// Starts `rule` on `n` parameters, at step 0.
    pub fn new(mut rule: Box<dyn Rule<T>>, mixer: Box<dyn Mixer<T>>, n: usize) -> Self {
        rule.init(n);
        Decentralised {
            rule,
            mixer,
            n,
            cx: Cx { step: 0, lr: 0.0 },
            stage: Stage::New,
            exchanges: Vec::new(),
            sum: Vec::new(),
            has_sum: false,
            failed: None,
        }
    }

    /// Asks the rule whether it is stable with this topology and step size.
    ///
    /// # Errors
    /// It is not; the text says what works.
    pub fn check(&self, facts: &MixingFacts, lr: f64) -> Result<(), Unstable> {
        self.rule.check(facts, lr)
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
        self.add(g);
        Ok(())
    }

    /// The step with gradient `g`, plus what was accumulated.
    ///
    /// # Errors
    /// A wrong length or step size, or `before_forward` is missing where the rule needs it: nothing has changed. A peer or the network: see above.
    pub fn step(&mut self, lr: f64, x: &mut [T], g: &[T]) -> Result<(), Error> {
        self.begin(At::AfterGradient, lr, x, g)?;
        self.end(At::AfterGradient, x, g)
    }

    /// The first half of `before_forward` (with `g` empty) or `step`: messages are written and started. Does not wait.
    ///
    /// # Errors
    /// As of `before_forward` and `step`.
    pub fn begin(&mut self, at: At, lr: f64, x: &mut [T], g: &[T]) -> Result<(), Error> {
        self.check_values(lr, x, (at == At::AfterGradient).then_some(g))?;
        self.check_stage(at)?;
        let step = self.cx.step;
        self.cx = Cx { step, lr };
        if self.stage == Stage::New {
            self.exchanges.clear();
            let listed = self.rule.exchanges(&self.cx);
            self.exchanges.extend_from_slice(listed);
            if at == At::AfterGradient {
                self.require_nothing_before()?;
                self.absorb(At::BeforeForward, x, &[])?;
                self.stage = Stage::Ready;
            }
        }
        if at == At::AfterGradient && self.has_sum {
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
        self.check_values(self.cx.lr, x, (at == At::AfterGradient).then_some(g))?;
        if self.stage != Stage::Begun(at) {
            return Err(self.mistake(format!("end of {at:?} without its begin")));
        }
        let result = self.absorb(at, x, g);
        self.remember(result)?;
        match at {
            At::BeforeForward => self.stage = Stage::Ready,
            At::AfterGradient => {
                self.stage = Stage::New;
                self.cx.step += 1;
                self.has_sum = false;
            }
        }
        Ok(())
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.cx.step
    }

    /// Goes on at step `step`, after parameters and state were loaded. Every rank must do the same, between two steps.
    ///
    /// # Errors
    /// A step is under way.
    pub fn resume_at(&mut self, step: u64) -> Result<(), Error> {
        if self.stage != Stage::New {
            return Err(self.mistake("resume_at in the middle of a step".into()));
        }
        self.cx.step = step;
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
        Error::invalid(format!("{} step {}", self.rule.name(), self.cx.step), what)
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
            _ => Ok(()),
        }
    }

    fn require_nothing_before(&self) -> Result<(), Error> {
        let early = |e: &Exchange| e.known == At::BeforeForward || e.due == At::BeforeForward;
        if self.exchanges.iter().any(early) {
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
        if !self.has_sum {
            self.sum.clear();
            self.sum.extend_from_slice(g);
            self.has_sum = true;
            return;
        }
        for (sum, g) in self.sum.iter_mut().zip(g) {
            *sum = T::from_f64(sum.to_f64() + g.to_f64());
        }
    }

    fn emit(&mut self, at: At, x: &mut [T], g: &[T]) -> Result<(), Error> {
        let n = self.n;
        let g = pick(at, self.has_sum, &self.sum, g);
        for e in self.exchanges.iter().filter(|e| e.known == at) {
            let out = self.mixer.outbox(e.slot, n);
            let local = Local {
                at: 0..n,
                x: &mut *x,
                g,
            };
            self.rule.emit(&self.cx, e.slot, local, out);
            self.mixer.start(e, self.cx.step)?;
        }
        Ok(())
    }

    /// Also when nothing is due: that is how local steps and CTA's second half are taken.
    fn absorb(&mut self, at: At, x: &mut [T], g: &[T]) -> Result<(), Error> {
        let due = |e: &&Exchange| e.due == at;
        let mut n_due = 0;
        for e in self.exchanges.iter().filter(due) {
            self.mixer.finish(e.slot)?;
            n_due += 1;
        }
        let (mut few, mut many) = ([nothing::<T>(); FEW], Vec::new());
        let means = match few.get_mut(..n_due) {
            Some(means) => means,
            None => {
                many.resize(n_due, nothing());
                &mut many[..]
            }
        };
        for (mean, e) in means.iter_mut().zip(self.exchanges.iter().filter(due)) {
            *mean = self.mixer.mean(e.slot);
        }
        let g = pick(at, self.has_sum, &self.sum, g);
        let local = Local {
            at: 0..self.n,
            x,
            g,
        };
        self.rule.absorb(&self.cx, at, local, means);
        Ok(())
    }
}

/// The gradient that counts: what was accumulated, where something was; none before there is one.
fn pick<'a, T>(at: At, has_sum: bool, sum: &'a [T], g: &'a [T]) -> &'a [T] {
    match (at, has_sum) {
        (At::BeforeForward, _) => &[],
        (At::AfterGradient, true) => sum,
        (At::AfterGradient, false) => g,
    }
}

/// A place for a mean.
fn nothing<'a, T>() -> MixedMean<'a, T> {
    MixedMean {
        values: &[],
        weight: 1.0,
    }
}
