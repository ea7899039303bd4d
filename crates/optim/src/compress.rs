//! Compressors: what is left of a vector when little is to be sent.

use crate::{
    arith::norm,
    error::{ConfigError, in_range},
};
use gaggle_core::{Cx, Float, Place};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;

/// A map from a vector to one that can be told in fewer bits. Each takes the whole vector at once.
///
/// Values keep their places, and what is dropped is 0. [`Compressor::pack`] writes what is left in as few bytes as it needs, and [`Compressor::unpack`] reads it.
/// Randomness comes from (seed, rank, step): a run repeats bit for bit, also after loading.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Compressor {
    /// All of it.
    Identity,
    /// The ⌈ratio·n⌉ largest by absolute value; of equal ones the first. A product that floating point puts beside a whole number is that number: 0.1 of 30 are 3.
    TopK {
        /// Above 0, at most 1.
        ratio: f64,
    },
    /// ⌈ratio·n⌉ at random places.
    RandomK {
        /// Above 0, at most 1.
        ratio: f64,
        /// Scaled by n/k, so that the mean over draws is the vector.
        unbiased: bool,
        /// Of the generator.
        seed: u64,
    },
    /// ‖v‖₁/n with each element's sign; the sign of 0 is +.
    Sign,
    /// sign(v)·‖v‖₂·ξ/s with ξ one of the two whole numbers next to s|v|/‖v‖₂, at random: QSGD.
    Qsgd {
        /// s: levels, at least 1.
        levels: u32,
        /// Divided by 1 + min(n/s², √n/s), for methods that need a contraction; otherwise unbiased.
        contracting: bool,
        /// Of the generator.
        seed: u64,
    },
}

impl Compressor {
    /// Whether what it leaves out is less than the vector, on average: E‖C(v) − v‖² < ‖v‖². Unbiased ones scale up what they keep.
    pub fn contracts(&self) -> bool {
        !matches!(
            self,
            Compressor::RandomK { unbiased: true, .. }
                | Compressor::Qsgd {
                    contracting: false,
                    ..
                }
        )
    }

    /// ω with E‖C(v) − v‖² ≤ (1 − ω)‖v‖², for vectors of `n` elements, or of any number for `None`; `None` where that says nothing, or where it does not [contract](Compressor::contracts).
    ///
    /// Source: Koloskova et al. 2019, Assumption 1 and the examples below it; for the random ones on average.
    pub(crate) fn quality(&self, n: Option<usize>) -> Option<f64> {
        if !self.contracts() {
            return None;
        }
        let n = n.map(|n| n.max(1) as f64);
        match *self {
            Compressor::Identity => Some(1.0),
            Compressor::TopK { ratio } | Compressor::RandomK { ratio, .. } => Some(ratio),
            // ‖v‖₁²/(n‖v‖₂²), at the least where one element is all.
            Compressor::Sign => n.map(|n| 1.0 / n),
            Compressor::Qsgd { levels, .. } => {
                let s = f64::from(levels);
                n.map(|n| 1.0 / (1.0 + (n / (s * s)).min(n.sqrt() / s)))
            }
        }
    }

    /// From what users type: `identity`, `top-k:RATIO`, `random-k:RATIO`, `sign`, `qsgd:LEVELS`; the random ones in the form that contracts, with seed 0.
    ///
    /// # Errors
    /// There is no such compressor; the text says what there is. Whether a ratio is in its range is for the rule to tell.
    ///
    /// ```
    /// use gaggle_optim::Compressor;
    /// assert_eq!(Compressor::by_name("top-k:0.1"), Ok(Compressor::TopK { ratio: 0.1 }));
    /// ```
    pub fn by_name(name: &str) -> Result<Compressor, ConfigError> {
        let known = match name.split_once(':') {
            None if name == "identity" => Some(Compressor::Identity),
            None if name == "sign" => Some(Compressor::Sign),
            Some(("top-k", ratio)) => ratio.parse().ok().map(|ratio| Compressor::TopK { ratio }),
            Some(("random-k", ratio)) => ratio.parse().ok().map(|ratio| Compressor::RandomK {
                ratio,
                unbiased: false,
                seed: 0,
            }),
            Some(("qsgd", levels)) => levels.parse().ok().map(|levels| Compressor::Qsgd {
                levels,
                contracting: true,
                seed: 0,
            }),
            _ => None,
        };
        known.ok_or_else(|| ConfigError::UnknownCompressor { name: name.into() })
    }

    /// The same, where its draws come from this seed; those without draws stay as they are.
    #[must_use]
    pub fn seeded(mut self, new: u64) -> Compressor {
        if let Compressor::RandomK { seed, .. } | Compressor::Qsgd { seed, .. } = &mut self {
            *seed = new;
        }
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match *self {
            Compressor::TopK { ratio } | Compressor::RandomK { ratio, .. } => {
                let holds = ratio > 0.0 && ratio <= 1.0;
                in_range("ratio", ratio, "above 0 and at most 1", holds)
            }
            Compressor::Qsgd { levels, .. } => {
                in_range("levels", levels.into(), "at least 1", levels >= 1)
            }
            Compressor::Identity | Compressor::Sign => Ok(()),
        }
    }

    /// v ← C(v). `scratch` is memory for its own use, kept from call to call.
    pub fn apply<T: Float>(&self, cx: &Cx, place: Place, v: &mut [T], scratch: &mut Vec<usize>) {
        let n = v.len();
        match *self {
            Compressor::Identity => {}
            _ if n == 0 => {}
            Compressor::TopK { ratio } => {
                let k = chosen(ratio, n);
                scratch.clear();
                scratch.extend(0..n);
                let size = |i: usize| v[i].to_f64().abs();
                if k < n {
                    scratch.select_nth_unstable_by(k, |a, b| {
                        size(*b).total_cmp(&size(*a)).then(a.cmp(b))
                    });
                }
                scratch[k..].iter().for_each(|i| v[*i] = T::from_f64(0.0));
            }
            Compressor::RandomK {
                ratio,
                unbiased,
                seed,
            } => {
                let k = chosen(ratio, n);
                draw(seed, cx, place, (k, n), scratch);
                scratch[k..].iter().for_each(|i| v[*i] = T::from_f64(0.0));
                if unbiased {
                    let scale = n as f64 / k as f64;
                    for i in &scratch[..k] {
                        v[*i] = T::from_f64(v[*i].to_f64() * scale);
                    }
                }
            }
            Compressor::Sign => {
                let size = v.iter().map(|x| x.to_f64().abs()).sum::<f64>() / n as f64;
                for x in v {
                    let negative = x.to_f64() < 0.0;
                    *x = T::from_f64(if negative { -size } else { size });
                }
            }
            Compressor::Qsgd {
                levels,
                contracting,
                seed,
            } => {
                let grid = Grid::new(levels, contracting, n, norm(v));
                let mut rng = generator(seed, cx, place);
                for x in v {
                    *x = grid.value(grid.near(x.to_f64(), rng.random()));
                }
            }
        }
    }
}

/// As users type it ([`Compressor::by_name`]); scaled forms and seeds are not told.
impl fmt::Display for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compressor::Identity => f.write_str("identity"),
            Compressor::TopK { ratio } => write!(f, "top-k:{ratio}"),
            Compressor::RandomK { ratio, .. } => write!(f, "random-k:{ratio}"),
            Compressor::Sign => f.write_str("sign"),
            Compressor::Qsgd { levels, .. } => write!(f, "qsgd:{levels}"),
        }
    }
}

/// k of n elements: the fewest that are at least `ratio` of them, and at least one where there are any.
///
/// The share k/n is compared as the number nearest to it, which a ratio written in decimals is, too: 0.1 of 30 are 3, though 0.1·30 is above 3 in floating point.
pub(crate) fn chosen(ratio: f64, n: usize) -> usize {
    let about = (ratio * n as f64).ceil() as usize;
    let is_enough = |k: &usize| *k as f64 / n as f64 >= ratio;
    let near = about.saturating_sub(1)..=about.saturating_add(1);
    let k = near.into_iter().find(is_enough).unwrap_or(n);
    k.clamp(usize::from(n > 0), n)
}

/// The first `k` of `all` are places drawn without repetition out of `n`: the same for one seed, rank and step.
pub(crate) fn draw(seed: u64, cx: &Cx, place: Place, (k, n): (usize, usize), all: &mut Vec<usize>) {
    let mut rng = generator(seed, cx, place);
    all.clear();
    all.extend(0..n);
    // The first k of a shuffle.
    for i in 0..k {
        all.swap(i, rng.random_range(i..n));
    }
}

/// QSGD's grid: the values ‖v‖·ξ/(s·shrink) for whole ξ from −s to s.
pub(crate) struct Grid {
    /// ‖v‖₂.
    pub(crate) norm: f64,
    s: f64,
    shrink: f64,
}

impl Grid {
    /// For a vector of `n` elements with this norm.
    pub(crate) fn new(levels: u32, contracting: bool, n: usize, norm: f64) -> Grid {
        let (s, n) = (f64::from(levels), n as f64);
        let shrink = match contracting {
            true => 1.0 + (n / (s * s)).min(n.sqrt() / s),
            false => 1.0,
        };
        Grid { norm, s, shrink }
    }

    /// ξ for `x`: one of the two next to s·x/‖v‖, the farther one from 0 where `draw`, uniform in 0..1, is below what is left.
    pub(crate) fn near(&self, x: f64, draw: f64) -> f64 {
        if self.norm == 0.0 {
            return 0.0;
        }
        let level = self.s * (x.abs() / self.norm);
        let up = draw < level - level.floor();
        // Rounding may have made the norm of one element smaller than it.
        let xi = (level.floor() + f64::from(u8::from(up))).min(self.s);
        if x < 0.0 && xi > 0.0 { -xi } else { xi }
    }

    pub(crate) fn value<T: Float>(&self, xi: f64) -> T {
        T::from_f64(self.norm * (xi / (self.s * self.shrink)))
    }
}

pub(crate) fn generator(seed: u64, cx: &Cx, place: Place) -> ChaCha8Rng {
    let mut key = [0; 32];
    let words = [seed, u64::from(place.rank.0), cx.step];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::Rank;

    const X: [f64; 4] = [3.0, -4.0, 0.0, 12.0];

    fn place(rank: u32) -> Place {
        Place {
            rank: Rank(rank),
            world: 8,
        }
    }

    fn compressed(c: Compressor, step: u64) -> [f64; 4] {
        let mut v = X;
        c.apply(&Cx::at(step, 0.1), place(3), &mut v, &mut Vec::new());
        v
    }

    #[test]
    fn top_k_keeps_the_largest_and_of_equal_ones_the_first() {
        let top = |ratio| Compressor::TopK { ratio };
        assert_eq!(compressed(top(0.5), 0), [0.0, -4.0, 0.0, 12.0]);
        assert_eq!(compressed(top(0.1), 0), [0.0, 0.0, 0.0, 12.0]);
        assert_eq!(compressed(top(1.0), 0), X);
        let mut ties = [1.0, -1.0, 1.0];
        top(0.5).apply(&Cx::at(0, 0.1), place(0), &mut ties, &mut Vec::new());
        assert_eq!(ties, [1.0, -1.0, 0.0]);
    }

    #[test]
    fn sign_keeps_the_mean_size() {
        assert_eq!(compressed(Compressor::Sign, 0), [4.75, -4.75, 4.75, 4.75]);
    }

    /// s = 4, ‖x‖ = 13: levels floor to (0, 1, 0, 3), variance 4.875 in all; means within 4σ of 20000 draws.
    #[test]
    fn qsgd_is_unbiased_with_its_known_variance() {
        let qsgd = |contracting| Compressor::Qsgd {
            levels: 4,
            contracting,
            seed: 5,
        };
        let n = 20_000;
        let (mut mean, mut square) = ([0.0; 4], 0.0);
        for step in 0..n {
            let q = compressed(qsgd(false), step);
            for ((mean, q), x) in mean.iter_mut().zip(q).zip(X) {
                *mean += q / n as f64;
                square += (q - x).powi(2) / n as f64;
                let level = 4.0 * q.abs() / 13.0;
                assert!((level - level.round()).abs() < 1e-12);
            }
        }
        let p = [0.923077, 0.230769, 0.0, 0.692308];
        for ((mean, x), p) in mean.iter().zip(X).zip(p) {
            let sigma = 13.0 / 4.0 * f64::sqrt(p * (1.0 - p) / n as f64);
            assert!((mean - x).abs() <= 4.0 * sigma + 1e-12, "{mean} for {x}");
        }
        assert!((square - 4.875).abs() < 0.2, "{square}");
        // min(4/16, 2/4) = 1/4.
        let (plain, shrunk) = (compressed(qsgd(false), 7), compressed(qsgd(true), 7));
        for (a, b) in plain.iter().zip(shrunk) {
            assert!((a / 1.25 - b).abs() < 1e-12);
        }
    }

    #[test]
    fn random_k_keeps_k_and_scales_when_asked() {
        let random = |unbiased| Compressor::RandomK {
            ratio: 0.5,
            unbiased,
            seed: 9,
        };
        let n = 20_000;
        let mut mean = [0.0; 4];
        for step in 0..n {
            let q = compressed(random(true), step);
            assert!(q.iter().filter(|v| **v != 0.0).count() <= 2);
            for (mean, q) in mean.iter_mut().zip(q) {
                *mean += q / n as f64;
            }
            let plain = compressed(random(false), step);
            assert!(plain.iter().zip(X).all(|(q, x)| *q == 0.0 || *q == x));
        }
        for (mean, x) in mean.iter().zip(X) {
            // Each is 0 or 2x, half of the time.
            let sigma = x.abs() / f64::sqrt(n as f64);
            assert!((mean - x).abs() <= 4.0 * sigma, "{mean} for {x}");
        }
    }

    #[test]
    fn draws_belong_to_seed_rank_and_step() {
        let c = Compressor::RandomK {
            ratio: 0.25,
            unbiased: false,
            seed: 1,
        };
        let draw = |rank: u32, step: u64| {
            let mut v: Vec<f64> = (1..=64).map(f64::from).collect();
            c.apply(&Cx::at(step, 0.1), place(rank), &mut v, &mut Vec::new());
            v
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(2, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
    }

    #[test]
    fn names_are_what_users_type() {
        for (name, want) in [
            ("identity", Compressor::Identity),
            ("sign", Compressor::Sign),
            ("top-k:0.5", Compressor::TopK { ratio: 0.5 }),
            (
                "random-k:1e-2",
                Compressor::RandomK {
                    ratio: 0.01,
                    unbiased: false,
                    seed: 0,
                },
            ),
            (
                "qsgd:4",
                Compressor::Qsgd {
                    levels: 4,
                    contracting: true,
                    seed: 0,
                },
            ),
        ] {
            assert_eq!(Compressor::by_name(name), Ok(want));
            assert_eq!(Compressor::by_name(&want.to_string()), Ok(want));
            assert!(want.contracts() && want.check().is_ok());
        }
        for name in [
            "",
            "top-k",
            "top-k:",
            "top-k:half",
            "qsgd:-1",
            "sign:2",
            "zip",
        ] {
            let e = Compressor::by_name(name).unwrap_err().to_string();
            assert!(e.ends_with("random-k:RATIO, sign, qsgd:LEVELS"), "{e}");
        }
    }

    /// The exact ⌈m·n/10^e⌉ of ratios that are printed as m/10^e.
    #[test]
    fn shares_are_those_of_the_printed_ratio() {
        for e in 1..=4_u32 {
            let all = 10_u64.pow(e);
            for m in 1..=all {
                let ratio: f64 = format!("{m}e-{e}").parse().unwrap();
                for n in [1_u64, 2, 3, 7, 10, 30, 97, 1000, 9973, 10_000] {
                    let want = (m * n).div_ceil(all).max(1);
                    assert_eq!(chosen(ratio, n as usize), want as usize, "{ratio} of {n}");
                }
            }
        }
        assert_eq!(chosen(0.1, 0), 0);
        assert_eq!(chosen(1e-300, 5), 1);
        assert_eq!(chosen(5.0 / 9.0, 9), 5);
    }

    /// Squares of such numbers are 0, or infinite.
    #[test]
    fn qsgd_takes_vectors_of_any_size() {
        for size in [1e-200, 1e-310, 1e200] {
            let c = Compressor::Qsgd {
                levels: 4,
                contracting: false,
                seed: 5,
            };
            let mut v = X.map(|x| x * size);
            let mut packed = vec![0.0; c.packed_len::<f64>(4)];
            let mut again = v;
            c.apply(&Cx::at(0, 0.1), place(3), &mut v, &mut Vec::new());
            // The grid's steps are 13/4; rounding near 1e-310 is that of numbers with 13 digits.
            for (q, like) in v.iter().zip(compressed(c, 0)) {
                assert!((q / size - like).abs() < 1e-9, "{size}: {v:?}");
            }
            c.pack(
                &Cx::at(0, 0.1),
                place(3),
                &mut again,
                &mut packed,
                &mut Vec::new(),
            );
            assert_eq!(again, v, "{size}");
        }
    }

    #[test]
    fn nothing_is_left_of_nothing() {
        for c in [
            Compressor::Identity,
            Compressor::TopK { ratio: 0.5 },
            Compressor::Sign,
        ] {
            c.apply::<f64>(&Cx::at(0, 0.1), place(0), &mut [], &mut Vec::new());
            let mut zeros = [0.0_f64; 3];
            c.apply(&Cx::at(0, 0.1), place(0), &mut zeros, &mut Vec::new());
            assert_eq!(zeros, [0.0; 3]);
        }
    }
}
