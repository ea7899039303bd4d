//! Several processes that belong together: started, listened to, and ended when one fails or all take too long.

use anyhow::{Context, Result, bail};
use std::{
    io::Read,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Killed and waited for when dropped.
struct Running {
    child: Child,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for what has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(mut pipe: impl Read + Send + 'static) -> Result<JoinHandle<String>> {
    let thread = thread::Builder::new().name("listen".into());
    Ok(thread.spawn(move || {
        let mut bytes = Vec::new();
        // What has come before an error is kept.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })?)
}

/// Runs all `commands` at once, at most for `limit`; what each has printed, in their order.
///
/// # Errors
/// One cannot be started, fails (with the last line that any of them has said), or is not done in time; the others are killed then.
pub fn run(commands: Vec<Command>, limit: Duration) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for mut command in commands {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {command:?}"))?;
        let mut running = Running {
            child,
            out: None,
            err: None,
        };
        running.out = running.child.stdout.take().map(listen).transpose()?;
        running.err = running.child.stderr.take().map(listen).transpose()?;
        all.push(running);
    }
    let deadline = Instant::now() + limit;
    let mut failed = None;
    loop {
        let mut ended = true;
        for (i, running) in all.iter_mut().enumerate() {
            match running.child.try_wait()? {
                Some(status) if !status.success() && failed.is_none() => {
                    failed = Some(format!("number {i} failed ({status})"));
                }
                Some(_) => {}
                None => ended = false,
            }
        }
        if failed.is_none() && Instant::now() > deadline {
            failed = Some(format!("not done after {} s", limit.as_secs()));
        }
        if failed.is_some() || ended {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let text = |pipe: Option<JoinHandle<String>>| match pipe {
        Some(thread) => thread.join().unwrap_or_default(),
        None => String::new(),
    };
    if let Some(how) = failed {
        let mut said = String::new();
        for mut running in all {
            let _ = running.child.kill();
            let _ = running.child.wait();
            // A grandchild may hold a pipe for ever: only what ends is listened to.
            let err = running.err.take().filter(ends_soon);
            let lines = text(err);
            let line = lines.lines().map(str::trim).rfind(|l| !l.is_empty());
            if let Some(line) = line.filter(|_| said.is_empty()) {
                said = line.chars().take(200).collect();
            }
        }
        bail!("{how}: {said}");
    }
    let outputs = all.iter_mut().map(|r| r.out.take());
    Ok(outputs.map(text).collect())
}

fn ends_soon(thread: &JoinHandle<String>) -> bool {
    let deadline = Instant::now() + Duration::from_millis(500);
    while !thread.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    thread.is_finished()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn each_one_is_heard() {
        let all = vec![shell("echo one"), shell("echo two >&2; echo three")];
        let said = run(all, Duration::from_secs(20)).expect("they end");
        assert_eq!(said, ["one\n", "three\n"]);
    }

    #[test]
    fn one_that_fails_ends_the_others_and_says_why() {
        let all = vec![shell("exec sleep 60"), shell("echo no room >&2; exit 3")];
        let began = Instant::now();
        let error = run(all, Duration::from_secs(50)).expect_err("one fails");
        assert!(error.to_string().contains("number 1 failed"), "{error}");
        assert!(error.to_string().contains("no room"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(40));
    }

    #[test]
    fn who_takes_too_long_is_ended() {
        let error = run(vec![shell("exec sleep 60")], Duration::from_secs(1));
        let error = error.expect_err("it sleeps").to_string();
        assert!(error.contains("not done after 1 s"), "{error}");
    }
}
