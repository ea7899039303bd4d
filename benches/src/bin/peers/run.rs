//! One run of one contender: starts its processes, reads what they print, and ends them when they take too long.

use crate::judge::Sample;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// How long a launcher may take to end its ranks when it is asked to.
const GRACE: Duration = Duration::from_secs(4);

/// Of these the kernel counts so many a second for those who read its files, whatever its own clock does.
const TICKS: f64 = 100.0;

/// How a contender is started.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Invocation {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// As so many processes that are told their rank, not by a launcher.
    pub(crate) copies: Option<usize>,
}

impl Invocation {
    fn command(&self, meet: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .env("RDZV", meet)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// What a run has printed, by size.
pub(crate) type Lines = Vec<(u64, Sample)>;

/// Runs it, at most for `limit`: what it has printed, and in one line why that is not all, where it cannot be started, fails, prints nothing, or takes too long.
pub(crate) fn run(invocation: &Invocation, limit: Duration) -> (Lines, Option<String>) {
    match attempt(invocation, limit) {
        Ok(done) => done,
        Err(why) => (Lines::new(), Some(why)),
    }
}

fn attempt(invocation: &Invocation, limit: Duration) -> Result<(Lines, Option<String>), String> {
    let meet = tempfile::tempdir().map_err(|e| format!("no folder to meet in: {e}"))?;
    let meet = meet.path().to_string_lossy();
    let mut children = Children(Vec::new());
    let (tell, told) = mpsc::channel();
    for rank in 0..invocation.copies.unwrap_or(1) {
        let mut command = invocation.command(&meet);
        if let Some(copies) = invocation.copies {
            for (name, value) in [
                ("RANK", rank),
                ("LOCAL_RANK", rank),
                ("CCL_LOCAL_RANK", rank),
                ("WORLD_SIZE", copies),
                ("LOCAL_WORLD_SIZE", copies),
                ("CCL_LOCAL_SIZE", copies),
            ] {
                command.env(name, value.to_string());
            }
        }
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", invocation.program))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        children.0.push(child);
        listen(out, false, &tell).map_err(|e| e.to_string())?;
        listen(err, true, &tell).map_err(|e| e.to_string())?;
    }
    drop(tell);
    let deadline = Instant::now() + limit;
    let (mut out, mut err) = (String::new(), String::new());
    let mut failed = None;
    // Until every pipe is closed, or somebody has failed: whoever waits for it would wait for ever.
    while failed.is_none() {
        let mut quiet = false;
        match told.recv_timeout(Duration::from_millis(50)) {
            Ok((true, line)) => err.push_str(&line),
            Ok((false, line)) => out.push_str(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => quiet = true,
        }
        let mut ended = true;
        for child in &mut children.0 {
            match child.try_wait() {
                Ok(Some(status)) if !status.success() => failed = Some(status.to_string()),
                Ok(Some(_)) => {}
                _ => ended = false,
            }
        }
        // What a launcher has left behind may hold its pipes.
        if ended && quiet {
            break;
        }
        if Instant::now() > deadline {
            failed = Some(format!("not done after {} s", limit.as_secs()));
        }
    }
    if failed.is_none() {
        // They have closed their outputs and are about to end.
        failed = children.wait(deadline + GRACE);
    }
    drop(children);
    while let Ok((is_err, line)) = told.recv_timeout(Duration::from_millis(200)) {
        if is_err { &mut err } else { &mut out }.push_str(&line);
    }
    let lines = parse(&out);
    let why = match failed {
        Some(how) => Some(reason(&how, &err, &out)),
        None if lines.is_empty() => Some(reason("it printed no figures", &err, &out)),
        None => None,
    };
    Ok((lines, why))
}

/// Passes lines on from a thread; the senders' end is the end of all pipes.
fn listen(
    pipe: Option<impl Read + Send + 'static>,
    is_err: bool,
    tell: &mpsc::Sender<(bool, String)>,
) -> std::io::Result<()> {
    let (Some(pipe), tell) = (pipe, tell.clone()) else {
        return Ok(());
    };
    thread::Builder::new()
        .name("peers-listen".into())
        .spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).into_owned();
                if tell.send((is_err, text)).is_err() {
                    return;
                }
                line.clear();
            }
        })
        .map(drop)
}

/// Ended when dropped: asked first, since a launcher has ranks to end, then killed.
struct Children(Vec<Child>);

impl Children {
    /// Waits for all; the status of one that failed, or that it does not end.
    fn wait(&mut self, deadline: Instant) -> Option<String> {
        for child in &mut self.0 {
            loop {
                match child.try_wait() {
                    Ok(Some(status)) if status.success() => break,
                    Ok(Some(status)) => return Some(status.to_string()),
                    Ok(None) if Instant::now() < deadline => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    Ok(None) => return Some("it does not end".into()),
                    Err(error) => return Some(error.to_string()),
                }
            }
        }
        None
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let running = |c: &mut Child| matches!(c.try_wait(), Ok(None));
        self.0.retain_mut(running);
        for child in &self.0 {
            if let Some(pid) = Pid::from_raw(child.id() as i32) {
                // Fails only for what has ended meanwhile.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let deadline = Instant::now() + GRACE;
        while self.0.iter_mut().any(running) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The lines `size,median_us,p95_us` and what may follow; all others are talk.
pub(crate) fn parse(out: &str) -> Lines {
    let line = |line: &str| {
        let mut fields = line.trim().split(',');
        let size = fields.next()?.parse().ok()?;
        let mut time = || {
            let t: f64 = fields.next()?.trim().parse().ok()?;
            (t.is_finite() && t > 0.0).then_some(t)
        };
        let sample = Sample {
            median_us: time()?,
            p95_us: time()?,
        };
        Some((size, sample))
    };
    out.lines().filter_map(line).collect()
}

/// In one line: what the program said before it ended, which tells more than how it ended.
fn reason(how: &str, err: &str, out: &str) -> String {
    let said = |text: &str| {
        let lines = text.lines().map(str::trim);
        let telling = |l: &&str| {
            let decoration = l.chars().all(|c| !c.is_alphanumeric());
            !decoration && !l.contains("CCL_WARN") && !l.starts_with("For more information")
        };
        let mut lines: Vec<&str> = lines.filter(telling).collect();
        // An error's own line is worth more than the last.
        let error = lines
            .iter()
            .rposition(|l| l.starts_with("error") || l.starts_with("wrong"));
        if let Some(at) = error {
            lines.truncate(at + 1);
        }
        lines
            .last()
            .map(|l| l.chars().take(160).collect::<String>())
    };
    let said = said(err).or_else(|| said(out).filter(|_| parse(out).is_empty()));
    match said {
        Some(line) => format!("{line} ({how})"),
        None => how.to_owned(),
    }
}

/// Tells how busy others were between two readings.
pub(crate) struct Busy {
    began: Instant,
    all: f64,
    ours: f64,
}

impl Busy {
    pub(crate) fn start() -> Option<Busy> {
        let (all, ours) = processor_seconds()?;
        Some(Busy {
            began: Instant::now(),
            all,
            ours,
        })
    }

    /// How many processors were busy with what is not ours, on average.
    pub(crate) fn foreign(&self) -> Option<f64> {
        let (all, ours) = processor_seconds()?;
        let foreign = (all - self.all) - (ours - self.ours);
        Some((foreign / self.began.elapsed().as_secs_f64()).max(0.0))
    }
}

/// Seconds of processor time since the start: of everything, and of this process with the children it has waited for.
fn processor_seconds() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let own = fs::read_to_string("/proc/self/stat").ok()?;
    Some((busy_ticks(&stat)? / TICKS, own_ticks(&own)? / TICKS))
}

/// Of the line of all processors: everything but idling and waiting for disks.
fn busy_ticks(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let fields: Vec<f64> = line
        .split_whitespace()
        .take(8)
        .filter_map(|f| f.parse().ok())
        .collect();
    let waiting = fields.get(3)? + fields.get(4)?;
    Some(fields.iter().sum::<f64>() - waiting)
}

/// utime, stime, cutime and cstime, which follow the name in brackets.
fn own_ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields
        .get(11..15)?
        .iter()
        .map(|f| f.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, copies: Option<usize>) -> Invocation {
        Invocation {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            copies,
            ..Invocation::default()
        }
    }

    #[test]
    fn figures_are_found_among_talk() {
        let out = "size_bytes,median_us,p95_us\n4,0.5,0.75,5000\n hello\n1048576,200.25,300\n16,x,1\n64,1\n256,0,0\n";
        let sample = |median_us, p95_us| Sample { median_us, p95_us };
        assert_eq!(
            parse(out),
            [(4, sample(0.5, 0.75)), (1 << 20, sample(200.25, 300.0))]
        );
        assert!(parse("").is_empty());
    }

    /// Why not all was measured.
    fn why(invocation: &Invocation, seconds: u64) -> String {
        let (_, why) = run(invocation, Duration::from_secs(seconds));
        why.expect("it failed")
    }

    #[test]
    fn copies_know_their_rank_and_meet_in_a_folder() {
        let script = "touch $RDZV/$RANK; [ $RANK = 0 ] && echo $WORLD_SIZE,1,2; true";
        let (lines, why) = run(&shell(script, Some(3)), Duration::from_secs(20));
        assert_eq!((lines[0].0, why), (3, None));
    }

    #[test]
    fn one_that_fails_ends_the_others_and_says_why() {
        let script =
            "[ $RANK = 1 ] && { echo 'wrong result at 4 bytes' >&2; exit 3; }; exec sleep 60";
        let began = Instant::now();
        let error = why(&shell(script, Some(2)), 50);
        assert!(error.contains("wrong result at 4 bytes"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(40));
    }

    #[test]
    fn what_takes_too_long_is_ended_and_what_it_has_said_is_kept() {
        let slow = shell("echo 4,1,2; exec sleep 60", None);
        let (lines, why_slow) = run(&slow, Duration::from_secs(2));
        assert_eq!(lines.len(), 1);
        assert!(why_slow.is_some_and(|w| w.contains("not done after 2 s")));
        let error = why(&shell("echo hello", None), 20);
        assert!(
            error.contains("no figures") && error.contains("hello"),
            "{error}"
        );
        let mut absent = shell("", None);
        absent.program = "no-such-program-anywhere".into();
        let error = why(&absent, 20);
        assert!(error.contains("no-such-program-anywhere"), "{error}");
    }

    #[test]
    fn the_error_is_told_and_not_the_decoration() {
        let err = "error: unrecognized subcommand 'perf'\n\nUsage: gaggle [OPTIONS]\n\nFor more information, try '--help'.\n";
        assert_eq!(
            reason("exit status: 2", err, ""),
            "error: unrecognized subcommand 'perf' (exit status: 2)"
        );
        assert_eq!(reason("signal: 9", "----\n", "4,1,1\n"), "signal: 9");
    }

    #[test]
    fn processor_time_is_read_where_it_stands() {
        assert_eq!(
            busy_ticks("cpu  1 2 3 100 50 4 5 6 7 8\ncpu0 9\n"),
            Some(21.0)
        );
        assert_eq!(
            own_ticks("12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"),
            Some(11.0 + 12.0 + 13.0 + 14.0)
        );
        assert_eq!(busy_ticks(""), None);
    }
}
