//! A loan of ordinary memory and its end, in every order in which a visitor and the owner can run: the very code, over loom's locks.
//!
//! The bytes are watched: a test fails where the owner has them back while the visitor may be at them.

use self::raw_lent::Lent;
use loom::{cell::UnsafeCell, sync::Arc, thread};
use std::ptr::NonNull;

#[path = "raw_lent.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "the very code again, over other locks"
)]
mod raw_lent;

/// Loom's locks, as those of the code are called.
mod locks {
    use std::ops::{Deref, DerefMut};

    #[derive(Debug)]
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Mutex(loom::sync::Mutex::new(T::default()))
        }
    }

    pub(super) struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(super) fn lock(&self) -> Guard<'_, T> {
            Guard(self.0.lock().ok())
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    #[derive(Debug)]
    pub(super) struct Condvar(loom::sync::Condvar);

    impl Default for Condvar {
        fn default() -> Self {
            Condvar(loom::sync::Condvar::new())
        }
    }

    impl Condvar {
        pub(super) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            let held = guard.0.take().unwrap();
            guard.0 = self.0.wait(held).ok();
        }
        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

struct All {
    lent: Lent,
    bytes: Watched,
}

/// Stands for the bytes.
struct Watched(UnsafeCell<u64>);

// SAFETY: loom fails the test where two threads are at it.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    fn add(&self, n: u64) {
        // SAFETY: loom fails the test where another thread may be here.
        self.0.with_mut(|at| unsafe { *at += n });
    }
}

fn visit(all: &All, number: u64) -> bool {
    let there = all.lent.visit(number, 0, 8).is_some();
    if there {
        all.bytes.add(1);
        all.lent.leave(number);
    }
    there
}

fn model(visits: u64) {
    loom::model(move || {
        let all = Arc::new(All {
            lent: Lent::default(),
            bytes: Watched(UnsafeCell::new(0)),
        });
        // SAFETY: the pointer is never followed: what stands for the bytes is watched.
        let number = unsafe { all.lent.lend(NonNull::<u64>::dangling().cast(), 8) };
        let there = Arc::clone(&all);
        let visitor = thread::spawn(move || {
            for _ in 0..visits {
                visit(&there, number);
            }
        });
        all.lent.recall(number);
        // The owner's own again.
        all.bytes.add(1);
        assert!(!visit(&all, number));
        visitor.join().unwrap();
    });
}

#[test]
fn loom_nobody_is_at_memory_that_was_recalled() {
    model(1);
}

#[test]
fn loom_who_comes_again_is_turned_away() {
    model(2);
}

#[test]
fn loom_the_last_of_two_visitors_ends_the_wait() {
    loom::model(|| {
        let all = Arc::new((Lent::default(), loom::sync::atomic::AtomicU64::new(0)));
        // SAFETY: the pointer is never followed.
        let number = unsafe { all.0.lend(NonNull::<u64>::dangling().cast(), 8) };
        let order = std::sync::atomic::Ordering::Relaxed;
        let visitors = [0, 1].map(|_| {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                if all.0.visit(number, 0, 8).is_some() {
                    all.1.fetch_add(1, order);
                    all.1.fetch_sub(1, order);
                    all.0.leave(number);
                }
            })
        });
        all.0.recall(number);
        assert_eq!(all.1.load(order), 0, "somebody is there");
        for visitor in visitors {
            visitor.join().unwrap();
        }
    });
}
