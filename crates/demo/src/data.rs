//! The data set that ships with the repository: 10,000 handwritten digits.
//!
//! The main type is [`Digits`]: images and labels, checked when they are unpacked.
//! How they are split among ranks is [`crate::partition`]'s business.
//!
//! The file (see `data/README.md`) is a gzip stream of a 16-byte head and two tables:
//!
//! ```text
//! 0   4  magic "GGDG"
//! 4   4  number of images n, little-endian
//! 8   2  rows, little-endian
//! 10  2  columns, little-endian
//! 12  4  number of classes, little-endian
//! 16  n  labels, one byte each
//! ..     n·rows·columns grey levels, row by row, 0 is background and 255 is ink
//! ```

use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::io::Read;

/// The packed file, as it lies in the repository.
pub const PACKED: &[u8] = include_bytes!("../../../data/mnist-10k.bin.gz");

/// First bytes of the unpacked file.
pub const MAGIC: [u8; 4] = *b"GGDG";

/// Length of the head in bytes.
pub const HEAD: usize = 16;

/// Images in the packed file.
pub const COUNT: usize = 10_000;

/// Images that are kept aside for testing.
pub const TEST: usize = 1_000;

/// Grey levels per image.
pub const PIXELS: usize = 28 * 28;

/// Number of classes.
pub const CLASSES: usize = 10;

/// The split into training and test images is the same in every run.
const SPLIT_SEED: u64 = 0x6761_6767_6c65;

/// Why the packed data cannot be used. Nothing of it is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The gzip stream is damaged; its checksum is part of that.
    #[error("digits: cannot be unpacked")]
    Unpack(#[source] std::io::Error),
    /// Not a file of digits.
    #[error("digits: the file begins with {got:02x?}, not with {MAGIC:02x?}")]
    Magic {
        /// The first bytes.
        got: [u8; 4],
    },
    /// A number in the head is not what this program was built for.
    #[error("digits: {field} is {got}, expected {want}")]
    Shape {
        /// Which number.
        field: &'static str,
        /// What the program expects.
        want: usize,
        /// What the file says.
        got: usize,
    },
    /// The file ends early or late.
    #[error("digits: {got} bytes, the head promises {want}")]
    Length {
        /// By the head.
        want: usize,
        /// In the file.
        got: usize,
    },
    /// A label that no class has.
    #[error("digits: image {image} has label {label}, there are {CLASSES} classes")]
    Label {
        /// Position in the file.
        image: usize,
        /// Its label.
        label: u8,
    },
}

/// Images of one set, with their labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Grey levels, [`PIXELS`] per image.
    pub pixels: Vec<u8>,
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

    /// The grey levels of image `i`.
    pub fn image(&self, i: usize) -> &[u8] {
        &self.pixels[i * PIXELS..(i + 1) * PIXELS]
    }

    /// How many images there are of each class.
    pub fn histogram(&self) -> [usize; CLASSES] {
        histogram(self.labels.iter().copied())
    }

    fn pick(&self, which: &[usize]) -> Set {
        let mut pixels = Vec::with_capacity(which.len() * PIXELS);
        for &i in which {
            pixels.extend_from_slice(self.image(i));
        }
        Set {
            pixels,
            labels: which.iter().map(|&i| self.labels[i]).collect(),
        }
    }
}

/// How many labels there are of each class.
pub fn histogram(labels: impl Iterator<Item = u8>) -> [usize; CLASSES] {
    let mut counts = [0; CLASSES];
    for label in labels {
        counts[label as usize] += 1;
    }
    counts
}

/// The digits, split once and for all into training and test images.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub fn load() -> Result<Digits, DataError> {
        Ok(Self::split(unpack(PACKED)?))
    }

    fn split(all: Set) -> Digits {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(SPLIT_SEED));
        let (test, train) = order.split_at(TEST);
        Digits {
            train: all.pick(train),
            test: all.pick(test),
        }
    }
}

/// Unpacks and checks a file of digits, all images in the file's order.
///
/// # Errors
/// See [`DataError`].
pub fn unpack(packed: &[u8]) -> Result<Set, DataError> {
    let want = HEAD + COUNT * (1 + PIXELS);
    let mut bytes = Vec::with_capacity(want);
    // One byte more than is expected is enough to see that there is too much.
    flate2::read::GzDecoder::new(packed)
        .take(want as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(DataError::Unpack)?;
    let Some((head, body)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(DataError::Length {
            want,
            got: bytes.len(),
        });
    };
    check_head(head)?;
    if bytes.len() != want {
        return Err(DataError::Length {
            want,
            got: bytes.len(),
        });
    }
    let (labels, pixels) = body.split_at(COUNT);
    if let Some(image) = labels.iter().position(|&l| l as usize >= CLASSES) {
        return Err(DataError::Label {
            image,
            label: labels[image],
        });
    }
    Ok(Set {
        pixels: pixels.to_vec(),
        labels: labels.to_vec(),
    })
}

fn check_head(head: &[u8; HEAD]) -> Result<(), DataError> {
    let [a, b, c, d, n0, n1, n2, n3, r0, r1, c0, c1, k0, k1, k2, k3] = *head;
    if [a, b, c, d] != MAGIC {
        return Err(DataError::Magic { got: [a, b, c, d] });
    }
    let fields = [
        ("images", COUNT, u32::from_le_bytes([n0, n1, n2, n3])),
        ("rows", 28, u16::from_le_bytes([r0, r1]).into()),
        ("columns", 28, u16::from_le_bytes([c0, c1]).into()),
        ("classes", CLASSES, u32::from_le_bytes([k0, k1, k2, k3])),
    ];
    for (field, want, got) in fields {
        if want as u64 != u64::from(got) {
            return Err(DataError::Shape {
                field,
                want,
                got: got as usize,
            });
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

    fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut z = GzEncoder::new(Vec::new(), Compression::fast());
        z.write_all(bytes).unwrap();
        z.finish().unwrap()
    }

    fn unpacked() -> Vec<u8> {
        let mut bytes = vec![];
        flate2::read::GzDecoder::new(PACKED)
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    }

    /// Counts and checksum as `data/README.md` states them.
    #[test]
    fn the_file_is_the_one_that_the_readme_describes() {
        let readme = include_str!("../../../data/README.md");
        let hash: String = Sha256::digest(PACKED)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert!(readme.contains(&hash), "README lacks {hash}");
        assert!(PACKED.len() < 2_000_000);
        let all = unpack(PACKED).unwrap();
        assert_eq!(all.len(), COUNT);
        let counts = all.histogram();
        assert_eq!(
            counts,
            [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
        );
        for (digit, n) in counts.iter().enumerate() {
            assert!(readme.contains(&format!("| {digit} | {n} |")), "{digit}");
        }
    }

    #[test]
    fn the_split_is_fixed_and_every_class_is_tested() {
        let digits = Digits::load().unwrap();
        assert_eq!(digits, Digits::load().unwrap());
        assert_eq!(digits.train.len(), COUNT - TEST);
        assert_eq!(digits.test.len(), TEST);
        assert!(digits.test.histogram().iter().all(|&n| n >= TEST / 20));
        let whole = unpack(PACKED).unwrap().histogram();
        for (class, n) in whole.iter().enumerate() {
            let parts = digits.train.histogram()[class] + digits.test.histogram()[class];
            assert_eq!(parts, *n);
        }
    }

    #[test]
    fn damage_is_reported_and_named() {
        let good = unpacked();
        assert!(matches!(unpack(&PACKED[..1000]), Err(DataError::Unpack(_))));
        let mut flipped = PACKED.to_vec();
        let last = flipped.len() - 6; // the stream's own checksum
        flipped[last] ^= 1;
        assert!(matches!(unpack(&flipped), Err(DataError::Unpack(_))));
        assert!(matches!(
            unpack(&pack(&good[..10])),
            Err(DataError::Length { got: 10, .. })
        ));
        assert!(matches!(
            unpack(&pack(&good[..good.len() - 1])),
            Err(DataError::Length { .. })
        ));
        let mut longer = good.clone();
        longer.push(0);
        assert!(matches!(
            unpack(&pack(&longer)),
            Err(DataError::Length { .. })
        ));
        let mut magic = good.clone();
        magic[0] = b'X';
        assert!(matches!(
            unpack(&pack(&magic)),
            Err(DataError::Magic { .. })
        ));
        let mut rows = good.clone();
        rows[8] = 27;
        let error = unpack(&pack(&rows)).unwrap_err();
        assert_eq!(error.to_string(), "digits: rows is 27, expected 28");
        let mut label = good;
        label[HEAD + 7] = 10;
        assert!(matches!(
            unpack(&pack(&label)),
            Err(DataError::Label {
                image: 7,
                label: 10
            })
        ));
    }
}
