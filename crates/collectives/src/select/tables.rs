//! What links can do, as whole numbers.

use gaggle_core::descriptor::stable_hash;
use std::{fmt, str::FromStr};

/// What one kind of link, and the ranks at its ends, can do.
///
/// The defaults are of the size that public measurements of the kind have; `gaggle tune` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkClass {
    /// From the moment a message is given away until its receiver can use it, for an empty one, in nanoseconds.
    pub latency_ns: u64,
    /// What a message costs a rank's thread beside its bytes, sending or receiving, in nanoseconds.
    pub message_ns: u64,
    /// Payload bytes per microsecond (MB/s) that a rank can send while it receives as many.
    pub bytes_per_us: u64,
    /// Operand bytes per microsecond that a rank folds.
    pub fold_bytes_per_us: u64,
    /// Plain bytes per microsecond that a rank encodes or decodes.
    pub codec_bytes_per_us: u64,
    /// What a look at another rank's lines in memory that both have mapped costs, with what it has to wait for, in nanoseconds.
    pub look_ns: u64,
    /// Bytes per microsecond that a rank reads and writes, together, in steps over memory that ranks have mapped.
    pub mapped_bytes_per_us: u64,
}

impl LinkClass {
    /// Threads of one process.
    pub const THREADS: LinkClass = LinkClass {
        latency_ns: 5_000,
        message_ns: 500,
        bytes_per_us: 4_000,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
        look_ns: 300,
        mapped_bytes_per_us: 20_000,
    };
    /// Processes of one host, over its own loopback.
    pub const LOOPBACK: LinkClass = LinkClass {
        latency_ns: 15_000,
        message_ns: 3_000,
        bytes_per_us: 2_000,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
        look_ns: 300,
        mapped_bytes_per_us: 20_000,
    };
    /// Processes of one host, through memory that they share.
    pub const SHARED: LinkClass = LinkClass {
        latency_ns: 6_000,
        message_ns: 1_000,
        bytes_per_us: 4_000,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
        look_ns: 300,
        mapped_bytes_per_us: 20_000,
    };
    /// Hosts on a network of 10 Gbit/s.
    pub const TEN_GIGABIT: LinkClass = LinkClass {
        latency_ns: 30_000,
        message_ns: 3_000,
        bytes_per_us: 1_150,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
        look_ns: 300,
        mapped_bytes_per_us: 20_000,
    };
    /// Hosts on a network of 1 Gbit/s.
    pub const GIGABIT: LinkClass = LinkClass {
        latency_ns: 60_000,
        message_ns: 3_000,
        bytes_per_us: 115,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
        look_ns: 300,
        mapped_bytes_per_us: 20_000,
    };

    /// The classes that have a name: `threads`, `shared`, `loopback`, `10gbit`, `1gbit`.
    pub const NAMED: [(&'static str, LinkClass); 5] = [
        ("threads", LinkClass::THREADS),
        ("shared", LinkClass::SHARED),
        ("loopback", LinkClass::LOOPBACK),
        ("10gbit", LinkClass::TEN_GIGABIT),
        ("1gbit", LinkClass::GIGABIT),
    ];

    /// What is taken of ranks of one host that are on different memory nodes, where nothing was measured: from `self`, between ranks of one node.
    ///
    /// Twice the latency, four times as long a look, 5/8 of the bytes in messages (one of their two copies reads across) and a quarter of those read and written in mapped memory: the order of what two-socket machines are said to give each of a node's ranks while all of them reach across at once. Assumed, not measured: `gaggle tune` measures where ranks are on several nodes.
    pub const fn across_nodes(self) -> LinkClass {
        const fn part(n: u64, of: u64, by: u64) -> u64 {
            // No rate becomes 0, and none overflows.
            let n = n / by * of + n % by * of / by;
            if n == 0 { 1 } else { n }
        }
        LinkClass {
            latency_ns: self.latency_ns.saturating_mul(2),
            look_ns: self.look_ns.saturating_mul(4),
            bytes_per_us: part(self.bytes_per_us, 5, 8),
            mapped_bytes_per_us: part(self.mapped_bytes_per_us, 1, 4),
            ..self
        }
    }

    /// What a rank sees of whose bytes and looks `far` of `all` are in class `across`, the others in `self`; of rounds the slowest message counts.
    pub(super) fn partly(&self, across: &LinkClass, (far, all): (u64, u64)) -> LinkClass {
        let all = u128::from(all.max(1));
        let far = u128::from(far).min(all);
        let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        // Times add up: a mean of numbers per unit, and the inverse of one of inverses.
        let time = |near: u64, other: u64| {
            narrow((u128::from(near) * (all - far) + u128::from(other) * far) / all)
        };
        let rate = |near: u64, other: u64| {
            let (near, other) = (u128::from(near.max(1)), u128::from(other.max(1)));
            let both = (all - far)
                .saturating_mul(other)
                .saturating_add(far.saturating_mul(near));
            narrow(all.saturating_mul(near).saturating_mul(other) / both)
        };
        if far == 0 {
            return *self;
        }
        LinkClass {
            latency_ns: self.latency_ns.max(across.latency_ns),
            message_ns: time(self.message_ns, across.message_ns),
            bytes_per_us: rate(self.bytes_per_us, across.bytes_per_us),
            look_ns: time(self.look_ns, across.look_ns),
            mapped_bytes_per_us: rate(self.mapped_bytes_per_us, across.mapped_bytes_per_us),
            ..*self
        }
    }

    /// The numbers by name.
    fn fields(&mut self) -> [(&'static str, &mut u64); 7] {
        [
            ("latency_ns", &mut self.latency_ns),
            ("message_ns", &mut self.message_ns),
            ("bytes_per_us", &mut self.bytes_per_us),
            ("fold_bytes_per_us", &mut self.fold_bytes_per_us),
            ("codec_bytes_per_us", &mut self.codec_bytes_per_us),
            ("look_ns", &mut self.look_ns),
            ("mapped_bytes_per_us", &mut self.mapped_bytes_per_us),
        ]
    }

    fn to_bytes(self) -> [u8; 56] {
        let numbers = [
            self.latency_ns,
            self.message_ns,
            self.bytes_per_us,
            self.fold_bytes_per_us,
            self.codec_bytes_per_us,
            self.look_ns,
            self.mapped_bytes_per_us,
        ];
        let mut bytes = [0; 56];
        for (to, n) in bytes.chunks_mut(8).zip(numbers) {
            to.copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }
}

/// What the cost model goes by. Part of what a group agrees on: equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    /// Between ranks of one host, and of one memory node where it has several.
    pub inside: LinkClass,
    /// Between ranks of one host that are on different memory nodes: what each of them gets while all of its node do as much.
    pub across: LinkClass,
    /// Between hosts; a host's ranks share it.
    pub between: LinkClass,
    /// Longest message in bytes.
    pub slice_bytes: u64,
    /// Whether ranks of one host have each other's buffers mapped, so that fused plans can be carried out.
    pub mapped: bool,
    /// Whether there are hosts with more ranks than processors that these may use: then messages cost everybody's time.
    pub crowded: bool,
}

impl Tables {
    /// Longest message where nothing else is said.
    pub const SLICE_BYTES: u64 = 256 * 1024;

    /// All ranks are threads of one process.
    pub const fn threads() -> Tables {
        Tables::of(LinkClass::THREADS, LinkClass::THREADS)
    }

    /// All ranks are on one host.
    pub const fn one_host() -> Tables {
        Tables::of(LinkClass::LOOPBACK, LinkClass::LOOPBACK)
    }

    /// All ranks are on one host and share memory.
    pub const fn shared() -> Tables {
        Tables::of(LinkClass::SHARED, LinkClass::SHARED)
    }

    /// Hosts on a network of 10 Gbit/s, on each of which ranks share memory.
    pub const fn network() -> Tables {
        Tables::of(LinkClass::SHARED, LinkClass::TEN_GIGABIT)
    }

    /// Links of these classes; between memory nodes of a host what is assumed ([`LinkClass::across_nodes`]).
    pub const fn of(inside: LinkClass, between: LinkClass) -> Tables {
        Tables {
            inside,
            across: inside.across_nodes(),
            between,
            slice_bytes: Tables::SLICE_BYTES,
            mapped: false,
            crowded: false,
        }
    }

    /// Equal for equal tables, on every machine; for the descriptor.
    pub fn hash(&self) -> u64 {
        stable_hash(&[
            b"tables",
            &self.inside.to_bytes(),
            &self.across.to_bytes(),
            &self.between.to_bytes(),
            &self.slice_bytes.to_le_bytes(),
            &[u8::from(self.mapped), u8::from(self.crowded)],
        ])
    }
}

/// Those of a network.
impl Default for Tables {
    fn default() -> Tables {
        Tables::network()
    }
}

/// As `gaggle tune` writes them and [`FromStr`] reads them: one `name = number` per line.
impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = [
            ("inside", self.inside),
            ("across", self.across),
            ("between", self.between),
        ];
        for (side, mut class) in sides {
            for (name, number) in class.fields() {
                writeln!(f, "{side}.{name} = {number}")?;
            }
        }
        writeln!(f, "slice_bytes = {}", self.slice_bytes)?;
        writeln!(f, "mapped = {}", self.mapped)?;
        writeln!(f, "crowded = {}", self.crowded)
    }
}

/// Why a text is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: '{got}', wanted {want}")]
pub struct ParseTablesError {
    /// Which line, from 1.
    pub line: usize,
    /// What is there.
    pub got: String,
    /// What would make sense there.
    pub want: String,
}

/// Lines of `name = number`; what is not said is as in [`Tables::default`], of `across` as [`LinkClass::across_nodes`] has it of `inside`; what begins with `#` is a remark.
///
/// ```
/// use gaggle_collectives::select::Tables;
///
/// let tables: Tables = "inside.latency_ns = 9000  # measured".parse()?;
/// assert_eq!(tables.inside.latency_ns, 9000);
/// assert_eq!(tables.to_string().parse(), Ok(tables));
/// # Ok::<(), gaggle_collectives::select::ParseTablesError>(())
/// ```
impl FromStr for Tables {
    type Err = ParseTablesError;

    fn from_str(text: &str) -> Result<Tables, ParseTablesError> {
        let mut tables = Tables::default();
        let mut across = Vec::new();
        for (line, whole) in (1..).zip(text.lines()) {
            let said = whole.split('#').next().unwrap_or_default().trim();
            if said.is_empty() {
                continue;
            }
            let wrong = |want: &str| ParseTablesError {
                line,
                got: said.into(),
                want: want.into(),
            };
            let (name, value) = said
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| wrong("name = number"))?;
            let fact = match name {
                "mapped" => Some(&mut tables.mapped),
                "crowded" => Some(&mut tables.crowded),
                _ => None,
            };
            if let Some(fact) = fact {
                *fact = value.parse().map_err(|_| wrong("true or false"))?;
                continue;
            }
            let number: u64 = value
                .parse()
                .map_err(|_| wrong("a whole number after the ="))?;
            let rate = name == "slice_bytes" || name.ends_with("_per_us");
            if rate && number == 0 {
                return Err(wrong("a number above 0"));
            }
            let known = match name.split_once('.') {
                Some(("inside", field)) => set(&mut tables.inside, field, number),
                Some(("between", field)) => set(&mut tables.between, field, number),
                Some(("across", field)) => {
                    across.push((field.to_owned(), number));
                    set(&mut tables.across, field, number)
                }
                None if name == "slice_bytes" => {
                    tables.slice_bytes = number;
                    true
                }
                _ => false,
            };
            if !known {
                return Err(wrong(
                    "slice_bytes, mapped, crowded, or inside., across. or between. with latency_ns, message_ns, bytes_per_us, fold_bytes_per_us, codec_bytes_per_us, look_ns or mapped_bytes_per_us",
                ));
            }
        }
        // By what was said of `inside`, wherever that stood.
        tables.across = tables.inside.across_nodes();
        for (field, number) in across {
            set(&mut tables.across, &field, number);
        }
        Ok(tables)
    }
}

fn set(class: &mut LinkClass, field: &str, number: u64) -> bool {
    let found = class.fields().into_iter().find(|(name, _)| *name == field);
    found.map(|(_, place)| *place = number).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_as_they_are_written() {
        let mut tables = Tables::of(LinkClass::THREADS, LinkClass::GIGABIT);
        (tables.mapped, tables.crowded) = (true, true);
        (tables.slice_bytes, tables.across.look_ns) = (12345, 77);
        let read: Tables = tables.to_string().parse().unwrap();
        assert_eq!(read, tables);
        assert_eq!(read.hash(), tables.hash());
        assert_eq!("# nothing\n\n".parse(), Ok(Tables::default()));
    }

    #[test]
    fn what_is_not_said_of_nodes_follows_from_what_is_said_of_a_node() {
        let old = "across.look_ns = 5\ninside.mapped_bytes_per_us = 8000\ninside.look_ns = 100";
        let tables: Tables = old.parse().unwrap();
        assert_eq!(tables.across.mapped_bytes_per_us, 2000);
        assert_eq!(tables.across.look_ns, 5);
        let before: Tables = "inside.latency_ns = 70".parse().unwrap();
        assert_eq!(before.across, before.inside.across_nodes());
        assert_eq!(before.across.latency_ns, 140);
    }

    #[test]
    fn a_part_of_the_way_counts_by_its_time() {
        let near = LinkClass::SHARED;
        let far = LinkClass {
            mapped_bytes_per_us: near.mapped_bytes_per_us / 3,
            look_ns: 3 * near.look_ns,
            ..near
        };
        assert_eq!(near.partly(&far, (0, 4)), near);
        let half = near.partly(&far, (2, 4));
        assert_eq!(half.look_ns, 2 * near.look_ns);
        // Half of them takes three times as long: all take twice as long.
        assert_eq!(half.mapped_bytes_per_us, near.mapped_bytes_per_us / 2 - 1);
        let all = near.partly(&far, (9, 4));
        assert_eq!(all.mapped_bytes_per_us, far.mapped_bytes_per_us);
        let none = LinkClass {
            bytes_per_us: 0,
            mapped_bytes_per_us: u64::MAX,
            ..near
        };
        assert!(none.across_nodes().bytes_per_us > 0);
        assert!(near.partly(&none, (1, 2)).bytes_per_us > 0);
    }

    #[test]
    fn what_is_no_table_is_refused_by_line() {
        for (text, line, want) in [
            ("inside", 1, "name = number"),
            ("\ninside.latency_ns = fast", 2, "whole number"),
            ("inside.latency_ns = -1", 1, "whole number"),
            ("between.bytes_per_us = 0", 1, "above 0"),
            ("slice_bytes = 0", 1, "above 0"),
            ("mapped = 1", 1, "true or false"),
            ("inside.colour = 1", 1, "latency_ns"),
            ("outside.latency_ns = 1", 1, "inside., across. or between."),
        ] {
            let e = text.parse::<Tables>().unwrap_err();
            assert_eq!(e.line, line, "{text}");
            assert!(e.to_string().contains(want), "{text}: {e}");
        }
    }
}
