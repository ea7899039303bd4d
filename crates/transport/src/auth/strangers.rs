//! What is said about connections that did not prove to belong to the job: one counted line per source and minute.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_secs(60);
/// Sources told apart; more are counted together.
const SOURCES: usize = 256;

struct Source {
    since: Instant,
    uncounted: u64,
    last: String,
}

/// Counts strangers and decides when to write a line.
pub(crate) struct Strangers {
    port: String,
    sources: HashMap<IpAddr, Source>,
}

impl Strangers {
    /// For a port that is called `port` in the log.
    pub(crate) fn new(port: impl Into<String>) -> Strangers {
        Strangers {
            port: port.into(),
            sources: HashMap::new(),
        }
    }

    /// A connection from `ip` was closed because of `why`. Returns whether a line was written.
    pub(crate) fn turned_away(&mut self, ip: IpAddr, why: &str, now: Instant) -> bool {
        let ip = ip.to_canonical();
        let ip = if self.sources.contains_key(&ip) || self.sources.len() < SOURCES {
            ip
        } else {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        };
        if let Some(source) = self.sources.get_mut(&ip) {
            source.uncounted += 1;
            why.clone_into(&mut source.last);
            return self.tick(now) > 0;
        }
        tracing::warn!(
            "{}: closed a connection from {}: {why}; further ones from there are counted and reported once a minute",
            self.port,
            name(ip)
        );
        self.sources.insert(
            ip,
            Source {
                since: now,
                uncounted: 0,
                last: String::new(),
            },
        );
        true
    }

    /// Writes the lines that are due and returns how many.
    pub(crate) fn tick(&mut self, now: Instant) -> usize {
        let mut lines = 0;
        let port = &self.port;
        self.sources.retain(|ip, source| {
            if now.saturating_duration_since(source.since) < WINDOW {
                return true;
            }
            if source.uncounted == 0 {
                return false;
            }
            tracing::warn!(
                "{port}: closed {} more connections from {} in the last minute, the last because {}",
                source.uncounted,
                name(*ip),
                source.last
            );
            lines += 1;
            source.since = now;
            source.uncounted = 0;
            true
        });
        lines
    }

    /// When `tick` has something to write.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.sources
            .values()
            .filter(|s| s.uncounted > 0)
            .map(|s| s.since + WINDOW)
            .min()
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        for (ip, source) in &self.sources {
            if source.uncounted > 0 {
                tracing::debug!(
                    "{}: closed {} more connections from {}, the last because {}",
                    self.port,
                    source.uncounted,
                    name(*ip),
                    source.last
                );
            }
        }
    }
}

fn name(ip: IpAddr) -> String {
    if ip.is_unspecified() {
        "various sources".into()
    } else {
        ip.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_source_and_minute() {
        let start = Instant::now();
        let mut s = Strangers::new("test");
        let a: IpAddr = "192.0.2.1".parse().unwrap();
        let b: IpAddr = "2001:db8::1".parse().unwrap();
        assert!(s.turned_away(a, "magic", start));
        assert!(s.turned_away(b, "magic", start));
        assert_eq!(s.next_due(), None);
        for i in 0..1000 {
            assert!(!s.turned_away(a, "magic", start + Duration::from_millis(i)));
        }
        assert_eq!(s.next_due(), Some(start + WINDOW));
        assert_eq!(s.tick(start + WINDOW), 1);
        assert_eq!(s.tick(start + WINDOW), 0);
        assert_eq!(s.sources.len(), 1, "a source that went quiet is forgotten");
    }

    #[test]
    fn memory_is_bounded_whatever_the_number_of_sources() {
        let now = Instant::now();
        let mut s = Strangers::new("test");
        for i in 0..10_000_u32 {
            s.turned_away(IpAddr::V4((i + 1).into()), "magic", now);
        }
        assert!(s.sources.len() <= SOURCES + 1);
    }
}
