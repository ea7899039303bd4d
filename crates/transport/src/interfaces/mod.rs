//! Which of this host's addresses a rank is reached at: a [`Wish`], as `eth0,10.0.0.0/8,!docker*`, chooses among the [`Interface`]s that there are.
//!
//! A wish is a list of rules with commas between them. A rule is
//! - a name or a pattern of names (`eth0`, `eth*`, `en?s0`),
//! - an address (`10.1.2.3`, `fd00::2`),
//! - a network in CIDR notation (`10.0.0.0/8`, `fd00::/8`),
//!
//! and `^` or `!` before it excludes what it matches; a `^` before the first excludes what any rule of the list matches, as in `^lo,docker*`.
//! An address is a candidate if some rule matches it and none excludes it; a wish that only excludes leaves the usual choice alone where that is not excluded.
//! Choosing is a function of the wish, the interfaces and the usual address; [`interfaces`] asks the system.

#[cfg(test)]
mod tests;

use ipnet::IpNet;
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    str::FromStr,
};
use wildmatch::WildMatch;

/// One address of this host, and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As the system calls it.
    pub name: String,
    /// The system's number of it, which scopes link-local addresses; 0 where it has none.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// Whether the system says that it is up and has a carrier; for a second after both it may not say so yet.
    pub up: bool,
}

impl Interface {
    /// Port 0 at this address, with the scope that a link-local address needs.
    pub fn addr(&self) -> SocketAddr {
        match self.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, 0, 0, self.index).into()
            }
            ip => SocketAddr::new(ip, 0),
        }
    }
}

/// The addresses of this host, by interface number, IPv4 first. Interfaces without an address are not among them.
///
/// # Errors
/// What the system says.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut all: Vec<Interface> = if_addrs::get_if_addrs()?
        .into_iter()
        .map(|i| Interface {
            index: i.index.unwrap_or(0),
            ip: i.ip(),
            up: i.is_oper_up(),
            name: i.name,
        })
        .collect();
    all.sort_by_key(|i| (i.index, i.ip));
    Ok(all)
}

/// Why no address was chosen. Nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// A rule cannot be read.
    #[error("'{rule}' in '{wish}' {what}")]
    Malformed {
        /// The whole wish.
        wish: String,
        /// The rule.
        rule: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Nothing here is what was asked for.
    #[error("no interface matches '{wish}': there are {}", listed(there))]
    NoMatch {
        /// What was asked for.
        wish: String,
        /// What there is.
        there: Vec<Interface>,
    },
}

/// `lo (127.0.0.1, ::1), eth0 (10.0.0.2; not running)`.
fn listed(there: &[Interface]) -> String {
    if there.is_empty() {
        return "none with an address".into();
    }
    let mut names: Vec<&str> = there.iter().map(|i| &*i.name).collect();
    names.dedup();
    let describe = |name: &&str| {
        let of = || there.iter().filter(|i| i.name == *name);
        let ips: Vec<String> = of().map(|i| i.ip.to_string()).collect();
        let state = if of().any(|i| i.up) {
            ""
        } else {
            "; not running"
        };
        format!("{name} ({}{state})", ips.join(", "))
    };
    let all: Vec<String> = names.iter().map(describe).collect();
    all.join(", ")
}

#[derive(Clone, Debug)]
enum Matcher {
    Name(WildMatch),
    Net(IpNet),
}

impl Matcher {
    fn read(rule: &str) -> Result<Matcher, &'static str> {
        if rule.is_empty() {
            return Err("is empty: give an interface, a pattern, an address or a network");
        }
        if rule.starts_with(['^', '!']) {
            return Err("is excluded twice");
        }
        if rule.contains('/') {
            return rule
                .parse()
                .map(Matcher::Net)
                .map_err(|_| "is not a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8");
        }
        if let Ok(ip) = rule.parse::<IpAddr>() {
            return Ok(Matcher::Net(ip.to_canonical().into()));
        }
        // An alias, such as eth0:1, has one.
        if rule.matches(':').count() > 1 {
            return Err("is not an IPv6 address");
        }
        if rule.contains(char::is_whitespace) {
            return Err("contains a space: commas separate");
        }
        Ok(Matcher::Name(WildMatch::new(rule)))
    }

    fn matches(&self, name: &str, ip: IpAddr) -> bool {
        match self {
            Matcher::Name(pattern) => pattern.matches(name),
            Matcher::Net(net) => net.contains(&ip),
        }
    }
}

/// Which address a rank wishes to be reached at; see the module for how it is written.
#[derive(Clone, Debug)]
pub struct Wish {
    text: String,
    wanted: Vec<Matcher>,
    excluded: Vec<Matcher>,
}

impl FromStr for Wish {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Wish, InterfaceError> {
        let (mut wanted, mut excluded) = (Vec::new(), Vec::new());
        let all_out = text.trim_start().starts_with('^');
        for rule in text.split(',').map(str::trim) {
            let (list, bare) = match rule.strip_prefix(['^', '!']) {
                Some(bare) => (&mut excluded, bare.trim_start()),
                None if all_out => (&mut excluded, rule),
                None => (&mut wanted, rule),
            };
            let matcher = Matcher::read(bare).map_err(|what| InterfaceError::Malformed {
                wish: text.into(),
                rule: rule.into(),
                what,
            })?;
            list.push(matcher);
        }
        Ok(Wish {
            text: text.into(),
            wanted,
            excluded,
        })
    }
}

impl fmt::Display for Wish {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Wish {
    fn eq(&self, other: &Wish) -> bool {
        self.text == other.text
    }
}

impl Eq for Wish {}

impl Wish {
    /// The address to be reached at, with port 0; `None` where the wish only excludes, and `usual` is not excluded.
    ///
    /// `usual` is the address that would be taken without a wish: that by which the store was reached.
    /// Rules earlier in the list win. Among what one rule matches, an interface that runs wins over one that does not, then `usual` itself over others, then an address that is loopback if `usual` is and none if it is not, then one that is not link-local, then the family of `usual`, then the lowest number of the interface.
    /// Where a wish only excludes, neither loopback nor link-local addresses come instead of `usual`.
    ///
    /// # Errors
    /// [`InterfaceError::NoMatch`] lists what there is.
    pub fn choose(
        &self,
        there: &[Interface],
        usual: SocketAddr,
    ) -> Result<Option<SocketAddr>, InterfaceError> {
        let usual = usual.ip().to_canonical();
        let excluded = |i: &Interface| self.excluded.iter().any(|m| m.matches(&i.name, i.ip));
        let rank = |i: &Interface| {
            (
                !i.up,
                i.ip != usual,
                i.ip.is_loopback() != usual.is_loopback(),
                is_link_local(i.ip),
                i.ip.is_ipv4() != usual.is_ipv4(),
                i.index,
                i.ip,
            )
        };
        let left = there.iter().filter(|i| !excluded(i));
        let chosen = if self.wanted.is_empty() {
            let out = |m: &Matcher| matches!(m, Matcher::Net(net) if net.contains(&usual));
            let owners = there.iter().filter(|i| i.ip == usual);
            if !self.excluded.iter().any(out) && !owners.clone().any(excluded) {
                return Ok(None);
            }
            left.filter(|i| !i.ip.is_loopback() && !is_link_local(i.ip))
                .min_by_key(|i| rank(i))
        } else {
            let place = |i: &Interface| self.wanted.iter().position(|m| m.matches(&i.name, i.ip));
            left.filter_map(|i| Some((place(i)?, i)))
                .min_by_key(|(place, i)| (*place, rank(i)))
                .map(|(_, i)| i)
        };
        match chosen {
            Some(i) => Ok(Some(i.addr())),
            None => Err(InterfaceError::NoMatch {
                wish: self.text.clone(),
                there: there.to_vec(),
            }),
        }
    }
}

/// Whether others on the same wire, and nobody else, can reach it.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
