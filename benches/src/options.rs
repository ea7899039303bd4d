//! Values of options that several programs have, looked at before anything is measured: whoever gives a wrong one learns it at once, and the exit code is that of a wrong command line.

use std::{
    fs::{self, OpenOptions},
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Rounds that judge where times are compared in pairs; fewer judge nothing.
pub const ROUNDS: usize = 7;

/// A number from 1.
///
/// # Errors
/// It is none; the words are for the user.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number from 1".into()),
        Ok(n) => Ok(n),
    }
}

/// A program that is there.
///
/// # Errors
/// There is no such file, or it cannot be executed.
pub fn program(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let facts = fs::metadata(&path).map_err(|e| e.to_string())?;
    match facts.is_file() && is_executable(&facts) {
        true => Ok(path),
        false => Err("this is no program".into()),
    }
}

#[cfg(unix)]
fn is_executable(facts: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    facts.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata) -> bool {
    true
}

/// A file that can be written; what is in it stays.
///
/// # Errors
/// What the system says.
pub fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    match made {
        // Nothing is to be left of what is not written.
        Ok(_) => fs::remove_file(&path),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().append(true).open(&path).map(drop)
        }
        Err(e) => Err(e),
    }
    .map_err(|e| e.to_string())?;
    Ok(path)
}

/// A folder that is there or can be made.
///
/// # Errors
/// What the system says.
pub fn folder(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    fs::create_dir_all(path).map_err(|e| e.to_string())?;
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        assert!(program(&at("none")).is_err() && program(&at(".")).is_err());
        fs::write(at("text"), "x").expect("written");
        assert!(program("/bin/sh").is_ok() && program(&at("text")).is_err());
        assert!(file(&at("no/file")).is_err() && folder(&at("text")).is_err());
        assert!(file(&at("new")).is_ok() && !Path::new(&at("new")).exists());
        assert!(file(&at("text")).is_ok() && folder(&at("a/b")).is_ok());
        assert_eq!(fs::read_to_string(at("text")).expect("there"), "x");
        assert!(at_least_one("0").is_err() && at_least_one("7") == Ok(7));
    }
}
