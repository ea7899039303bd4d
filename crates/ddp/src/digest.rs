//! Whether the ranks hold the same thing: digests of values, and the search for the first difference between two models.
//!
//! Everything here is decided from gathered values alone, so every rank comes to the same verdict in the same number of rounds.
//! A rank that does not answer is an error of the group's ([`DdpError::Communication`]), never a difference.

use crate::DdpError;
use gaggle_core::{
    Counts, Element, Error, Group, Kind, Lane, Op, Rank, descriptor::stable_hash, raw::bytes_of,
};
use std::fmt;

/// A 64-bit hash of values, bit for bit: equal on every rank and build for equal bits. Prints as 16 hexadecimal digits.
///
/// It finds accidents, not forgeries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Digest(pub u64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The digest of a vector: FNV-1a over its element type and its bytes.
pub fn digest<T: Element>(x: &[T]) -> Digest {
    Digest(stable_hash(&[&[T::DTYPE as u8], bytes_of(x)]))
}

/// Every rank's digest, in rank order. One all-gather of 8 bytes, on the default lane.
///
/// # Errors
/// See [`Cause`](gaggle_core::Cause).
pub fn gather_digests(group: &Group, mine: Digest) -> Result<Vec<Digest>, Error> {
    let all = gather(group, Lane::default(), &[mine.0])?;
    Ok(all.into_iter().map(Digest).collect())
}

/// Ok where all ranks have the same digest. One all-gather of 8 bytes, on the default lane.
///
/// # Errors
/// [`DdpError::ModelMismatch`] on every rank, with the minority and `what` was compared; [`DdpError::Communication`].
pub fn compare_digests(group: &Group, what: &str, mine: Digest) -> Result<(), DdpError> {
    let all = gather_digests(group, mine).map_err(|source| DdpError::Communication {
        during: "comparing digests",
        source,
    })?;
    let keys: Vec<u64> = all.iter().map(|d| d.0).collect();
    let texts: Vec<String> = all.iter().map(|d| format!("digest {d}")).collect();
    verdict(what.to_string(), &keys, &texts)
}

/// Comparison of ordered lists (the model's parameters, their values) between ranks.
pub(crate) struct Comparison<'a> {
    pub group: &'a Group,
    pub lane: Lane,
    pub during: &'static str,
}

impl Comparison<'_> {
    /// Ok where all ranks give the same text. The texts travel only where their hashes differ.
    pub fn same(&self, at: &str, text: &str) -> Result<(), DdpError> {
        let hashes = self.gather(&[stable_hash(&[text.as_bytes()])])?;
        if hashes.iter().all(|h| *h == hashes[0]) {
            return Ok(());
        }
        verdict(at.to_string(), &hashes, &self.gather_text(text)?)
    }

    /// Ok where all ranks have equally many items with equal hashes. Otherwise about log₂ n rounds of 8 bytes find the first difference, and one of 256 bytes gathers how each rank describes it.
    pub fn same_list(
        &self,
        hashes: &[u64],
        describe: impl Fn(usize) -> String,
    ) -> Result<(), DdpError> {
        // prefix[k]: hash of the first k items; beyond the end a value that no full list has.
        let mut prefix = vec![0u64];
        for h in hashes {
            let last = prefix[prefix.len() - 1];
            prefix.push(stable_hash(&[&last.to_le_bytes(), &h.to_le_bytes()]));
        }
        let ended = stable_hash(&[b"ended", &(hashes.len() as u64).to_le_bytes()]);
        let at = |k: u64| {
            usize::try_from(k)
                .ok()
                .and_then(|k| prefix.get(k).copied())
                .unwrap_or(ended)
        };
        let n = hashes.len() as u64;
        let pairs = self.gather(&[n, at(n)])?;
        if pairs.chunks(2).all(|p| p == &pairs[..2]) {
            return Ok(());
        }
        // Invariant: all ranks agree on the first `lo` items and not on the first `hi`.
        let longest = pairs.iter().step_by(2).copied().max().unwrap_or(0);
        let (mut lo, mut hi) = (0, longest.max(1));
        while hi - lo > 1 {
            let mid = lo + (hi - lo) / 2;
            let all = self.gather(&[at(mid)])?;
            if all.iter().all(|h| *h == all[0]) {
                lo = mid;
            } else {
                hi = mid;
            }
        }
        let mine = usize::try_from(lo)
            .ok()
            .filter(|i| *i < hashes.len())
            .map_or_else(|| format!("only {} parameters", hashes.len()), describe);
        let keys = self.gather(&[at(hi)])?;
        verdict(format!("parameter {lo}"), &keys, &self.gather_text(&mine)?)
    }

    fn gather(&self, mine: &[u64]) -> Result<Vec<u64>, DdpError> {
        gather(self.group, self.lane, mine).map_err(|source| self.failed(source))
    }

    /// Every rank's text, cut at 256 bytes.
    fn gather_text(&self, text: &str) -> Result<Vec<String>, DdpError> {
        const BYTES: usize = 256;
        let rank = self.group.rank().idx();
        let mut all = vec![0u8; BYTES * self.group.size()];
        let cut = char_boundary(text, BYTES);
        all[rank * BYTES..rank * BYTES + cut].copy_from_slice(&text.as_bytes()[..cut]);
        self.group
            .run(
                &Op::new(Kind::AllGather(Counts::Equal)).on(self.lane),
                &mut all,
            )
            .map_err(|source| self.failed(source))?;
        Ok(all
            .chunks(BYTES)
            .map(|b| {
                let end = b.iter().position(|c| *c == 0).unwrap_or(BYTES);
                String::from_utf8_lossy(&b[..end]).into_owned()
            })
            .collect())
    }

    fn failed(&self, source: Error) -> DdpError {
        DdpError::Communication {
            during: self.during,
            source,
        }
    }
}

/// The last place up to `at` where `text` may be cut.
fn char_boundary(text: &str, at: usize) -> usize {
    let mut cut = text.len().min(at);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    cut
}

fn gather(group: &Group, lane: Lane, mine: &[u64]) -> Result<Vec<u64>, Error> {
    let (n, rank) = (mine.len(), group.rank().idx());
    let mut all = vec![0i64; n * group.size()];
    for (place, v) in all[rank * n..(rank + 1) * n].iter_mut().zip(mine) {
        *place = v.cast_signed();
    }
    group.run(&Op::new(Kind::AllGather(Counts::Equal)).on(lane), &mut all)?;
    Ok(all.into_iter().map(i64::cast_unsigned).collect())
}

/// Ok where all keys are equal. Otherwise blames the minority; each version is shown in its first rank's words.
fn verdict(at: String, keys: &[u64], texts: &[String]) -> Result<(), DdpError> {
    let mut versions: Vec<(u64, Vec<Rank>)> = Vec::new();
    for (rank, key) in (0u32..).zip(keys) {
        match versions.iter_mut().find(|(k, _)| k == key) {
            Some((_, ranks)) => ranks.push(Rank(rank)),
            None => versions.push((*key, vec![Rank(rank)])),
        }
    }
    if versions.len() < 2 {
        return Ok(());
    }
    // The largest party first; where two are equally large nobody is the minority.
    versions.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
    let tie = versions[0].1.len() == versions[1].1.len();
    let mut ranks: Vec<Rank> = versions
        .iter()
        .skip(usize::from(!tie))
        .flat_map(|(_, ranks)| ranks.iter().copied())
        .collect();
    ranks.sort_unstable();
    let versions = versions
        .into_iter()
        .map(|(_, ranks)| {
            let text = texts.get(ranks[0].idx()).cloned().unwrap_or_default();
            (ranks, text)
        })
        .collect();
    Err(DdpError::ModelMismatch {
        ranks,
        at,
        versions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_types_and_bits_apart() {
        assert_eq!(digest(&[1.0f32, 2.0]), digest(&[1.0f32, 2.0]));
        assert_ne!(digest(&[0.0f32]), digest(&[-0.0f32]));
        assert_ne!(digest::<f32>(&[]), digest::<f64>(&[]));
        assert_eq!(Digest(0xab).to_string(), "00000000000000ab");
    }

    #[test]
    fn the_minority_is_blamed_and_on_a_tie_everybody() {
        let texts: Vec<String> = ["a", "a", "b", "a"].map(String::from).to_vec();
        let e = verdict("here".into(), &[1, 1, 2, 1], &texts).unwrap_err();
        assert_eq!(e.culprits(), [Rank(2)]);
        let e = verdict("here".into(), &[1, 2], &texts[1..3]).unwrap_err();
        assert_eq!(e.culprits(), [Rank(0), Rank(1)]);
        assert!(verdict("here".into(), &[7, 7], &texts[..2]).is_ok());
    }
}
