//! What the fused step and the engine are compared on.

use super::{HeapVec, Members, plans};
use gaggle_core::{
    Cause, Element, Error, Rank, Reduce, Region, Weight, descriptor::stable_hash, raw::bytes_of,
};
use half::bf16;
use std::time::Duration;

/// No operation that works takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Elements whose sums must be rounded.
pub trait Sample: Element {
    /// From 32 bits of chance.
    fn sample(bits: u32) -> Self;
}

fn fraction(bits: u32) -> f64 {
    (f64::from(bits) / f64::from(u32::MAX) - 0.5) * f64::from(1 << (bits % 7))
}

impl Sample for f32 {
    fn sample(bits: u32) -> f32 {
        fraction(bits) as f32
    }
}
impl Sample for f64 {
    fn sample(bits: u32) -> f64 {
        fraction(bits)
    }
}
impl Sample for bf16 {
    fn sample(bits: u32) -> bf16 {
        bf16::from_f64(fraction(bits))
    }
}
impl Sample for i32 {
    fn sample(bits: u32) -> i32 {
        bits as i32
    }
}

/// What a rank contributes.
pub fn contribution<T: Sample>(rank: Rank, n: usize) -> Vec<T> {
    let mut x = u64::from(rank.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 88_172_645_463_325_252;
    let draw = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        T::sample((x >> 32) as u32)
    };
    (0..n).map(draw).collect()
}

/// A rank's weight in the means: as many samples as its number plus one; the last of three has run out of input.
pub fn weight(rank: Rank) -> Weight {
    Weight::samples(if rank == Rank(2) { 0 } else { rank.0 + 1 })
}

/// The lengths that are tried in a world of `n`.
pub fn lengths(n: usize) -> [usize; 7] {
    [0, 1, n - 1, n, n + 1, 4099, 50_021]
}

/// One line for one result.
pub fn line<T: Element>(reduce: Reduce, how: &str, result: &[T]) -> String {
    let hash = stable_hash(&[bytes_of(result)]);
    format!("{} {reduce} {} {how} {hash:016x}", T::DTYPE, result.len())
}

/// All-reduces, in place and out of place, at every length.
///
/// # Errors
/// Those of [`Members::run`], and a heap that is used up.
pub fn all_reduces<T: Sample>(
    members: &mut Members,
    me: Rank,
    world: u32,
    reduce: Reduce,
) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    for n in lengths(world as usize) {
        for how in ["in", "out"] {
            let mine = contribution::<T>(me, n);
            let mut io = buffer::<T>(members, n)?;
            let mut input = None;
            if how == "out" {
                let mut x = buffer::<T>(members, n)?;
                x.copy_from_slice(&mine);
                input = Some(Region::new(x));
            } else {
                io.copy_from_slice(&mine);
            }
            let plan = plans::all_reduce(reduce, (me, world), n as u64, how == "out")?;
            let mut io = Region::new(io);
            members.run(&plan, weight(me), input.as_mut(), &mut io, PATIENCE)?;
            let intact =
                input.and_then(|mut r| r.typed::<T>().map(|x| bytes_of(x) == bytes_of(&mine)));
            if intact == Some(false) {
                return Err(Error::internal("the input was written"));
            }
            lines.push(line::<T>(reduce, how, io.typed().unwrap_or_default()));
        }
    }
    Ok(lines)
}

/// A buffer of the heap.
///
/// # Errors
/// The heap is used up.
pub fn buffer<T: Element>(members: &Members, n: usize) -> Result<HeapVec<T>, Error> {
    let full = || {
        Error::from(Cause::Unsupported {
            op: "heap".into(),
            what: format!("no room for {n} elements"),
        })
    };
    members.heap().vec(n).ok_or_else(full)
}
