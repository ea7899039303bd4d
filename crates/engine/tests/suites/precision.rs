//! How far results with a codec on the wire are from the exact ones, at 2 to 64 ranks (threads), with gradients as they are in training: N(2·10⁻⁴, 10⁻³).

use crate::LINK;
use crate::common::config;
use gaggle_core::{Codec, Kind, Op, Reduce};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

/// A rank's gradient; rounded to bf16 where that is what the model is kept in.
fn gradient(rank: u32, n: usize, as_bf16: bool) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(1000 + u64::from(rank));
    let normal = Normal::new(2e-4f32, 1e-3).unwrap();
    let draw = || normal.sample(&mut rng);
    let all = std::iter::repeat_with(draw).take(n);
    all.map(|x| {
        if as_bf16 {
            bf16::from_f32(x).to_f32()
        } else {
            x
        }
    })
    .collect()
}

fn exact_sum(world: u32, n: usize, as_bf16: bool) -> Vec<f64> {
    let mut sum = vec![0f64; n];
    for rank in 0..world {
        for (s, x) in sum.iter_mut().zip(gradient(rank, n, as_bf16)) {
            *s += f64::from(x);
        }
    }
    sum
}

/// ‖got − want‖ / ‖want‖.
fn relative(got: impl Iterator<Item = f64>, want: &[f64]) -> f64 {
    let off: f64 = got.zip(want).map(|(g, w)| (g - w).powi(2)).sum();
    (off / want.iter().map(|w| w.powi(2)).sum::<f64>()).sqrt()
}

/// By how many standard errors the mean of the errors, counted away from zero, differs from 0.
fn bias(got: impl Iterator<Item = f64>, want: &[f64]) -> f64 {
    let signed: Vec<f64> = got.zip(want).map(|(g, w)| (g - w) * w.signum()).collect();
    let n = signed.len() as f64;
    let mean = signed.iter().sum::<f64>() / n;
    let variance = signed.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (n - 1.0);
    mean / (variance / n).sqrt()
}

/// Mean of all ranks' gradients, as rank 0 has it.
fn mean_by(codec: Codec, world: u32, n: usize, as_bf16: bool) -> Vec<f32> {
    let mut results = LINK.local(world, &config(), |_, group| {
        let mut x = gradient(group.rank().0, n, as_bf16);
        let op = Op::new(Kind::AllReduce(Reduce::Mean)).coded_always(codec);
        group.run(&op, &mut x).unwrap();
        x
    });
    results.swap_remove(0)
}

#[test]
fn bf16_on_the_wire_loses_little_and_leans_to_no_side() {
    for world in [2u32, 3, 8, 16, 64] {
        let n = if world > 16 { 16_384 } else { 65_536 };
        for (as_bf16, limit) in [(false, 2.6e-3), (true, 2.0e-3)] {
            let got = mean_by(Codec::Bf16, world, n, as_bf16);
            let got = || got.iter().map(|x| f64::from(*x) * f64::from(world));
            let want = exact_sum(world, n, as_bf16);
            let error = relative(got(), &want);
            assert!(error <= limit, "{world} ranks: {error:.2e} of {limit:.1e}");
            assert!(error > 1e-4, "{world} ranks: {error:.2e} is no bf16");
            let off = bias(got(), &want);
            assert!(
                off.abs() <= 3.0,
                "{world} ranks: biased by {off:.1} standard errors"
            );
            // The measure sees what it is to see: cutting off instead of rounding shrinks every number.
            let cut = want
                .iter()
                .map(|w| f64::from(f32::from_bits((*w as f32).to_bits() & 0xffff_0000)));
            let off = bias(cut, &want);
            assert!(off < -10.0, "cut off: {off:.1} standard errors");
        }
    }
}

#[test]
fn other_codecs_are_as_good_as_their_bits() {
    for world in [2u32, 8, 16] {
        let want = exact_sum(world, 65_536, false);
        for (codec, limit) in [(Codec::F16, 1.2e-3), (Codec::Int8, 1.3e-2)] {
            let got = mean_by(codec, world, 65_536, false);
            let got = || got.iter().map(|x| f64::from(*x) * f64::from(world));
            let error = relative(got(), &want);
            assert!(
                error <= limit,
                "{codec}, {world} ranks: {error:.2e} of {limit:.1e}"
            );
            let off = bias(got(), &want);
            assert!(
                off.abs() <= 3.0,
                "{codec}, {world} ranks: biased by {off:.1} standard errors"
            );
        }
    }
}

/// Constant gradients on 8 ranks: the running mean of the results after 1, 10 and 100 steps.
fn running_errors(feedback: bool) -> [f64; 3] {
    const WORLD: u32 = 8;
    const N: usize = 8192;
    let mut results = LINK.local(WORLD, &config(), |_, group| {
        let x = gradient(group.rank().0, N, false);
        let mut sum = vec![0f64; N];
        let mut at = vec![];
        for step in 1..=100u32 {
            let mut y = x.clone();
            let mut op = Op::new(Kind::AllReduce(Reduce::Mean)).coded_always(Codec::Int8);
            if feedback {
                op = op.with_feedback(1);
            }
            group.run(&op, &mut y).unwrap();
            for (s, v) in sum.iter_mut().zip(y) {
                *s += f64::from(v) * f64::from(WORLD);
            }
            if [1, 10, 100].contains(&step) {
                at.push(
                    sum.iter()
                        .map(|s| s / f64::from(step))
                        .collect::<Vec<f64>>(),
                );
            }
        }
        at
    });
    let want = exact_sum(WORLD, N, false);
    let at = results.swap_remove(0);
    [0, 1, 2].map(|i| relative(at[i].iter().copied(), &want))
}

#[test]
fn int8_with_feedback_reaches_3e_4_in_100_steps() {
    let [one, ten, hundred] = running_errors(true);
    assert!(one > 5e-3, "{one:.2e}");
    assert!(ten < one / 5.0, "{one:.2e}, {ten:.2e}");
    assert!(hundred <= 3e-4, "{one:.2e}, {ten:.2e}, {hundred:.2e}");
    let [first, _, still] = running_errors(false);
    assert!(
        still > first * 0.9,
        "without feedback nothing gets better: {first:.2e}, {still:.2e}"
    );
}
