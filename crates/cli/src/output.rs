//! A file that is written when the work is done, and opened before it begins: whoever has measured for an hour does not learn then that there is no such folder.

use crate::failure::Failure;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A file that can be written. What was in it stays until [`write`](Output::write); one that was not there before goes again, if nothing is written.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    /// Made by this, and still empty.
    blank: bool,
}

impl Output {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// [`Failure::Write`], with what the system says.
    pub(crate) fn open(path: &Path) -> Result<Output, Failure> {
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        let (opened, blank) = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            made => (made, true),
        };
        Ok(Output {
            file: opened.map_err(|why| failed(path, why))?,
            path: path.to_owned(),
            blank,
        })
    }

    /// Replaces what is in the file.
    ///
    /// # Errors
    /// [`Failure::Write`], with what the system says; how much is in the file is not known then.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.blank = false;
        let replace = || {
            // Pipes and devices have no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
                (&self.file).seek(SeekFrom::Start(0))?;
            }
            (&self.file).write_all(text.as_bytes())
        };
        replace().map_err(|why| failed(&self.path, why))
    }
}

fn failed(path: &Path, why: io::Error) -> Failure {
    Failure::Write {
        path: path.to_owned(),
        why,
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.blank {
            // What cannot be removed is an empty file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_when_it_is_written_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "what was there").unwrap();
        for path in [&old, &new] {
            drop(Output::open(path).unwrap());
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "what was there");
        assert!(!new.exists());
        for path in [&old, &new] {
            Output::open(path).unwrap().write("short").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "short");
        }
        let nowhere = Output::open(&dir.path().join("no/file")).unwrap_err();
        assert!(
            nowhere.to_string().starts_with("cannot write "),
            "{nowhere}"
        );
        Output::open(Path::new("/dev/null"))
            .unwrap()
            .write("x")
            .unwrap();
        assert!(Path::new("/dev/null").exists());
    }
}
