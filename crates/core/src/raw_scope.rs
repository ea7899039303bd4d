//! Asynchronous operations on borrowed slices, and why that is sound.
//!
//! # Safety
//! A scope lends slices to operations as if it owned them ([`Lent`]).
//! Every lent slice holds the scope's latch open, and [`run`] does not return before the latch is shut: neither normally nor by a panic, and a panic of its own aborts the process.
//! So whoever leaks a handle, or the engine a region, makes the scope wait; nobody can reach a slice after its borrow has ended.

use crate::{Element, Error, Group, Kind, Op, Pending, Reduction, Region, StableBuf};
use std::{
    marker::PhantomData,
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

/// Runs `f` with a scope over `group`, and ends every operation that was started in it.
pub(crate) fn run<'env, F, R>(group: &'env Group, f: F) -> R
where
    F: for<'s> FnOnce(&'s Scope<'s, 'env>) -> R,
{
    let scope = Scope {
        group,
        works: Mutex::default(),
        latch: Arc::default(),
        _scope: PhantomData,
        _env: PhantomData,
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&scope)));
    // From here on a panic would return while memory is in flight.
    let bomb = AbortOnUnwind;
    for work in lock(&scope.works).drain(..).flatten() {
        drop(work.wait());
    }
    scope.latch.wait_zero();
    std::mem::forget(bomb);
    outcome.unwrap_or_else(|p| std::panic::resume_unwind(p))
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct AbortOnUnwind;
impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort()
    }
}

#[derive(Default)]
struct Latch {
    out: Mutex<usize>,
    zero: Condvar,
}

impl Latch {
    fn wait_zero(&self) {
        let mut out = lock(&self.out);
        while *out > 0 {
            out = self.zero.wait(out).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A borrowed slice dressed as owned memory. Whoever holds it holds the scope open: leaking it blocks, it does not corrupt.
struct Lent<T> {
    ptr: NonNull<T>,
    len: usize,
    latch: Arc<Latch>,
}

// SAFETY: stands for a `&mut [T]` of `Send` elements that the scope keeps borrowed.
unsafe impl<T: Send> Send for Lent<T> {}

// SAFETY: the scope's signature keeps the slice mutably borrowed for `'scope`, and the scope does not end before this value is dropped.
unsafe impl<T: Element> StableBuf for Lent<T> {
    type Elem = T;
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (self.ptr, self.len)
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        *lock(&self.latch.out) -= 1;
        self.latch.zero.notify_all();
    }
}

/// Where asynchronous operations on borrowed slices live; see [`Group::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    group: &'env Group,
    works: Mutex<Vec<Option<Box<dyn Pending>>>>,
    latch: Arc<Latch>,
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts an all-reduce of a slice that lives as long as the scope.
    pub fn all_reduce<T: Element, R: Reduction<T>>(
        &'scope self,
        x: &'scope mut [T],
        _reduce: R,
    ) -> ScopedWork<'scope, T> {
        self.start(Op::new(Kind::AllReduce(R::REDUCE)), x)
    }

    /// Starts any operation on a slice that lives as long as the scope.
    pub fn start<T: Element>(&'scope self, op: Op, x: &'scope mut [T]) -> ScopedWork<'scope, T> {
        *lock(&self.latch.out) += 1;
        let (ptr, len) = (NonNull::from(&mut *x).cast(), x.len());
        let lent = Lent {
            ptr,
            len,
            latch: Arc::clone(&self.latch),
        };
        let pending = self
            .group
            .communicator()
            .start(op, Region::new(lent).into());
        let mut works = lock(&self.works);
        works.push(Some(pending));
        ScopedWork {
            works: &self.works,
            idx: works.len() - 1,
            ptr,
            len,
            _x: PhantomData,
        }
    }
}

/// A name for work that the scope owns: dropping or forgetting it changes nothing.
pub struct ScopedWork<'scope, T> {
    works: &'scope Mutex<Vec<Option<Box<dyn Pending>>>>,
    idx: usize,
    ptr: NonNull<T>,
    len: usize,
    _x: PhantomData<&'scope mut [T]>,
}

impl<'scope, T: Element> ScopedWork<'scope, T> {
    /// The slice again, before the scope ends.
    ///
    /// # Errors
    /// See [`Cause`](crate::Cause).
    pub fn wait(self) -> Result<&'scope mut [T], Error> {
        let pending = lock(self.works)[self.idx].take();
        let Some(pending) = pending else {
            return Err(Error::internal("scoped work taken twice"));
        };
        let f = pending.wait();
        // Exactly this slice: a communicator that mixes up its memory must not make this unsound.
        let back =
            f.io.and_then(Region::into_inner::<Lent<T>>)
                .is_some_and(|lent| lent.ptr == self.ptr && lent.len == self.len);
        f.result?;
        if !back {
            return Err(Error::internal("a finished operation kept its memory"));
        }
        // SAFETY: the operation has given the slice back (its `Lent` was just dropped), and the scope keeps it borrowed for `'scope` for us alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }
}
