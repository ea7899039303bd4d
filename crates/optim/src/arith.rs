//! Small things that every rule does with its vectors.

use gaggle_core::Float;

/// `n` zeros.
pub(crate) fn zeros<T: Float>(n: usize) -> Vec<T> {
    vec![T::from_f64(0.0); n]
}

/// out\[k\] ← f(k).
#[inline]
pub(crate) fn fill<T: Float>(out: &mut [T], mut f: impl FnMut(usize) -> f64) {
    for (k, out) in out.iter_mut().enumerate() {
        *out = T::from_f64(f(k));
    }
}

/// v\[k\] ← f(k, v\[k\]).
#[inline]
pub(crate) fn update<T: Float>(v: &mut [T], mut f: impl FnMut(usize, f64) -> f64) {
    for (k, v) in v.iter_mut().enumerate() {
        *v = T::from_f64(f(k, v.to_f64()));
    }
}

/// ‖v‖₂, also where squares are too small or too large to be told.
pub(crate) fn norm<T: Float>(v: &[T]) -> f64 {
    let squares = |scale: f64| v.iter().map(|x| (x.to_f64() / scale).powi(2)).sum::<f64>();
    let sum = squares(1.0);
    if (1e-280..1e280).contains(&sum) {
        return sum.sqrt();
    }
    match v.iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max) {
        // Of an infinite element the norm is infinite, too; of one that is no number it is none.
        0.0 => sum.sqrt(),
        _ if sum.is_nan() => sum,
        largest if largest.is_infinite() => largest,
        largest => largest * squares(largest).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::norm;

    #[test]
    fn norms_are_told_of_any_numbers() {
        assert_eq!(norm::<f64>(&[]), 0.0);
        assert_eq!(norm(&[3.0, -4.0]), 5.0);
        for scale in [1e-200, 1e200] {
            let near = norm(&[3.0 * scale, 4.0 * scale]) / scale - 5.0;
            assert!(near.abs() < 1e-14, "{near}");
        }
        assert_eq!(norm(&[1.0, f64::NEG_INFINITY]), f64::INFINITY);
        assert!(norm(&[1.0, f64::NAN]).is_nan());
    }
}
