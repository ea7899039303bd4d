//! Where ranks are, which operations are measured there at which sizes, and what can be forced.

use anyhow::{Result, bail};
use gaggle_benches::net::Wire;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An operation with what may be forced. Where an algorithm cannot carry it out, it says so in the first round and is left out.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Operation {
    /// As `gaggle perf` names it.
    pub(crate) name: &'static str,
    pub(crate) algorithms: &'static [&'static str],
}

/// Where others than all-reduce are measured, all of these are.
pub(crate) static OPERATIONS: [Operation; 5] = [
    Operation {
        name: "all-reduce",
        algorithms: &[
            "direct",
            "exchange",
            "recursive_doubling",
            "ring",
            "halving_doubling",
            "double_tree",
            "binomial",
            "knomial",
            "fused",
            "staged",
            "two_level_ring",
            "two_level_recursive_doubling",
            "two_level_direct",
            "two_level_halving_doubling",
            "two_level_double_tree",
            "two_level_binomial",
        ],
    },
    Operation {
        name: "broadcast",
        algorithms: &[
            "binomial",
            "knomial",
            "double_tree",
            "pipelined",
            "direct",
            "fused",
            "staged",
            "two_level_binomial",
            "two_level_pipelined",
        ],
    },
    Operation {
        name: "all-gather",
        algorithms: &[
            "ring",
            "direct",
            "recursive_doubling",
            "bruck",
            "fused",
            "staged",
            "two_level_ring",
        ],
    },
    Operation {
        name: "reduce-scatter",
        algorithms: &[
            "direct",
            "ring",
            "halving_doubling",
            "fused",
            "staged",
            "two_level_direct",
        ],
    },
    Operation {
        name: "all-to-all",
        algorithms: &["direct", "bruck", "fused", "staged"],
    },
];

/// Where ranks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ranks {
    Threads(usize),
    /// Processes, by this transport; buffers of the registered heap or of any memory.
    Processes(usize, &'static str, bool),
    /// So many on each host.
    Hosts(Wire, usize),
}

impl Ranks {
    /// Of processes on hosts.
    pub(crate) fn per_host(self) -> usize {
        match self {
            Ranks::Hosts(_, each) => each,
            _ => 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: String,
    pub(crate) path: Ranks,
    pub(crate) sizes: Vec<u64>,
    /// The first so many of [`OPERATIONS`].
    operations: usize,
}

impl Place {
    pub(crate) fn operations(&self) -> impl Iterator<Item = &'static Operation> {
        OPERATIONS.iter().take(self.operations)
    }

    /// Of an operation's algorithms those that are not the same thing here, or not there at all.
    pub(crate) fn algorithms(&self, of: &Operation) -> Vec<&'static str> {
        let all = of.algorithms.iter().copied();
        all.filter(|name| match (*name, self.path) {
            // Of ordinary memory `fused` goes that way.
            ("staged", path) => matches!(path, Ranks::Processes(_, _, true)),
            ("fused", Ranks::Processes(_, transport, _)) => transport != "tcp",
            ("fused", Ranks::Hosts(..)) => false,
            (name, path) if name.starts_with("two_level") => {
                matches!(path, Ranks::Hosts(_, 2..))
            }
            _ => true,
        })
        .collect()
    }
}

pub(crate) fn places() -> Vec<Place> {
    let sizes = [64, 4 * KIB, 64 * KIB, MIB, 16 * MIB];
    let mut all = Vec::new();
    let mut add = |id: String, path, sizes: &[u64], operations| {
        let sizes = sizes.to_vec();
        all.push(Place {
            id,
            path,
            sizes,
            operations,
        });
    };
    let every = OPERATIONS.len();
    for n in [2, 3, 4] {
        add(format!("threads-{n}"), Ranks::Threads(n), &sizes, every);
    }
    for (transport, registered, name) in [
        ("shm", false, "shm"),
        ("shm", true, "registered"),
        ("tcp", false, "tcp"),
    ] {
        for n in [2, 4] {
            let path = Ranks::Processes(n, transport, registered);
            add(format!("{name}-{n}"), path, &sizes, every);
        }
    }
    // What a wire of 1 Gbit/s carries in 40 ms.
    let short = [64, 64 * KIB, MIB, 4 * MIB];
    let shorter = [64, 64 * KIB, MIB];
    let shortest = [64, 64 * KIB, 256 * KIB];
    for (hosts, mbit, each, sizes, operations) in [
        (4, 1000, 1, &short[..], 3),
        (2, 1000, 2, &short, 4),
        (8, 1000, 1, &shorter, 1),
        (4, 200, 1, &shortest, 1),
    ] {
        let wire = Wire {
            hosts,
            mbit,
            delay: None,
        };
        let id = match each {
            1 => format!("hosts-{hosts}x{mbit}"),
            _ => format!("levels-{hosts}x{each}"),
        };
        add(id, Ranks::Hosts(wire, each), sizes, operations);
    }
    all
}

/// Those whose names begin as one of `names`, or all.
///
/// # Errors
/// A name that none begins with.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Place>> {
    let all = places();
    if let Some(unknown) = names
        .iter()
        .find(|n| !all.iter().any(|p| p.id.starts_with(*n)))
    {
        let ids: Vec<&str> = all.iter().map(|p| &*p.id).collect();
        bail!(
            "no place's name begins with `{unknown}`; there are {}",
            ids.join(", ")
        );
    }
    let wanted = |p: &Place| names.is_empty() || names.iter().any(|n| p.id.starts_with(n));
    Ok(all.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_chosen_by_the_beginning_of_their_names() {
        let of = |name: &str| chosen(&[name.to_owned()]).map(|all| all.len());
        assert_eq!(of("threads").expect("three"), 3);
        assert_eq!(of("hosts-4x200").expect("one"), 1);
        assert!(of("moon").is_err());
    }

    #[test]
    fn what_cannot_be_elsewhere_is_not_tried_there() {
        let all = places();
        let of = |id: &str| {
            let place = all.iter().find(|p| p.id == id).expect(id);
            place.algorithms(&OPERATIONS[0])
        };
        assert!(of("shm-2").contains(&"fused") && !of("shm-2").contains(&"staged"));
        assert!(of("registered-4").contains(&"staged"));
        assert!(!of("tcp-2").contains(&"fused"));
        assert!(of("levels-2x2").contains(&"two_level_ring"));
        assert!(
            !of("hosts-4x1000")
                .iter()
                .any(|a| a.starts_with("two_level"))
        );
        let threads = all.iter().find(|p| p.id == "threads-3").expect("there");
        assert_eq!(threads.operations().count(), 5);
    }
}
