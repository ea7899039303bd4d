//! `cargo xtask bench`: lists, tries and runs what is in `benches/`, and keeps the figures in one form.
//!
//! There are two sorts, both found by asking cargo: criterion *suites* (bench targets), whose figures are taken from what criterion leaves behind, and *programs* (bin targets), which need more than one process or the machine's network and write their figures themselves.
//! A program understands `--smoke` (run a moment, to show that it works) and `--out FILE` (figures, in the form that [`record::Figure`] reads), besides options of its own; it ends with [`CANNOT`] where the machine does not allow it to run, having said why.
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
    /// Say what there is; with the name of a program, what it has to say of itself
    #[arg(long, conflicts_with = "smoke")]
    pub(crate) list: bool,
    /// Run each for a moment, unoptimised, to see that it works; the figures mean nothing
    #[arg(long)]
    pub(crate) smoke: bool,
    /// One of those that --list names; all without it
    pub(crate) name: Option<String>,
    /// Of a suite only the benchmarks whose name contains this; for a program its own options, which `NAME -- --help` tells
    #[arg(
        value_name = "FILTER or OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) rest: Vec<String>,
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
    let chosen = choose(&all, args.name.as_deref())?;
    // Without a name there are no options either.
    let named = args.name.as_ref().and(chosen.first());
    if args.list {
        if let Some(bench) = named.filter(|b| b.sort == Sort::Program) {
            return said_by(bench);
        }
        let width = chosen.iter().map(|b| b.name.len()).max().unwrap_or(0);
        for bench in &chosen {
            println!("{:width$}  {}", bench.name, bench.about);
        }
        return Ok(());
    }
    if let Some(bench) = named {
        suits(bench, &args.rest)?;
    }
    let is_out = |word: &String| word == "--out" || word.starts_with("--out=");
    if !args.smoke && args.rest.iter().any(is_out) {
        bail!(
            "--out is for programs that are run by themselves: figures go to target/bench/NAME.json here"
        );
    }
    if args.smoke {
        return smoke(&workspace, &chosen, args.name.is_some(), &args.rest);
    }
    for bench in chosen {
        measure(&workspace, bench, args)?;
    }
    Ok(())
}

/// A suite takes one filter, a program options and no filter.
fn suits(bench: &Bench, rest: &[String]) -> Result<()> {
    match (bench.sort, rest) {
        (Sort::Suite, [_, second, ..]) => bail!(
            "a suite takes one filter; {} is one, and `{second}` is too much",
            bench.name
        ),
        (Sort::Program, [first, ..]) if !first.starts_with('-') => bail!(
            "`{first}` filters a suite's benchmarks; {} is a program, which has none",
            bench.name
        ),
        _ => Ok(()),
    }
}

/// What the program says when it is asked for a list; it need not have one.
fn said_by(bench: &Bench) -> Result<()> {
    let name = format!("--bin={}", bench.name);
    let run = ["run", "--quiet", "--package=gaggle-benches", &name];
    tool::run(tool::cargo(&run).args(["--", "--list"]))
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

fn smoke(workspace: &Workspace, chosen: &[&Bench], named: bool, rest: &[String]) -> Result<()> {
    let of = |sort| chosen.iter().filter(move |b| b.sort == sort);
    if of(Sort::Suite).next().is_some() {
        // Under `cargo test` criterion runs each benchmark once, in the profile that the tests have built already; with the whole workspace, so that the dependencies have the features they were built with.
        let mut command = tool::cargo(&["test", "--workspace"]);
        match named {
            true => command.args(of(Sort::Suite).map(|b| format!("--bench={}", b.name))),
            false => command.arg("--bench=*"),
        };
        if let Some(filter) = rest.first() {
            command.args(["--", filter]);
        }
        tool::run(&mut command)?;
    }
    if of(Sort::Program).next().is_some() {
        tool::run(&mut tool::cargo(&["build", "--workspace", "--bins"]))?;
    }
    for bench in of(Sort::Program) {
        let mut command = Command::new(workspace.program(&bench.name));
        program(bench, command.arg("--smoke").args(rest))?;
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
            if let Some(filter) = args.rest.first() {
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
            // Of an earlier run that failed.
            let _ = fs::remove_file(&raw);
            let mut command = Command::new(built);
            if !program(bench, command.args(&args.rest).arg("--out").arg(&raw))? {
                return Ok(());
            }
            if !args.rest.is_empty() && !raw.exists() {
                println!("bench {}: measured nothing, as it was told", bench.name);
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
    for word in &args.rest {
        command.push_str(&format!(" {word}"));
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
    fn a_suite_takes_a_filter_and_a_program_options() {
        let bench = |sort| Bench {
            name: "it".into(),
            sort,
            about: String::new(),
        };
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let of = |sort, rest: &[&str]| suits(&bench(sort), &words(rest)).map_err(|e| e.to_string());
        assert!(of(Sort::Suite, &[]).is_ok() && of(Sort::Suite, &["f32"]).is_ok());
        let error = of(Sort::Suite, &["f32", "x"]).expect_err("two");
        assert!(error.contains("`x` is too much"), "{error}");
        assert!(of(Sort::Program, &["--rounds", "2"]).is_ok());
        let error = of(Sort::Program, &["f32"]).expect_err("no filter");
        assert!(error.contains("is a program"), "{error}");
    }

    #[test]
    fn a_programs_options_are_its_own_wherever_they_stand() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            bench: BenchArgs,
        }
        let parse = |words: &[&str]| {
            let line = [&["x"], words].concat();
            <Line as clap::Parser>::try_parse_from(line)
                .expect("understood")
                .bench
        };
        let line = parse(&["peers", "--rounds", "2", "--only", "mpich"]);
        assert_eq!(line.name.as_deref(), Some("peers"));
        assert_eq!(line.rest, ["--rounds", "2", "--only", "mpich"]);
        let line = parse(&["--smoke", "peers", "--rows", "tcp"]);
        assert!(line.smoke && line.rest == ["--rows", "tcp"]);
        let line = parse(&["peers", "--smoke", "--rows", "tcp"]);
        assert!(line.smoke && line.rest == ["--rows", "tcp"]);
        assert_eq!(parse(&["kernels", "fold f32"]).rest, ["fold f32"]);
        assert_eq!(parse(&["peers", "--", "--help"]).rest, ["--help"]);
    }

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
