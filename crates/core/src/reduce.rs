//! Reductions, and the one table that says which exists on which element type.

use crate::dtype::{DType, Element, Float};
use std::fmt;

/// How contributions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reduce {
    /// Σ xᵢ; integers wrap.
    Sum = 0,
    /// Σ wᵢxᵢ / Σ wᵢ over the ranks that contribute; floats only.
    Mean = 1,
    /// Smallest; a NaN wins, −0 < +0.
    Min = 2,
    /// Largest; a NaN wins, −0 < +0.
    Max = 3,
    /// ∏ xᵢ; integers wrap.
    Prod = 4,
}

impl Reduce {
    /// All reductions, in the order of their numbers.
    pub const ALL: [Reduce; 5] = [
        Reduce::Sum,
        Reduce::Mean,
        Reduce::Min,
        Reduce::Max,
        Reduce::Prod,
    ];

    /// The legality table: MEAN on floats, all others on every number.
    pub const fn is_defined_on(self, dtype: DType) -> bool {
        match self {
            Reduce::Mean => dtype.is_float(),
            Reduce::Sum | Reduce::Min | Reduce::Max | Reduce::Prod => true,
        }
    }

    /// The reduction with number `n`, as sent in a descriptor.
    pub fn from_number(n: u8) -> Option<Reduce> {
        Self::ALL.get(n as usize).copied()
    }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduce::Sum => "sum",
            Reduce::Mean => "mean",
            Reduce::Min => "min",
            Reduce::Max => "max",
            Reduce::Prod => "prod",
        })
    }
}

/// A reduction as a type, so that an illegal pair does not compile.
///
/// ```compile_fail
/// # use gaggle_core::{Group, Mean};
/// fn mean_of_integers(group: &Group, x: &mut [i32]) {
///     let _ = group.all_reduce(x, Mean);
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not defined on `{T}`",
    note = "means are for floats: sum integers and divide, or convert first"
)]
pub trait Reduction<T: Element>: Copy {
    /// The value that says the same.
    const REDUCE: Reduce;
}

/// Σ xᵢ.
#[derive(Clone, Copy, Debug)]
pub struct Sum;
/// Σ wᵢxᵢ / Σ wᵢ; every rank has weight 1 unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Mean;
/// Smallest.
#[derive(Clone, Copy, Debug)]
pub struct Min;
/// Largest.
#[derive(Clone, Copy, Debug)]
pub struct Max;
/// ∏ xᵢ.
#[derive(Clone, Copy, Debug)]
pub struct Prod;

impl<T: Element> Reduction<T> for Sum {
    const REDUCE: Reduce = Reduce::Sum;
}
impl<T: Float> Reduction<T> for Mean {
    const REDUCE: Reduce = Reduce::Mean;
}
impl<T: Element> Reduction<T> for Min {
    const REDUCE: Reduce = Reduce::Min;
}
impl<T: Element> Reduction<T> for Max {
    const REDUCE: Reduce = Reduce::Max;
}
impl<T: Element> Reduction<T> for Prod {
    const REDUCE: Reduce = Reduce::Prod;
}
