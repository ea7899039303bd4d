//! What lossy codecs have lost of each tensor, kept until the next time (Seide et al. 2014; Karimireddy et al. 2019).
//!
//! A tensor's residual is a vector as long as the caller's buffer, by group and the caller's number. Element i of it is added to element i of whatever leaves this rank next, as a contribution to its owner or as the owner's result, and then replaced by what that loses.
//! So at every moment Σ over the ranks of (what was decoded of them so far + their residuals) is the sum of all that was put in, whoever owns what: when the world changes, the survivors' residuals stay as they are, and those of lost ranks are lost with their other contributions.

use crate::{op::OpState, state::State};
use gaggle_core::Error;
use std::collections::HashMap;

/// Residuals by group and tensor; `None` while an operation in flight has it.
#[derive(Default)]
pub(crate) struct Residuals(HashMap<(u64, u64), Option<Vec<f32>>>);

impl Residuals {
    /// Takes it for an operation; zeros where there is none of that length. `None`: another operation has it.
    fn take(&mut self, group: u64, tensor: u64, len: usize) -> Option<Vec<f32>> {
        let kept = self
            .0
            .entry((group, tensor))
            .or_insert_with(|| Some(Vec::new()));
        let mut residual = kept.take()?;
        if residual.len() != len {
            if !residual.is_empty() {
                let before = residual.len();
                tracing::warn!(
                    tensor,
                    before,
                    len,
                    "error feedback dropped: the tensor has another length"
                );
            }
            residual.clear();
            residual.resize(len, 0.0);
        }
        Some(residual)
    }

    fn put(&mut self, group: u64, tensor: u64, residual: Vec<f32>) {
        self.0.insert((group, tensor), Some(residual));
    }

    /// A copy; `None` where there is nothing, or an operation in flight has it.
    pub(crate) fn get(&self, group: u64, tensor: u64) -> Option<Vec<f32>> {
        let kept = self.0.get(&(group, tensor))?.clone();
        kept.filter(|r| !r.is_empty())
    }

    /// Replaces it, unless an operation in flight has it; drops it with an empty vector.
    pub(crate) fn set(&mut self, group: u64, tensor: u64, residual: Vec<f32>) {
        if let Some(None) = self.0.get(&(group, tensor)) {
            tracing::warn!(
                tensor,
                "error feedback not set: an operation in flight has it"
            );
        } else if residual.is_empty() {
            self.0.remove(&(group, tensor));
        } else {
            self.put(group, tensor, residual);
        }
    }

    /// The survivors' group takes over what the group that it was rebuilt from has kept, once.
    pub(crate) fn inherit(&mut self, from: u64, to: u64) {
        let theirs = |((group, _), kept): (&(u64, u64), &mut Option<Vec<f32>>)| {
            *group == from && kept.is_some()
        };
        let kept: Vec<_> = self.0.extract_if(|key, kept| theirs((key, kept))).collect();
        for ((_, tensor), residual) in kept {
            self.0.entry((to, tensor)).or_insert(residual);
        }
    }
}

impl State {
    /// The residual that an operation works with.
    ///
    /// # Errors
    /// Another operation in flight works with it.
    pub(crate) fn lend_residual(&mut self, op: &mut OpState) -> Result<(), Error> {
        let Some(tensor) = op.tensor else {
            return Ok(());
        };
        let plan = &op.program.plan;
        let len = plan.user_len.max(plan.input_len) as usize;
        let residual = self.residuals.take(op.group.id, tensor, len);
        op.residual = Some(residual.ok_or_else(|| {
            let what = format!("the feedback of tensor {tensor} is in use by an operation in flight; wait for that first");
            Error::invalid(op.descriptor.name(), what)
        })?);
        Ok(())
    }

    /// An operation is over, one way or the other.
    pub(crate) fn return_residual(&mut self, op: &mut OpState) {
        if let (Some(tensor), Some(residual)) = (op.tensor, op.residual.take()) {
            self.residuals.put(op.group.id, tensor, residual);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_is_in_one_place_at_a_time() {
        let mut all = Residuals::default();
        assert_eq!(all.get(1, 7), None);
        let mut taken = all.take(1, 7, 3).unwrap();
        assert_eq!(taken, [0.0; 3]);
        assert_eq!(all.take(1, 7, 3), None);
        assert!(all.take(2, 7, 3).is_some());
        taken[1] = 0.5;
        all.set(1, 7, vec![9.0; 3]);
        all.put(1, 7, taken);
        assert_eq!(all.get(1, 7).unwrap(), [0.0, 0.5, 0.0]);
        all.set(1, 7, vec![1.0, 2.0]);
        assert_eq!(all.take(1, 7, 2).unwrap(), [1.0, 2.0]);
        all.put(1, 7, vec![1.0, 2.0]);
        all.inherit(1, 3);
        assert_eq!(all.get(3, 7).unwrap(), [1.0, 2.0]);
        assert_eq!(all.get(1, 7), None, "it is kept once");
        all.set(3, 7, vec![3.0]);
        all.inherit(1, 3);
        assert_eq!(all.get(3, 7).unwrap(), [3.0], "it has gone on since");
        // Another length: nothing of it fits.
        assert_eq!(all.take(1, 7, 4).unwrap(), [0.0; 4]);
        all.put(1, 7, vec![0.0; 4]);
        all.set(1, 7, vec![]);
        assert_eq!(all.get(1, 7), None);
    }
}
