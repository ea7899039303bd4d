//! Sums and means of a few elements: a loss, a norm, a count. What the general kernels prepare for long vectors takes longer than all of this.

use crate::{
    fold::{Source, Term, What, weight_of},
    num::{Num, Wide},
    raw_mode::Mode,
};
use gaggle_core::{
    Reduce, Weight,
    raw::{bytes_of, elements_of, elements_of_mut},
};

/// What one rank gives to a sum that takes longer to prepare than to compute.
pub type Line = [u64; 6];

/// Most elements that are folded in this way.
const MOST: usize = 64;
/// Of fewer there are many more folds.
const LITTLE: usize = 8;

/// Folds as the general kernel does, with its bits, if this is such a fold and everything lies aligned; else nothing has happened, and `false`.
#[inline]
pub(crate) fn fold<T: Num>(what: &What, dst: &mut [u8], terms: &[Term<'_>]) -> bool {
    let n = dst.len() / size_of::<T>();
    if !matches!(what.reduce, Reduce::Sum | Reduce::Mean) || n > MOST {
        return false;
    }
    let fits = |term: &Term<'_>| match term.source {
        Source::Dst => true,
        Source::Bytes { bytes, dtype } => dtype == T::DTYPE && elements_of::<T>(bytes).is_some(),
        Source::Window { .. } => false,
    };
    let Some(dst) = elements_of_mut::<T>(dst).filter(|_| terms.iter().all(fits)) else {
        return false;
    };
    let _mode = Mode::enter();
    match n <= LITTLE {
        true => sums::<T>(what, dst, terms, &mut [T::Wide::ZERO; LITTLE][..n]),
        false => sums::<T>(what, dst, terms, &mut [T::Wide::ZERO; MOST][..n]),
    }
    true
}

/// As [`crate::sum_lines`].
#[inline]
pub(crate) fn sum_lines<T: Num>(dst: &mut [u8], own: usize, others: &[Line]) -> bool {
    if dst.len() > size_of::<Line>() || own > others.len() {
        return false;
    }
    let Some(dst) = elements_of_mut::<T>(dst) else {
        return false;
    };
    let _mode = Mode::enter();
    add_lines(dst, own, others);
    true
}

/// Not inlined, as `sums`.
#[inline(never)]
fn add_lines<T: Num>(dst: &mut [T], own: usize, others: &[Line]) {
    let (before, after) = others.split_at(own);
    for (i, to) in dst.iter_mut().enumerate() {
        let of = |line: &Line| elements_of::<T>(bytes_of(line)).map_or(T::ZERO, |all| all[i]);
        let mine = to.wide();
        // Not 0 and the first: 0 and −0 are 0.
        let sum = match before.split_first() {
            None => mine,
            Some((first, more)) => more
                .iter()
                .fold(of(first).wide(), |sum, line| sum.add(of(line).wide()))
                .add(mine),
        };
        let sum = after.iter().fold(sum, |sum, line| sum.add(of(line).wide()));
        *to = T::narrow(sum);
    }
}

/// Not inlined: it computes in the mode that its caller has entered.
#[inline(never)]
fn sums<T: Num>(what: &What, dst: &mut [T], terms: &[Term<'_>], acc: &mut [T::Wide]) {
    let mut first = true;
    for term in terms {
        let weight = weight_of(term);
        if weight == Weight::ZERO {
            continue;
        }
        let from = match term.source {
            Source::Bytes { bytes, .. } => elements_of::<T>(bytes).unwrap_or(&[]),
            _ => &*dst,
        };
        let each = acc.iter_mut().zip(from);
        match (first, !what.alone && weight != Weight::ONE) {
            (true, false) => each.for_each(|(a, x)| *a = x.wide()),
            (false, false) => each.for_each(|(a, x)| *a = a.add(x.wide())),
            (first, true) => {
                let w = T::Wide::factor(weight.to_f64());
                each.for_each(|(a, x)| {
                    let x = x.wide().mul(w);
                    *a = if first { x } else { a.add(x) };
                });
            }
        }
        first = false;
    }
    if first {
        return;
    }
    if let Some(d) = what.divisor {
        let d = T::Wide::factor(d);
        acc.iter_mut().for_each(|a| *a = a.div(d));
    }
    for (to, a) in dst.iter_mut().zip(acc) {
        *to = T::narrow(*a);
    }
}
