//! A person's own choice, as a short string.

use gaggle_core::{Algorithm, OpKind, descriptor::stable_hash};
use std::{fmt, str::FromStr};

/// One operation, one range of sizes, one algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which operation.
    pub kind: OpKind,
    /// From how many bytes on.
    pub from: u64,
    /// Below how many bytes; `None`: no end.
    pub below: Option<u64>,
    /// How it is carried out.
    pub algorithm: Algorithm,
}

impl Rule {
    fn covers(&self, kind: OpKind, bytes: u64) -> bool {
        kind == self.kind && bytes >= self.from && self.below.is_none_or(|b| bytes < b)
    }

    fn write_range(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.below) {
            (0, None) => {}
            (from, None) => write!(f, "{}-", Size(from))?,
            (from, Some(below)) => write!(f, "{}-{}", Size(from), Size(below))?,
        }
        write!(f, "={}", self.algorithm)
    }
}

/// `all_reduce:0-32k=recursive_doubling`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind.name())?;
        self.write_range(f)
    }
}

/// Which algorithms to use whatever the cost model says. Part of what a group agrees on: equal on every rank.
///
/// Written as operations with their choices, `all_reduce:0-32k=recursive_doubling,32k-=direct;broadcast:=pipelined`: bytes of the longer of a rank's buffers, from and below, with k, m and g for 2¹⁰, 2²⁰ and 2³⁰; without a range the choice holds for every size.
/// The first that fits counts.
///
/// ```
/// use gaggle_collectives::select::Overrides;
/// use gaggle_core::{Algorithm, OpKind};
///
/// let text = "all_reduce:0-32k=recursive_doubling,32k-=direct;broadcast:=pipelined";
/// let overrides: Overrides = text.parse()?;
/// assert_eq!(overrides.find(OpKind::AllReduce, 40_000).map(|r| r.algorithm), Some(Algorithm::Direct));
/// assert_eq!(overrides.to_string(), text);
/// # Ok::<(), gaggle_collectives::select::ParseOverridesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Overrides(Vec<Rule>);

impl Overrides {
    /// These rules, in this order.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Overrides {
        Overrides(rules.into_iter().collect())
    }

    /// All rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// The first rule that fits.
    pub fn find(&self, kind: OpKind, bytes: u64) -> Option<&Rule> {
        self.0.iter().find(|r| r.covers(kind, bytes))
    }

    /// Equal for equal overrides, on every machine; 0 where there are none. For the descriptor.
    pub fn hash(&self) -> u64 {
        match self.0.is_empty() {
            true => 0,
            false => stable_hash(&[b"overrides", self.to_string().as_bytes()]),
        }
    }
}

/// As it is parsed: neighbouring rules of one operation together.
impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for rule in &self.0 {
            match last {
                Some(kind) if kind == rule.kind => f.write_str(",")?,
                Some(_) => write!(f, ";{}:", rule.kind.name())?,
                None => write!(f, "{}:", rule.kind.name())?,
            }
            rule.write_range(f)?;
            last = Some(rule.kind);
        }
        Ok(())
    }
}

/// Bytes with the largest suffix that leaves a whole number.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffixes = [(30, "g"), (20, "m"), (10, "k")];
        let fits = |(shift, _): &(u32, &str)| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match suffixes.into_iter().find(fits) {
            Some((shift, suffix)) => write!(f, "{}{suffix}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Why a string says nothing about algorithms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}, '{got}': expected {want}")]
pub struct ParseOverridesError {
    /// Where, counted in characters from 1.
    pub at: usize,
    /// What is there.
    pub got: String,
    /// What would make sense there.
    pub want: String,
}

impl FromStr for Overrides {
    type Err = ParseOverridesError;

    fn from_str(text: &str) -> Result<Overrides, ParseOverridesError> {
        let mut rules = Vec::new();
        if text.trim().is_empty() {
            return Ok(Overrides(rules));
        }
        for group in pieces(text, 0, ';') {
            let Some(colon) = group.text.find(':') else {
                return Err(group.expected("OPERATION:ALGORITHM, like 'all_reduce:=ring'".into()));
            };
            let (name, choices) = group.split(colon);
            let kind = OpKind::from_name(name.text).ok_or_else(|| {
                let known: Vec<&str> = OpKind::ALL.iter().map(|k| k.name()).collect();
                name.expected(format!("an operation: {}", known.join(", ")))
            })?;
            for choice in pieces(choices.text, choices.at, ',') {
                rules.push(choice.rule(kind)?);
            }
        }
        Ok(Overrides(rules))
    }
}

/// A part of the string, without spaces around it, and where it begins.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    /// In characters.
    at: usize,
}

fn pieces(text: &str, at: usize, separator: char) -> impl Iterator<Item = Piece<'_>> {
    let mut next = at;
    text.split(separator).map(move |text| {
        let piece = Piece { text, at: next };
        next += text.chars().count() + 1;
        piece.trimmed()
    })
}

impl<'a> Piece<'a> {
    fn trimmed(self) -> Piece<'a> {
        let text = self.text.trim_start();
        let cut = self.text.chars().count() - text.chars().count();
        Piece {
            text: text.trim_end(),
            at: self.at + cut,
        }
    }

    /// Before and after the ASCII character at byte `idx`.
    fn split(self, idx: usize) -> (Piece<'a>, Piece<'a>) {
        let before = &self.text[..idx];
        let after = Piece {
            text: &self.text[idx + 1..],
            at: self.at + before.chars().count() + 1,
        };
        let before = Piece {
            text: before,
            at: self.at,
        };
        (before.trimmed(), after.trimmed())
    }

    fn expected(self, want: String) -> ParseOverridesError {
        ParseOverridesError {
            at: self.at + 1,
            got: self.text.into(),
            want,
        }
    }

    fn rule(self, kind: OpKind) -> Result<Rule, ParseOverridesError> {
        let Some(equals) = self.text.find('=') else {
            return Err(self
                .expected("RANGE=ALGORITHM, like '0-32k=ring', or '=ring' for every size".into()));
        };
        let (range, name) = self.split(equals);
        let algorithm = name.text.parse().map_err(|_| {
            let known: Vec<&str> = Algorithm::ALL.iter().map(|a| a.name()).collect();
            name.expected(format!("an algorithm: {}", known.join(", ")))
        })?;
        let (from, below) = range.range()?;
        Ok(Rule {
            kind,
            from,
            below,
            algorithm,
        })
    }

    fn range(self) -> Result<(u64, Option<u64>), ParseOverridesError> {
        if self.text.is_empty() {
            return Ok((0, None));
        }
        let Some(dash) = self.text.find('-') else {
            return Err(self.expected("a range of bytes, like '4k-1m' or '1m-'".into()));
        };
        let (from, below) = self.split(dash);
        let lo = match from.text {
            "" => 0,
            _ => from.size()?,
        };
        let hi = match below.text {
            "" => None,
            _ => Some(below.size()?),
        };
        if hi.is_some_and(|hi| hi <= lo) {
            return Err(self.expected("a range whose end is larger than its start".into()));
        }
        Ok((lo, hi))
    }

    fn size(self) -> Result<u64, ParseOverridesError> {
        let digits = self.text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match self.text[digits.len()..].trim() {
            "" => Some(0),
            "k" | "K" => Some(10),
            "m" | "M" => Some(20),
            "g" | "G" => Some(30),
            _ => None,
        };
        let number: Option<u64> = digits.parse().ok();
        let bytes = number
            .zip(shift)
            .and_then(|(n, shift)| n.checked_mul(1 << shift));
        bytes.ok_or_else(|| {
            self.expected("a number of bytes, like '4096', '32k', '1m' or '2g'".into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Overrides, String> {
        text.parse().map_err(|e: ParseOverridesError| e.to_string())
    }

    #[test]
    fn what_is_printed_is_parsed() {
        for text in [
            "",
            "all_reduce:=ring",
            "all_reduce:0-32k=recursive_doubling,32k-=direct;broadcast:=pipelined",
            "reduce:100-3m=binomial;all_reduce:1g-=two_level_ring;reduce:=direct",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let spaced = " all-reduce : 0 - 32k = ring , -1024 = direct ; barrier:=dissemination ";
        let plain = "all_reduce:0-32k=ring,0-1k=direct;barrier:=dissemination";
        assert_eq!(parse(spaced).unwrap().to_string(), plain);
        assert_eq!(parse(spaced).unwrap().hash(), parse(plain).unwrap().hash());
        assert_ne!(parse("").unwrap().hash(), parse(plain).unwrap().hash());
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let o = parse("all_reduce:0-1k=ring,512-=direct").unwrap();
        let find = |bytes| o.find(OpKind::AllReduce, bytes).map(|r| r.algorithm);
        assert_eq!(find(1023), Some(Algorithm::Ring));
        assert_eq!(find(1024), Some(Algorithm::Direct));
        assert_eq!(o.find(OpKind::Reduce, 0), None);
        let o = parse("all_reduce:1k-2k=ring").unwrap();
        assert_eq!(o.find(OpKind::AllReduce, 2048), None);
    }

    #[test]
    fn nonsense_is_refused_with_its_place_and_what_was_expected() {
        let refused = |text: &str, at: usize, got: &str, want: &str| {
            let error = text.parse::<Overrides>().unwrap_err();
            assert_eq!((error.at, &*error.got), (at, got), "{text}");
            assert!(error.want.contains(want), "{text}: {}", error.want);
        };
        refused("ring", 1, "ring", "OPERATION:");
        refused("all_reduce:=ring;;", 18, "", "OPERATION:");
        refused("allreduce:=ring", 1, "allreduce", "all_reduce, broadcast");
        refused("all_reduce:ring", 12, "ring", "'=ring' for every size");
        refused("all_reduce:=rung", 13, "rung", "recursive_doubling");
        refused("all_reduce:32k=ring", 12, "32k", "a range");
        refused("all_reduce:0-=ring, 4x-=ring", 21, "4x", "'32k'");
        refused("all_reduce:9-3=ring", 12, "9-3", "larger than its start");
        refused("é:=ring", 1, "é", "an operation");
        refused(
            "all_reduce:0-99999999999g=ring",
            14,
            "99999999999g",
            "a number",
        );
        refused("all_reduce:-k=ring", 13, "k", "a number");
    }
}
