//! What the control groups around this process let it have of the machine's memory: versions 1 and 2, pure but for reading the system's files.

use std::{fs, path::Path};

/// Where the system shows control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// A limit of version 1 from here on is none.
const NO_LIMIT: u64 = 1 << 60;

/// One group's limit and what of it is in use, in bytes. Files that are kept in memory only because there was room do not count as use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limit {
    pub(crate) max: u64,
    pub(crate) used: u64,
}

impl Limit {
    /// What may still be taken.
    pub(crate) fn left(self) -> u64 {
        self.max.saturating_sub(self.used)
    }
}

/// Those of this process's groups and of all above them that have a limit.
pub(crate) fn limits() -> Vec<Limit> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits_under(Path::new(ROOT), &own)
}

/// The files of one version.
struct Version {
    max: &'static str,
    used: &'static str,
    cached: &'static str,
}

const ONE: Version = Version {
    max: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file ",
};
const TWO: Version = Version {
    max: "memory.max",
    used: "memory.current",
    cached: "inactive_file ",
};

/// `own`: the text of `/proc/self/cgroup`.
fn limits_under(root: &Path, own: &str) -> Vec<Limit> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (top, version) = match controllers {
            "" => (root.to_owned(), TWO),
            list if list.split(',').any(|c| c == "memory") => (root.join("memory"), ONE),
            _ => continue,
        };
        let dir = top.join(path.trim_start_matches('/'));
        // A container may be told a path that it cannot see: then what it sees is its own.
        let dir = if dir.is_dir() { dir } else { top.clone() };
        let all = dir.ancestors().take_while(|dir| dir.starts_with(&top));
        found.extend(all.filter_map(|dir| version.limit(dir)));
    }
    found
}

impl Version {
    fn limit(&self, dir: &Path) -> Option<Limit> {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok()
        };
        // "max" is no number, and no limit.
        let max = number(self.max).filter(|max| *max < NO_LIMIT)?;
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|l| l.strip_prefix(self.cached));
        let cached = cached.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        let used = number(self.used).unwrap_or(0).saturating_sub(cached);
        Some(Limit { max, used })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(own: &str, want: &[(u64, u64)]) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "300\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.current", "5\n"),
            ("c/memory.max", "100\n"),
            ("c/memory.current", "90\n"),
            ("c/memory.stat", "anon 50\ninactive_file 30\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/j/memory.limit_in_bytes", "5000\n"),
            ("memory/j/memory.usage_in_bytes", "4000\n"),
            (
                "memory/j/memory.stat",
                "inactive_file 1\ntotal_inactive_file 500\n",
            ),
        ] {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let got: Vec<_> = limits_under(root.path(), own)
            .iter()
            .map(|l| (l.max, l.used))
            .collect();
        assert_eq!(got, want, "{own}");
    }

    #[test]
    fn limits_of_both_versions_are_read_up_to_the_root() {
        check("0::/a/b\n", &[(1000, 300)]);
        check("0::/c\n", &[(100, 60)]);
        check("3:cpu:/a\n4:memory:/j/k\n", &[]);
        check("4:memory:/j\n0::/\n", &[(5000, 3500)]);
        check("4:cpu,memory:/j\n0::/a\n", &[(5000, 3500), (1000, 300)]);
        check("nonsense\n", &[]);
    }

    #[test]
    fn what_is_left_is_never_below_zero() {
        assert_eq!(Limit { max: 10, used: 3 }.left(), 7);
        assert_eq!(Limit { max: 10, used: 30 }.left(), 0);
    }
}
