//! Large pages: whether the system gives memory files any, and how much of a mapping lies in them.
//!
//! A page of 2 MiB spares a walk through the tables for most of 512 small ones. Memory files get them as `shmem_enabled` says, for all sizes and for each by itself: the decision is pure, the files are read once.

use std::{fmt, fs, path::Path, sync::OnceLock};

/// Where the settings are.
const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// Whether heaps get large pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargePages {
    /// By themselves.
    Always,
    /// Blocks that ask for them, as those of 2 MiB and more do.
    Asked,
    /// None: the system's settings forbid it, or it knows no such thing.
    Never,
}

impl LargePages {
    /// As this system's settings were when this process first looked.
    pub fn here() -> LargePages {
        static HERE: OnceLock<LargePages> = OnceLock::new();
        *HERE.get_or_init(|| LargePages::under(Path::new(SETTINGS)))
    }

    /// As the settings in a folder say.
    fn under(settings: &Path) -> LargePages {
        let read = |name: &str| {
            let text = fs::read_to_string(settings.join(name)).unwrap_or_default();
            chosen(&text).map(str::to_owned)
        };
        let all = read("shmem_enabled");
        let size = read(&format!(
            "hugepages-{}kB/shmem_enabled",
            super::table::HUGE >> 10
        ));
        LargePages::of(all.as_deref(), size.as_deref())
    }

    /// By the setting for all sizes, and the one for pages of this size, which older systems have not.
    fn of(all: Option<&str>, size: Option<&str>) -> LargePages {
        match (all, size.unwrap_or("inherit")) {
            (None | Some("deny"), _) => LargePages::Never,
            (Some("force"), "inherit") => LargePages::Always,
            (Some("force"), _) => LargePages::Never,
            (Some(all), "inherit") => LargePages::named(all),
            (_, size) => LargePages::named(size),
        }
    }

    fn named(setting: &str) -> LargePages {
        match setting {
            // A heap is as long as it ever gets, so its pages lie within its size.
            "always" | "within_size" => LargePages::Always,
            "advise" => LargePages::Asked,
            _ => LargePages::Never,
        }
    }
}

impl fmt::Display for LargePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LargePages::Always => "pages of 2 MiB",
            LargePages::Asked => "pages of 2 MiB for blocks from there on",
            LargePages::Never => {
                "small pages (transparent_hugepage/shmem_enabled gives memory files no others)"
            }
        })
    }
}

/// The word in brackets.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// Bytes of these addresses of this process that lie in large pages; `None` where the system does not say.
pub(super) fn in_use(start: usize, bytes: usize) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/smaps").ok()?;
    Some(in_use_of(&text, start..start.checked_add(bytes)?))
}

/// Of the text of `smaps`: of all mappings that begin within the addresses, or have them in the middle.
fn in_use_of(smaps: &str, addresses: std::ops::Range<usize>) -> u64 {
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((lo, hi)) = first.split_once('-')
            && let (Ok(lo), Ok(hi)) = (usize::from_str_radix(lo, 16), usize::from_str_radix(hi, 16))
        {
            inside = lo < addresses.end && addresses.start < hi;
        } else if inside && let Some(rest) = line.strip_prefix("ShmemPmdMapped:") {
            let n = rest.trim().trim_end_matches("kB").trim();
            kib += n.parse::<u64>().unwrap_or(0);
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use LargePages::{Always, Asked, Never};

    /// What a system says that has these settings.
    #[track_caller]
    fn check(all: Option<&str>, size: Option<&str>, want: LargePages) {
        let root = tempfile::tempdir().unwrap();
        let one = root.path().join("hugepages-2048kB");
        fs::create_dir(&one).unwrap();
        // Other sizes say nothing of this one.
        let other = root.path().join("hugepages-64kB");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("shmem_enabled"), "[always] inherit never\n").unwrap();
        if let Some(all) = all {
            let words = "always within_size advise never deny force\n";
            let text = words.replace(all, &format!("[{all}]"));
            fs::write(root.path().join("shmem_enabled"), text).unwrap();
        }
        if let Some(size) = size {
            let words = "always inherit within_size advise never\n";
            let text = words.replace(size, &format!("[{size}]"));
            fs::write(one.join("shmem_enabled"), text).unwrap();
        }
        assert_eq!(LargePages::under(root.path()), want, "{all:?}, {size:?}");
    }

    #[test]
    fn the_setting_for_the_size_counts_unless_it_inherits_or_all_is_denied_or_forced() {
        check(None, None, Never);
        for size in [None, Some("inherit")] {
            check(Some("always"), size, Always);
            check(Some("within_size"), size, Always);
            check(Some("advise"), size, Asked);
            check(Some("never"), size, Never);
            check(Some("deny"), size, Never);
            check(Some("force"), size, Always);
        }
        check(Some("never"), Some("advise"), Asked);
        check(Some("never"), Some("always"), Always);
        check(Some("always"), Some("never"), Never);
        check(Some("deny"), Some("always"), Never);
        check(Some("force"), Some("never"), Never);
    }

    #[test]
    fn mappings_are_counted_that_have_some_of_the_addresses() {
        let smaps = "1000-3000 rw-s 00000000 00:01 7 /memfd:gaggle-heap (deleted)\n\
            Size:                  8 kB\nShmemPmdMapped:        5 kB\n\
            3000-5000 rw-s 00002000 00:01 7 /memfd:gaggle-heap (deleted)\n\
            ShmemPmdMapped:       70 kB\nVmFlags: rd wr sh hg\n\
            6000-7000 rw-p 00000000 00:00 0\nShmemPmdMapped:      900 kB\n";
        for (lo, hi, kib) in [
            (0x1000, 0x3000, 5),
            (0x2000, 0x4000, 75),
            (0x3fff, 0x4000, 70),
            (0x5000, 0x6000, 0),
        ] {
            assert_eq!(in_use_of(smaps, lo..hi), kib << 10, "{lo:x}");
        }
        assert_eq!(in_use_of("nonsense\n", 0..usize::MAX), 0);
    }
}
