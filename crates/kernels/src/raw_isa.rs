//! Which instructions the kernels are compiled for, and which of those copies runs.
//!
//! Every kernel is one generic loop; it is compiled once for the target's baseline and, on x86-64, once more each for AVX2 and for AVX-512, and [`run`] calls the widest copy that this machine has.
//! The copies differ in how many elements an instruction takes and in nothing else: no multiplication and addition is fused into one rounding, no denormal is flushed, so that all of them give equal bits.
//!
//! # Safety
//! Code that was compiled for an instruction set must not run where the processor lacks it.
//! The only calls of such code are in `run`, and the only way to another level than the baseline is through `Isa::is_available`, which asks the processor.

use crate::raw_mode::Mode;
use std::{
    fmt,
    str::FromStr,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

/// An instruction set that the kernels have a copy for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Isa {
    /// What every processor of the target has.
    Baseline = 0,
    /// 256-bit vectors of integers and floats (x86-64).
    Avx2 = 1,
    /// 512-bit vectors: AVX-512 F, BW, CD, DQ and VL (x86-64).
    Avx512 = 2,
}

impl Isa {
    /// All of them, the widest last.
    pub const ALL: [Isa; 3] = [Isa::Baseline, Isa::Avx2, Isa::Avx512];

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512cd")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The one in use: the widest that this machine has, unless the environment variable `GAGGLE_ISA` names a narrower one.
    ///
    /// A name that is unknown, or of a set that is not there, is as if the variable were not set.
    pub fn current() -> Isa {
        let forced = FORCED.load(Ordering::Relaxed);
        let known = Self::ALL.get(forced as usize).copied();
        known.unwrap_or_else(|| *DETECTED.get_or_init(Isa::detect))
    }

    /// Makes the whole process use this one from now on, or with `None` the one that it started with: for comparisons; results are the same. `false`, and nothing has changed, where the machine does not have it.
    pub fn force(isa: Option<Isa>) -> bool {
        if isa.is_some_and(|isa| !isa.is_available()) {
            return false;
        }
        // No other memory is published by it: whichever value a kernel sees, its result is the same.
        FORCED.store(isa.map_or(u8::MAX, |isa| isa as u8), Ordering::Relaxed);
        true
    }

    fn detect() -> Isa {
        let wished = std::env::var("GAGGLE_ISA").ok();
        let wished = wished.and_then(|name| name.parse().ok());
        let widest = || Self::ALL.into_iter().rev().find(|isa| isa.is_available());
        wished
            .filter(|isa: &Isa| isa.is_available())
            .or_else(widest)
            .unwrap_or(Isa::Baseline)
    }
}

/// The name that users type.
impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// The instruction set with that name: `baseline`, `avx2`, `avx512`.
impl FromStr for Isa {
    type Err = String;
    fn from_str(s: &str) -> Result<Isa, String> {
        let found = Self::ALL.into_iter().find(|isa| isa.to_string() == s);
        found.ok_or_else(|| {
            format!("no instruction set is called '{s}'; there are baseline, avx2, avx512")
        })
    }
}

/// No [`Isa`]'s number while nothing is forced.
static FORCED: AtomicU8 = AtomicU8::new(u8::MAX);
static DETECTED: OnceLock<Isa> = OnceLock::new();

/// A loop over elements, to be compiled for every instruction set: `run` and all that it calls are `#[inline(always)]`.
pub(crate) trait Kernel {
    fn run(self);
}

/// Runs a kernel on the current instruction set, in the kernels' own floating-point mode.
pub(crate) fn run<K: Kernel>(kernel: K) {
    let _mode = Mode::enter();
    match Isa::current() {
        Isa::Baseline => baseline(kernel),
        // SAFETY: `current` gives only what `is_available` has found on this machine.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline(kernel),
    }
}

/// Not inlined, so that no arithmetic moves to before the mode has been set.
#[inline(never)]
fn baseline<K: Kernel>(kernel: K) {
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2")]
fn avx2<K: Kernel>(kernel: K) {
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn avx512<K: Kernel>(kernel: K) {
    kernel.run();
}
