//! The driver over buckets: what is sent when, what it refuses, and that it goes on where the other driver stopped.

#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_core::{At, Cx, Error, Exchange, Local, MixedMean, Mixer, Place, Rank, Rule};
use gaggle_optim::{
    Bucketed, CATALOGUE, Decentralised, RuleConfig, StateError, rule_by_name, testing::DenseMixer,
};
use std::sync::{Arc, Mutex};

/// A mixer of one rank that writes down what is asked of it; every mean is the rank's own message.
struct Diary {
    book: Arc<Mutex<Vec<String>>>,
    slots: Vec<Vec<f64>>,
    fails: bool,
}

impl Diary {
    fn note(&self, line: String) {
        self.book.lock().unwrap().push(line);
    }
}

impl Mixer<f64> for Diary {
    fn rank(&self) -> Rank {
        Rank(0)
    }
    fn world(&self) -> usize {
        1
    }
    fn messages(&mut self, _exchange: &Exchange) -> usize {
        1
    }
    fn outbox(&mut self, slot: usize, n: usize) -> &mut [f64] {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, vec![]);
        }
        self.slots[slot].resize(n, 0.0);
        &mut self.slots[slot]
    }
    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error> {
        self.note(format!("start {} step {t}", exchange.slot));
        match self.fails {
            true => Err(Error::invalid("diary", "no more pages")),
            false => Ok(()),
        }
    }
    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        self.note(format!("finish {slot}"));
        Ok(())
    }
    fn mean(&self, slot: usize) -> &[f64] {
        &self.slots[slot]
    }
    fn weights(&self, _slot: usize) -> &[f64] {
        &[]
    }
}

/// A rule that sends a message at one point and needs its mean at another.
struct Between {
    known: At,
    due: At,
    whole: bool,
    late: u64,
}

impl Rule<f64> for Between {
    fn name(&self) -> &str {
        "between"
    }
    fn init(&mut self, _n: usize, _place: Place) {}
    fn exchanges(&self, cx: &Cx, list: &mut Vec<Exchange>) {
        let e = Exchange::neighbours(cx).between(self.known, self.due);
        // Once: what is under way is not sent again.
        if self.late == 0 || cx.step == 1 {
            list.push(e.late(self.late));
        }
    }
    fn emit(&mut self, _cx: &Cx, _slot: usize, local: Local<'_, f64>, out: &mut [f64]) {
        out.copy_from_slice(local.x);
    }
    fn absorb(&mut self, cx: &Cx, at: At, local: Local<'_, f64>, _means: &[MixedMean<'_, f64>]) {
        if at == At::AfterGradient {
            for (x, g) in local.x.iter_mut().zip(local.g) {
                *x -= cx.lr * g;
            }
        }
    }
    fn whole(&self) -> bool {
        self.whole
    }
    fn state(&mut self, _visit: &mut dyn FnMut(&str, &mut Vec<f64>)) {}
}

/// Three buckets of 2, 1 and 3 elements.
const LENS: [usize; 3] = [2, 1, 3];

fn diary(rule: Between, fails: bool) -> (Bucketed<f64>, Arc<Mutex<Vec<String>>>) {
    let book = Arc::new(Mutex::new(vec![]));
    let mixer = Diary {
        book: Arc::clone(&book),
        slots: vec![],
        fails,
    };
    let x = vec![1.0; LENS.iter().sum()];
    let driver = Bucketed::unchecked(Box::new(rule), Box::new(mixer), x, &LENS).unwrap();
    (driver, book)
}

/// What one step asks of the mixer, with notes of what the caller did in between.
fn story(known: At, due: At, whole: bool) -> Vec<String> {
    let rule = Between {
        known,
        due,
        whole,
        late: 0,
    };
    let (mut driver, book) = diary(rule, false);
    let note = |line: &str| book.lock().unwrap().push(line.to_owned());
    driver.begin_step(0.5).unwrap();
    for (b, len) in LENS.iter().enumerate() {
        note("forward");
        assert_eq!(driver.parameters(b).unwrap().len(), *len);
    }
    for (b, len) in LENS.iter().enumerate().rev() {
        note("backward");
        driver.ready(b, &vec![1.0; *len]).unwrap();
    }
    note("finish");
    assert_eq!(driver.finish().unwrap(), [0.5; 6]);
    book.lock().unwrap().clone()
}

#[test]
fn messages_leave_when_they_are_known_and_are_waited_for_when_they_are_due() {
    use At::{AfterGradient, BeforeForward};
    assert_eq!(
        story(AfterGradient, AfterGradient, false),
        [
            "forward",
            "forward",
            "forward",
            // Bucket by bucket, the last layer's first.
            "backward",
            "start 2 step 0",
            "backward",
            "start 1 step 0",
            "backward",
            "start 0 step 0",
            "finish",
            "finish 0",
            "finish 1",
            "finish 2",
        ]
    );
    assert_eq!(
        story(BeforeForward, AfterGradient, false),
        [
            // Under forward and backward.
            "start 0 step 0",
            "start 1 step 0",
            "start 2 step 0",
            "forward",
            "forward",
            "forward",
            "backward",
            "backward",
            "backward",
            "finish",
            "finish 0",
            "finish 1",
            "finish 2",
        ]
    );
    assert_eq!(
        story(BeforeForward, BeforeForward, false),
        [
            // Forward waits for the layer that it comes to.
            "start 0 step 0",
            "start 1 step 0",
            "start 2 step 0",
            "forward",
            "finish 0",
            "forward",
            "finish 1",
            "forward",
            "finish 2",
            "backward",
            "backward",
            "backward",
            "finish",
        ]
    );
    assert_eq!(
        story(AfterGradient, AfterGradient, true),
        [
            "forward",
            "forward",
            "forward",
            "backward",
            "backward",
            "backward",
            "start 0 step 0",
            "finish",
            "finish 0",
        ]
    );
}

#[test]
fn mistakes_are_named_and_change_nothing() {
    let after = || Between {
        known: At::AfterGradient,
        due: At::AfterGradient,
        whole: false,
        late: 0,
    };
    let lens = [2, 1];
    let mixer = || DenseMixer::<f64>::world(1, |_, _, _| 1.0).remove(0);
    let wrong = Bucketed::unchecked(Box::new(after()), Box::new(mixer()), vec![0.0; 4], &lens);
    let text = wrong.err().unwrap().to_string();
    assert!(
        text.contains("buckets have 3 elements, there are 4"),
        "{text}"
    );

    let (mut driver, book) = diary(after(), false);
    let said = |result: Result<(), Error>, want: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(want), "{text:?} lacks {want:?}");
    };
    said(driver.ready(0, &[1.0; 2]), "ready: no step has begun");
    said(
        driver.parameters(0).map(drop),
        "parameters: no step has begun",
    );
    said(driver.finish().map(drop), "finish: no step has begun");
    said(driver.begin_step(f64::NAN), "step size is NaN");
    said(driver.set_period(2), "no steps without communication");
    driver.begin_step(0.5).unwrap();
    said(driver.begin_step(0.5), "begin_step in the middle of a step");
    said(driver.ready(3, &[]), "there is no bucket 3, there are 3");
    said(
        driver.ready(1, &[]),
        "gradient of bucket 1 has 0 elements, wanted 1",
    );
    driver.ready(1, &[1.0]).unwrap();
    said(driver.ready(1, &[1.0]), "gradient 2 of bucket 1, wanted 1");
    said(
        driver.parameters(1).map(drop),
        "parameters of bucket 1 after its gradient",
    );
    said(
        driver.finish().map(drop),
        "gradients of buckets [0, 2] are missing",
    );
    assert!(driver.is_open() && driver.is_complete(1) && !driver.is_complete(0));
    driver.ready(2, &[1.0; 3]).unwrap();
    driver.ready(0, &[1.0; 2]).unwrap();
    assert_eq!(driver.finish().unwrap(), [0.5; 6]);
    assert_eq!(
        book.lock()
            .unwrap()
            .iter()
            .filter(|l| l.starts_with("start"))
            .count(),
        3
    );

    // What the network does wrong stays wrong.
    let (mut driver, _) = diary(after(), true);
    driver.begin_step(0.5).unwrap();
    said(driver.ready(0, &[1.0; 2]), "no more pages");
    said(driver.ready(1, &[1.0]), "no more pages");
    said(driver.finish().map(drop), "no more pages");
}

/// BlueFog's averaging with accumulation kept only the last micro-batch's gradient (−10 for −11).
#[test]
fn micro_batches_are_summed_in_every_bucket() {
    for entry in CATALOGUE
        .iter()
        .filter(|e| e.name.ends_with("sgd") || e.name.starts_with("dsgd"))
    {
        let rule = rule_by_name(entry.name, &RuleConfig::default()).unwrap();
        let alone = DenseMixer::<f64>::world(1, |_, _, _| 1.0).remove(0);
        let mut driver = Bucketed::unchecked(rule, Box::new(alone), vec![0.0; 3], &[1, 2]).unwrap();
        driver.set_micro_batches(2).unwrap();
        driver.begin_step(1.0).unwrap();
        for g in [1.0, 10.0] {
            driver.ready(1, &[g, g]).unwrap();
            driver.ready(0, &[g]).unwrap();
        }
        assert_eq!(driver.finish().unwrap(), [-11.0; 3], "{}", entry.name);
    }
}

#[test]
fn either_driver_goes_on_where_the_other_stopped() {
    let gradient = |x: &[f64]| -> Vec<f64> { x.iter().map(|x| x - 3.0).collect() };
    let alone = || Box::new(DenseMixer::<f64>::world(1, |_, _, _| 1.0).remove(0));
    let rule = || rule_by_name("qg-dmsgd", &RuleConfig::default()).unwrap();
    let step = |driver: &mut Bucketed<f64>| {
        driver.begin_step(0.1).unwrap();
        let g = gradient(driver.x());
        driver.ready(1, &g[1..]).unwrap();
        driver.ready(0, &g[..1]).unwrap();
        driver.finish().unwrap();
    };
    let mut buckets = Bucketed::unchecked(rule(), alone(), vec![0.0; 3], &[1, 2]).unwrap();
    (0..5).for_each(|_| step(&mut buckets));
    let (state, mut x) = (buckets.save().unwrap(), buckets.x().to_vec());
    let mut whole = Decentralised::unchecked(rule(), alone(), 3);
    whole.load(&state).unwrap();
    for _ in 0..5 {
        let g = gradient(&x);
        whole.step(0.1, &mut x, &g).unwrap();
    }
    let mut again = Bucketed::unchecked(rule(), alone(), vec![0.0; 3], &[2, 1]).unwrap();
    let state = whole.save().unwrap();
    let e = again.load(&state, &x[1..]).unwrap_err().to_string();
    assert_eq!(e, "number of parameters given is 2, wanted 3");
    again.load(&state, &x).unwrap();
    assert_eq!(again.pace(), whole.pace());
    // Without an interruption.
    (0..5).for_each(|_| step(&mut buckets));
    assert_eq!(again.into_x(), buckets.into_x());
}

/// A message that is never due is under way for good, and nothing overflows.
#[test]
fn a_message_may_be_as_late_as_can_be_said() {
    let rule = Between {
        known: At::AfterGradient,
        due: At::AfterGradient,
        whole: false,
        late: u64::MAX,
    };
    let (mut driver, _) = diary(rule, false);
    for _ in 0..4 {
        driver.begin_step(0.5).unwrap();
        for (b, len) in LENS.iter().enumerate() {
            driver.ready(b, &vec![1.0; *len]).unwrap();
        }
        driver.finish().unwrap();
    }
    let e = driver.save().unwrap_err();
    let (step, due) = (4, u64::MAX);
    assert_eq!(e, StateError::InFlight { step, due });
}
