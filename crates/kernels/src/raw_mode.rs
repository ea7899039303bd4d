//! The floating-point mode of the kernels: nearest even, denormals kept, no traps, whatever the calling thread has set.
//!
//! # Safety
//! On x86-64 the mode is in the register MXCSR, which the compiler takes to hold its default.
//! A [`Mode`] puts the default there and puts back what was there before when it is dropped, also while a panic unwinds; the arithmetic in between is in functions that are not inlined into its scope.
//! On other architectures, and under miri, the mode is the thread's.

/// While it lives, this thread computes in the default mode.
pub(crate) struct Mode {
    /// What was there before, where that was something else.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    before: Option<u32>,
}

/// Nearest even, no flushing to zero, no denormals as zeros, all exceptions masked, no flag raised.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const DEFAULT: u32 = 0x1f80;
/// Flags of exceptions that have happened: they are the caller's and change nothing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const FLAGS: u32 = 0x3f;

impl Mode {
    /// Costs one read of the register where the caller's mode is the default.
    #[inline]
    pub(crate) fn enter() -> Mode {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let there = read();
            let other = there & !FLAGS != DEFAULT;
            if other {
                write(DEFAULT);
            }
            Mode {
                before: other.then_some(there),
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Mode {}
    }
}

impl Drop for Mode {
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(before) = self.before {
            write(before);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn read() -> u32 {
    let mut there = 0u32;
    // SAFETY: stores four bytes to a local of four bytes; SSE is part of x86-64.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut there, options(nostack, preserves_flags));
    }
    there
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn write(mode: u32) {
    // SAFETY: loads four bytes from a local of four bytes; the reserved bits are 0, because the value is the default or was read from the register.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags));
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// Flush to zero, denormals as zeros, rounding up.
    const STRANGE: u32 = DEFAULT | 0x8000 | 0x0040 | 0x4000;

    #[test]
    fn the_callers_mode_comes_back() {
        let before = read();
        write(STRANGE);
        {
            let _mode = Mode::enter();
            assert_eq!(read() & !FLAGS, DEFAULT);
            let _nested = Mode::enter();
        }
        let after = read();
        write(before);
        assert_eq!(after & !FLAGS, STRANGE);
    }

    #[test]
    fn the_callers_mode_comes_back_from_a_panic() {
        let before = read();
        write(STRANGE);
        let caught = std::panic::catch_unwind(|| {
            let _mode = Mode::enter();
            panic!("out of a kernel");
        });
        let after = read();
        write(before);
        assert!(caught.is_err());
        assert_eq!(after & !FLAGS, STRANGE);
    }

    #[test]
    fn denormals_are_kept_and_sums_rounded_to_nearest_whatever_the_caller_has_set() {
        use crate::{Source, Term, combine, fold, mix, recode, scale};
        use gaggle_core::{
            Codec, DType, Form, Reduce,
            raw::{bytes_of, bytes_of_mut},
        };
        let tiny: Vec<f32> = (0..67).map(|i| f32::from_bits(1 + i * 12_345)).collect();
        let third: Vec<f32> = (0..67).map(|i| (i as f32 + 1.0) / 3.0).collect();
        let all = || {
            let mut out: Vec<Vec<f32>> = vec![];
            // Few elements have kernels of their own.
            let lens = [1, 8, 9, 16, 64, 67];
            let pairs = lens.map(|n| [&tiny, &third].map(|other| (&tiny[..n], &other[..n])));
            for (tiny, other) in pairs.into_iter().flatten() {
                let mut x = tiny.to_vec();
                combine(
                    DType::F32,
                    Reduce::Sum,
                    bytes_of_mut(&mut x),
                    bytes_of(other),
                    false,
                );
                out.push(x);
                let mut x = vec![0.0; other.len()];
                scale(DType::F32, bytes_of_mut(&mut x), bytes_of(other), 0.3);
                out.push(x);
                let mut x = tiny.to_vec();
                let bytes = Source::Bytes {
                    bytes: bytes_of(other),
                    dtype: DType::F32,
                };
                let terms = [bytes, bytes, Source::Dst].map(|source| Term {
                    source,
                    weight: None,
                });
                fold(DType::F32, Reduce::Sum, bytes_of_mut(&mut x), &terms);
                out.push(x);
                let mut x = tiny.to_vec();
                let term = crate::MixTerm {
                    bytes: bytes_of(other),
                    dtype: DType::F32,
                    weight: 0.3,
                };
                mix(
                    DType::F32,
                    bytes_of_mut(&mut x),
                    0.7,
                    &[term],
                    Form::Sum,
                    Codec::None,
                );
                out.push(x);
                for codec in [Codec::Bf16, Codec::F16, Codec::Int8] {
                    let mut x = other.to_vec();
                    recode(codec, DType::F32, bytes_of_mut(&mut x));
                    out.push(x);
                }
            }
            let bits = |x: &Vec<f32>| x.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
            out.iter().map(bits).collect::<Vec<_>>()
        };
        for isa in crate::Isa::ALL {
            if !crate::Isa::force(Some(isa)) {
                continue;
            }
            let want = all();
            let before = read();
            write(STRANGE);
            let got = all();
            write(before);
            assert_eq!(got, want, "{isa}");
        }
        crate::Isa::force(None);
    }
}
