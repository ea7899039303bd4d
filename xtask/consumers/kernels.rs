//! Arithmetic alone: the larger of two vectors, in place.

use gaggle_core::{
    DType, Reduce,
    raw::{bytes_of, bytes_of_mut},
};

fn main() {
    let mut there = [1.0_f32, 5.0];
    let incoming = [3.0_f32, 4.0];
    gaggle_kernels::combine(DType::F32, Reduce::Max, bytes_of_mut(&mut there), bytes_of(&incoming), true);
    println!("{there:?}");
}
