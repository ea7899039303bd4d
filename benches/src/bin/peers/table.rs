//! What is measured: experiments, who takes part in each, and the rows by which gaggle is judged.

use std::fmt;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// How the ranks of an experiment reach each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Path {
    /// Memory of one host.
    Shm,
    /// TCP on the loopback interface.
    Tcp,
}

impl Path {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::Shm => "shm",
            Path::Tcp => "tcp",
        }
    }
}

/// What has to be installed once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum System {
    Gaggle,
    OpenMpi4,
    OpenMpi5,
    Mpich,
    OneCcl,
    Gloo,
    Torch,
    BlueFog,
    Duplex,
}

impl System {
    pub(crate) const ALL: [System; 9] = [
        System::Gaggle,
        System::OpenMpi4,
        System::OpenMpi5,
        System::Mpich,
        System::OneCcl,
        System::Gloo,
        System::Torch,
        System::BlueFog,
        System::Duplex,
    ];

    /// As options and folders name it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            System::Gaggle => "gaggle",
            System::OpenMpi4 => "openmpi4",
            System::OpenMpi5 => "openmpi5",
            System::Mpich => "mpich",
            System::OneCcl => "oneccl",
            System::Gloo => "gloo",
            System::Torch => "torch",
            System::BlueFog => "bluefog",
            System::Duplex => "duplex",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            System::Gaggle => "gaggle perf, of this workspace",
            System::OpenMpi4 => "Open MPI 4, from PyPI",
            System::OpenMpi5 => "Open MPI 5, from PyPI",
            System::Mpich => "MPICH, from PyPI",
            System::OneCcl => {
                "oneCCL with Intel MPI's runtime, from PyPI; libhwloc from Debian's packages"
            }
            System::Gloo => "Gloo's own library, from Debian's packages",
            System::Torch => "Gloo in PyTorch, from PyPI (5 GB), or from target/torchrun",
            System::BlueFog => {
                "BlueFog, from PyPI; needs a Python 3.8 and Open MPI 4, and builds for some minutes"
            }
            System::Duplex => {
                "no system: both ways at once over one TCP connection, the limit that loopback sets"
            }
        }
    }
}

/// A system as it takes part in an experiment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Contender {
    /// Buffers from anywhere.
    Plain,
    /// Buffers of gaggle's registered heap.
    Registered,
    OpenMpi4,
    OpenMpi5,
    Mpich,
    /// oneCCL over libfabric, with its own shared memory.
    OneCcl,
    /// oneCCL over Intel MPI.
    OneCclMpi,
    Gloo,
    Torch,
    BlueFog,
    /// BlueFog without the pause between its rounds.
    BlueFogEager,
    /// The raw exchange that TCP rows are held against.
    Duplex,
}

/// What a contender is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Ours,
    Other,
    Limit,
}

impl Contender {
    pub(crate) fn system(self) -> System {
        match self {
            Contender::Plain | Contender::Registered => System::Gaggle,
            Contender::OpenMpi4 => System::OpenMpi4,
            Contender::OpenMpi5 => System::OpenMpi5,
            Contender::Mpich => System::Mpich,
            Contender::OneCcl | Contender::OneCclMpi => System::OneCcl,
            Contender::Gloo => System::Gloo,
            Contender::Torch => System::Torch,
            Contender::BlueFog | Contender::BlueFogEager => System::BlueFog,
            Contender::Duplex => System::Duplex,
        }
    }

    pub(crate) fn role(self) -> Role {
        match self.system() {
            System::Gaggle => Role::Ours,
            System::Duplex => Role::Limit,
            _ => Role::Other,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contender::Plain => "gaggle",
            Contender::Registered => "gaggle registered",
            Contender::OpenMpi4 => "Open MPI 4",
            Contender::OpenMpi5 => "Open MPI 5",
            Contender::Mpich => "MPICH",
            Contender::OneCcl => "oneCCL",
            Contender::OneCclMpi => "oneCCL over Intel MPI",
            Contender::Gloo => "Gloo",
            Contender::Torch => "Gloo in PyTorch",
            Contender::BlueFog => "BlueFog",
            Contender::BlueFogEager => "BlueFog, cycle time 0",
            Contender::Duplex => "raw duplex exchange",
        })
    }
}

/// One operation among so many ranks over one path, at several sizes, by several contenders.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Experiment {
    pub(crate) id: &'static str,
    /// As every program's `--op` takes it.
    pub(crate) op: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) ranks: usize,
    pub(crate) path: Path,
    /// Bytes of the longest vector that a rank holds, ascending.
    pub(crate) sizes: Vec<u64>,
    pub(crate) contenders: Vec<Contender>,
    /// Held to two processors, however many there are.
    pub(crate) two_cores: bool,
}

/// All experiments. `cores` is how many processors this process may use: those who wait without ever giving a processor away are left out where ranks have to share one.
pub(crate) fn experiments(cores: usize) -> Vec<Experiment> {
    use Contender::{
        BlueFog, BlueFogEager, Duplex, Gloo, Mpich, OneCcl, OneCclMpi, OpenMpi4, OpenMpi5, Plain,
        Registered, Torch,
    };
    let on_host = [
        Registered, Plain, OpenMpi4, OpenMpi5, Mpich, OneCcl, OneCclMpi,
    ];
    let on_tcp = [
        Plain, OpenMpi4, OpenMpi5, Mpich, OneCcl, OneCclMpi, Gloo, Torch, Duplex,
    ];
    let make = |id, op, ranks, path, sizes: Vec<u64>, contenders: &[Contender]| Experiment {
        id,
        op,
        dtype: "f32",
        ranks,
        path,
        sizes,
        contenders: contenders.to_vec(),
        two_cores: false,
    };
    let powers = powers_of_four(4, 256 * MIB);
    let mut on_host_sizes = powers.clone();
    on_host_sizes.insert(1, 8);
    let large = vec![MIB, 64 * MIB];
    let mut all = vec![
        make("shm-2", "allreduce", 2, Path::Shm, on_host_sizes, &on_host),
        Experiment {
            two_cores: true,
            ..make("shm-4", "allreduce", 4, Path::Shm, powers.clone(), &on_host)
        },
        make("tcp-2", "allreduce", 2, Path::Tcp, powers, &on_tcp),
    ];
    for (id, op) in [
        ("broadcast-2", "broadcast"),
        ("allgather-2", "allgather"),
        ("reduce_scatter-2", "reduce_scatter"),
        ("alltoall-2", "alltoall"),
    ] {
        all.push(make(id, op, 2, Path::Shm, large.clone(), &on_host));
    }
    let wide = powers_of_four(4 * KIB, 64 * MIB);
    for (id, path, contenders) in [
        (
            "bf16-shm-2",
            Path::Shm,
            &[Registered, Plain, OneCcl, OneCclMpi][..],
        ),
        ("bf16-tcp-2", Path::Tcp, &[Plain, OneCcl, OneCclMpi, Torch]),
    ] {
        all.push(Experiment {
            dtype: "bf16",
            ..make(id, "allreduce", 2, path, wide.clone(), contenders)
        });
    }
    for (id, op, ranks) in [
        ("mix-ring-2", "neighbor_ring", 2),
        ("mix-ring-4", "neighbor_ring", 4),
        ("mix-exp2-2", "neighbor_exp2", 2),
        ("mix-exp2-4", "neighbor_exp2", 4),
    ] {
        let contenders = [Registered, Plain, BlueFog, BlueFogEager];
        all.push(make(
            id,
            op,
            ranks,
            Path::Shm,
            vec![16 * MIB, 64 * MIB],
            &contenders,
        ));
    }
    for e in &mut all {
        if e.ranks > cores || e.two_cores && e.ranks > 2 {
            e.contenders.retain(|c| !matches!(c, Mpich | OneCclMpi));
        }
    }
    all
}

/// `lo`, 4 `lo`, 16 `lo` and so on, up to `hi`.
fn powers_of_four(lo: u64, hi: u64) -> Vec<u64> {
    std::iter::successors(Some(lo), |s| Some(s * 4))
        .take_while(|s| *s <= hi)
        .collect()
}

/// What gaggle's time, divided by the best other's, may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Bar {
    Fixed(f64),
    /// The larger of `floor` and `factor` times the raw exchange's time divided by the best other's.
    Duplex {
        floor: f64,
        factor: f64,
    },
}

/// One line of the judgement.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) experiments: &'static [&'static str],
    pub(crate) ours: Contender,
    /// First and last size in bytes.
    pub(crate) span: (u64, u64),
    pub(crate) bar: Bar,
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    use Contender::{Plain, Registered};
    let row = |name, experiments, ours, lo, hi, bar| Row {
        name,
        experiments,
        ours,
        span: (lo, hi),
        bar: Bar::Fixed(bar),
    };
    let (k, m) = (KIB, MIB);
    let two: &[&str] = &["shm-2"];
    let mix: &[&str] = &["mix-ring-2", "mix-ring-4", "mix-exp2-2", "mix-exp2-4"];
    let rest: &[&str] = &[
        "broadcast-2",
        "allgather-2",
        "reduce_scatter-2",
        "alltoall-2",
    ];
    let duplex = Bar::Duplex {
        floor: 0.75,
        factor: 1.15,
    };
    vec![
        row("registered, 8 B", two, Registered, 8, 8, 0.9),
        row("registered, 1 and 4 KiB", two, Registered, k, 4 * k, 0.7),
        row(
            "registered, 64 KiB to 16 MiB",
            two,
            Registered,
            64 * k,
            16 * m,
            0.40,
        ),
        row("registered, 64 MiB", two, Registered, 64 * m, 64 * m, 0.25),
        row(
            "registered, 256 MiB",
            two,
            Registered,
            256 * m,
            256 * m,
            0.32,
        ),
        row("plain, 8 B", two, Plain, 8, 8, 0.9),
        row("plain, 4 KiB", two, Plain, 4 * k, 4 * k, 0.8),
        row("plain, 64 KiB to 1 MiB", two, Plain, 64 * k, m, 0.95),
        row("plain, 4 to 16 MiB", two, Plain, 4 * m, 16 * m, 1.10),
        row("plain, 64 MiB", two, Plain, 64 * m, 64 * m, 0.55),
        row("plain, 256 MiB", two, Plain, 256 * m, 256 * m, 0.65),
        row(
            "4 ranks on 2 cores, plain",
            &["shm-4"],
            Plain,
            0,
            u64::MAX,
            0.85,
        ),
        row("TCP, 4 B to 4 KiB", &["tcp-2"], Plain, 4, 4 * k, 1.0),
        Row {
            bar: duplex,
            ..row(
                "TCP, 64 KiB to 256 MiB",
                &["tcp-2"],
                Plain,
                64 * k,
                256 * m,
                0.0,
            )
        },
        row("neighbour averaging, plain", mix, Plain, 0, u64::MAX, 0.45),
        row(
            "neighbour averaging, registered",
            mix,
            Registered,
            0,
            u64::MAX,
            0.25,
        ),
        row("other collectives, 1 MiB", rest, Registered, m, m, 1.0),
        row(
            "other collectives, 64 MiB",
            rest,
            Registered,
            64 * m,
            64 * m,
            0.85,
        ),
    ]
}

/// A size as people write it.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        b if b >= MIB && b % MIB == 0 => format!("{} MiB", b / MIB),
        b if b >= KIB && b % KIB == 0 => format!("{} KiB", b / KIB),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_sizes_in_experiments_that_its_contender_takes_part_in() {
        let all = experiments(2);
        for row in rows() {
            for id in row.experiments {
                let e = all.iter().find(|e| e.id == *id).expect(id);
                assert!(e.contenders.contains(&row.ours), "{} {id}", row.name);
                let (lo, hi) = row.span;
                let spanned: Vec<u64> = e
                    .sizes
                    .iter()
                    .copied()
                    .filter(|s| (lo..=hi).contains(s))
                    .collect();
                assert!(!spanned.is_empty(), "{} {id}", row.name);
                // Every power of four between the ends is measured.
                let steps = spanned.windows(2).all(|w| w[1] == 4 * w[0] || w[0] < 16);
                assert!(steps || row.span.0 == 0, "{} {spanned:?}", row.name);
                if let Bar::Duplex { .. } = row.bar {
                    assert!(e.contenders.contains(&Contender::Duplex));
                }
            }
        }
    }

    #[test]
    fn who_never_gives_a_processor_away_is_left_out_where_ranks_share_one() {
        let spinners = |cores| -> Vec<&str> {
            let all = experiments(cores).into_iter();
            all.filter(|e| e.contenders.contains(&Contender::Mpich))
                .map(|e| e.id)
                .collect()
        };
        assert!(spinners(1).is_empty());
        assert!(spinners(2).contains(&"shm-2"));
        // Held to two processors on a machine of any size.
        assert!(!spinners(64).contains(&"shm-4"));
    }

    #[test]
    fn sizes_are_whole_elements_for_every_rank() {
        for e in experiments(2) {
            let width = if e.dtype == "bf16" { 2 } else { 4 };
            let parts = if e.op == "allreduce" {
                1
            } else {
                e.ranks as u64
            };
            assert!(e.sizes.iter().all(|s| s % (width * parts) == 0), "{}", e.id);
            assert!(e.sizes.windows(2).all(|w| w[0] < w[1]), "{}", e.id);
        }
        assert_eq!(powers_of_four(4, 256 * MIB).len(), 14);
        assert_eq!(
            (size(8), size(4096), size(MIB)),
            ("8 B".into(), "4 KiB".into(), "1 MiB".into())
        );
    }
}
