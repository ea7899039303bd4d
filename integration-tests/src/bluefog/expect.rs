//! What was wanted against what came, as errors that a rank can report.

use crate::work::{Number, Trouble};
use gaggle::{Float, Rank};

/// The same number of elements, each exactly as wanted.
pub(crate) fn exactly<T: Number>(got: &[T], want: &[T]) -> Result<(), Trouble> {
    length(got.len(), want.len())?;
    let differ = |(got, want): (&T, &T)| got.bytes().as_ref() != want.bytes().as_ref();
    match got.iter().zip(want).position(differ) {
        None => Ok(()),
        Some(i) => Err(format!(
            "element {i}: {:02x?}, wanted {:02x?} ({})",
            got[i].bytes().as_ref(),
            want[i].bytes().as_ref(),
            T::DTYPE
        )
        .into()),
    }
}

/// Every element near `want` of its position: 10⁻⁵ as BlueFog has it, for f16 10⁻³ of the value or of 1, whichever is more (values here go up to several hundred, and f16 has 11 bits).
pub(crate) fn near<T: Float>(got: &[T], want: impl Fn(usize) -> f64) -> Result<(), Trouble> {
    let eps = |want: f64| match T::DTYPE.size() {
        2 => 1e-3 * want.abs().max(1.0),
        _ => 1e-5 * want.abs().max(1.0),
    };
    let far = |i: &usize| {
        let want = want(*i);
        (got[*i].to_f64() - want).abs() > eps(want) || got[*i].to_f64().is_nan()
    };
    match (0..got.len()).find(far) {
        None => Ok(()),
        Some(i) => Err(format!(
            "element {i}: {}, wanted {} ({})",
            got[i].to_f64(),
            want(i),
            T::DTYPE
        )
        .into()),
    }
}

pub(crate) fn length(got: usize, want: usize) -> Result<(), Trouble> {
    match got == want {
        true => Ok(()),
        false => Err(format!("{got} elements, wanted {want}").into()),
    }
}

pub(crate) fn ranks(what: &str, got: &[Rank], want: &[u32]) -> Result<(), Trouble> {
    let got: Vec<u32> = got.iter().map(|r| r.0).collect();
    match got == want {
        true => Ok(()),
        false => Err(format!("{what}: {got:?}, wanted {want:?}").into()),
    }
}

pub(crate) fn that(holds: bool, what: impl FnOnce() -> String) -> Result<(), Trouble> {
    match holds {
        true => Ok(()),
        false => Err(what().into()),
    }
}
