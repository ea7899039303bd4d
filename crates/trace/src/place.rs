//! Where recordings lie, who may put them there, and when they go.
//!
//! `GAGGLE_TRACE_DIR` names the directory; otherwise it is `gaggle-trace-<uid>` in `XDG_RUNTIME_DIR`, or in the directory for temporary files, of this user and closed to all others.
//! `GAGGLE_TRACE=off` switches recording off.
//! A recording goes when its rank leaves and nothing has gone wrong.
//! Others stay until there are too many: [`prune`].

use crate::layout::MAGIC;
use gaggle_core::Rank;
use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The variable that switches recording off.
pub const SWITCH: &str = "GAGGLE_TRACE";
/// The variable that names another directory.
pub const DIRECTORY: &str = "GAGGLE_TRACE_DIR";

/// Where recordings are to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Off,
    /// In a directory that the user has named.
    Named(PathBuf),
    /// In this user's own.
    Private(PathBuf),
}

/// What the environment says. A value of `GAGGLE_TRACE` that is neither `off` nor `on` counts as `on`.
pub fn place(var: &dyn Fn(&str) -> Option<OsString>) -> Place {
    let var = |name: &str| var(name).filter(|v| !v.is_empty());
    if var(SWITCH).is_some_and(|v| v == "off" || v == "0") {
        return Place::Off;
    }
    if let Some(dir) = var(DIRECTORY) {
        return Place::Named(dir.into());
    }
    let base = var("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    Place::Private(base.join(format!("gaggle-trace-{}", user())))
}

#[cfg(unix)]
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(not(unix))]
fn user() -> &'static str {
    "user"
}

impl Place {
    /// The directory, as it is.
    pub fn dir(&self) -> Option<&Path> {
        match self {
            Place::Off => None,
            Place::Named(dir) | Place::Private(dir) => Some(dir),
        }
    }

    /// The directory, made if it is not there; `None` where nothing is to be recorded.
    ///
    /// # Errors
    /// It cannot be made, or the private one is not this user's: somebody else may have put it there to read along.
    pub fn prepare(&self) -> io::Result<Option<&Path>> {
        match self {
            Place::Off => Ok(None),
            Place::Named(dir) => {
                make(dir)?;
                Ok(Some(dir))
            }
            Place::Private(dir) => {
                make(dir)?;
                own(dir)?;
                Ok(Some(dir))
            }
        }
    }
}

fn make(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Insists on a directory, not a link to one, of this user's, and closes it to others.
#[cfg(unix)]
fn own(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != user() {
        let what = "the directory is not this user's own";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn own(_: &Path) -> io::Result<()> {
    Ok(())
}

/// What a recording is called: `<job>-rank<r>-<pid>.trace`, with a number where a process has several.
pub(crate) fn file_name(job: &str, rank: Rank, pid: u32, n: u32) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let job: String = job.chars().map(safe).take(100).collect();
    let job = match job.trim_start_matches('.') {
        "" => "job",
        job => job,
    };
    let again = if n > 1 {
        format!("-{n}")
    } else {
        String::new()
    };
    format!("{job}-rank{}-{pid}{again}.trace", rank.0)
}

/// The recordings in a directory, by name; a directory that is not there has none.
///
/// # Errors
/// It cannot be read.
pub fn recordings(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut found = vec![];
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "trace") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a recording's process still lives: it holds a lock as long as it does. A process that cannot be asked about counts as alive.
pub fn is_alive(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => locked(&file),
        Err(e) => e.kind() != io::ErrorKind::NotFound,
    }
}

fn locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            // Closing the file lets go of it as well.
            let _ = file.unlock();
            false
        }
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
    }
}

/// When recordings are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Older ones go.
    pub age: Duration,
    /// Of more files than this the oldest go, but none younger than `fresh`.
    pub files: usize,
    /// Of more bytes than this the oldest go.
    pub bytes: u64,
    /// A large job that has just failed is not taken apart for its number of files.
    pub fresh: Duration,
}

impl Default for Limits {
    /// A week, 64 files, 256 MiB; ten minutes.
    fn default() -> Self {
        Limits {
            age: Duration::from_secs(7 * 24 * 3600),
            files: 64,
            bytes: 256 << 20,
            fresh: Duration::from_secs(600),
        }
    }
}

/// Takes away old recordings of a directory, and those that are too many: oldest first, never one whose process lives, never a file that is no recording. Returns how many.
///
/// # Errors
/// The directory cannot be read. A file that cannot be taken away stays.
pub fn prune(dir: &Path, limits: &Limits) -> io::Result<usize> {
    let now = SystemTime::now();
    let mut files = vec![];
    for path in recordings(dir)? {
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !meta.is_file() {
            continue;
        }
        let written = meta.modified().unwrap_or(now);
        let age = now.duration_since(written).unwrap_or_default();
        files.push((age, meta.len(), path));
    }
    files.sort_by(|a, b| b.cmp(a));
    let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
    let mut left = files.len();
    let mut gone = 0;
    for (age, len, path) in files {
        let many = left > limits.files && age >= limits.fresh;
        if age < limits.age && bytes <= limits.bytes && !many {
            break;
        }
        if remove(&path) {
            gone += 1;
            left -= 1;
            bytes = bytes.saturating_sub(len);
        }
    }
    Ok(gone)
}

/// Takes a recording away whose process does not live. Whether it is gone.
pub fn remove(path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else {
        return false;
    };
    let mut magic = [0; MAGIC.len()];
    let ours = file.read_exact(&mut magic).is_ok() && magic == MAGIC;
    ours && !locked(&file) && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Place {
        place(&|name| {
            let found = vars.iter().find(|(k, _)| *k == name);
            found.map(|(_, v)| OsString::from(v))
        })
    }

    #[test]
    fn the_environment_says_where() {
        assert_eq!(of(&[("GAGGLE_TRACE", "off")]), Place::Off);
        assert_eq!(
            of(&[("GAGGLE_TRACE", "on"), ("GAGGLE_TRACE_DIR", "/x")]),
            Place::Named("/x".into())
        );
        let dir = format!("/run/me/gaggle-trace-{}", user());
        assert_eq!(
            of(&[("XDG_RUNTIME_DIR", "/run/me"), ("GAGGLE_TRACE_DIR", "")]),
            Place::Private(dir.into())
        );
    }

    #[test]
    fn names_of_jobs_stay_within_the_directory() {
        let name = |job: &str| file_name(job, Rank(3), 17, 1);
        assert_eq!(name("run-1a"), "run-1a-rank3-17.trace");
        assert_eq!(name("../../etc/x"), "_.._etc_x-rank3-17.trace");
        assert_eq!(name(""), "job-rank3-17.trace");
        assert_eq!(file_name("j", Rank(0), 1, 2), "j-rank0-1-2.trace");
        assert!(name(&"é".repeat(1000)).len() < 200);
    }
}
