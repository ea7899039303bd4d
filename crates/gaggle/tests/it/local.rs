//! Ranks as threads.

use gaggle::{Cause, EngineConfig, Error, Mean, Rank, Sum};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    time::Duration,
};

const WORLDS: [usize; 6] = [1, 2, 3, 5, 7, 8];

#[test]
fn every_rank_returns_in_order() {
    for n in WORLDS {
        let got = gaggle::local(n, |group| {
            let mut x = [1i32, group.rank().0 as i32];
            group.all_reduce(&mut x, Sum).unwrap();
            (group.rank().idx(), x)
        })
        .unwrap();
        let triangle = (n * (n - 1) / 2) as i32;
        let want: Vec<_> = (0..n).map(|r| (r, [n as i32, triangle])).collect();
        assert_eq!(got, want);
    }
}

#[test]
fn a_world_of_nobody_is_refused() {
    let e = gaggle::local(0, |_| ()).unwrap_err();
    assert_eq!(e.to_string(), "local: a world of 0 ranks");
}

/// The text stands in the README.
#[test]
fn a_panic_names_the_rank_to_its_peers_and_goes_on_in_the_caller() {
    let seen = Mutex::new(Vec::new());
    let panic = catch_unwind(AssertUnwindSafe(|| {
        gaggle::local(3, |group| {
            if group.rank() == Rank(1) {
                panic!("no batch left");
            }
            let e = group.all_reduce(&mut [1.0f32], Mean).unwrap_err();
            seen.lock().unwrap().push(e);
        })
    }))
    .unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"no batch left"));
    let seen: Vec<Error> = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 2);
    for e in seen {
        assert!(matches!(e.cause(), Cause::PeerLost { .. }), "{e}");
        assert_eq!(e.culprits(), [Rank(1)]);
        // Whether anything had come before the panic was seen is a matter of time.
        let text = e.to_string();
        let text = text.trim_end_matches("; the buffer is partly written");
        assert_eq!(super::readme::failure(), text);
    }
}

/// A rank that has finished leaves; one that still needs it is told so.
#[test]
fn a_rank_that_returns_early_has_left() {
    let got = gaggle::local(2, |group| {
        (group.rank() == Rank(0)).then(|| group.barrier().unwrap_err())
    })
    .unwrap();
    let e = got[0].as_ref().unwrap();
    assert!(matches!(e.cause(), Cause::PeerLeft { .. }), "{e}");
    assert_eq!(e.culprits(), [Rank(1)]);
}

#[test]
fn the_engines_settings_are_the_callers() {
    let config = EngineConfig::default().with_timeout(Duration::from_millis(200));
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let (done, wait) = (Mutex::new(Some(done)), Mutex::new(wait));
    let got = gaggle::local_with(2, config, |group| {
        if group.rank() == Rank(1) {
            // Alive and absent until the other has given up.
            let _ = wait.lock().unwrap().recv();
            return None;
        }
        let e = group.barrier().unwrap_err();
        drop(done.lock().unwrap().take());
        Some(e)
    })
    .unwrap();
    let e = got[0].as_ref().unwrap();
    assert!(matches!(e.cause(), Cause::Timeout { .. }), "{e}");
    assert_eq!(e.culprits(), [Rank(1)]);
}
