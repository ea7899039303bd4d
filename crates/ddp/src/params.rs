//! The model as data-parallel training sees it: named tensors in a fixed order.

use crate::DdpError;
use std::collections::BTreeSet;

/// One named tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSpec {
    /// Unique in the model.
    pub name: String,
    /// Lengths of its axes; empty for a scalar.
    pub shape: Vec<usize>,
}

impl ParamSpec {
    /// A tensor called `name` of the given shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        ParamSpec {
            name: name.into(),
            shape: shape.into(),
        }
    }

    /// As messages show it: `"conv.weight" [8, 3]`.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?}", self.name, self.shape)
    }
}

/// The model's tensors in the order in which forward uses them, checked once: names are unique and lengths can be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    specs: Vec<ParamSpec>,
    lens: Vec<usize>,
}

impl Params {
    /// Checks and takes them.
    ///
    /// # Errors
    /// [`DdpError::DuplicateParameter`], [`DdpError::TooLarge`].
    pub fn new(specs: &[ParamSpec]) -> Result<Self, DdpError> {
        let mut names = BTreeSet::new();
        let mut lens = Vec::with_capacity(specs.len());
        let mut total = 0usize;
        for spec in specs {
            if !names.insert(spec.name.as_str()) {
                return Err(DdpError::DuplicateParameter {
                    name: spec.name.clone(),
                });
            }
            // A bound on the sum keeps every offset and every count of bytes below the address space.
            let len = spec
                .shape
                .iter()
                .try_fold(1usize, |n, axis| n.checked_mul(*axis))
                .filter(|len| {
                    total
                        .checked_add(*len)
                        .is_some_and(|t| t <= isize::MAX as usize / 8)
                })
                .ok_or_else(|| DdpError::TooLarge {
                    name: spec.name.clone(),
                    shape: spec.shape.clone(),
                })?;
            total += len;
            lens.push(len);
        }
        Ok(Params {
            specs: specs.to_vec(),
            lens,
        })
    }

    /// How many tensors.
    pub fn count(&self) -> usize {
        self.specs.len()
    }

    /// All elements together.
    pub fn total_elems(&self) -> usize {
        self.lens.iter().sum()
    }

    /// The tensors.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Elements of tensor `idx`.
    pub fn len_elems(&self, idx: usize) -> Option<usize> {
        self.lens.get(idx).copied()
    }

    /// The number of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.specs.iter().position(|s| s.name == name)
    }

    pub(crate) fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// Refuses anything that is not as long as tensor `idx`.
    pub(crate) fn check_len(&self, idx: usize, got: usize) -> Result<(), DdpError> {
        let want = self.lens.get(idx).ok_or(DdpError::UnknownParameter {
            idx,
            count: self.count(),
        })?;
        if *want == got {
            return Ok(());
        }
        Err(DdpError::WrongLength {
            name: self.specs[idx].name.clone(),
            want: *want,
            got,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_error_says_which_is_not() {
        let specs = [
            ParamSpec::new("a", [2]),
            ParamSpec::new("b", []),
            ParamSpec::new("a", [3]),
        ];
        let e = Params::new(&specs).unwrap_err();
        assert!(
            matches!(&e, DdpError::DuplicateParameter { name } if name == "a"),
            "{e}"
        );
    }

    #[test]
    fn lengths_are_products_and_overflow_is_refused() {
        let p = Params::new(&[ParamSpec::new("s", []), ParamSpec::new("m", [3, 0, 2])]).unwrap();
        assert_eq!(
            (p.len_elems(0), p.len_elems(1), p.len_elems(2)),
            (Some(1), Some(0), None)
        );
        let e = Params::new(&[ParamSpec::new("x", [usize::MAX, 2])]).unwrap_err();
        assert!(matches!(e, DdpError::TooLarge { .. }));
        let half = usize::MAX / 16;
        let e =
            Params::new(&[ParamSpec::new("x", [half]), ParamSpec::new("y", [half])]).unwrap_err();
        assert!(
            matches!(&e, DdpError::TooLarge { name, .. } if name == "y"),
            "{e}"
        );
    }
}
