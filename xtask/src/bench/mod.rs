//! `cargo xtask bench`: lists, tries and runs what is in `benches/`, and keeps the figures in one form.
//!
//! There are two sorts, both found by asking cargo: criterion *suites* (bench targets), whose figures are taken from what criterion leaves behind, and *programs* (bin targets), which need more than one process or the machine's network and write their figures themselves.
//! A program understands `--smoke` (run a moment, to show that it works) and `--out FILE` (figures, in the form that [`record::Figure`] reads); it ends with [`CANNOT`] where the machine does not allow it to run, having said why.
//!
//! Every run is written to `target/bench/NAME.json`; the form is described in `docs/benchmarks.md`.

mod criterion;
mod machine;
mod record;

use crate::{tool, workspace::Workspace};
use anyhow::{Context, Result, bail};
use clap::Args;
use record::{Figure, Record};
use serde_json::Value;
use std::{fs, path::Path, process::Command, time::SystemTime};

/// A program's exit code that says: not on this machine.
const CANNOT: i32 = 77;

/// What to measure.
#[derive(Args, Default)]
pub(crate) struct BenchArgs {
    /// Say what there is
    #[arg(long, conflicts_with_all = ["smoke", "name"])]
    pub(crate) list: bool,
    /// Run each for a moment, unoptimised, to see that it works; the figures mean nothing
    #[arg(long)]
    pub(crate) smoke: bool,
    /// One of those that --list names; all without it
    pub(crate) name: Option<String>,
    /// Of a suite only the benchmarks whose name contains this
    #[arg(requires = "name")]
    pub(crate) filter: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Sort {
    Suite,
    Program,
}

/// One file of `benches/`.
#[derive(Clone, PartialEq, Debug)]
struct Bench {
    name: String,
    sort: Sort,
    about: String,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let workspace = Workspace::load()?;
    let all = catalogue()?;
    if args.list {
        let width = all.iter().map(|b| b.name.len()).max().unwrap_or(0);
        for bench in &all {
            println!("{:width$}  {}", bench.name, bench.about);
        }
        return Ok(());
    }
    let chosen = choose(&all, args.name.as_deref())?;
    if let Some(filter) = &args.filter
        && chosen.iter().any(|b| b.sort == Sort::Program)
    {
        bail!(
            "`{filter}` filters a suite's benchmarks; {} is a program, which has none",
            chosen[0].name
        );
    }
    if args.smoke {
        return smoke(
            &workspace,
            &chosen,
            args.name.is_some(),
            args.filter.as_deref(),
        );
    }
    for bench in chosen {
        measure(&workspace, bench, args)?;
    }
    Ok(())
}

/// What is in `benches/`, suites before programs.
fn catalogue() -> Result<Vec<Bench>> {
    let text = tool::output(&mut tool::cargo(&[
        "metadata",
        "--no-deps",
        "--format-version=1",
    ]))?;
    let value: Value = serde_json::from_str(&text).context("`cargo metadata` prints no JSON")?;
    Ok(targets(&value, |path| {
        fs::read_to_string(path).unwrap_or_default()
    }))
}

fn targets(metadata: &Value, read: impl Fn(&str) -> String) -> Vec<Bench> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let ours = packages.filter(|p| p["name"] == "gaggle-benches");
    let targets = ours.flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let mut all: Vec<Bench> = targets
        .filter_map(|t| {
            let sort = match t["kind"][0].as_str()? {
                "bench" => Sort::Suite,
                "bin" => Sort::Program,
                _ => return None,
            };
            let source = read(t["src_path"].as_str()?);
            let about = source.lines().find_map(|l| l.strip_prefix("//! "));
            Some(Bench {
                name: t["name"].as_str()?.to_owned(),
                sort,
                about: about.unwrap_or_default().to_owned(),
            })
        })
        .collect();
    all.sort_by(|a, b| (a.sort == Sort::Program, &a.name).cmp(&(b.sort == Sort::Program, &b.name)));
    all
}

fn choose<'a>(all: &'a [Bench], name: Option<&str>) -> Result<Vec<&'a Bench>> {
    let Some(name) = name else {
        return Ok(all.iter().collect());
    };
    let Some(bench) = all.iter().find(|b| b.name == name) else {
        let names: Vec<&str> = all.iter().map(|b| b.name.as_str()).collect();
        bail!(
            "there is no benchmark `{name}`; there are {}",
            names.join(", ")
        );
    };
    Ok(vec![bench])
}

fn smoke(
    workspace: &Workspace,
    chosen: &[&Bench],
    named: bool,
    filter: Option<&str>,
) -> Result<()> {
    let of = |sort| chosen.iter().filter(move |b| b.sort == sort);
    if of(Sort::Suite).next().is_some() {
        // Under `cargo test` criterion runs each benchmark once, in the profile that the tests have built already; with the whole workspace, so that the dependencies have the features they were built with.
        let mut command = tool::cargo(&["test", "--workspace"]);
        match named {
            true => command.args(of(Sort::Suite).map(|b| format!("--bench={}", b.name))),
            false => command.arg("--bench=*"),
        };
        if let Some(filter) = filter {
            command.args(["--", filter]);
        }
        tool::run(&mut command)?;
    }
    if of(Sort::Program).next().is_some() {
        tool::run(&mut tool::cargo(&["build", "--workspace", "--bins"]))?;
    }
    for bench in of(Sort::Program) {
        let mut command = Command::new(workspace.program(&bench.name));
        program(bench, command.arg("--smoke"))?;
    }
    Ok(())
}

/// Runs a program. False where it says that it cannot run here.
fn program(bench: &Bench, command: &mut Command) -> Result<bool> {
    let line = tool::line(command);
    eprintln!("$ {line}");
    let status = command
        .status()
        .with_context(|| format!("cannot run `{line}`"))?;
    if status.code() == Some(CANNOT) {
        println!("bench {}: SKIPPED, see above", bench.name);
        return Ok(false);
    }
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(true)
}

fn measure(workspace: &Workspace, bench: &Bench, args: &BenchArgs) -> Result<()> {
    let started = SystemTime::now();
    let machine = machine::facts();
    let dir = workspace.target_dir.join("bench");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let figures = match bench.sort {
        Sort::Suite => {
            let name = format!("--bench={}", bench.name);
            let mut command = tool::cargo(&["bench", "--package=gaggle-benches", &name]);
            if let Some(filter) = &args.filter {
                command.args(["--", filter]);
            }
            tool::run(&mut command)?;
            criterion::figures(&workspace.target_dir.join("criterion"), started)?
        }
        Sort::Program => {
            let raw = dir.join(format!("{}.figures", bench.name));
            let name = format!("--bin={}", bench.name);
            let build = ["build", "--release", "--package=gaggle-benches", &name];
            tool::run(&mut tool::cargo(&build))?;
            let built = workspace.target_dir.join("release").join(format!(
                "{}{}",
                bench.name,
                std::env::consts::EXE_SUFFIX
            ));
            if !program(bench, Command::new(built).arg("--out").arg(&raw))? {
                return Ok(());
            }
            let figures = read(&raw)?;
            // The record has them now.
            let _ = fs::remove_file(&raw);
            figures
        }
    };
    if figures.is_empty() {
        bail!("{}: nothing was measured", bench.name);
    }
    let mut command = format!("cargo xtask bench {}", bench.name);
    if let Some(filter) = &args.filter {
        command.push_str(&format!(" {filter}"));
    }
    let record = Record::new(&bench.name, &command, machine, &figures);
    let path = dir.join(format!("{}.json", bench.name));
    record.write(&path)?;
    record.print();
    println!("{} figures in {}", figures.len(), path.display());
    Ok(())
}

/// What a program has written.
fn read(path: &Path) -> Result<Vec<Figure>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let value: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    let figures = value
        .as_array()
        .with_context(|| format!("{} is no list of figures", path.display()))?;
    figures.iter().map(Figure::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn targets_are_found_with_their_first_sentence() {
        let metadata = json!({"packages": [
            {"name": "other", "targets": [{"name": "no", "kind": ["bench"], "src_path": "x"}]},
            {"name": "gaggle-benches", "targets": [
                {"name": "gaggle_benches", "kind": ["lib"], "src_path": "x"},
                {"name": "wire", "kind": ["bin"], "src_path": "wire.rs"},
                {"name": "plan", "kind": ["bench"], "src_path": "plan.rs"},
            ]},
        ]});
        let all = targets(&metadata, |path| format!("//! About {path}.\n//! More.\n"));
        let bench = |name: &str, sort, about: &str| Bench {
            name: name.into(),
            sort,
            about: about.into(),
        };
        assert_eq!(
            all,
            [
                bench("plan", Sort::Suite, "About plan.rs."),
                bench("wire", Sort::Program, "About wire.rs."),
            ]
        );
        assert_eq!(choose(&all, None).expect("all").len(), 2);
        assert_eq!(choose(&all, Some("wire")).expect("one"), [&all[1]]);
        let error = choose(&all, Some("wir")).expect_err("no such bench");
        assert!(error.to_string().contains("plan, wire"), "{error}");
    }
}
