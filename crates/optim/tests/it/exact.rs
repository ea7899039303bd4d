//! What must be exact in every element type, and what must stay as it is when something fails.

use crate::worlds::{config, named};
use gaggle_core::{At, Cx, Exchange, Float, Local, MixedMean, Place, Rule};
use gaggle_optim::{
    Decentralised, State, StateError, rule_by_name,
    testing::{DenseMixer, lockstep},
};
use half::{bf16, f16};
use std::sync::{Arc, Mutex};

/// In a chain of 300 rank r comes to hear of r ranks on one side and 299 − r on the other, in numbers that 8 bits do not hold.
fn relayed_ranks_are_counted<T: Float>() {
    let ranks = 300;
    let mut all: Vec<_> = DenseMixer::<T>::of(named("chain", ranks))
        .into_iter()
        .map(|mixer| {
            let rule = rule_by_name("relaysgd", &config("relaysgd")).expect("in range");
            Decentralised::<T>::unchecked(rule, Box::new(mixer), 1)
        })
        .collect();
    let mut x = vec![vec![T::from_f64(0.0)]; ranks];
    for _ in 0..ranks {
        lockstep(&mut all, 0.1, &mut x, |_, _, g| g.fill(T::from_f64(0.0))).expect("steps");
    }
    for (r, rank) in all.iter_mut().enumerate() {
        let mut counts = vec![];
        rank.state(&mut |name, v| {
            if name == "counts" {
                counts = v.iter().map(|v| v.to_f64()).collect();
            }
        });
        // Digits from 0 to 255, the lowest first.
        let told: Vec<f64> = counts
            .chunks_exact(4)
            .map(|d| d[0] + 256.0 * (d[1] + 256.0 * (d[2] + 256.0 * d[3])))
            .collect();
        let mut want = vec![r as f64, (ranks - 1 - r) as f64];
        want.retain(|n| *n > 0.0);
        assert_eq!(told, want, "rank {r}");
    }
}

#[test]
fn relayed_ranks_are_counted_in_every_element_type() {
    relayed_ranks_are_counted::<bf16>();
    relayed_ranks_are_counted::<f16>();
    relayed_ranks_are_counted::<f32>();
    relayed_ranks_are_counted::<f64>();
}

/// Does nothing but tell what it is asked, and has a vector of the neighbours' and one of its own.
struct Telling {
    told: Arc<Mutex<Vec<String>>>,
    own: Vec<f64>,
    heard: Vec<f64>,
}

impl Rule<f64> for Telling {
    fn name(&self) -> &str {
        "telling"
    }
    fn init(&mut self, n: usize, _place: Place) {
        self.own = vec![1.0; n];
    }
    fn exchanges(&self, _cx: &Cx, _list: &mut Vec<Exchange>) {}
    fn emit(&mut self, _cx: &Cx, _slot: usize, _local: Local<'_, f64>, _out: &mut [f64]) {}
    fn absorb(&mut self, _cx: &Cx, _at: At, _local: Local<'_, f64>, _means: &[MixedMean<'_, f64>]) {
    }
    fn rewired(&mut self) {
        self.told
            .lock()
            .expect("nobody panics")
            .push("rewired".into());
        self.heard.clear();
    }
    fn by_neighbours(&self, name: &mut dyn FnMut(&str)) {
        name("heard");
    }
    fn state(&mut self, visit: &mut dyn FnMut(&str, &mut Vec<f64>)) {
        visit("own", &mut self.own);
        visit("heard", &mut self.heard);
    }
}

#[test]
fn a_failed_restore_changes_nothing_and_asks_for_nothing() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let with = |own: usize, heard: usize| Telling {
        told: told.clone(),
        own: vec![2.0; own],
        heard: vec![3.0; heard],
    };
    let pace = gaggle_optim::Pace::new(1);
    let saved = |own, heard| State::of(&mut with(own, heard), 4, pace);
    let mut rule = with(4, 2);
    for wrong in [saved(3, 2), saved(5, 0)] {
        let e = wrong.restore(&mut rule, 4).unwrap_err();
        assert!(matches!(e, StateError::Vector { .. }), "{e}");
    }
    assert!(saved(4, 2).restore(&mut rule, 5).is_err());
    assert_eq!(
        (&rule.own[..], &rule.heard[..]),
        (&[2.0; 4][..], &[3.0; 2][..])
    );
    assert_eq!(told.lock().unwrap().len(), 0);
    // Of other neighbours' vectors there may be any number.
    for heard in [0, 2, 9] {
        saved(4, heard).restore(&mut rule, 4).unwrap();
        assert_eq!(rule.heard.len(), heard);
    }
    assert_eq!(*told.lock().unwrap(), ["rewired"; 3]);
}
