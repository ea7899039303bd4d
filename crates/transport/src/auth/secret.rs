//! The job's secret: where it comes from, how it is written down, what it signs.

use hmac::{Hmac, Mac};
use rand::{TryRngCore, rngs::OsRng};
use sha2::Sha256;
use std::{fmt, str::FromStr};

/// 256 bits that every rank of a job knows and nobody else. Printing it with `{:?}` shows nothing.
#[derive(Clone)]
pub struct Secret(pub(super) [u8; 32]);

/// A secret that could not be had. Says nothing of what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Not 64 hexadecimal digits.
    #[error("a secret is 64 hexadecimal digits; this has {0} characters or other signs")]
    Malformed(usize),
    /// The operating system gave no random bytes.
    #[error("the operating system's random generator failed")]
    NoRandomness,
}

impl Secret {
    /// A new secret from the operating system's generator.
    ///
    /// # Errors
    /// [`SecretError::NoRandomness`].
    pub fn random() -> Result<Secret, SecretError> {
        let mut bytes = [0; 32];
        OsRng
            .try_fill_bytes(&mut bytes)
            .map_err(|_| SecretError::NoRandomness)?;
        Ok(Secret(bytes))
    }

    /// From its 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// From 64 hexadecimal digits; white space around them is ignored.
    ///
    /// # Errors
    /// [`SecretError::Malformed`].
    pub fn from_hex(text: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        let malformed = SecretError::Malformed(text.chars().count());
        if text.len() != 64 {
            return Err(malformed);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0]).ok_or(malformed)? << 4 | digit(pair[1]).ok_or(malformed)?;
        }
        Ok(Secret(bytes))
    }

    /// As 64 hexadecimal digits, for a child's environment or a file that only its owner reads.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    pub(super) fn mac(&self, label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            <Hmac<Sha256> as Mac>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label);
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

fn digit(c: u8) -> Option<u8> {
    char::from(c)
        .to_digit(16)
        .and_then(|d| u8::try_from(d).ok())
}

impl FromStr for Secret {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<Secret, SecretError> {
        Secret::from_hex(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}
