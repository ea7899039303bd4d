//! A network of hosts on this machine: network namespaces on one bridge, with a rate and, on request, a delay.
//!
//! [`enter`] puts the program into namespaces of its own (processes, mounts, network), so that whatever it starts and builds goes with it, however it ends; [`Net::lay`] builds the network there.
//! Each host is a network namespace that a process holds; its interface [`INTERFACE`] is limited by a token bucket in both directions (`tbf`), or is a TUN device of the [`relay`], which delays besides.
//! Boot id and network namespace tell ranks on which host they are, so each of these is a host to gaggle, and so is each to programs that go by host names, as Open MPI does.

mod raw_tun;
pub mod relay;

use anyhow::{Context, Result, bail};
use relay::Relay;
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

/// The interface of every host by which it reaches the others.
pub const INTERFACE: &str = "lan0";
/// The one beside it where [`INTERFACE`] is delayed: only for starting programs.
const CONTROL: &str = "ctl0";
const INSIDE: &str = "GAGGLE_BENCH_INSIDE";
/// The most hosts.
pub const MOST: usize = 64;
/// How long a packet may wait in a queue before it is lost.
const QUEUE: Duration = Duration::from_millis(20);

/// Why no network can be built here, if none can.
pub fn missing() -> Option<String> {
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
    let probe = namespaces()
        .args(["sh", "-c", "ip link add br0 type bridge && tc qdisc add dev br0 root tbf rate 1gbit burst 64kb latency 20ms"])
        .stdin(Stdio::null())
        .output();
    match probe {
        Ok(out) if out.status.success() => None,
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr);
            Some(format!(
                "it needs root, to make network namespaces with limited rates ({})",
                said.lines().last().unwrap_or("no reason given").trim()
            ))
        }
        Err(error) => Some(format!("unshare cannot be started: {error}")),
    }
}

/// Whether this is the process that [`enter`] has started.
pub fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command
}

/// Runs `main` as the first process of new namespaces, in a child of this process: when either ends, in whatever way, the kernel ends everything in there and takes the network away.
///
/// # Errors
/// The namespaces cannot be made.
pub fn enter(main: impl FnOnce() -> ExitCode) -> Result<ExitCode> {
    if is_inside() {
        // The outer process holds the other end, and never writes.
        thread::Builder::new().name("lifeline".into()).spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            std::process::exit(130);
        })?;
        // What other systems leave there goes with the namespace.
        let shm = Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs", "/dev/shm"])
            .output();
        if !shm.is_ok_and(|out| out.status.success()) {
            eprintln!("no private /dev/shm here: what other systems leave there stays");
        }
        ip("link set lo up")?;
        return Ok(main());
    }
    let mut child = namespaces()
        .arg(env::current_exe().context("cannot tell which program this is")?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start unshare")?;
    // Held to the end.
    let lifeline = child.stdin.take();
    let status = child.wait()?;
    drop(lifeline);
    let code = status.code().and_then(|c| u8::try_from(c).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// What the network is to be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    /// Hosts.
    pub hosts: usize,
    /// Megabits per second that each host sends, and as many that it receives at the same time.
    pub mbit: u32,
    /// One way; `None`: what the kernel takes, some ten microseconds.
    pub delay: Option<Duration>,
}

impl Wire {
    /// Bytes per second, headers included.
    pub fn bytes_per_s(self) -> f64 {
        f64::from(self.mbit) * 1e6 / 8.0
    }

    /// `4 hosts, 200 Mbit/s`.
    pub fn name(self) -> String {
        let delay = match self.delay {
            Some(delay) => format!(", {} ms one way", delay.as_secs_f64() * 1e3),
            None => String::new(),
        };
        format!("{} hosts, {} Mbit/s{delay}", self.hosts, self.mbit)
    }

    /// Kilobytes that a token bucket lets pass at once: with less a rate of 1 Gbit/s is not reached.
    fn burst_kb(self) -> u32 {
        (self.mbit / 4).max(64)
    }

    /// Longest packet before segmentation: short enough for the bucket, long enough that processors keep up.
    fn packet(self) -> u32 {
        match self.mbit {
            0..=400 => 16 << 10,
            401..=2000 => 32 << 10,
            _ => 64 << 10,
        }
    }
}

/// Bytes that have passed an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passed {
    /// Bytes with headers.
    pub sent: u64,
    /// Bytes with headers.
    pub received: u64,
}

/// A process that holds a network namespace as long as it lives.
struct Host(Child);

impl Host {
    fn start() -> Result<Host> {
        let child = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let mut host = Host(child);
        // What it gives back shows that it is in its namespace.
        let (input, output) = (host.0.stdin.as_mut(), host.0.stdout.take());
        let (input, output) = (
            input.context("a host without input")?,
            output.context("a host without output")?,
        );
        input.write_all(b"here\n")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line != "here\n" {
            bail!("a host's namespace cannot be made");
        }
        Ok(host)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn ip(&self, words: &str) -> Result<()> {
        self.run("ip", words)
    }

    fn run(&self, program: &str, words: &str) -> Result<()> {
        let target = format!("--target={}", self.pid());
        let mut command = Command::new("nsenter");
        command.args([&target, "--net", "--", program]);
        said(command.args(words.split(' ')))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Both fail only for what has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(words: &str) -> Result<()> {
    said(Command::new("ip").args(words.split(' ')))
}

fn said(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Tells networks apart that are built one after the other: an interface of the last one may still be there.
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// The network; gone when dropped.
pub struct Net {
    wire: Wire,
    bridge: String,
    hosts: Vec<Host>,
    _relay: Option<Relay>,
}

impl Net {
    /// Builds it. Only inside of [`enter`].
    ///
    /// `congestion` is TCP's congestion control on every host; `None`: the machine's.
    ///
    /// # Errors
    /// What `ip`, `tc` and the kernel say.
    pub fn lay(wire: Wire, congestion: Option<&str>) -> Result<Net> {
        if wire.hosts == 0 || wire.hosts > MOST {
            bail!("{} hosts: there can be 1 to {MOST}", wire.hosts);
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let bridge = format!("br{serial}");
        ip(&format!("link add {bridge} type bridge"))?;
        let mut net = Net {
            wire,
            bridge,
            hosts: Vec::new(),
            _relay: None,
        };
        let bridge = &net.bridge;
        ip(&format!("link set {bridge} up"))?;
        ip(&format!(
            "addr add {}/24 dev {bridge}",
            net.control_address(None)
        ))?;
        let burst = wire.burst_kb();
        let shape = format!(
            "root tbf rate {}mbit burst {burst}kb latency {}ms",
            wire.mbit,
            QUEUE.as_millis()
        );
        let (near, limited) = match wire.delay {
            None => (INTERFACE, wire.mbit > 0),
            Some(_) => (CONTROL, false),
        };
        for i in 0..wire.hosts {
            let host = Host::start()?;
            let port = format!("p{serial}x{i}");
            let pid = host.pid();
            ip(&format!(
                "link add {port} type veth peer name {near} netns {pid}"
            ))?;
            ip(&format!("link set {port} master {} up", net.bridge))?;
            host.ip("link set lo up")?;
            let at = net.control_address(Some(i));
            host.ip(&format!("addr add {at}/24 dev {near}"))?;
            host.ip(&format!("link set {near} up"))?;
            if limited {
                let packet = wire.packet();
                host.ip(&format!("link set {near} gso_max_size {packet}"))?;
                host.run("tc", &format!("qdisc add dev {near} {shape}"))?;
                let hub = format!("qdisc add dev {port} {shape}");
                said(Command::new("tc").args(hub.split(' ')))?;
            }
            net.hosts.push(host);
        }
        if let Some(delay) = wire.delay {
            let timing = relay::Timing {
                bytes_per_s: wire.bytes_per_s(),
                delay,
                queue: QUEUE,
            };
            let pids: Vec<u32> = net.hosts.iter().map(Host::pid).collect();
            net._relay = Some(Relay::start(&pids, INTERFACE, timing)?);
            for (i, host) in net.hosts.iter().enumerate() {
                let packet = wire.packet();
                host.ip(&format!(
                    "link set {INTERFACE} mtu 1500 txqueuelen 1000 gso_max_size {packet}"
                ))?;
                host.ip(&format!("addr add {}/24 dev {INTERFACE}", address(i)))?;
                host.ip(&format!("link set {INTERFACE} up"))?;
            }
        }
        if let Some(name) = congestion {
            for host in &net.hosts {
                // By the route: the kernel lets no namespace choose what it does not offer to all.
                host.ip(&format!(
                    "route replace {NETWORK}.0/24 dev {INTERFACE} congctl {name}"
                ))?;
            }
        }
        Ok(net)
    }

    /// What it is like.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// The address by which programs are started on `host`, or that of the machine in the middle.
    fn control_address(&self, host: Option<usize>) -> String {
        let last = host.map_or(254, |h| h + 1);
        match self.wire.delay {
            None => format!("{NETWORK}.{last}"),
            Some(_) => format!("{CONTROL_NETWORK}.{last}"),
        }
    }

    /// All hosts' addresses for a launcher, and the network in which they are.
    pub fn control(&self) -> (Vec<String>, String) {
        let hosts = (0..self.hosts.len()).map(|h| self.control_address(Some(h)));
        let network = match self.wire.delay {
            None => NETWORK,
            Some(_) => CONTROL_NETWORK,
        };
        (hosts.collect(), format!("{network}.0/24"))
    }

    /// The address of the machine in the middle, where launchers run.
    pub fn middle(&self) -> String {
        self.control_address(None)
    }

    /// The network of [`INTERFACE`].
    pub fn network(&self) -> String {
        format!("{NETWORK}.0/24")
    }

    /// The process that holds a host's namespace.
    pub fn pid(&self, host: usize) -> u32 {
        self.hosts[host].pid()
    }

    /// `program`, to be started on `host`, with a host name of its own.
    pub fn on(&self, host: usize, program: impl Into<PathBuf>) -> Command {
        let mut command = Command::new("nsenter");
        command.args([&format!("--target={}", self.pid(host)), "--net", "--"]);
        command.args(["unshare", "--uts", "sh", "-c"]);
        command.arg(format!("hostname host{host} && exec \"$0\" \"$@\""));
        command.arg(program.into());
        command
    }

    /// What has passed [`INTERFACE`] of `host` since it was made.
    ///
    /// # Errors
    /// The host is gone.
    pub fn passed(&self, host: usize) -> Result<Passed> {
        let path = format!("/proc/{}/net/dev", self.pid(host));
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        counters(&text, INTERFACE).with_context(|| format!("{path} does not know {INTERFACE}"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.hosts.clear();
        // It goes with the namespace in any case.
        let _ = ip(&format!("link del {}", self.bridge));
    }
}

const NETWORK: &str = "10.77.0";
const CONTROL_NETWORK: &str = "10.78.0";

/// The address of `host` on [`INTERFACE`].
pub fn address(host: usize) -> String {
    format!("{NETWORK}.{}", host + 1)
}

/// The line of an interface in `/proc/net/dev`: received bytes are its first number, sent ones its ninth.
fn counters(text: &str, interface: &str) -> Option<Passed> {
    let mut lines = text.lines().filter_map(|l| l.trim().split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| *name == interface)?;
    let numbers: Vec<u64> = numbers
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    Some(Passed {
        received: *numbers.first()?,
        sent: *numbers.get(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_where_they_stand() {
        let text = "Inter-|   Receive                            |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n    lo:       1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n  lan0: 1500 10 0 0 0 0 0 0 3000 20 0 0 0 0 0 0\n";
        let passed = Passed {
            sent: 3000,
            received: 1500,
        };
        assert_eq!(counters(text, "lan0"), Some(passed));
        assert_eq!(counters(text, "eth0"), None);
    }

    #[test]
    fn a_wire_says_what_it_is() {
        let wire = Wire {
            hosts: 4,
            mbit: 200,
            delay: Some(Duration::from_millis(1)),
        };
        assert_eq!(wire.name(), "4 hosts, 200 Mbit/s, 1 ms one way");
        assert_eq!(wire.bytes_per_s(), 25e6);
        assert_eq!((wire.burst_kb(), wire.packet()), (64, 16 << 10));
        assert_eq!(address(3), "10.77.0.4");
    }
}
