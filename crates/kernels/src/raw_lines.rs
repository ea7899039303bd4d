//! Folds and averages of memory where it is: a few vectors of every operand are loaded, folded in registers, and stored to every result.
//!
//! It does the long middle of an operation whose operands and results are [windows](gaggle_core::Window) of one float type, on machines with AVX-512 or AVX2; the rest is the general kernels', with equal bits: the same operations in the same order, in the same wide types.
//! A NaN becomes the canonical one at the end only, which is the same: every operation here gives a NaN where an operand is one.
//!
//! # Safety
//! Others may write the operands, and read the results, meanwhile: loads and stores are machine instructions that the compiler knows nothing of, and no reference to those bytes is made.
//! A [`Job`] holds addresses of whole blocks within windows, which outlive it; it is made in [`fold`] alone.
//! Code for an instruction set is called only for the one that [`Isa::current`] names, which the processor has.

use crate::{
    fold::{Source, Term, What, weight_of},
    mix::Terms,
    raw_isa::Isa,
    raw_mode::Mode,
};
use gaggle_core::{DType, Form, Reduce, Stores, Weight, Window, WindowMut};
use std::ops::Range;

/// Operands, or results, of one job at most; more are left to the general kernels.
const MOST: usize = 16;
/// Bytes of every operand in a block; every kernel takes whole blocks.
const BLOCK: usize = 256;
/// Fewer are left to the general kernels.
const LEAST: usize = 2 * BLOCK;

/// What happens to an accumulator: numbers, so that they can be constants of types.
const ADD: u8 = 0;
const MUL: u8 = 1;
const MIN: u8 = 2;
const MAX: u8 = 3;
/// Each operand times its weight.
const WEIGHTED: u8 = 4;

/// Towards each operand by its weight times its distance from the first.
const NEARER: u8 = 5;

/// What happens to a sum at the end.
#[derive(Clone, Copy)]
enum Finish {
    Nothing,
    /// Times a power of two, which is exactly what dividing by its inverse gives.
    Times(f64),
    By(f64),
}

struct Job {
    inputs: [(*const u8, f64); MOST],
    n_inputs: usize,
    /// With whether it is stored past the caches.
    outputs: [(*mut u8, bool); MOST],
    n_outputs: usize,
    /// A multiple of [`BLOCK`].
    bytes: usize,
    finish: Finish,
}

/// Folds what it can; the elements of which the results are there, the others being as they were.
pub(crate) fn fold(
    what: &What,
    outputs: &[WindowMut<'_>],
    terms: &[Term<'_>],
    stores: Stores,
) -> Range<usize> {
    let Some(kernel) = kernel_of(what.dtype) else {
        return 0..0;
    };
    let Some((job, op)) = job(what, outputs, terms) else {
        return 0..0;
    };
    job.go(kernel, (what.dtype, op), outputs[0].len(), stores)
}

/// Averages what it can, without a codec; the elements whose average is there, the others being as they were.
pub(crate) fn mix(
    dtype: DType,
    (own, keep): (Window<'_>, f64),
    to: WindowMut<'_>,
    terms: &dyn Terms,
    form: Form,
    stores: Stores,
) -> Range<usize> {
    let Some(kernel) = kernel_of(dtype) else {
        return 0..0;
    };
    let mut job = Job::new(&[to], None);
    let mut fits = true;
    let mut add = |window: Window<'_>, weight: f64| match job.inputs.get_mut(job.n_inputs) {
        Some(input) => {
            *input = (window.start().as_ptr(), weight);
            job.n_inputs += 1;
        }
        None => fits = false,
    };
    if form == Form::Delta || keep != 0.0 {
        add(own, keep);
    }
    for i in 0..terms.len() {
        match terms.at(i) {
            (_, 0.0) => {}
            (Source::Window { window, dtype: d }, weight) if d == dtype => add(window, weight),
            _ => return 0..0,
        }
    }
    if !fits || job.n_inputs == 0 {
        return 0..0;
    }
    let op = match form {
        Form::Delta => NEARER,
        Form::Sum => WEIGHTED,
    };
    job.go(kernel, (dtype, op), to.len(), stores)
}

type KernelFn = unsafe fn(&Job, DType, u8);

/// The kernels of the instruction set in use, for a type that they know.
fn kernel_of(dtype: DType) -> Option<KernelFn> {
    match (Isa::current(), dtype) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        (Isa::Avx512, DType::F32 | DType::F64 | DType::Bf16 | DType::F16) => Some(avx512::fold),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        (Isa::Avx2, DType::F32 | DType::F64 | DType::Bf16) => Some(avx2::fold),
        _ => None,
    }
}

impl Job {
    /// Without operands yet.
    fn new(outputs: &[WindowMut<'_>], divisor: Option<f64>) -> Job {
        let mut job = Job {
            inputs: [(std::ptr::null(), 1.0); MOST],
            n_inputs: 0,
            outputs: [(std::ptr::null_mut(), false); MOST],
            n_outputs: outputs.len(),
            bytes: 0,
            finish: finish(divisor),
        };
        for (to, window) in job.outputs.iter_mut().zip(outputs) {
            to.0 = window.start().as_ptr();
        }
        job
    }

    /// Does the blocks of places of `len` bytes, which are what is returned, in elements.
    fn go(
        mut self,
        kernel: KernelFn,
        (dtype, op): (DType, u8),
        len: usize,
        stores: Stores,
    ) -> Range<usize> {
        let size = dtype.size();
        let head = stream(&mut self, stores, size);
        if len < head + LEAST {
            return 0..0;
        }
        self.bytes = (len - head) / BLOCK * BLOCK;
        for (at, _) in &mut self.inputs[..self.n_inputs] {
            *at = at.wrapping_add(head);
        }
        for (at, _) in &mut self.outputs[..self.n_outputs] {
            *at = at.wrapping_add(head);
        }
        let _mode = Mode::enter();
        // SAFETY: the processor has these instructions; all windows have `len` bytes, of which the job has `bytes` from `head` on; streamed ones begin at a line there.
        unsafe { kernel(&self, dtype, op) };
        head / size..(head + self.bytes) / size
    }
}

/// The whole fold, where there is a kernel for it.
fn job(what: &What, outputs: &[WindowMut<'_>], terms: &[Term<'_>]) -> Option<(Job, u8)> {
    let mut job = Job::new(outputs, what.divisor);
    let mut weighted = false;
    for term in terms.iter().filter(|t| weight_of(t) != Weight::ZERO) {
        let window: Window<'_> = match term.source {
            Source::Dst => outputs[0].into(),
            Source::Window { window, dtype } if dtype == what.dtype => window,
            _ => return None,
        };
        let w = if what.alone {
            Weight::ONE
        } else {
            weight_of(term)
        };
        weighted |= w != Weight::ONE;
        *job.inputs.get_mut(job.n_inputs)? = (window.start().as_ptr(), w.to_f64());
        job.n_inputs += 1;
    }
    let op = match what.reduce {
        Reduce::Sum | Reduce::Mean if weighted => WEIGHTED,
        Reduce::Sum | Reduce::Mean => ADD,
        Reduce::Prod => MUL,
        Reduce::Min => MIN,
        Reduce::Max => MAX,
        _ => return None,
    };
    let fits = job.n_outputs <= MOST && job.n_inputs > 0;
    fits.then_some((job, op))
}

fn finish(divisor: Option<f64>) -> Finish {
    match divisor {
        None => Finish::Nothing,
        // No fraction bits: a power of two. Weights are of 32 + 32 bits, so that the inverse is one, too.
        Some(d) if d.to_bits() << 12 == 0 => Finish::Times(1.0 / d),
        Some(d) => Finish::By(d),
    }
}

/// Marks the results that are to go past the caches: not those that lie where an operand does, whose lines are there anyway, and only such that begin equally far from a line, by whole elements of `size` bytes. How far, in bytes.
fn stream(job: &mut Job, stores: Stores, size: usize) -> usize {
    if stores == Stores::Cached {
        return 0;
    }
    let inputs = &job.inputs[..job.n_inputs];
    let mut first = None;
    for (at, streamed) in &mut job.outputs[..job.n_outputs] {
        let before = at.addr().next_multiple_of(64) - at.addr();
        let elsewhere = inputs.iter().all(|(i, _)| i.addr() != at.addr());
        *streamed =
            elsewhere && before.is_multiple_of(size) && *first.get_or_insert(before) == before;
    }
    first.unwrap_or(0)
}

/// A kernel for one element type: `$k` registers of `$Reg` make a block, each widened to an `$Acc`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! kernel {
    ($name:ident, $features:literal, $k:literal $Reg:ident as $Acc:ident, $widen:ident, $narrow:ident) => {
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn $name<const OP: u8>(job: &Job) {
            const STEP: usize = size_of::<$Reg>();
            let (inputs, outputs) = (&job.inputs[..job.n_inputs], &job.outputs[..job.n_outputs]);
            let Some(((first, w0), others)) = inputs.split_first() else {
                return;
            };
            let mut at = 0;
            while at < job.bytes {
                // SAFETY: a block of every place begins here; the instructions are this function's.
                unsafe {
                    let mut acc = [$Acc::zero(); $k];
                    let from = first.add(at);
                    for (i, a) in acc.iter_mut().enumerate() {
                        *a = $widen($Reg::load(from.add(i * STEP)));
                    }
                    let own = acc;
                    if OP == WEIGHTED {
                        let w = $Acc::all(*w0);
                        for a in &mut acc {
                            *a = a.mul(w);
                        }
                    }
                    for (from, w) in others {
                        let from = from.add(at);
                        let w = $Acc::all(*w);
                        for (i, a) in acc.iter_mut().enumerate() {
                            let x = $widen($Reg::load(from.add(i * STEP)));
                            *a = match OP {
                                ADD => a.add(x),
                                MUL => a.mul(x),
                                MIN => a.min(x),
                                MAX => a.max(x),
                                NEARER => a.nearer(x, own[i], w),
                                _ => a.add(x.mul(w)),
                            };
                        }
                    }
                    match job.finish {
                        Finish::Nothing => {}
                        Finish::Times(d) => {
                            let d = $Acc::all(d);
                            for a in &mut acc {
                                *a = a.mul(d);
                            }
                        }
                        Finish::By(d) => {
                            let d = $Acc::all(d);
                            for a in &mut acc {
                                *a = a.div(d);
                            }
                        }
                    }
                    let mut results = [$Reg::zero(); $k];
                    for (result, a) in results.iter_mut().zip(&acc) {
                        *result = $narrow(*a);
                    }
                    for (to, streamed) in outputs {
                        let to = to.add(at);
                        if *streamed {
                            for (i, r) in results.iter().enumerate() {
                                r.stream(to.add(i * STEP));
                            }
                        } else {
                            for (i, r) in results.iter().enumerate() {
                                r.store(to.add(i * STEP));
                            }
                        }
                    }
                }
                at += STEP * $k;
            }
        }
    };
}

/// A register that is loaded and stored: `$class` is its class, `$ptr` what its width is called in assembly.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! register {
    ($(#[$doc:meta])* $Reg:ident($V:ty), $features:literal, $class:ident, $ptr:literal, $zero:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $Reg($V);

        impl $Reg {
            #[inline]
            #[target_feature(enable = $features)]
            fn zero() -> Self {
                $Reg($zero)
            }

            /// # Safety
            /// As many bytes are mapped there.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn load(from: *const u8) -> Self {
                let v: $V;
                // SAFETY: the caller's promise; nothing but the register changes.
                unsafe {
                    asm!(
                        concat!("vmovups {v}, ", $ptr, " ptr [{p}]"),
                        v = out($class) v,
                        p = in(reg) from,
                        options(nostack, preserves_flags, readonly)
                    );
                }
                $Reg(v)
            }

            /// # Safety
            /// As many bytes are mapped there.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!("vmovups ", $ptr, " ptr [{p}], {v}"),
                        v = in($class) self.0,
                        p = in(reg) to,
                        options(nostack, preserves_flags)
                    );
                }
            }

            /// # Safety
            /// As many bytes are mapped there, at a multiple of as many.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn stream(self, to: *mut u8) {
                // SAFETY: the caller's promise; whoever made the job has a fence behind it.
                unsafe {
                    asm!(
                        concat!("vmovntps ", $ptr, " ptr [{p}], {v}"),
                        v = in($class) self.0,
                        p = in(reg) to,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
    };
}

/// The kernels of one instruction set, by element type and operation.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! choose {
    ($($dtype:ident => $kernel:ident),+) => {
        /// Does the job.
        ///
        /// # Safety
        /// The processor has the instructions; all places of the job are mapped, and those that are streamed to begin at a line.
        pub(super) unsafe fn fold(job: &Job, dtype: DType, op: u8) {
            // SAFETY: the caller's promise.
            unsafe {
                match (dtype, op) {
                    // Two f32 are added at once: rounding their sum from f64 is the same (53 ≥ 2·24 + 2). The smaller or greater one needs no wider type.
                    (DType::F32, ADD)
                        if job.n_inputs <= 2 && matches!(job.finish, Finish::Nothing) =>
                    {
                        f32_alone::<ADD>(job);
                    }
                    (DType::F32, MIN) if job.n_inputs > 0 => f32_alone::<MIN>(job),
                    (DType::F32, MAX) if job.n_inputs > 0 => f32_alone::<MAX>(job),
                    $(
                        (DType::$dtype, ADD) => $kernel::<ADD>(job),
                        (DType::$dtype, MUL) => $kernel::<MUL>(job),
                        (DType::$dtype, MIN) => $kernel::<MIN>(job),
                        (DType::$dtype, MAX) => $kernel::<MAX>(job),
                        (DType::$dtype, NEARER) => $kernel::<NEARER>(job),
                        (DType::$dtype, _) => $kernel::<WEIGHTED>(job),
                    )+
                    _ => unreachable!("a fold of {dtype} was taken on without a kernel"),
                }
                if job.outputs[..job.n_outputs].iter().any(|(_, s)| *s) {
                    _mm_sfence();
                }
            }
        }
    };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512 {
    use super::{ADD, Finish, Job, MAX, MIN, MUL, NEARER, WEIGHTED};
    use gaggle_core::DType;
    use std::arch::{asm, x86_64::*};

    register!(
        /// A line.
        Zmm(__m512), "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", zmm_reg, "zmmword", _mm512_setzero_ps()
    );
    register!(
        /// Half a line.
        Ymm(__m256), "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", ymm_reg, "ymmword", _mm256_setzero_ps()
    );

    /// An accumulator and its instructions.
    macro_rules! accumulator {
        ($Acc:ident($V:ident) of $t:ident: $zero:ident, $set:ident, $add:ident, $sub:ident, $mul:ident, $div:ident,
         $min:ident, $max:ident, $cmp:ident, $blend:ident, $cast:ident, $back:ident, $or:ident, $and:ident) => {
            #[derive(Clone, Copy)]
            struct $Acc($V);

            impl $Acc {
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn zero() -> Self {
                    $Acc($zero())
                }
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn all(x: f64) -> Self {
                    $Acc($set(x as $t))
                }
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn add(self, x: Self) -> Self {
                    $Acc($add(self.0, x.0))
                }
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn mul(self, x: Self) -> Self {
                    $Acc($mul(self.0, x.0))
                }
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn div(self, x: Self) -> Self {
                    $Acc($div(self.0, x.0))
                }
                /// Equal ones differ at most in the sign of a zero: either sign makes the smaller one.
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn min(self, x: Self) -> Self {
                    let (a, b) = (self.0, x.0);
                    let tie = $back($or($cast(a), $cast(b)));
                    let r = $blend($cmp::<_CMP_EQ_OQ>(a, b), $min(a, b), tie);
                    $Acc($blend($cmp::<_CMP_UNORD_Q>(a, b), r, $set($t::NAN)))
                }
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn max(self, x: Self) -> Self {
                    let (a, b) = (self.0, x.0);
                    let tie = $back($and($cast(a), $cast(b)));
                    let r = $blend($cmp::<_CMP_EQ_OQ>(a, b), $max(a, b), tie);
                    $Acc($blend($cmp::<_CMP_UNORD_Q>(a, b), r, $set($t::NAN)))
                }
                /// Unless they are equal: −0 + w·0 would lose its sign, and ∞ − ∞ is no number.
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn nearer(self, x: Self, from: Self, w: Self) -> Self {
                    let moved = $add(self.0, $mul(w.0, $sub(x.0, from.0)));
                    $Acc($blend($cmp::<_CMP_EQ_OQ>(x.0, from.0), moved, self.0))
                }
                #[inline]
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                fn canonical(self) -> $V {
                    $blend($cmp::<_CMP_UNORD_Q>(self.0, self.0), self.0, $set($t::NAN))
                }
            }
        };
    }
    accumulator!(Singles(__m512) of f32: _mm512_setzero_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps,
        _mm512_min_ps, _mm512_max_ps, _mm512_cmp_ps_mask, _mm512_mask_blend_ps, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_or_si512, _mm512_and_si512);
    accumulator!(Doubles(__m512d) of f64: _mm512_setzero_pd, _mm512_set1_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_div_pd,
        _mm512_min_pd, _mm512_max_pd, _mm512_cmp_pd_mask, _mm512_mask_blend_pd, _mm512_castpd_si512, _mm512_castsi512_pd, _mm512_or_si512, _mm512_and_si512);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn same_f32(x: Zmm) -> Singles {
        Singles(x.0)
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn to_f32(a: Singles) -> Zmm {
        Zmm(a.canonical())
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn wide_f32(x: Ymm) -> Doubles {
        Doubles(_mm512_cvtps_pd(x.0))
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn narrow_f32(a: Doubles) -> Ymm {
        let x = _mm512_cvtpd_ps(a.0);
        let nan = _mm256_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        Ymm(_mm256_mask_blend_ps(nan, x, _mm256_set1_ps(f32::NAN)))
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn same_f64(x: Zmm) -> Doubles {
        Doubles(_mm512_castps_pd(x.0))
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn to_f64(a: Doubles) -> Zmm {
        Zmm(_mm512_castpd_ps(a.canonical()))
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn wide_bf16(x: Ymm) -> Singles {
        let x = _mm512_cvtepu16_epi32(_mm256_castps_si256(x.0));
        Singles(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)))
    }
    /// As `bf16_of_f32`, of a NaN that is canonical.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn narrow_bf16(a: Singles) -> Ymm {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a.0, a.0);
        let x = _mm512_castps_si512(a.0);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(x), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let r = _mm512_srli_epi32::<16>(_mm512_add_epi32(x, up));
        let r = _mm512_mask_blend_epi32(nan, r, _mm512_set1_epi32(0x7fc0));
        Ymm(_mm256_castsi256_ps(_mm512_cvtepi32_epi16(r)))
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn wide_f16(x: Ymm) -> Singles {
        Singles(_mm512_cvtph_ps(_mm256_castps_si256(x.0)))
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn narrow_f16(a: Singles) -> Ymm {
        // Nearest even, whatever the mode says.
        let r = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a.canonical());
        Ymm(_mm256_castsi256_ps(r))
    }

    kernel!(f32_alone, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", 4 Zmm as Singles, same_f32, to_f32);
    kernel!(f32_wide, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", 8 Ymm as Doubles, wide_f32, narrow_f32);
    kernel!(f64_alone, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", 4 Zmm as Doubles, same_f64, to_f64);
    kernel!(bf16_wide, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", 8 Ymm as Singles, wide_bf16, narrow_bf16);
    kernel!(f16_wide, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", 8 Ymm as Singles, wide_f16, narrow_f16);
    choose!(F32 => f32_wide, F64 => f64_alone, Bf16 => bf16_wide, F16 => f16_wide);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2 {
    use super::{ADD, Finish, Job, MAX, MIN, MUL, NEARER, WEIGHTED};
    use gaggle_core::DType;
    use std::arch::{asm, x86_64::*};

    register!(
        /// Half a line.
        Ymm(__m256), "avx2", ymm_reg, "ymmword", _mm256_setzero_ps()
    );
    register!(
        /// A quarter of a line.
        Xmm(__m128), "avx2", xmm_reg, "xmmword", _mm_setzero_ps()
    );

    /// An accumulator, as above.
    macro_rules! accumulator {
        ($Acc:ident($V:ident) of $t:ident: $zero:ident, $set:ident, $add:ident, $sub:ident, $mul:ident, $div:ident,
         $min:ident, $max:ident, $cmp:ident, $blend:ident, $or:ident, $and:ident) => {
            #[derive(Clone, Copy)]
            struct $Acc($V);

            impl $Acc {
                #[inline]
                #[target_feature(enable = "avx2")]
                fn zero() -> Self {
                    $Acc($zero())
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn all(x: f64) -> Self {
                    $Acc($set(x as $t))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn add(self, x: Self) -> Self {
                    $Acc($add(self.0, x.0))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn mul(self, x: Self) -> Self {
                    $Acc($mul(self.0, x.0))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn div(self, x: Self) -> Self {
                    $Acc($div(self.0, x.0))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn min(self, x: Self) -> Self {
                    let (a, b) = (self.0, x.0);
                    let r = $blend($min(a, b), $or(a, b), $cmp::<_CMP_EQ_OQ>(a, b));
                    $Acc($blend(r, $set($t::NAN), $cmp::<_CMP_UNORD_Q>(a, b)))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn max(self, x: Self) -> Self {
                    let (a, b) = (self.0, x.0);
                    let r = $blend($max(a, b), $and(a, b), $cmp::<_CMP_EQ_OQ>(a, b));
                    $Acc($blend(r, $set($t::NAN), $cmp::<_CMP_UNORD_Q>(a, b)))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn nearer(self, x: Self, from: Self, w: Self) -> Self {
                    let moved = $add(self.0, $mul(w.0, $sub(x.0, from.0)));
                    $Acc($blend(moved, self.0, $cmp::<_CMP_EQ_OQ>(x.0, from.0)))
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                fn canonical(self) -> $V {
                    let nan = $cmp::<_CMP_UNORD_Q>(self.0, self.0);
                    $blend(self.0, $set($t::NAN), nan)
                }
            }
        };
    }
    accumulator!(Singles(__m256) of f32: _mm256_setzero_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps,
        _mm256_min_ps, _mm256_max_ps, _mm256_cmp_ps, _mm256_blendv_ps, _mm256_or_ps, _mm256_and_ps);
    accumulator!(Doubles(__m256d) of f64: _mm256_setzero_pd, _mm256_set1_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_div_pd,
        _mm256_min_pd, _mm256_max_pd, _mm256_cmp_pd, _mm256_blendv_pd, _mm256_or_pd, _mm256_and_pd);

    #[inline]
    #[target_feature(enable = "avx2")]
    fn same_f32(x: Ymm) -> Singles {
        Singles(x.0)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn to_f32(a: Singles) -> Ymm {
        Ymm(a.canonical())
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn wide_f32(x: Xmm) -> Doubles {
        Doubles(_mm256_cvtps_pd(x.0))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn narrow_f32(a: Doubles) -> Xmm {
        let x = _mm256_cvtpd_ps(a.0);
        let nan = _mm_cmpunord_ps(x, x);
        Xmm(_mm_blendv_ps(x, _mm_set1_ps(f32::NAN), nan))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn same_f64(x: Ymm) -> Doubles {
        Doubles(_mm256_castps_pd(x.0))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn to_f64(a: Doubles) -> Ymm {
        Ymm(_mm256_castpd_ps(a.canonical()))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn wide_bf16(x: Xmm) -> Singles {
        let x = _mm256_cvtepu16_epi32(_mm_castps_si128(x.0));
        Singles(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)))
    }
    /// As `bf16_of_f32`, of a NaN that is canonical.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn narrow_bf16(a: Singles) -> Xmm {
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a.0, a.0));
        let x = _mm256_castps_si256(a.0);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(x), _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let r = _mm256_srli_epi32::<16>(_mm256_add_epi32(x, up));
        let r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), nan);
        // Each half of the register is packed twice; the first and the third quarter are kept.
        let r = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(r, r));
        Xmm(_mm_castsi128_ps(_mm256_castsi256_si128(r)))
    }

    kernel!(f32_alone, "avx2", 4 Ymm as Singles, same_f32, to_f32);
    kernel!(f32_wide, "avx2", 8 Xmm as Doubles, wide_f32, narrow_f32);
    kernel!(f64_alone, "avx2", 4 Ymm as Doubles, same_f64, to_f64);
    kernel!(bf16_wide, "avx2", 8 Xmm as Singles, wide_bf16, narrow_bf16);
    choose!(F32 => f32_wide, F64 => f64_alone, Bf16 => bf16_wide);
}
