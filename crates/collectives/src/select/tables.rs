//! What links can do, as whole numbers.

use gaggle_core::descriptor::stable_hash;

/// What one kind of link, and the ranks at its ends, can do.
///
/// The defaults are of the size that public measurements of the kind have; `gaggle tune` is to measure.
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
}

impl LinkClass {
    /// Threads of one process.
    pub const THREADS: LinkClass = LinkClass {
        latency_ns: 5_000,
        message_ns: 500,
        bytes_per_us: 4_000,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
    };
    /// Processes of one host, over its own loopback.
    pub const LOOPBACK: LinkClass = LinkClass {
        latency_ns: 15_000,
        message_ns: 3_000,
        bytes_per_us: 2_000,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
    };
    /// Hosts on a network of 10 Gbit/s.
    pub const TEN_GIGABIT: LinkClass = LinkClass {
        latency_ns: 30_000,
        message_ns: 3_000,
        bytes_per_us: 1_150,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
    };
    /// Hosts on a network of 1 Gbit/s.
    pub const GIGABIT: LinkClass = LinkClass {
        latency_ns: 60_000,
        message_ns: 3_000,
        bytes_per_us: 115,
        fold_bytes_per_us: 6_000,
        codec_bytes_per_us: 4_000,
    };

    /// The classes that have a name: `threads`, `loopback`, `10gbit`, `1gbit`.
    pub const NAMED: [(&'static str, LinkClass); 4] = [
        ("threads", LinkClass::THREADS),
        ("loopback", LinkClass::LOOPBACK),
        ("10gbit", LinkClass::TEN_GIGABIT),
        ("1gbit", LinkClass::GIGABIT),
    ];

    fn to_bytes(self) -> [u8; 40] {
        let numbers = [
            self.latency_ns,
            self.message_ns,
            self.bytes_per_us,
            self.fold_bytes_per_us,
            self.codec_bytes_per_us,
        ];
        let mut bytes = [0; 40];
        for (to, n) in bytes.chunks_mut(8).zip(numbers) {
            to.copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }
}

/// What the cost model goes by. Part of what a group agrees on: equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    /// Between ranks of one host.
    pub inside: LinkClass,
    /// Between hosts; a host's ranks share it.
    pub between: LinkClass,
    /// Longest message in bytes.
    pub slice_bytes: u64,
    /// Whether ranks of one host have each other's buffers mapped, so that fused plans can be carried out.
    pub mapped: bool,
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

    /// Hosts on a network of 10 Gbit/s.
    pub const fn network() -> Tables {
        Tables::of(LinkClass::LOOPBACK, LinkClass::TEN_GIGABIT)
    }

    /// Links of these classes.
    pub const fn of(inside: LinkClass, between: LinkClass) -> Tables {
        Tables {
            inside,
            between,
            slice_bytes: Tables::SLICE_BYTES,
            mapped: false,
        }
    }

    /// Equal for equal tables, on every machine; for the descriptor.
    pub fn hash(&self) -> u64 {
        stable_hash(&[
            b"tables",
            &self.inside.to_bytes(),
            &self.between.to_bytes(),
            &self.slice_bytes.to_le_bytes(),
            &[u8::from(self.mapped)],
        ])
    }
}

/// Those of a network.
impl Default for Tables {
    fn default() -> Tables {
        Tables::network()
    }
}
