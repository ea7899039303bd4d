//! Everything but the parameters, to be written down and read again bit for bit.

use crate::Pace;
use gaggle_core::{
    Float, Rule,
    raw::{bytes_of, bytes_of_mut},
};

/// The rule's vectors by name, and where the run is.
///
/// Elements are kept bit for bit, NaNs too.
///
/// [`State::to_bytes`] and [`State::from_bytes`] carry it through a file; the layout is little-endian, begins with a mark and a version, and ends with a sum of all bytes.
/// It is our own because none of the common ones says when it is damaged, or keeps vectors in their order and with names that may come twice, as rules within rules have them; who wants another one visits the vectors ([`Decentralised::state`](crate::Decentralised::state)).
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    rule: String,
    dtype: u8,
    n: u64,
    pace: Pace,
    /// The elements' bytes, little-endian.
    vectors: Vec<(String, Vec<u8>)>,
}

/// What is wrong with a state, or with the moment of saving it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A step, or the sum over its micro-batches, is not complete. Nothing has changed; end the step first.
    #[error("step {step} is under way")]
    MidStep {
        /// Which step.
        step: u64,
    },
    /// A message crosses steps. Nothing has changed; take one more step and try again.
    #[error("at step {step} a message is under way that is due in step {due}")]
    InFlight {
        /// Steps done.
        step: u64,
        /// In which step it is taken in.
        due: u64,
    },
    /// The state is another rule's. Nothing has changed.
    #[error("the state is of rule {got}, wanted {want}")]
    Rule {
        /// Whose it is.
        got: String,
        /// Whose it should be.
        want: String,
    },
    /// Another element type or number of parameters. Nothing has changed.
    #[error("{what} is {got}, wanted {want}")]
    Shape {
        /// What differs.
        what: &'static str,
        /// In the state.
        got: u64,
        /// In the rule.
        want: u64,
    },
    /// It is further than a run can be told to be ([`Pace::MOST_STEPS`]). Nothing has changed.
    #[error("{what} is {got}, wanted at most {}", Pace::MOST_STEPS)]
    TooFar {
        /// What is counted.
        what: &'static str,
        /// In the state.
        got: u64,
    },
    /// A vector has another name or length. Nothing has changed.
    #[error("vector {index} is {got_name:?} with {got} elements, wanted {want_name:?} with {want}")]
    Vector {
        /// Its number.
        index: usize,
        /// In the state.
        got_name: String,
        /// In the state.
        got: usize,
        /// In the rule.
        want_name: String,
        /// In the rule.
        want: usize,
    },
    /// These bytes are no state, or not a whole one.
    #[error("byte {at} of the state: {what}")]
    Bytes {
        /// Where reading stopped.
        at: usize,
        /// What is wrong there.
        what: &'static str,
    },
}

/// `gaggle` and the version of the layout.
const MARK: [u8; 8] = *b"gaggle\x00\x02";

impl State {
    /// Copies the state of a rule on `n` parameters.
    pub fn of<T: Float>(rule: &mut dyn Rule<T>, n: usize, pace: Pace) -> State {
        let mut vectors = Vec::new();
        rule.state(&mut |name, v| {
            let mut bytes = bytes_of(&v[..]).to_vec();
            little_endian(&mut bytes, size_of::<T>());
            vectors.push((name.to_owned(), bytes));
        });
        State {
            rule: rule.name().to_owned(),
            dtype: T::DTYPE as u8,
            n: n as u64,
            pace,
            vectors,
        }
    }

    /// Writes it into a rule on `n` parameters that has been through `init`; where the run is comes back.
    ///
    /// Vectors whose length depends on the neighbours ([`Rule::by_neighbours`]) take the state's length.
    ///
    /// # Errors
    /// Another rule's, or of other lengths; the rule is as before.
    pub fn restore<T: Float>(&self, rule: &mut dyn Rule<T>, n: usize) -> Result<Pace, StateError> {
        let Pace {
            step, round, since, ..
        } = self.pace;
        for (what, got) in [("step", step), ("round", round), ("local step", since)] {
            if got > Pace::MOST_STEPS {
                return Err(StateError::TooFar { what, got });
            }
        }
        self.check(rule, n)?;
        // This rule may have met its neighbours and the saved one not yet, or the other way round.
        rule.rewired();
        self.write(rule);
        Ok(self.pace)
    }

    fn write<T: Float>(&self, rule: &mut dyn Rule<T>) {
        let mut saved = self.vectors.iter();
        rule.state(&mut |_, v| {
            if let Some((_, bytes)) = saved.next() {
                v.resize(bytes.len() / size_of::<T>(), T::from_f64(0.0));
                let to = bytes_of_mut(&mut v[..]);
                to.copy_from_slice(&bytes[..to.len()]);
                little_endian(to, size_of::<T>());
            }
        });
    }

    fn check<T: Float>(&self, rule: &mut dyn Rule<T>, n: usize) -> Result<(), StateError> {
        if self.rule != rule.name() {
            return Err(StateError::Rule {
                got: self.rule.clone(),
                want: rule.name().to_owned(),
            });
        }
        let shape = |what, got, want| Err(StateError::Shape { what, got, want });
        if self.dtype != T::DTYPE as u8 {
            return shape("element type", self.dtype.into(), u64::from(T::DTYPE as u8));
        }
        if self.n != n as u64 {
            return shape("number of parameters", self.n, n as u64);
        }
        let mut by_neighbours = Vec::new();
        rule.by_neighbours(&mut |name| by_neighbours.push(name.to_owned()));
        let (mut index, mut wrong) = (0, None);
        rule.state(&mut |name, v| {
            let (got_name, got) = match self.vectors.get(index) {
                Some((name, bytes)) => (name.clone(), bytes.len() / size_of::<T>()),
                None => (String::new(), 0),
            };
            let any_length = by_neighbours.iter().any(|free| free == name);
            let fits = got_name == name && (got == v.len() || any_length);
            if !fits && wrong.is_none() {
                wrong = Some(StateError::Vector {
                    index,
                    got_name,
                    got,
                    want_name: name.to_owned(),
                    want: v.len(),
                });
            }
            index += 1;
        });
        if index != self.vectors.len() && wrong.is_none() {
            return shape("number of vectors", self.vectors.len() as u64, index as u64);
        }
        wrong.map_or(Ok(()), Err)
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MARK.to_vec();
        let word = |out: &mut Vec<u8>, v: u64| out.extend_from_slice(&v.to_le_bytes());
        let text = |out: &mut Vec<u8>, s: &str| {
            word(out, s.len() as u64);
            out.extend_from_slice(s.as_bytes());
        };
        text(&mut out, &self.rule);
        let Pace {
            step,
            round,
            since,
            period,
        } = self.pace;
        let vectors = self.vectors.len() as u64;
        for v in [
            self.dtype.into(),
            self.n,
            step,
            round,
            since,
            period,
            vectors,
        ] {
            word(&mut out, v);
        }
        for (name, bytes) in &self.vectors {
            text(&mut out, name);
            word(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        let sum = checksum(&out);
        word(&mut out, sum);
        out
    }

    /// From the bytes of [`State::to_bytes`].
    ///
    /// # Errors
    /// They are not, or not all of them, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<State, StateError> {
        let wrong = |at, what| Err(StateError::Bytes { at, what });
        if !bytes.starts_with(&MARK) {
            return wrong(0, "no state of this version begins like this");
        }
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return wrong(bytes.len(), "cut off");
        };
        if u64::from_le_bytes(*sum) != checksum(body) {
            return wrong(
                body.len(),
                "the sum of all bytes is another: cut off or damaged",
            );
        }
        let mut r = Reader {
            bytes: body,
            at: MARK.len(),
        };
        let rule = r.text()?;
        let Ok(dtype) = u8::try_from(r.word()?) else {
            return wrong(r.at, "no element type");
        };
        let n = r.word()?;
        let pace = Pace {
            step: r.word()?,
            round: r.word()?,
            since: r.word()?,
            period: r.word()?.max(1),
        };
        let mut vectors = Vec::new();
        for _ in 0..r.word()? {
            vectors.push((r.text()?, r.bytes()?.to_vec()));
        }
        if r.at != body.len() {
            return wrong(r.at, "more than a state");
        }
        Ok(State {
            rule,
            dtype,
            n,
            pace,
            vectors,
        })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Result<&[u8], StateError> {
        let cut = StateError::Bytes {
            at: self.at,
            what: "cut off",
        };
        let end = self.at.checked_add(n).ok_or(cut.clone())?;
        let taken = self.bytes.get(self.at..end).ok_or(cut)?;
        self.at = end;
        Ok(taken)
    }
    fn word(&mut self) -> Result<u64, StateError> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(word))
    }
    /// As many as the word before them says.
    fn bytes(&mut self) -> Result<&[u8], StateError> {
        let len = self.word()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }
    fn text(&mut self) -> Result<String, StateError> {
        let at = self.at;
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned).map_err(|_| StateError::Bytes {
            at,
            what: "a name is no text",
        })
    }
}

/// Between this machine's order of an element's bytes and the file's, both ways.
fn little_endian(bytes: &mut [u8], size: usize) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}
