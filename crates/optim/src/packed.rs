//! Compressed vectors in as few bytes as they need, as elements of the vector's type: messages that are passed on untouched may carry any bits.
//!
//! | compressor | bytes for n elements of s bytes |
//! |---|---|
//! | identity | n·s |
//! | top-k | k·(4 + s): places and values |
//! | random-k | 4 + k·s: places follow from the sender's rank |
//! | sign | s + n/8 |
//! | qsgd | 8 + n·⌈log₂(2·levels + 1)⌉/8 |
//!
//! Where that is no less than n·s the vector goes as it is.

use crate::{
    Compressor,
    arith::norm,
    compress::{Grid, chosen, draw, generator},
};
use gaggle_core::{
    Cx, Float, Place, Rank,
    raw::{bytes_of, bytes_of_mut},
};
use rand::Rng;

/// Bytes of a place: enough for 2³² elements, and 8 where there are more.
fn place_bytes(n: usize) -> usize {
    if u32::try_from(n).is_ok() { 4 } else { 8 }
}

/// Bits of a whole number from −levels to levels.
fn level_bits(levels: u32) -> u32 {
    (2 * u64::from(levels)).ilog2() + 1
}

impl Compressor {
    /// Bytes of the packed form of `n` elements; `None`: it goes as it is.
    fn packed_bytes<T: Float>(&self, n: usize) -> Option<usize> {
        let size = size_of::<T>();
        let bytes = match *self {
            Compressor::Identity => return None,
            Compressor::TopK { ratio } => chosen(ratio, n).checked_mul(place_bytes(n) + size)?,
            Compressor::RandomK { ratio, .. } => 4 + chosen(ratio, n) * size,
            Compressor::Sign => size + n.div_ceil(8),
            Compressor::Qsgd { levels, .. } => {
                8 + n.checked_mul(level_bits(levels) as usize)?.div_ceil(8)
            }
        };
        (bytes < n * size).then_some(bytes)
    }

    /// Elements of T that hold what is left of `n`.
    pub fn packed_len<T: Float>(&self, n: usize) -> usize {
        let packed = self.packed_bytes::<T>(n);
        packed.map_or(n, |bytes| bytes.div_ceil(size_of::<T>()))
    }

    /// v ← C(v), as [`Compressor::apply`] makes it, and `out`, [`packed_len`](Compressor::packed_len) elements, ← its packed form.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn pack<T: Float>(
        &self,
        cx: &Cx,
        place: Place,
        v: &mut [T],
        out: &mut [T],
        scratch: &mut Vec<usize>,
    ) {
        let n = v.len();
        assert_eq!(out.len(), self.packed_len::<T>(n), "pack: length of out");
        if self.packed_bytes::<T>(n).is_none() {
            self.apply(cx, place, v, scratch);
            out.copy_from_slice(v);
            return;
        }
        out.fill(T::from_f64(0.0));
        let bytes = bytes_of_mut(out);
        if let Compressor::Qsgd {
            levels,
            contracting,
            seed,
        } = *self
        {
            let grid = Grid::new(levels, contracting, n, norm(v));
            let mut rng = generator(seed, cx, place);
            bytes[..8].copy_from_slice(&grid.norm.to_le_bytes());
            let codes = v.iter_mut().map(|x| {
                let xi = grid.near(x.to_f64(), rng.random());
                *x = grid.value(xi);
                (xi + f64::from(levels)) as u64
            });
            put_bits(&mut bytes[8..], level_bits(levels), codes);
            return;
        }
        self.apply(cx, place, v, scratch);
        match *self {
            Compressor::TopK { ratio } => {
                let k = chosen(ratio, n);
                let width = place_bytes(n);
                let (places, values) = bytes.split_at_mut(k * width);
                for (to, i) in places.chunks_exact_mut(width).zip(&scratch[..k]) {
                    to.copy_from_slice(&(*i as u64).to_le_bytes()[..width]);
                }
                put_values(values, scratch[..k].iter().map(|i| v[*i]));
            }
            Compressor::RandomK { ratio, .. } => {
                let k = chosen(ratio, n);
                bytes[..4].copy_from_slice(&place.rank.0.to_le_bytes());
                put_values(&mut bytes[4..], scratch[..k].iter().map(|i| v[*i]));
            }
            _ => {
                put_values(bytes, v.first().copied().into_iter());
                let signs = v.iter().map(|x| u64::from(x.to_f64().is_sign_negative()));
                put_bits(&mut bytes[size_of::<T>()..], 1, signs);
            }
        }
    }

    /// `into` ← what was packed into `from` in the same step by a rank with the same settings. Of bytes that nobody packed it makes some vector or other.
    pub fn unpack<T: Float>(&self, cx: &Cx, from: &[T], into: &mut [T], scratch: &mut Vec<usize>) {
        let n = into.len();
        let Some(n_bytes) = self.packed_bytes::<T>(n) else {
            let known = n.min(from.len());
            into[..known].copy_from_slice(&from[..known]);
            return;
        };
        let zero = T::from_f64(0.0);
        let Some(bytes) = bytes_of(from).get(..n_bytes) else {
            into.fill(zero);
            return;
        };
        match *self {
            Compressor::TopK { ratio } => {
                into.fill(zero);
                let width = place_bytes(n);
                let (places, values) = bytes.split_at(chosen(ratio, n) * width);
                for (place, value) in places.chunks_exact(width).zip(values_of(values)) {
                    let mut word = [0; 8];
                    word[..width].copy_from_slice(place);
                    let at = usize::try_from(u64::from_le_bytes(word)).ok();
                    if let Some(to) = at.and_then(|at| into.get_mut(at)) {
                        *to = value;
                    }
                }
            }
            Compressor::RandomK { ratio, seed, .. } => {
                into.fill(zero);
                let (rank, values) = bytes.split_at(4);
                let mut word = [0; 4];
                word.copy_from_slice(rank);
                let place = Place {
                    rank: Rank(u32::from_le_bytes(word)),
                    world: 0,
                };
                draw(seed, cx, place, (chosen(ratio, n), n), scratch);
                for (i, value) in scratch.iter().zip(values_of(values)) {
                    into[*i] = value;
                }
            }
            Compressor::Qsgd {
                levels,
                contracting,
                ..
            } => {
                let (norm, codes) = bytes.split_at(8);
                let mut word = [0; 8];
                word.copy_from_slice(norm);
                let grid = Grid::new(levels, contracting, n, f64::from_le_bytes(word));
                let codes = bits_of(codes, level_bits(levels));
                for (to, code) in into.iter_mut().zip(codes) {
                    *to = grid.value(code as f64 - f64::from(levels));
                }
            }
            _ => {
                let size = values_of::<T>(bytes).next().unwrap_or(zero).to_f64().abs();
                let signs = bits_of(&bytes[size_of::<T>()..], 1);
                for (to, negative) in into.iter_mut().zip(signs) {
                    *to = T::from_f64(if negative == 1 { -size } else { size });
                }
            }
        }
    }
}

/// The bytes of these values, one after the other, as far as there is room.
fn put_values<T: Float>(bytes: &mut [u8], values: impl Iterator<Item = T>) {
    for (to, value) in bytes.chunks_exact_mut(size_of::<T>()).zip(values) {
        to.copy_from_slice(bytes_of(&[value]));
    }
}

/// The values whose bytes these are.
fn values_of<T: Float>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    bytes.chunks_exact(size_of::<T>()).map(|from| {
        let mut value = [T::from_f64(0.0)];
        bytes_of_mut(&mut value).copy_from_slice(from);
        value[0]
    })
}

/// Whole numbers of `width` bits, the lowest bit first.
fn put_bits(bytes: &mut [u8], width: u32, values: impl Iterator<Item = u64>) {
    let (mut held, mut n_held) = (0_u128, 0);
    let mut to = bytes.iter_mut();
    for value in values {
        held |= u128::from(value) << n_held;
        n_held += width;
        while n_held >= 8 {
            if let Some(to) = to.next() {
                *to = held as u8;
            }
            held >>= 8;
            n_held -= 8;
        }
    }
    if let Some(to) = to.next().filter(|_| n_held > 0) {
        *to = held as u8;
    }
}

/// The numbers that `put_bits` wrote, and whatever follows.
fn bits_of(bytes: &[u8], width: u32) -> impl Iterator<Item = u64> + '_ {
    let (mut held, mut n_held) = (0_u128, 0);
    let mut from = bytes.iter();
    std::iter::from_fn(move || {
        while n_held < width {
            held |= u128::from(*from.next()?) << n_held;
            n_held += 8;
        }
        let value = (held & ((1 << width) - 1)) as u64;
        held >>= width;
        n_held -= width;
        Some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn all() -> Vec<Compressor> {
        let random = |unbiased| Compressor::RandomK {
            ratio: 0.1,
            unbiased,
            seed: 3,
        };
        let qsgd = |levels, contracting| Compressor::Qsgd {
            levels,
            contracting,
            seed: 4,
        };
        vec![
            Compressor::Identity,
            Compressor::TopK { ratio: 0.1 },
            Compressor::TopK { ratio: 1.0 },
            random(false),
            random(true),
            Compressor::Sign,
            qsgd(1, true),
            qsgd(4, false),
            qsgd(100, true),
            qsgd(u32::MAX, true),
        ]
    }

    fn place(rank: u32) -> Place {
        Place {
            rank: Rank(rank),
            world: 5,
        }
    }

    /// What comes out is what `apply` leaves, in every length, and takes no more than it should.
    fn comes_back<T: Float + PartialEq>(seed: f64) {
        for compressor in all() {
            for n in [0, 1, 4, 5, 6, 101, 1000] {
                let cx = Cx::at(7, 0.1);
                let v: Vec<T> = (0..n)
                    .map(|k| T::from_f64(((k as f64 + seed) * 1.7).sin() * 3.0))
                    .collect();
                let (mut applied, mut own, mut scratch) = (v.clone(), v, vec![]);
                compressor.apply(&cx, place(2), &mut applied, &mut scratch);
                let len = compressor.packed_len::<T>(n);
                assert!(len <= n, "{compressor:?}, {n}");
                let mut packed = vec![T::from_f64(9.0); len];
                compressor.pack(&cx, place(2), &mut own, &mut packed, &mut scratch);
                assert!(own == applied, "{compressor:?}, {n}");
                let mut back = vec![T::from_f64(9.0); n];
                compressor.unpack(&cx, &packed, &mut back, &mut scratch);
                assert!(back == applied, "{compressor:?}, {n}");
            }
        }
    }

    #[test]
    fn what_is_packed_comes_back() {
        for seed in [0.0, 0.5, 1e6] {
            comes_back::<f32>(seed);
            comes_back::<f64>(seed);
            comes_back::<bf16>(seed);
        }
    }

    #[test]
    fn lengths_are_those_of_the_table() {
        let top = Compressor::TopK { ratio: 0.01 };
        assert_eq!(top.packed_len::<f32>(100_000), 2 * 1000);
        assert_eq!(top.packed_len::<f64>(100_000), 1500);
        assert_eq!(Compressor::TopK { ratio: 0.6 }.packed_len::<f32>(100), 100);
        assert_eq!(Compressor::Sign.packed_len::<f32>(3200), 1 + 100);
        let random = Compressor::RandomK {
            ratio: 0.01,
            unbiased: false,
            seed: 0,
        };
        assert_eq!(random.packed_len::<f32>(100_000), 1 + 1000);
        let qsgd = |levels| Compressor::Qsgd {
            levels,
            contracting: true,
            seed: 0,
        };
        // Numbers from −7 to 7 in 4 bits, from −8 to 8 in 5.
        assert_eq!(qsgd(7).packed_len::<f32>(800), 2 + 100);
        assert_eq!(qsgd(8).packed_len::<f32>(800), 2 + 125);
        assert_eq!(qsgd(1).packed_len::<f32>(1600), 2 + 100);
    }

    /// Bytes from elsewhere are some vector: nothing is indexed or counted by them unchecked.
    #[test]
    fn any_bytes_are_taken() {
        for compressor in all() {
            for n in [0, 1, 50, 333] {
                let len = compressor.packed_len::<f32>(n);
                for (pattern, less) in [(u32::MAX, 0), (0x7f80_0001, 1), (0x8123_4567, 7)] {
                    let packed = vec![f32::from_bits(pattern); len.saturating_sub(less)];
                    let mut into = vec![1.0; n];
                    compressor.unpack(&Cx::at(1, 0.1), &packed, &mut into, &mut vec![]);
                }
            }
        }
    }
}
