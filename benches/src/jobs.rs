//! Several processes that belong together: started, listened to, and ended when one fails or all take too long.

use anyhow::{Context, Result, bail};
use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Killed and waited for when dropped.
struct Running {
    child: Child,
    out: Option<Listener>,
    err: Option<Listener>,
}

/// What has come from a pipe so far, and the thread that reads it.
struct Listener {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Listener {
    /// What has come; until the pipe's end, if that comes soon: a grandchild may hold a pipe for ever.
    fn heard(self, patience: Duration) -> String {
        let deadline = Instant::now() + patience;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for what has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(mut pipe: impl Read + Send + 'static) -> Result<Listener> {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&bytes);
    let thread = thread::Builder::new()
        .name("listen".into())
        .spawn(move || {
            let mut part = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut part) {
                let mut all = heard.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend_from_slice(&part[..n]);
            }
        })?;
    Ok(Listener { bytes, thread })
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
    let text = |pipe: Option<Listener>, patience| pipe.map(|p| p.heard(patience));
    if let Some(how) = failed {
        let mut said = String::new();
        for mut running in all {
            let _ = running.child.kill();
            let _ = running.child.wait();
            let lines = text(running.err.take(), Duration::from_millis(300)).unwrap_or_default();
            let line = lines.lines().map(str::trim).rfind(|l| !l.is_empty());
            if let Some(line) = line.filter(|_| said.is_empty()) {
                said = line.chars().take(200).collect();
            }
        }
        bail!("{how}: {said}");
    }
    let outputs = all.iter_mut().map(|r| r.out.take());
    Ok(outputs
        .map(|out| text(out, Duration::from_secs(5)).unwrap_or_default())
        .collect())
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
        let folder = tempfile::tempdir().expect("a folder");
        let mark = folder.path().join("sleeper");
        let file = mark.display();
        let sleeper = shell(&format!("echo $$ > '{file}'; exec sleep 60"));
        let failing = format!(
            "set -- '{file}'; while [ ! -s \"$1\" ]; do sleep 0.01; done; echo no room >&2; exit 3"
        );
        let all = vec![sleeper, shell(&failing)];
        let error = run(all, Duration::from_secs(50)).expect_err("one fails");
        assert!(error.to_string().contains("number 1 failed"), "{error}");
        assert!(error.to_string().contains("no room"), "{error}");
        // And the one that slept is gone.
        let pid = std::fs::read_to_string(&mark).expect("it has begun");
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn who_takes_too_long_is_ended() {
        let error = run(vec![shell("exec sleep 60")], Duration::from_secs(1));
        let error = error.expect_err("it sleeps").to_string();
        assert!(error.contains("not done after 1 s"), "{error}");
    }
}
