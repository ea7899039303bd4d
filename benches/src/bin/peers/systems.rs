//! How each contender is started, with the settings under which it is quickest on one host.
//!
//! - Open MPI waits busily while every rank has a processor; ranks that share one must be told to give it away.
//! - oneCCL works in the calling thread while every rank has a processor; else a thread of its own with a wait that yields is quicker by orders of magnitude.
//! - MPICH and oneCCL over Intel MPI go over TCP by libfabric's provider of that name, told not to share memory; that they do, the loopback interface's counters show.
//! - Gloo and BlueFog have threads of their own that block.

use crate::{
    run::Invocation,
    table::{Contender, Experiment, Path},
};
use std::path::{Path as FilePath, PathBuf};

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Below the target directory: a folder per system, and `bin`.
    pub(crate) cache: PathBuf,
    /// Our programs' sources.
    pub(crate) sources: PathBuf,
    /// `gaggle`.
    pub(crate) gaggle: PathBuf,
    /// This program.
    pub(crate) own: PathBuf,
    /// A Python that has PyTorch.
    pub(crate) torch: PathBuf,
    /// Processors that this process may use.
    pub(crate) cores: usize,
}

impl Places {
    pub(crate) fn of(&self, system: &str) -> PathBuf {
        self.cache.join(system)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.cache.join("bin").join(name)
    }
}

fn text(path: impl AsRef<FilePath>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

/// `contender` in `e`, at these sizes, for `budget` seconds each.
pub(crate) fn invocation(
    places: &Places,
    e: &Experiment,
    contender: Contender,
    sizes: &[u64],
    budget: f64,
) -> Invocation {
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let what: Vec<String> = [
        ("--op", e.op.to_owned()),
        ("--dtype", e.dtype.to_owned()),
        ("--sizes", sizes.join(",")),
        ("--budget", budget.to_string()),
    ]
    .into_iter()
    .flat_map(|(key, value)| [key.to_owned(), value])
    .collect();
    let program = |name: &str| vec![text(places.program(name))];
    let python = |at: &FilePath, script: &str| vec![text(at), text(places.sources.join(script))];
    let cores = match e.two_cores {
        true => places.cores.min(2),
        false => places.cores,
    };
    let crowded = e.ranks > cores;
    let mut run = match contender {
        Contender::Plain | Contender::Registered => {
            let mut args = vec!["perf".to_owned(), "--csv".into()];
            args.extend(["--ranks".into(), e.ranks.to_string()]);
            args.extend(["--transport".into(), e.path.name().into()]);
            args.extend((contender == Contender::Registered).then(|| "--registered".into()));
            Invocation {
                program: text(&places.gaggle),
                args,
                ..Invocation::default()
            }
        }
        Contender::OpenMpi4 => open_mpi(places, "openmpi4", e, crowded, program("openmpi4")),
        Contender::OpenMpi5 => open_mpi(places, "openmpi5", e, crowded, program("openmpi5")),
        Contender::Mpich => {
            let mut args = vec!["-np".to_owned(), e.ranks.to_string()];
            args.extend(program("mpich"));
            let tcp = [
                ("MPIR_CVAR_NOLOCAL", "1"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
            ];
            let tcp = tcp.map(|(name, value)| (name.to_owned(), value.to_owned()));
            Invocation {
                program: text(places.of("mpich").join("bin/mpiexec")),
                args,
                env: match e.path {
                    Path::Shm => Vec::new(),
                    Path::Tcp => tcp.to_vec(),
                },
                copies: None,
            }
        }
        Contender::OneCcl => one_ccl(places, e, crowded, false),
        Contender::OneCclMpi => one_ccl(places, e, crowded, true),
        Contender::Gloo => Invocation {
            program: text(places.program("gloo")),
            copies: Some(e.ranks),
            ..Invocation::default()
        },
        Contender::Torch => {
            let script = places.sources.join("torch_gloo.py");
            Invocation {
                program: text(&places.torch),
                args: vec![text(script)],
                env: vec![("GLOO_SOCKET_IFNAME".into(), "lo".into())],
                copies: Some(e.ranks),
            }
        }
        Contender::BlueFog | Contender::BlueFogEager => {
            let at = places.of("bluefog").join("bin/python");
            let program = python(&at, "bluefog_mix.py");
            let mut run = open_mpi(places, "openmpi4", e, crowded, program);
            if contender == Contender::BlueFogEager {
                run.env.push(("BLUEFOG_CYCLE_TIME".into(), "0".into()));
            }
            run
        }
        Contender::Duplex => Invocation {
            program: text(&places.own),
            args: vec!["--duplex".into()],
            copies: Some(2),
            ..Invocation::default()
        },
    };
    match contender {
        Contender::Duplex => run.args.extend(what.into_iter().skip(4)),
        _ => run.args.extend(what),
    }
    if e.two_cores && places.cores > 2 {
        run.args.insert(0, run.program);
        run.args.splice(0..0, ["-c".into(), "0,1".into()]);
        run.program = "taskset".into();
    }
    run
}

fn open_mpi(
    places: &Places,
    which: &str,
    e: &Experiment,
    crowded: bool,
    program: Vec<String>,
) -> Invocation {
    let home = places.of(which);
    let mut args = vec!["-np".to_owned(), e.ranks.to_string()];
    if crowded {
        args.extend(match which {
            "openmpi4" => vec!["--oversubscribe".into()],
            _ => vec!["--map-by".into(), ":OVERSUBSCRIBE".into()],
        });
        let yields = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"];
        args.extend(yields.map(str::to_owned));
    }
    if e.path == Path::Tcp {
        let words = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo";
        args.extend(words.split(' ').map(str::to_owned));
    }
    args.extend(program);
    let mut env = vec![("LD_LIBRARY_PATH".to_owned(), text(home.join("lib")))];
    // Containers are often root's; Open MPI wants to be told twice.
    for name in ["OMPI", "PRTE"] {
        for end in ["", "_CONFIRM"] {
            env.push((format!("{name}_ALLOW_RUN_AS_ROOT{end}"), "1".into()));
        }
    }
    let mpirun = match home.join("bin/mpirun") {
        own if own.exists() => text(own),
        // Found on the machine.
        _ => "mpirun.openmpi".into(),
    };
    Invocation {
        program: mpirun,
        args,
        env,
        copies: None,
    }
}

fn one_ccl(places: &Places, e: &Experiment, crowded: bool, over_mpi: bool) -> Invocation {
    let home = places.of("oneccl");
    let mut env: Vec<(String, String)> = vec![
        ("LD_LIBRARY_PATH".into(), text(home.join("lib"))),
        ("I_MPI_ROOT".into(), text(&home)),
    ];
    let mut set = |name: &str, value: &str| env.push((name.into(), value.into()));
    set("CCL_KVS_IFACE", "lo");
    set("FI_TCP_IFACE", "lo");
    set("CCL_LOG_LEVEL", "error");
    if crowded {
        set("CCL_WORKER_OFFLOAD", "1");
        set("CCL_YIELD", "sched_yield");
        set("CCL_SPIN_COUNT", "1");
    } else {
        set("CCL_WORKER_OFFLOAD", "0");
    }
    let program = text(places.program("oneccl"));
    if over_mpi {
        set("CCL_ATL_TRANSPORT", "mpi");
        match e.path {
            Path::Shm => set("I_MPI_FABRICS", "shm"),
            Path::Tcp => {
                set("I_MPI_FABRICS", "ofi");
                set("I_MPI_OFI_PROVIDER", "tcp");
            }
        }
        return Invocation {
            program: text(home.join("bin/mpiexec.hydra")),
            args: vec!["-n".into(), e.ranks.to_string(), program],
            env,
            copies: None,
        };
    }
    set("CCL_ATL_TRANSPORT", "ofi");
    set("CCL_PROCESS_LAUNCHER", "none");
    match e.path {
        Path::Shm => set("CCL_ATL_SHM", "1"),
        Path::Tcp => {
            set("CCL_ATL_SHM", "0");
            set("FI_PROVIDER", "tcp");
        }
    }
    Invocation {
        program,
        args: Vec::new(),
        env,
        copies: Some(e.ranks),
    }
}

#[cfg(test)]
pub(crate) fn made_up(cores: usize) -> Places {
    Places {
        cache: "/c".into(),
        sources: "/s".into(),
        gaggle: "/g/gaggle".into(),
        own: "/o/peers".into(),
        torch: "/t/python".into(),
        cores,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::experiments;

    fn line(cores: usize, id: &str, contender: Contender) -> (String, Invocation) {
        let all = experiments(cores);
        let e = all.iter().find(|e| e.id == id).expect(id);
        let run = invocation(&made_up(cores), e, contender, &[4, 8], 0.5);
        let mut line = run.program.clone();
        for arg in &run.args {
            line.push(' ');
            line.push_str(arg);
        }
        (line, run)
    }

    fn has(run: &Invocation, name: &str, value: &str) -> bool {
        run.env.contains(&(name.into(), value.into()))
    }

    #[test]
    fn gaggle_is_started_as_its_perf_takes_it() {
        assert_eq!(
            line(2, "shm-2", Contender::Registered).0,
            "/g/gaggle perf --csv --ranks 2 --transport shm --registered --op allreduce --dtype f32 --sizes 4,8 --budget 0.5"
        );
        assert_eq!(
            line(2, "tcp-2", Contender::Plain).0,
            "/g/gaggle perf --csv --ranks 2 --transport tcp --op allreduce --dtype f32 --sizes 4,8 --budget 0.5"
        );
    }

    #[test]
    fn ranks_that_share_processors_give_them_away() {
        let (mpi, _) = line(2, "shm-4", Contender::OpenMpi4);
        assert!(mpi.contains("--oversubscribe") && mpi.contains("mpi_yield_when_idle 1"));
        let (mpi, _) = line(2, "shm-2", Contender::OpenMpi5);
        assert!(!mpi.contains("yield"), "{mpi}");
        let (_, ccl) = line(2, "shm-4", Contender::OneCcl);
        assert!(has(&ccl, "CCL_YIELD", "sched_yield") && ccl.copies == Some(4));
        let (_, ccl) = line(2, "tcp-2", Contender::OneCcl);
        assert!(has(&ccl, "CCL_WORKER_OFFLOAD", "0") && has(&ccl, "FI_PROVIDER", "tcp"));
        let (_, ccl) = line(2, "tcp-2", Contender::OneCclMpi);
        assert!(has(&ccl, "I_MPI_FABRICS", "ofi") && has(&ccl, "I_MPI_OFI_PROVIDER", "tcp"));
        let (_, mpich) = line(2, "tcp-2", Contender::Mpich);
        assert!(has(&mpich, "MPIR_CVAR_NOLOCAL", "1") && has(&mpich, "FI_PROVIDER", "tcp"));
        let (_, mpich) = line(2, "shm-2", Contender::Mpich);
        assert!(mpich.env.is_empty());
    }

    #[test]
    fn four_ranks_stay_on_two_processors_of_many() {
        let (held, _) = line(8, "shm-4", Contender::Plain);
        assert!(held.starts_with("taskset -c 0,1 /g/gaggle perf "), "{held}");
        let (mpi, _) = line(8, "shm-4", Contender::OpenMpi4);
        assert!(mpi.starts_with("taskset -c 0,1 ") && mpi.contains("--oversubscribe"));
        assert!(
            line(2, "shm-4", Contender::Plain)
                .0
                .starts_with("/g/gaggle")
        );
    }

    #[test]
    fn the_exchange_is_told_sizes_only() {
        assert_eq!(
            line(2, "tcp-2", Contender::Duplex).0,
            "/o/peers --duplex --sizes 4,8 --budget 0.5"
        );
    }

    #[test]
    fn bluefog_runs_with_and_without_its_pause() {
        let (line_, eager) = line(2, "mix-ring-2", Contender::BlueFogEager);
        assert!(line_.contains("/c/bluefog/bin/python /s/bluefog_mix.py --op neighbor_ring"));
        assert!(has(&eager, "BLUEFOG_CYCLE_TIME", "0"));
        let (_, usual) = line(2, "mix-ring-2", Contender::BlueFog);
        assert!(!usual.env.iter().any(|(k, _)| k == "BLUEFOG_CYCLE_TIME"));
    }
}
