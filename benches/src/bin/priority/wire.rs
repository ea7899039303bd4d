//! Two processes, each in a network namespace of its own, joined by a virtual cable of 1 Gbit/s.
//!
//! The namespaces have no name: they belong to the two processes and go with them, however those end, so that there is nothing to clean up.
//! The ranks end when this process does: they read from it, and the end of that is theirs.

use crate::rank::Said;
use anyhow::{Context, Result, bail};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// Ranks on the wire.
pub(crate) const RANKS: usize = 2;
/// Bits per second, each way.
pub(crate) const RATE: u64 = 1_000_000_000;
/// The token bucket at each end: 36 KiB pass at once, and at most 128 KiB (1 ms) wait.
pub(crate) const QUEUE: &str = "tbf rate 1gbit burst 36kb limit 128kb";
/// Longest packet that the kernel hands to the bucket at once. A longer one than the burst would be cut into 1500-byte frames first, which costs more processor time than all the rest.
const PACKET: u64 = 32 << 10;
/// Who decides how much TCP keeps under way.
pub(crate) const CONGESTION: &str = "cubic";
/// The interface at each end.
pub(crate) const INTERFACE: &str = "gaggle0";

/// Why it cannot be built here, if it cannot.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("network namespaces are Linux's".into());
    }
    for (program, package) in [
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
    ] {
        let mut probe = Command::new(program);
        probe.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        if probe.status().is_err() {
            return Some(format!(
                "`{program}` is not installed (Debian: `apt install {package}`)"
            ));
        }
    }
    // Being root is not enough in a container without the right to make namespaces.
    let probe = Command::new("unshare")
        .args(["--net", "true"])
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        return Some("it needs root, to make network namespaces".into());
    }
    None
}

struct End {
    child: Child,
    /// Its end is the rank's end.
    stdin: Option<ChildStdin>,
}

/// Both ends; dropped, both processes are killed.
pub(crate) struct Wire {
    ends: Vec<End>,
    said: Receiver<(usize, Result<Said>)>,
}

impl Wire {
    /// Starts this program with `flags` at both ends and joins them. The ranks wait for [`Wire::go`].
    pub(crate) fn start(flags: &[&str], queue: &str, congestion: &str) -> Result<Wire> {
        let program = env::current_exe().context("cannot tell which program this is")?;
        let secret: String = (0..4).map(|_| format!("{:016x}", fastrand())).collect();
        let (tell, said) = mpsc::channel();
        let mut wire = Wire {
            ends: Vec::new(),
            said,
        };
        for rank in 0..RANKS {
            let mut command = Command::new("unshare");
            command.arg("--net").arg(&program).args(flags);
            for name in ["GAGGLE_STORE", "GAGGLE_SECRET_FILE", "GAGGLE_INSECURE"] {
                command.env_remove(name);
            }
            command
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", RANKS.to_string())
                .env("MASTER_ADDR", address(0))
                .env("MASTER_PORT", "29500")
                .env("GAGGLE_SECRET", &secret)
                .env("GAGGLE_JOB", "priority")
                .env("GAGGLE_TIMEOUT", "60");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start a rank")?;
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            wire.ends.push(End { child, stdin });
            let stdout = stdout.context("a rank without an output")?;
            let tell = tell.clone();
            thread::Builder::new()
                .name(format!("rank-{rank}-out"))
                .spawn(move || {
                    for line in BufReader::new(stdout).lines() {
                        let said = line.map_err(Into::into).and_then(|l| Said::parse(&l));
                        if tell.send((rank, said)).is_err() {
                            return;
                        }
                    }
                })?;
        }
        for _ in 0..RANKS {
            match wire.next(Duration::from_secs(20))? {
                Some((_, Said::Ready)) => {}
                other => bail!("a rank does not begin: {other:?}"),
            }
        }
        wire.join(queue, congestion)?;
        Ok(wire)
    }

    /// Lays the cable.
    fn join(&self, queue: &str, congestion: &str) -> Result<()> {
        let pid = |rank: usize| self.ends[rank].child.id().to_string();
        let cable = ["ip", "link", "add", INTERFACE, "type", "veth", "peer"];
        let far = ["name", INTERFACE, "netns", &pid(1)];
        self.inside(0, &[&cable[..], &far[..]].concat())?;
        for rank in 0..RANKS {
            let at = format!("{}/30", address(rank));
            let run = |command: &str| {
                let words: Vec<&str> = command.split(' ').collect();
                self.inside(rank, &words)
            };
            run("ip link set lo up")?;
            run(&format!("ip addr add {at} dev {INTERFACE}"))?;
            run(&format!("ip link set {INTERFACE} gso_max_size {PACKET} up"))?;
            run(&format!("tc qdisc add dev {INTERFACE} root {queue}"))?;
            // By the route, since the kernel lets no namespace choose what it does not offer to all.
            let net = "10.77.0.0/30";
            run(&format!(
                "ip route replace {net} dev {INTERFACE} congctl {congestion}"
            ))?;
        }
        Ok(())
    }

    fn inside(&self, rank: usize, words: &[&str]) -> Result<String> {
        let target = format!("--target={}", self.ends[rank].child.id());
        let output = Command::new("nsenter")
            .args([&target, "--net", "--"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .context("cannot run nsenter")?;
        if !output.status.success() {
            bail!(
                "`{}` failed at end {rank}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lets the ranks begin.
    pub(crate) fn go(&mut self) -> Result<()> {
        for end in &mut self.ends {
            let stdin = end.stdin.as_mut().context("a rank without an input")?;
            writeln!(stdin, "go").context("a rank does not listen")?;
        }
        Ok(())
    }

    /// What a rank says next, and which; `None` when nobody says anything for `limit`.
    ///
    /// # Errors
    /// A rank says what makes no sense, or all have ended.
    pub(crate) fn next(&self, limit: Duration) -> Result<Option<(usize, Said)>> {
        match self.said.recv_timeout(limit) {
            Ok((rank, said)) => Ok(Some((
                rank,
                said.with_context(|| format!("rank {rank} failed"))?,
            ))),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the ranks have ended early"),
        }
    }

    /// Waits for the end of both.
    pub(crate) fn finish(mut self) -> Result<()> {
        for end in &mut self.ends {
            end.stdin = None;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        for (rank, end) in self.ends.iter_mut().enumerate() {
            let status = loop {
                match end.child.try_wait()? {
                    Some(status) => break status,
                    None if Instant::now() < deadline => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    None => bail!("rank {rank} does not end"),
                }
            };
            if !status.success() {
                bail!("rank {rank} failed ({status})");
            }
        }
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for end in &mut self.ends {
            // Both fail only for what has ended already.
            let _ = end.child.kill();
            let _ = end.child.wait();
        }
    }
}

fn address(rank: usize) -> String {
    format!("10.77.0.{}", rank + 1)
}

/// The secret keeps nobody out of a network that only two processes have; it must only be there.
fn fastrand() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
