//! What a figure depends on besides the code: the machine and the time, as benchmarks record them.

use serde_json::{Value, json};
use std::{fs, thread};

/// CPU model, cores, memory, kernel, governor, and how busy it is; `null` where the system does not say, and for the compiler.
pub(super) fn facts() -> Value {
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
        "rustc": Value::Null,
    })
}

/// The time in UTC, to the second, as RFC 3339 writes it.
pub(super) fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
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
