//! Reductions, and the one table that says which exists on which element type.

use crate::{
    dtype::{Bits, DType, Element, Float},
    raw::{elements_of, elements_of_mut},
};
use std::{fmt, sync::Arc};

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
    /// Bitwise and; on bool: all.
    Band = 5,
    /// Bitwise or; on bool: any.
    Bor = 6,
    /// Bitwise exclusive or; on bool: an odd number.
    Bxor = 7,
    /// A function of the caller's, see [`UserReduction`].
    User = 8,
}

impl Reduce {
    /// All reductions, in the order of their numbers.
    pub const ALL: [Reduce; 9] = [
        Reduce::Sum,
        Reduce::Mean,
        Reduce::Min,
        Reduce::Max,
        Reduce::Prod,
        Reduce::Band,
        Reduce::Bor,
        Reduce::Bxor,
        Reduce::User,
    ];

    /// The legality table: MEAN on floats; BAND, BOR and BXOR on integers and bool; SUM, PROD, MIN and MAX everywhere (on bool SUM and MAX are or, PROD and MIN and); a user's on the type that it was made for.
    pub const fn is_defined_on(self, dtype: DType) -> bool {
        match self {
            Reduce::Mean => dtype.is_float(),
            Reduce::Band | Reduce::Bor | Reduce::Bxor => dtype.is_bits(),
            Reduce::Sum | Reduce::Min | Reduce::Max | Reduce::Prod | Reduce::User => true,
        }
    }

    /// Whether the result is the same in whatever order contributions are combined, bit for bit.
    pub const fn is_order_free(self, dtype: DType) -> bool {
        match self {
            Reduce::Min | Reduce::Max | Reduce::Band | Reduce::Bor | Reduce::Bxor => true,
            Reduce::Sum | Reduce::Prod => !dtype.is_float(),
            Reduce::Mean | Reduce::User => false,
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
            Reduce::Band => "band",
            Reduce::Bor => "bor",
            Reduce::Bxor => "bxor",
            Reduce::User => "user",
        })
    }
}

/// The reduction with that name: `sum`, `bxor`.
impl std::str::FromStr for Reduce {
    type Err = String;
    fn from_str(s: &str) -> Result<Reduce, String> {
        let found = Self::ALL.iter().find(|r| r.to_string() == s);
        found.copied().ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(Reduce::to_string).collect();
            format!(
                "no reduction is called '{s}'; there are {}",
                known.join(", ")
            )
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

/// Bitwise and; on [`Bool`](crate::Bool): all.
#[derive(Clone, Copy, Debug)]
pub struct Band;
/// Bitwise or; on [`Bool`](crate::Bool): any.
#[derive(Clone, Copy, Debug)]
pub struct Bor;
/// Bitwise exclusive or; on [`Bool`](crate::Bool): an odd number.
#[derive(Clone, Copy, Debug)]
pub struct Bxor;

impl<T: Bits> Reduction<T> for Band {
    const REDUCE: Reduce = Reduce::Band;
}
impl<T: Bits> Reduction<T> for Bor {
    const REDUCE: Reduce = Reduce::Bor;
}
impl<T: Bits> Reduction<T> for Bxor {
    const REDUCE: Reduce = Reduce::Bxor;
}
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

/// What a user says of a reduction of theirs. What is said is believed: it decides which plans may carry it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Properties {
    /// f(a, b) = f(b, a), bit for bit.
    pub commutative: bool,
    /// f(f(a, b), c) = f(a, f(b, c)), bit for bit. Without it contributions are folded from the left in rank order.
    pub associative: bool,
}

/// A reduction on erased elements; made by [`UserReduction::new`].
pub trait Combine: Send + Sync {
    /// `acc[i] = f(acc[i], x[i])`, or `f(x[i], acc[i])` where `x_first`. `false` where bytes and type do not fit.
    fn combine(&self, acc: &mut [u8], x: &[u8], x_first: bool) -> bool;
}

/// A reduction of the caller's own: a name that is equal on every rank, the properties it has, and the function.
///
/// The function is called on elements in ordinary memory, on whichever thread makes progress, while the engine is locked: it must be short and must not call the library (which refuses). Its panic ends the operation with [`Cause::Panicked`](crate::Cause::Panicked) on every rank.
///
/// ```
/// use gaggle_core::{Properties, UserReduction};
///
/// let hypot = UserReduction::new("hypot", Properties { commutative: true, associative: false }, |a: f64, b: f64| a.hypot(b));
/// assert_eq!(hypot.name(), "hypot");
/// ```
#[derive(Clone)]
pub struct UserReduction {
    name: Arc<str>,
    dtype: DType,
    properties: Properties,
    combine: Arc<dyn Combine>,
}

impl UserReduction {
    /// `f(left, right)`, where `left` comes from the lower rank.
    pub fn new<T: Element>(
        name: &str,
        properties: Properties,
        f: impl Fn(T, T) -> T + Send + Sync + 'static,
    ) -> UserReduction {
        UserReduction {
            name: name.into(),
            dtype: T::DTYPE,
            properties,
            combine: Arc::new(Typed(f, std::marker::PhantomData::<fn(T)>)),
        }
    }

    /// Its name: ranks whose names differ do not run together.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// On which elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What it was said to be.
    pub fn properties(&self) -> Properties {
        self.properties
    }

    /// The function, erased.
    pub fn combine(&self) -> &dyn Combine {
        &*self.combine
    }
}

impl fmt::Debug for UserReduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserReduction")
            .field("name", &self.name)
            .field("dtype", &self.dtype)
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}

/// By what peers can see of it.
impl PartialEq for UserReduction {
    fn eq(&self, other: &UserReduction) -> bool {
        (&self.name, self.dtype, self.properties) == (&other.name, other.dtype, other.properties)
    }
}

struct Typed<F, T>(F, std::marker::PhantomData<fn(T)>);

impl<T: Element, F: Fn(T, T) -> T + Send + Sync> Combine for Typed<F, T> {
    fn combine(&self, acc: &mut [u8], x: &[u8], x_first: bool) -> bool {
        let fits = acc.len() == x.len();
        let (Some(acc), Some(x)) = (elements_of_mut::<T>(acc), elements_of::<T>(x)) else {
            return false;
        };
        for (a, x) in acc.iter_mut().zip(x) {
            *a = if x_first {
                (self.0)(*x, *a)
            } else {
                (self.0)(*a, *x)
            };
        }
        fits
    }
}
