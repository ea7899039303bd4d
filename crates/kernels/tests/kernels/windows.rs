//! Folds and averages over memory that others may write: the bits of those over slices, on every instruction set, whatever the alignment, in place or not.

use super::{FLOATS, data};
use crate::instructions::ONE_AT_A_TIME;
use gaggle_core::{Codec, DType, Form, Reduce, Stores, Weight, Window, WindowMut};
use gaggle_kernels::{
    How, Isa, MixTerm, MixWindow, Source, Term, fold_windows, fold_with, mix, mix_windows,
};
use std::sync::PoisonError;

const WORLDS: [usize; 6] = [1, 2, 3, 5, 7, 8];
/// Around vectors, blocks of vectors, and tiles.
const LENGTHS: [usize; 14] = [0, 1, 7, 15, 16, 17, 63, 64, 65, 129, 257, 1023, 1025, 2053];
/// Bytes around every buffer, which stay as they are.
const EDGE: usize = 80;

/// Runs `f` on every instruction set that this machine has.
fn on_all(f: impl Fn(Isa)) {
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for isa in Isa::ALL {
        if Isa::force(Some(isa)) {
            f(isa);
        }
    }
    assert!(Isa::force(None));
}

/// A buffer with edges, its content beginning at a byte that `shift` moves.
#[derive(Clone)]
struct Place {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Place {
    fn new(content: &[u8], shift: usize) -> Place {
        let mut bytes = vec![0xa5; content.len() + 2 * EDGE];
        let first = bytes.as_ptr().addr();
        // Shift 0 is the beginning of a line.
        let at = (first + 1).next_multiple_of(64) - first + shift % 16;
        bytes[at..at + content.len()].copy_from_slice(content);
        Place {
            bytes,
            at,
            len: content.len(),
        }
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.len]
    }

    fn window(&mut self) -> WindowMut<'_> {
        let (at, len) = (self.at, self.len);
        WindowMut::from(&mut self.bytes[at..at + len])
    }

    #[track_caller]
    fn holds(&self, want: &[u8], what: &str) {
        assert!(self.content() == want, "{what}");
        let (before, after) = (&self.bytes[..self.at], &self.bytes[self.at + self.len..]);
        let edges = before.iter().chain(after).all(|b| *b == 0xa5);
        assert!(edges, "{what}: bytes beside it were written");
    }
}

/// Everybody's contribution; in place into all of them, and into two places elsewhere.
fn check(isa: Isa, dtype: DType, reduce: Reduce, n: usize, weights: &[Option<Weight>], how: How) {
    let world = weights.len();
    let inputs: Vec<Vec<u8>> = (0..world)
        .map(|m| data(dtype, n, 500 + 31 * m as u64 + n as u64))
        .collect();
    let slices: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
    let untouched = vec![0x5a; n * dtype.size()];
    let mut want = untouched.clone();
    let terms: Vec<Term<'_>> = (0..world)
        .map(|m| Term {
            source: Source::Bytes {
                bytes: slices[m],
                dtype,
            },
            weight: weights[m],
        })
        .collect();
    // Slices on the baseline are checked against a reference of their own.
    assert!(Isa::force(Some(Isa::Baseline)));
    fold_with(dtype, reduce, &mut want, &terms, how);
    assert!(Isa::force(Some(isa)));
    let read = weights.iter().any(|w| *w != Some(Weight::ZERO));
    for (shift, stores) in [
        (0, Stores::Cached),
        (0, Stores::Streamed),
        (3, Stores::Streamed),
    ] {
        let what = format!("{reduce} of {world} × {n} {dtype} on {isa}, {stores:?}, {shift}");
        let mut places: Vec<Place> = (0..world)
            .map(|m| Place::new(&inputs[m], shift * (m + 1)))
            .collect();
        let windows: Vec<WindowMut<'_>> = places.iter_mut().map(Place::window).collect();
        // The last member's is the first output.
        let mut outputs = windows.clone();
        outputs.rotate_right(1);
        let term = |m: usize| Term {
            source: match m + 1 == world {
                true => Source::Dst,
                false => Source::Window {
                    window: windows[m].into(),
                    dtype,
                },
            },
            weight: weights[m],
        };
        let terms: Vec<_> = (0..world).map(term).collect();
        fold_windows(dtype, reduce, &outputs, &terms, how, stores);
        for (m, place) in places.iter().enumerate() {
            let want = if read { &want[..] } else { slices[m] };
            place.holds(want, &format!("{what}, in place of {m}"));
        }

        let mut to = [shift, 5 * shift].map(|s| Place::new(&untouched, s));
        let [a, b] = &mut to;
        let term = |m: usize| Term {
            source: Source::Window {
                window: Window::from(slices[m]),
                dtype,
            },
            weight: weights[m],
        };
        let terms: Vec<_> = (0..world).map(term).collect();
        fold_windows(
            dtype,
            reduce,
            &[a.window(), b.window()],
            &terms,
            how,
            stores,
        );
        for place in &to {
            place.holds(&want, &format!("{what}, elsewhere"));
        }
    }
}

#[test]
fn reductions_have_the_bits_of_slices() {
    on_all(|isa| {
        for dtype in DType::ALL {
            for reduce in Reduce::ALL {
                if !reduce.is_defined_on(dtype) || reduce == Reduce::User {
                    continue;
                }
                for n in LENGTHS {
                    for world in WORLDS {
                        check(isa, dtype, reduce, n, &vec![None; world], How::default());
                    }
                }
            }
        }
    });
}

#[test]
fn weighted_and_exact_means_have_the_bits_of_slices() {
    let weight = |m: usize| match m % 4 {
        0 => Weight::from_f64(1.0 / 3.0).unwrap(),
        1 => Weight::ZERO,
        2 => Weight::samples(3),
        _ => Weight::ONE,
    };
    let divided = |by: Weight| How {
        exact: false,
        divisor: Some(by),
    };
    let exact = How {
        exact: true,
        divisor: None,
    };
    on_all(|isa| {
        for dtype in FLOATS {
            for n in LENGTHS {
                for world in WORLDS {
                    let mixed: Vec<_> = (0..world).map(|m| Some(weight(m))).collect();
                    let shifted: Vec<_> = (0..world).map(|m| Some(weight(m + 1))).collect();
                    let ones = vec![Some(Weight::ONE); world];
                    let none = vec![None; world];
                    let plain = How::default();
                    for weights in [&mixed, &shifted, &ones] {
                        check(isa, dtype, Reduce::Mean, n, weights, plain);
                    }
                    for by in [Weight::samples(4), Weight::samples(5), Weight::ONE] {
                        check(isa, dtype, Reduce::Mean, n, &none, divided(by));
                    }
                    if n < 130 {
                        check(isa, dtype, Reduce::Mean, n, &mixed, exact);
                        check(isa, dtype, Reduce::Sum, n, &none, exact);
                    }
                }
            }
        }
    });
}

#[test]
fn terms_of_another_type_are_folded_as_from_slices() {
    on_all(|isa| {
        for from in FLOATS {
            for n in [1, 64, 257, 1025] {
                let inputs = [71, 72, 73].map(|s| data(from, n, s));
                // Into f32, whatever they are.
                let (to, dtype) = (DType::F32, from);
                let mut want = vec![0; n * to.size()];
                let source = |i: usize| Source::Bytes {
                    bytes: &inputs[i],
                    dtype,
                };
                let terms = [0, 1, 2].map(|i| Term {
                    source: source(i),
                    weight: None,
                });
                fold_with(to, Reduce::Sum, &mut want, &terms, How::default());
                let mut got = Place::new(&vec![0; n * to.size()], 0);
                let windows = [0, 1, 2].map(|i| Term {
                    source: Source::Window {
                        window: Window::from(&inputs[i][..]),
                        dtype,
                    },
                    weight: None,
                });
                let out = [got.window()];
                fold_windows(
                    to,
                    Reduce::Sum,
                    &out,
                    &windows,
                    How::default(),
                    Stores::Cached,
                );
                got.holds(&want, &format!("{n} {from} on {isa}"));
            }
        }
    });
}

#[test]
fn neighbour_averages_have_the_bits_of_slices() {
    on_all(|isa| {
        for dtype in FLOATS {
            for n in LENGTHS {
                for peers in [0usize, 1, 2, 4, 7] {
                    for form in [Form::Delta, Form::Sum] {
                        let codecs = match dtype {
                            DType::F32 => &[Codec::None, Codec::Bf16][..],
                            _ => &[Codec::None],
                        };
                        for codec in codecs {
                            mixed(isa, dtype, n, peers, (form, *codec));
                        }
                    }
                }
            }
        }
    });
}

fn mixed(isa: Isa, dtype: DType, n: usize, peers: usize, how: (Form, Codec)) {
    let own = data(dtype, n, 900);
    let theirs: Vec<_> = (0..peers).map(|p| data(dtype, n, 901 + p as u64)).collect();
    let weight = |p: usize| if p == 2 { 0.0 } else { 0.3 / (p + 1) as f64 };
    let terms: Vec<_> = theirs
        .iter()
        .enumerate()
        .map(|(p, bytes)| MixTerm {
            bytes,
            dtype,
            weight: weight(p),
        })
        .collect();
    for keep in [0.4, 0.0, 1.0] {
        let mut want = own.clone();
        mix(dtype, &mut want, keep, &terms, how.0, how.1);
        for (shift, stores) in [(0, Stores::Cached), (3, Stores::Streamed)] {
            let places: Vec<Place> = theirs.iter().map(|t| Place::new(t, shift)).collect();
            let windows: Vec<_> = places
                .iter()
                .enumerate()
                .map(|(p, place)| MixWindow {
                    window: Window::from(place.content()),
                    dtype,
                    weight: weight(p),
                })
                .collect();
            let what = format!("{peers} peers' {n} {dtype} on {isa}, {how:?}, {shift}");
            let mut to = Place::new(&vec![0; own.len()], shift);
            let mine = (Window::from(&own[..]), keep);
            mix_windows(dtype, to.window(), mine, &windows, how, stores);
            to.holds(&want, &what);
            let mut to = Place::new(&own, shift);
            let place = to.window();
            mix_windows(dtype, place, (place.into(), keep), &windows, how, stores);
            to.holds(&want, &format!("{what}, in place"));
        }
    }
}
