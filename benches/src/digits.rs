//! The 8 by 8 digits that ship with the repository: 1,797 images of 64 levels, small enough to train hundreds of models on in minutes.
//!
//! The main type is [`Digits`]: images and labels, checked when they are unpacked, and split once and for all.
//! The file, where it comes from and its licence are described in `data/README.md`.

use flate2::read::GzDecoder;
use std::{collections::BTreeSet, io::Read};

/// The packed file, as it lies in the repository.
const PACKED: &[u8] = include_bytes!("../../data/digits-8x8.csv.gz");

/// The lines of that file that are kept aside for testing, in every run.
const TEST_LINES: &str = include_str!("../../data/digits-8x8.test.txt");

/// Images in the file.
pub const COUNT: usize = 1797;
/// Images that are kept aside for testing.
pub const TEST: usize = 360;
/// Levels per image.
pub const PIXELS: usize = 64;
/// The level of full ink.
pub const INK: u8 = 16;
/// Number of classes.
pub const CLASSES: usize = 10;

/// Why the digits cannot be used. Nothing of them is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// The gzip stream is damaged, or is no text.
    #[error("digits: cannot be unpacked")]
    Unpack(#[source] std::io::Error),
    /// A line with too few or too many numbers.
    #[error("digits: line {line} has {got} numbers, wanted {want}")]
    Width {
        /// From 1.
        line: usize,
        /// Levels and label.
        want: usize,
        /// In the file.
        got: usize,
    },
    /// Something that is no level or no label.
    #[error("digits: line {line}, number {column}: {got:?}, wanted 0 to {most}")]
    Number {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// The largest that may stand there.
        most: u8,
        /// In the file.
        got: String,
    },
    /// The list of test images is not one of that many lines of the file.
    #[error("digits: {got} test images, wanted {want}, each a line from 1 to {COUNT}")]
    Split {
        /// What this program was built for.
        want: usize,
        /// Lines of the file in the list, each counted once.
        got: usize,
    },
    /// The file ends early or late.
    #[error("digits: {got} images, wanted {want}")]
    Count {
        /// What this program was built for.
        want: usize,
        /// In the file, as far as it was read.
        got: usize,
    },
}

/// Images with their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    /// From 0 (background) to 1 (ink), [`PIXELS`] per image, row by row.
    pub pixels: Vec<f64>,
    /// One per image, below [`CLASSES`].
    pub labels: Vec<u8>,
}

impl Set {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The pixels of image `i`.
    pub fn image(&self, i: usize) -> &[f64] {
        &self.pixels[i * PIXELS..(i + 1) * PIXELS]
    }

    fn pick(&self, which: &[usize]) -> Set {
        Set {
            pixels: which.iter().flat_map(|&i| self.image(i)).copied().collect(),
            labels: which.iter().map(|&i| self.labels[i]).collect(),
        }
    }
}

/// The digits, split into training and test images.
#[derive(Clone, Debug, PartialEq)]
pub struct Digits {
    /// To learn from.
    pub train: Set,
    /// To judge by: never seen in training.
    pub test: Set,
}

impl Digits {
    /// The digits that ship with the repository.
    ///
    /// # Errors
    /// The bytes built into the program are damaged.
    pub fn load() -> Result<Digits, DigitsError> {
        Digits::split(&unpack(PACKED)?, TEST_LINES)
    }

    fn split(all: &Set, test_lines: &str) -> Result<Digits, DigitsError> {
        let numbers = test_lines.split_whitespace();
        let test: BTreeSet<usize> = numbers
            .filter_map(|n| n.parse::<usize>().ok()?.checked_sub(1))
            .filter(|i| *i < all.len())
            .collect();
        if test.len() != TEST {
            let (want, got) = (TEST, test.len());
            return Err(DigitsError::Split { want, got });
        }
        let (test, train): (Vec<usize>, Vec<usize>) =
            (0..all.len()).partition(|i| test.contains(i));
        Ok(Digits {
            train: all.pick(&train),
            test: all.pick(&test),
        })
    }
}

/// Unpacks and checks a file of digits, all images in the file's order.
///
/// # Errors
/// See [`DigitsError`].
pub fn unpack(packed: &[u8]) -> Result<Set, DigitsError> {
    let mut text = String::new();
    // A line has at most 3 characters a number; what is longer than all of them together is another file.
    let most = (3 * (PIXELS + 1) * (COUNT + 1)) as u64;
    GzDecoder::new(packed)
        .take(most)
        .read_to_string(&mut text)
        .map_err(DigitsError::Unpack)?;
    let mut all = Set::default();
    for (line, row) in (1..).zip(text.lines()) {
        if line > COUNT {
            let (want, got) = (COUNT, line);
            return Err(DigitsError::Count { want, got });
        }
        read_row(line, row, &mut all)?;
    }
    match all.len() {
        COUNT => Ok(all),
        got => Err(DigitsError::Count { want: COUNT, got }),
    }
}

fn read_row(line: usize, row: &str, all: &mut Set) -> Result<(), DigitsError> {
    let (want, got) = (PIXELS + 1, row.split(',').count());
    if got != want {
        return Err(DigitsError::Width { line, want, got });
    }
    for (at, text) in row.split(',').enumerate() {
        let most = if at < PIXELS { INK } else { CLASSES as u8 - 1 };
        let number = text.parse::<u8>().ok().filter(|n| *n <= most);
        let number = number.ok_or_else(|| DigitsError::Number {
            line,
            column: at + 1,
            most,
            got: text.into(),
        })?;
        match at < PIXELS {
            true => all.pixels.push(f64::from(number) / f64::from(INK)),
            false => all.labels.push(number),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use sha2::{Digest, Sha256};
    use std::io::Write;

    fn pack(text: &str) -> Vec<u8> {
        let mut z = GzEncoder::new(Vec::new(), Compression::fast());
        z.write_all(text.as_bytes()).expect("in memory");
        z.finish().expect("in memory")
    }

    fn text() -> String {
        let mut text = String::new();
        let read = GzDecoder::new(PACKED).read_to_string(&mut text);
        read.expect("the file as it is");
        text
    }

    #[test]
    fn the_file_is_the_one_that_the_readme_describes() {
        let readme = include_str!("../../data/README.md");
        let hash: String = Sha256::digest(PACKED)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert!(readme.contains(&hash), "README lacks {hash}");
        let all = unpack(PACKED).expect("sound");
        assert_eq!((all.len(), all.pixels.len()), (COUNT, COUNT * PIXELS));
        for digit in 0..CLASSES {
            let n = all.labels.iter().filter(|&&l| l as usize == digit).count();
            assert!(
                readme.contains(&format!("| {digit} | {n} |")),
                "{digit}: {n}"
            );
        }
    }

    #[test]
    fn the_split_is_fixed_and_every_class_is_tested() {
        let digits = Digits::load().expect("sound");
        assert_eq!(digits, Digits::load().expect("sound"));
        assert_eq!(
            (digits.train.len(), digits.test.len()),
            (COUNT - TEST, TEST)
        );
        for digit in 0..CLASSES as u8 {
            let n = digits.test.labels.iter().filter(|&&l| l == digit).count();
            assert!(n >= TEST / 20, "{digit}: {n}");
        }
        let all = unpack(PACKED).expect("sound");
        for (lines, got) in [("1 2 2 0 1798 x", 2), ("", 0)] {
            let error = Digits::split(&all, lines).expect_err("too few");
            let text = format!("digits: {got} test images, wanted 360");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }

    #[test]
    fn damage_is_reported_and_named() {
        let good = text();
        let error = |text: &str| unpack(&pack(text)).expect_err("damaged").to_string();
        assert!(matches!(
            unpack(&PACKED[..999]),
            Err(DigitsError::Unpack(_))
        ));
        assert_eq!(error(""), "digits: 0 images, wanted 1797");
        let short = good.rsplit_once("\n").map_or("", |(rest, _)| rest);
        let short = short.rsplit_once("\n").map_or("", |(rest, _)| rest);
        assert_eq!(error(short), "digits: 1796 images, wanted 1797");
        assert_eq!(
            error(&(good.clone() + &good)),
            "digits: 1798 images, wanted 1797"
        );
        let narrow = good.replacen("0,0,", "0,", 1);
        assert_eq!(error(&narrow), "digits: line 1 has 64 numbers, wanted 65");
        let dark = good.replacen("0,0,5,", "0,17,5,", 1);
        assert_eq!(
            error(&dark),
            "digits: line 1, number 2: \"17\", wanted 0 to 16"
        );
        let label = good.replacen(",0\n", ",10\n", 1);
        assert_eq!(
            error(&label),
            "digits: line 1, number 65: \"10\", wanted 0 to 9"
        );
    }
}
