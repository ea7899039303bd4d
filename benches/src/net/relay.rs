//! Carries packets between TUN devices with a rate and a delay, for kernels without a queueing discipline that delays.
//!
//! One thread reads packets from every host's device and writes each, when its time has come, to the device of the host to which it goes (the last byte of its IPv4 address, counted from 1).
//! Long segments pass whole and count as the packets into which a network card would cut them, so that one processor carries some gigabits per second.
//! [`Lines`] is the arithmetic: what leaves when, and what is lost.

use std::time::Duration;

/// How the lines between hosts are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// That a host sends, and as many that it receives; 0: no limit.
    pub bytes_per_s: f64,
    /// One way.
    pub delay: Duration,
    /// How long a packet may wait at the receiver's end before it is lost.
    pub queue: Duration,
}

/// So much may wait at the sender's end: beyond, its device is not read, and it feels what a full network card is like.
const BACKLOG_NS: u64 = 2_000_000;
/// What each packet that a long segment is cut into has of headers besides the first: IP and TCP with a time stamp.
const HEADERS: usize = 52;

/// When each host's two lines are free again. Times are nanoseconds from some beginning.
#[derive(Clone, Debug)]
pub struct Lines {
    ns_per_byte: f64,
    delay_ns: u64,
    queue_ns: u64,
    /// Of each host: when it has sent, and when it has received, all that is known of.
    out: Vec<u64>,
    into: Vec<u64>,
}

impl Lines {
    /// Of so many hosts, all free.
    pub fn new(hosts: usize, timing: Timing) -> Lines {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Lines {
            ns_per_byte: match timing.bytes_per_s > 0.0 {
                true => 1e9 / timing.bytes_per_s,
                false => 0.0,
            },
            delay_ns: ns(timing.delay),
            queue_ns: ns(timing.queue),
            out: vec![0; hosts],
            into: vec![0; hosts],
        }
    }

    /// When something from `source` may be accepted; not after `now`: at once.
    pub fn ready(&self, source: usize) -> u64 {
        self.out[source].saturating_sub(BACKLOG_NS)
    }

    /// A packet of `bytes`, cut into so many pieces: when it has arrived whole, or `None` where it is lost.
    ///
    /// What passes both lines unhindered takes the delay and once its own length at the rate.
    pub fn send(
        &mut self,
        now: u64,
        source: usize,
        target: usize,
        bytes: usize,
        pieces: usize,
    ) -> Option<u64> {
        let length = ((bytes + pieces.max(1) * HEADERS) as f64 * self.ns_per_byte) as u64;
        let leaves = self.out[source].max(now);
        self.out[source] = leaves + length;
        let comes = leaves + self.delay_ns;
        let begins = self.into[target].max(comes);
        if begins - comes > self.queue_ns {
            return None;
        }
        self.into[target] = begins + length;
        Some(begins + length)
    }
}

/// Where a packet goes, by its IPv4 header, among so many hosts.
fn target(packet: &[u8], hosts: usize) -> Option<usize> {
    let first = packet.first()?;
    let last = usize::from(*packet.get(19)?);
    (first >> 4 == 4 && (1..=hosts).contains(&last)).then(|| last - 1)
}

/// Into how many packets of the network this one will be cut: the header before it says how long each may be.
fn pieces(header: &[u8], bytes: usize) -> usize {
    let (Some(sort), Some(size)) = (header.get(1), header.get(4..6)) else {
        return 1;
    };
    let size = usize::from(u16::from_ne_bytes([size[0], size[1]]));
    match *sort {
        0 => 1,
        _ => bytes.div_ceil(size.max(1)).max(1),
    }
}

#[cfg(target_os = "linux")]
pub use thread::Relay;

#[cfg(not(target_os = "linux"))]
pub use absent::Relay;

#[cfg(not(target_os = "linux"))]
mod absent {
    /// There are no TUN devices here.
    pub struct Relay;
    impl Relay {
        /// Never succeeds.
        ///
        /// # Errors
        /// Always.
        pub fn start(_: &[u32], _: &str, _: super::Timing) -> anyhow::Result<Relay> {
            anyhow::bail!("TUN devices with network namespaces are Linux's")
        }
    }
}

#[cfg(target_os = "linux")]
mod thread {
    use super::{Lines, Timing, pieces, target};
    use crate::net::raw_tun::{HEADER, open_in};
    use anyhow::{Context, Result};
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        fd::OwnedFd,
        io::{Errno, read, write},
        thread::set_current_timer_slack,
    };
    use std::{
        collections::VecDeque,
        num::NonZeroU64,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        thread::JoinHandle,
        time::Instant,
    };

    /// The longest packet with its header.
    const LONGEST: usize = (64 << 10) + 256;
    /// So many packets of one host before the others' turn.
    const TURN: usize = 16;
    /// Whether it is to end is looked at so often.
    const PATIENCE_NS: u64 = 100_000_000;

    /// The thread that carries; ends when dropped.
    pub struct Relay {
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Relay {
        /// Makes the device `interface` in the network namespaces of these processes and begins to carry.
        ///
        /// # Errors
        /// The devices cannot be made.
        pub fn start(pids: &[u32], interface: &str, timing: Timing) -> Result<Relay> {
            let (pids, interface) = (pids.to_vec(), interface.to_owned());
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let (tell, told) = mpsc::channel();
            let thread = std::thread::Builder::new()
                .name("relay".into())
                .spawn(move || {
                    let open = |pid: &u32| open_in(*pid, &interface);
                    let devices: Result<Vec<OwnedFd>> = pids.iter().map(open).collect();
                    let devices = match devices {
                        Ok(devices) => devices,
                        Err(error) => return drop(tell.send(Err(error))),
                    };
                    // Fails where the system has no such setting: packets are then a little late.
                    let _ = set_current_timer_slack(NonZeroU64::new(1000));
                    if tell.send(Ok(())).is_ok() {
                        carry(&devices, timing, &stopped);
                    }
                })?;
            told.recv().context("the relay has ended early")??;
            Ok(Relay {
                stop,
                thread: Some(thread),
            })
        }
    }

    impl Drop for Relay {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            if let Some(thread) = self.thread.take() {
                // It ends by itself; a panic in it has been printed.
                let _ = thread.join();
            }
        }
    }

    /// A packet on its way.
    struct Packet {
        due: u64,
        bytes: Vec<u8>,
    }

    struct Carrier<'a> {
        devices: &'a [OwnedFd],
        lines: Lines,
        began: Instant,
        /// By the host to which they go, in the order of their times.
        under_way: Vec<VecDeque<Packet>>,
        spare: Vec<Vec<u8>>,
    }

    fn carry(devices: &[OwnedFd], timing: Timing, stop: &AtomicBool) {
        let mut carrier = Carrier {
            devices,
            lines: Lines::new(devices.len(), timing),
            began: Instant::now(),
            under_way: devices.iter().map(|_| VecDeque::new()).collect(),
            spare: Vec::new(),
        };
        while !stop.load(Ordering::Relaxed) {
            let next = carrier.deliver();
            for source in carrier.wait(next) {
                carrier.accept(source);
            }
        }
    }

    impl Carrier<'_> {
        fn now(&self) -> u64 {
            u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
        }

        /// Hands over what is due; when the next one is.
        fn deliver(&mut self) -> u64 {
            let now = self.now();
            let mut next = now + PATIENCE_NS;
            for (queue, device) in self.under_way.iter_mut().zip(self.devices) {
                while queue.front().is_some_and(|p| p.due <= now) {
                    let Some(packet) = queue.pop_front() else {
                        break;
                    };
                    // A device that is full or down loses it, as a network does.
                    let _ = write(device, &packet.bytes);
                    self.spare.push(packet.bytes);
                }
                next = queue.front().map_or(next, |p| next.min(p.due));
            }
            next
        }

        /// Waits until then, or until a host that may send has sent; which have.
        fn wait(&self, next: u64) -> Vec<usize> {
            let now = self.now();
            let (mut until, mut polled, mut fds) = (next, Vec::new(), Vec::new());
            for (source, device) in self.devices.iter().enumerate() {
                let ready = self.lines.ready(source);
                if ready <= now {
                    polled.push(source);
                    fds.push(PollFd::new(device, PollFlags::IN));
                } else {
                    until = until.min(ready);
                }
            }
            let left = until.saturating_sub(now);
            let limit = Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            };
            if poll(&mut fds, Some(&limit)).is_err() {
                return Vec::new();
            }
            let come = polled.into_iter().zip(&fds);
            come.filter(|(_, fd)| !fd.revents().is_empty())
                .map(|(source, _)| source)
                .collect()
        }

        /// Takes over what a host sends, as much as its line takes.
        fn accept(&mut self, source: usize) {
            for _ in 0..TURN {
                if self.lines.ready(source) > self.now() {
                    return;
                }
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.resize(LONGEST, 0);
                let n = match read(&self.devices[source], &mut bytes[..]) {
                    Ok(n) => n,
                    Err(Errno::INTR) => 0,
                    Err(_) => {
                        self.spare.push(bytes);
                        return;
                    }
                };
                bytes.truncate(n);
                let (head, packet) = bytes.split_at(n.min(HEADER));
                let now = self.now();
                let due = target(packet, self.devices.len()).and_then(|to| {
                    let pieces = pieces(head, packet.len());
                    let due = self.lines.send(now, source, to, packet.len(), pieces);
                    due.map(|due| (to, due))
                });
                match due {
                    Some((to, due)) => self.under_way[to].push_back(Packet { due, bytes }),
                    None => self.spare.push(bytes),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes_per_s: f64) -> Lines {
        let timing = Timing {
            bytes_per_s,
            delay: Duration::from_millis(1),
            queue: Duration::from_millis(20),
        };
        Lines::new(3, timing)
    }

    #[test]
    fn a_packet_takes_the_delay_and_its_length_once() {
        // 1 byte takes 1 µs.
        let mut lines = lines(1e6);
        let length = (948 + HEADERS) as u64 * 1000;
        assert_eq!(lines.send(5, 0, 1, 948, 1), Some(5 + 1_000_000 + length));
        // The next one waits for the first on the way out; one from elsewhere waits for both on the way in.
        let second = 5 + 1_000_000 + 2 * length;
        assert_eq!(lines.send(5, 0, 1, 948, 1), Some(second));
        assert_eq!(lines.send(5, 2, 1, 948, 1), Some(second + length));
        // Another way it waits for nobody.
        assert_eq!(lines.send(5, 1, 0, 948, 1), Some(5 + 1_000_000 + length));
    }

    #[test]
    fn segments_count_as_the_packets_they_are_cut_into() {
        let mut lines = lines(1e6);
        let whole = (3000 + 3 * HEADERS) as u64 * 1000;
        assert_eq!(lines.send(0, 0, 1, 3000, 3), Some(1_000_000 + whole));
        let mut header = [0; 10];
        assert_eq!(pieces(&header, 3000), 1);
        header[1] = 1;
        header[4..6].copy_from_slice(&1400u16.to_ne_bytes());
        assert_eq!(pieces(&header, 3000), 3);
        assert_eq!(pieces(&[], 3000), 1);
    }

    #[test]
    fn whoever_sends_too_much_has_to_wait_and_what_waits_too_long_is_lost() {
        let mut lines = lines(1e6);
        assert_eq!(lines.ready(0), 0);
        // 5 ms of it: 2 ms may wait.
        assert!(lines.send(0, 0, 1, 4948, 1).is_some());
        assert_eq!(lines.ready(0), 3_000_000);
        // From two hosts at once to one: what waits 20 ms there is lost.
        let mut lost = 0;
        for at in 0..20 {
            let now = at * 5_000_000;
            for source in [0, 2] {
                lost += u32::from(lines.send(now, source, 1, 4948, 1).is_none());
            }
        }
        assert!((12..20).contains(&lost), "{lost}");
    }

    #[test]
    fn no_limit_is_the_delay_alone() {
        let mut lines = lines(0.0);
        assert_eq!(lines.send(7, 0, 1, 60_000, 42), Some(1_000_007));
        assert_eq!(lines.ready(0), 0);
    }

    #[test]
    fn packets_go_where_their_header_says_or_nowhere() {
        let mut packet = [0u8; 20];
        packet[0] = 0x45;
        packet[19] = 2;
        assert_eq!(target(&packet, 3), Some(1));
        packet[19] = 4;
        assert_eq!(target(&packet, 3), None);
        packet[19] = 0;
        assert_eq!(target(&packet, 3), None);
        packet[0] = 0x60;
        packet[19] = 2;
        assert_eq!(target(&packet, 3), None);
        assert_eq!(target(&packet[..10], 3), None);
    }
}
