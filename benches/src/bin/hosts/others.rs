//! The other systems, started on hosts with a delay between them: Open MPI and MPICH through a stand-in for a remote shell, oneCCL and Gloo as a process per host.
//!
//! Installed by `cargo xtask bench peers`; what is not there is absent, and said so.

use anyhow::{Context, Result, bail};
use gaggle_benches::{
    jobs,
    net::{self, Net},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// A system beside gaggle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Other {
    OpenMpi4,
    OpenMpi5,
    Mpich,
    OneCcl,
    Gloo,
}

impl Other {
    pub(crate) const ALL: [Other; 5] = [
        Other::OpenMpi4,
        Other::OpenMpi5,
        Other::Mpich,
        Other::OneCcl,
        Other::Gloo,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Other::OpenMpi4 => "Open MPI 4",
            Other::OpenMpi5 => "Open MPI 5",
            Other::Mpich => "MPICH",
            Other::OneCcl => "oneCCL",
            Other::Gloo => "Gloo",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Other::OpenMpi4 => "openmpi4",
            Other::OpenMpi5 => "openmpi5",
            Other::Mpich => "mpich",
            Other::OneCcl => "oneccl",
            Other::Gloo => "gloo",
        }
    }

    /// Its program below `peers`.
    ///
    /// # Errors
    /// It was not installed.
    pub(crate) fn program(self, peers: &Path) -> Result<PathBuf> {
        let program = peers.join("bin").join(self.key());
        if !program.exists() {
            bail!("it is not installed: `cargo xtask bench peers --install-only` does that");
        }
        Ok(program)
    }

    /// All-reduces of these sizes on all hosts, for so many seconds each: the median of each in seconds.
    ///
    /// # Errors
    /// It is not installed, or fails.
    pub(crate) fn measure(
        self,
        net: &Net,
        peers: &Path,
        sizes: &[u64],
        budget: f64,
        limit: Duration,
    ) -> Result<BTreeMap<u64, f64>> {
        let program = self.program(peers)?;
        let list: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let words = [
            "--op".to_owned(),
            "allreduce".into(),
            "--dtype".into(),
            "f32".into(),
            "--sizes".into(),
            list.join(","),
            "--budget".into(),
            budget.to_string(),
        ];
        let place = private_folder().context("no folder to meet in")?;
        let commands = match self {
            Other::Gloo => (0..net.wire().hosts)
                .map(|host| gloo(net, host, &program, &words, place.path()))
                .collect(),
            Other::OneCcl => (0..net.wire().hosts)
                .map(|host| one_ccl(net, host, peers, &words, place.path()))
                .collect(),
            Other::Mpich => vec![mpich(net, peers, &program, &words, place.path())?],
            _ => vec![self.mpi(net, peers, &program, &words, place.path())?],
        };
        let said = jobs::run(commands, limit)?;
        let found: BTreeMap<u64, f64> = said.iter().flat_map(|out| medians(out)).collect();
        match sizes.iter().find(|s| !found.contains_key(s)) {
            Some(size) => bail!("it printed nothing about {size} bytes"),
            None => Ok(found),
        }
    }

    fn mpi(
        self,
        net: &Net,
        peers: &Path,
        program: &Path,
        words: &[String],
        place: &Path,
    ) -> Result<Command> {
        let (hosts, control) = net.control();
        let agent = agent(net, place)?;
        let home = peers.join(self.key());
        let host_list: Vec<String> = hosts.iter().map(|h| format!("{h}:1")).collect();
        let mut command = Command::new(home.join("bin/mpirun"));
        let (launch, oob) = match self {
            Other::OpenMpi5 => (
                ["--prtemca", "plm_ssh_agent"],
                ["--prtemca", "prte_if_include"],
            ),
            _ => (["--mca", "plm_rsh_agent"], ["--mca", "oob_tcp_if_include"]),
        };
        command
            .args(launch)
            .arg(&agent)
            .args(oob)
            .arg(&control)
            .args(["--host", &host_list.join(",")])
            .args(["-np", &hosts.len().to_string(), "--bind-to", "none"])
            .args(["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"])
            .args(["--mca", "btl_tcp_if_include", &net.network()])
            .args(["--mca", "mpi_yield_when_idle", "1"])
            .arg(program)
            .args(words)
            .env("LD_LIBRARY_PATH", home.join("lib"))
            .env("TMPDIR", place);
        for name in ["OMPI", "PRTE"] {
            for end in ["", "_CONFIRM"] {
                command.env(format!("{name}_ALLOW_RUN_AS_ROOT{end}"), "1");
            }
        }
        Ok(command)
    }
}

/// A stand-in for a remote shell: launchers call it as they call ssh, with options, a host, and a command for a shell there.
fn agent(net: &Net, place: &Path) -> Result<PathBuf> {
    let pids: Vec<String> = (0..net.wire().hosts)
        .map(|h| net.pid(h).to_string())
        .collect();
    let agent = place.join("agent");
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=${{1##*.}}; shift\nset_ns() {{ shift $host; pid=$1; }}\nset_ns 0 {}\nexec nsenter --target=$pid --net -- unshare --uts sh -c \"hostname host$host; $*\"\n",
        pids.join(" ")
    );
    fs::write(&agent, script)?;
    said_ok(Command::new("chmod").arg("+x").arg(&agent))?;
    Ok(agent)
}

/// Over libfabric's provider for TCP, as in `peers`.
fn mpich(
    net: &Net,
    peers: &Path,
    program: &Path,
    words: &[String],
    place: &Path,
) -> Result<Command> {
    let (hosts, _) = net.control();
    let mut command = Command::new(peers.join("mpich/bin/mpiexec"));
    command
        .args(["-launcher", "ssh", "-launcher-exec"])
        .arg(agent(net, place)?)
        .args(["-localhost", &net.middle()])
        .args(["-hosts", &hosts.join(","), "-ppn", "1"])
        .args(["-n", &hosts.len().to_string()])
        .arg(program)
        .args(words)
        .env("MPIR_CVAR_NOLOCAL", "1")
        .env("MPIR_CVAR_CH4_NETMOD", "ofi")
        .env("FI_PROVIDER", "tcp")
        .env("FI_TCP_IFACE", net::INTERFACE)
        .env("TMPDIR", place);
    Ok(command)
}

/// Over libfabric's provider for TCP, as in `peers`.
fn one_ccl(net: &Net, host: usize, peers: &Path, words: &[String], place: &Path) -> Command {
    let home = peers.join("oneccl");
    let mut command = net.on(host, peers.join("bin/oneccl"));
    command
        .args(words)
        .env("RANK", host.to_string())
        .env("WORLD_SIZE", net.wire().hosts.to_string())
        .env("RDZV", place)
        .env("LD_LIBRARY_PATH", home.join("lib"))
        .env("I_MPI_ROOT", &home)
        .env("FI_TCP_IFACE", net::INTERFACE)
        .env("CCL_KVS_IFACE", net::INTERFACE);
    for (name, value) in [
        ("CCL_ATL_TRANSPORT", "ofi"),
        ("CCL_ATL_SHM", "0"),
        ("CCL_PROCESS_LAUNCHER", "none"),
        ("CCL_LOCAL_RANK", "0"),
        ("CCL_LOCAL_SIZE", "1"),
        ("CCL_LOG_LEVEL", "error"),
        // Ranks share processors here.
        ("CCL_WORKER_OFFLOAD", "1"),
        ("CCL_YIELD", "sched_yield"),
        ("CCL_SPIN_COUNT", "1"),
        ("FI_PROVIDER", "tcp"),
    ] {
        command.env(name, value);
    }
    command
}

fn gloo(net: &Net, host: usize, program: &Path, words: &[String], place: &Path) -> Command {
    let mut command = net.on(host, program);
    command
        .args(words)
        .env("RANK", host.to_string())
        .env("WORLD_SIZE", net.wire().hosts.to_string())
        .env("GLOO_ADDRESS", net::address(host))
        .env("RDZV", place);
    command
}

fn said_ok(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(())
}

/// The lines `size,median_us,…`, in seconds.
fn medians(out: &str) -> Vec<(u64, f64)> {
    let line = |line: &str| {
        let mut fields = line.trim().split(',');
        let size = fields.next()?.parse().ok()?;
        let median: f64 = fields.next()?.trim().parse().ok()?;
        (median > 0.0).then_some((size, median / 1e6))
    };
    out.lines().filter_map(line).collect()
}

/// A folder of the bench's own `/dev/shm`, which goes with its namespaces however it ends; a temporary one where there is none.
fn private_folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_found_among_talk() {
        let out = "size_bytes,median_us,p95_us\n4,2000,3000,5\n hello\n65536,5000.5,1\n8,x\n";
        assert_eq!(medians(out), [(4, 2e-3), (65536, 5.0005e-3)]);
    }
}
