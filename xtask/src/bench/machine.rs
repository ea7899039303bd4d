//! What a figure depends on besides the code: the machine, the commit, the time.

use crate::tool;
use serde_json::{Value, json};
use std::{fs, process::Command, thread};

/// CPU model, cores, memory, kernel, governor, compiler, and how busy it is; `null` where the system does not say.
pub(crate) fn facts() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    json!({
        "cpu": field(&cpuinfo, "model name").unwrap_or("unknown"),
        "cores": thread::available_parallelism().map_or(0, usize::from),
        "memory_kib": field(&meminfo, "MemTotal").and_then(|m| m.split(' ').next()?.parse::<u64>().ok()),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "kernel": first_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
        "governor": first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_1min": first_line("/proc/loadavg").and_then(|l| l.split(' ').next()?.parse::<f64>().ok()),
        "rustc": said(Command::new("rustc").arg("--version")).unwrap_or_else(|| "unknown".into()),
    })
}

/// The commit, with `+` where the tree differs from it; `unknown` outside a checkout.
pub(crate) fn commit() -> String {
    let git = |args: &[&str]| {
        said(
            Command::new("git")
                .args(args)
                .current_dir(crate::workspace::root()),
        )
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".into();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}+"),
    }
}

/// The time in UTC, to the second, as RFC 3339 writes it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

fn said(command: &mut Command) -> Option<String> {
    let text = tool::output(command).ok()?;
    Some(text.trim_end().to_owned())
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 17\nmodel name\t: AMD EPYC\nMemTotal:   8 kB\n";
        assert_eq!(field(text, "model name"), Some("AMD EPYC"));
        assert_eq!(field(text, "MemTotal"), Some("8 kB"));
        assert_eq!(field(text, "mod"), None);
    }

    #[test]
    fn the_time_is_a_date_and_a_time() {
        let now = now();
        assert!(
            now.len() == 20 && now.ends_with('Z') && now.as_bytes()[10] == b'T',
            "{now}"
        );
    }
}
