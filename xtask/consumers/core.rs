//! Vocabulary alone: a reduction's legality and a named culprit.

use gaggle_core::{DType, Error, Rank, Reduce, name_ranks};

fn main() {
    assert!(Reduce::Mean.is_defined_on(DType::Bf16));
    assert!(!Reduce::Mean.is_defined_on(DType::I64));
    let error = Error::invalid("all_reduce", "no such group");
    println!("{error}, says {}", name_ranks(&[Rank(0), Rank(2)]));
}
