//! `gaggle demo`: finds the demo's program and starts it as a job.
//!
//! The demo links a machine-learning framework; this program does not. All options but `--ranks` are the demo's own.

use crate::{
    args::{self, DemoArgs},
    failure::Failure,
    run::launch,
};
use gaggle_launch::{Job, Voice};
use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const RANKS: u32 = 4;
/// How long a rank of the demo waits for another one, in seconds.
const TIMEOUT: &str = "30";

const HELP: &str = "\
Train on the handwritten digits that ship with gaggle, as several processes on this machine

Usage: gaggle demo [--ranks N] [OPTIONS]

Starts N processes (4 unless said) that train the same model three ways on data split among them:
by all-reduce, where all exchange gradients, and by two decentralised methods, where each talks to
one neighbour at a time. Ends with a table, and a page with plots whose path is printed last.

Examples:
  gaggle demo
  gaggle demo --ranks 2 --epochs 2 --partition iid
  gaggle demo --json > runs.json
";

pub(crate) fn demo(args: &DemoArgs) -> Result<i32, Failure> {
    let wishes = Wishes::read(&args.options).map_err(Failure::Usage)?;
    let me = env::current_exe().unwrap_or_else(|_| PathBuf::from("gaggle"));
    let named = env::var_os("GAGGLE_DEMO").filter(|path| !path.is_empty());
    let program = find(named, &me, env::var_os("PATH"));
    if wishes.help {
        crate::print(&format!("{HELP}\n"));
        // The demo's own list goes below; without its program there is still something to read.
        let options = Command::new(program?)
            .arg("--help")
            .stdin(Stdio::null())
            .status();
        return Ok(i32::from(!options.is_ok_and(|status| status.success())));
    }
    let mut job = Job::new(wishes.ranks, program?)
        .args(wishes.rest)
        .voice(Voice::Lead);
    if env::var_os("GAGGLE_TIMEOUT").is_none() {
        job = job.env("GAGGLE_TIMEOUT", TIMEOUT);
    }
    launch(job, wishes.ranks)
}

/// What the options say to this program, and what is left for the demo's.
#[derive(PartialEq, Debug)]
struct Wishes {
    ranks: u32,
    help: bool,
    rest: Vec<OsString>,
}

impl Wishes {
    fn read(options: &[OsString]) -> Result<Wishes, String> {
        let mut wishes = Wishes {
            ranks: RANKS,
            help: false,
            rest: Vec::new(),
        };
        let number = |text: &OsStr| {
            let text = text.to_string_lossy();
            args::ranks(&text).map_err(|why| format!("--ranks {text}: {why}"))
        };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let text = option.to_string_lossy();
            if text == "-h" || text == "--help" {
                wishes.help = true;
            } else if text == "--ranks" || text == "-n" {
                let value = options.next().ok_or("--ranks needs a number")?;
                wishes.ranks = number(value)?;
            } else if let Some(value) = text
                .strip_prefix("--ranks=")
                .or_else(|| text.strip_prefix("-n=").or_else(|| text.strip_prefix("-n")))
            {
                wishes.ranks = number(OsStr::new(value))?;
            } else {
                wishes.rest.push(option.clone());
            }
        }
        Ok(wishes)
    }
}

/// What `GAGGLE_DEMO` says; else the file next to `me`; else the first in `path`.
fn find(named: Option<OsString>, me: &Path, path: Option<OsString>) -> Result<PathBuf, Failure> {
    if let Some(named) = named.map(PathBuf::from) {
        // With a folder in front, so that it is not looked for in PATH.
        return match named.canonicalize() {
            Ok(path) if path.is_file() => Ok(path),
            _ => Err(Failure::NoSuchDemo(named)),
        };
    }
    let name = format!("gaggle-demo{}", env::consts::EXE_SUFFIX);
    let beside = me.parent().map(Path::to_owned);
    let path = path.unwrap_or_default();
    let mut all = beside
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|dir| dir.join(&name));
    all.find(|file| file.is_file())
        .ok_or(Failure::NoDemo { me: me.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, ranks: u32, help: bool, rest: &str) {
        let options: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let wishes = Wishes::read(&options).unwrap();
        assert_eq!((wishes.ranks, wishes.help), (ranks, help), "{line}");
        assert_eq!(wishes.rest.join(OsStr::new(" ")), rest, "{line}");
    }

    #[test]
    fn only_ranks_and_help_are_ours() {
        check("", 4, false, "");
        check("--ranks 2 --json", 2, false, "--json");
        check(
            "--epochs 3 --ranks=7 --seed 1",
            7,
            false,
            "--epochs 3 --seed 1",
        );
        check("-n 3 --json", 3, false, "--json");
        check("-n3 --json", 3, false, "--json");
        check("-n=5", 5, false, "");
        check("--nesterov", 4, false, "--nesterov");
        check("--json -h", 4, true, "--json");
        for line in [
            "--ranks",
            "--ranks 0",
            "--ranks=x",
            "--ranks -1",
            "-nx",
            "-n0",
        ] {
            let options: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
            assert!(
                Wishes::read(&options).unwrap_err().starts_with("--ranks"),
                "{line}"
            );
        }
    }

    #[test]
    fn the_program_is_looked_for_in_order() {
        let (beside, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = beside.path().join("gaggle");
        let path = || Some(far.path().as_os_str().to_owned());
        let missing = find(None, &me, path()).unwrap_err().to_string();
        assert!(missing.contains("cargo xtask demo"), "{missing}");
        let name = format!("gaggle-demo{}", env::consts::EXE_SUFFIX);
        std::fs::write(far.path().join(&name), "").unwrap();
        assert_eq!(find(None, &me, path()).unwrap(), far.path().join(&name));
        std::fs::write(beside.path().join(&name), "").unwrap();
        assert_eq!(find(None, &me, path()).unwrap(), beside.path().join(&name));
        let named = far.path().join(&name).canonicalize().unwrap();
        assert_eq!(find(Some(named.clone().into()), &me, None).unwrap(), named);
        let error = find(Some("/no/demo".into()), &me, path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "GAGGLE_DEMO is /no/demo, but there is no such file"
        );
    }
}
