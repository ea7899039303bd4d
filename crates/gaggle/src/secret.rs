//! The job's secret: given by the user, or made by rank 0 for the ranks of one host.
//!
//! A secret that rank 0 makes lies, with the port of its store, in a file that only its user can read, in `XDG_RUNTIME_DIR` or the directory for temporary files, and is removed once all ranks have met.
//! A reader trusts only a regular file of its own user's that nobody else may read, so that in a directory that all users share nobody can slip another secret in.

use gaggle_core::Error;
use gaggle_transport::auth::Secret;
use std::path::{Path, PathBuf};

pub(crate) fn from_hex(name: &str, text: &str) -> Result<Secret, Error> {
    Secret::from_hex(text).map_err(|e| invalid(format!("{name}: {e}")))
}

pub(crate) fn from_file(path: &Path) -> Result<Secret, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| invalid(format!("GAGGLE_SECRET_FILE: {}: {e}", path.display())))?;
    from_hex("GAGGLE_SECRET_FILE", &text)
}

/// What `GAGGLE_INSECURE` uses: known to everybody, so that only a mistake is kept out.
pub(crate) fn known_to_all() -> Secret {
    Secret::from_bytes([0; 32])
}

/// The file in which rank 0 leaves its secret.
pub(crate) fn private_path(name: &str) -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|dir| !dir.is_empty())
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(name)
}

/// A secret in a private file, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateFile {
    path: PathBuf,
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        // It may have been cleared away by others; then nothing is left to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl PrivateFile {
    /// Leaves a secret and the port of the store that knows it. What an earlier job that was killed has left there is replaced.
    pub(crate) fn create(path: PathBuf, secret: &Secret, port: u16) -> Result<PrivateFile, Error> {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => write_private(&path, &format!("{} {port}\n", secret.to_hex())),
        }
        .map_err(|e| {
            invalid(format!(
                "no secret can be left for the other ranks in {}: {e}; set GAGGLE_SECRET",
                path.display()
            ))
        })?;
        Ok(PrivateFile { path })
    }
}

#[cfg(unix)]
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    // `create_new` follows no link and opens nothing that another user has put there.
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(not(unix))]
fn write_private(_: &Path, _: &str) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// A secret for the ranks of one host.
pub(crate) fn random() -> Result<Secret, Error> {
    Secret::random().map_err(|e| invalid(e.to_string()))
}

/// The secret in rank 0's file and the port of its store, or what is wrong with the file.
#[cfg(unix)]
pub(crate) fn read_private(path: &Path) -> Result<(Secret, u16), String> {
    use std::{io::Read, os::unix::fs::MetadataExt};
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file()
        || meta.uid() != rustix::process::geteuid().as_raw()
        || meta.mode() & 0o077 != 0
    {
        return Err("it is not this user's alone".into());
    }
    let mut text = String::new();
    file.take(80)
        .read_to_string(&mut text)
        .map_err(|e| e.to_string())?;
    // The line's end says that rank 0 has written all of it.
    let whole = text
        .strip_suffix('\n')
        .and_then(|line| line.split_once(' '));
    let (secret, port) = whole.ok_or("it is not complete")?;
    let port = port.parse().map_err(|_| "its port is no number")?;
    Ok((Secret::from_hex(secret).map_err(|e| e.to_string())?, port))
}

#[cfg(not(unix))]
pub(crate) fn read_private(_: &Path) -> Result<(Secret, u16), String> {
    Err("private files are not supported on this system; set GAGGLE_SECRET".into())
}

fn invalid(what: String) -> Error {
    Error::invalid("join", what)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_secret_is_left_privately_and_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "left by an earlier job").unwrap();
        assert!(read_private(&path).is_err());
        let secret = random().unwrap();
        let file = PrivateFile::create(path.clone(), &secret, 4711).unwrap();
        let (read, port) = read_private(&path).unwrap();
        assert_eq!((read.to_hex(), port), (secret.to_hex(), 4711));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(
            read_private(&path).unwrap_err(),
            "it is not this user's alone"
        );
        drop(file);
        assert!(!path.exists());
        assert!(read_private(&path).is_err());
    }

    #[test]
    fn malformed_secrets_are_refused_without_being_shown() {
        let e = from_hex("GAGGLE_SECRET", "hunter2")
            .unwrap_err()
            .to_string();
        assert!(e.contains("GAGGLE_SECRET") && !e.contains("hunter2"), "{e}");
        let e = from_file(Path::new("/does/not/exist")).unwrap_err();
        assert!(e.to_string().contains("GAGGLE_SECRET_FILE"), "{e}");
    }
}
