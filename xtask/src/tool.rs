//! Running programs: every command is printed before it runs, and what it prints is passed on.

use anyhow::{Context, Result, bail};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// Cargo, as it runs this program, in the workspace's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(crate::workspace::root());
    command
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(program.as_os_str());
    let mut line = program.to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// Runs it and fails when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command
        .status()
        .with_context(|| format!("cannot run `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs it, passes on what it prints, and shows each line to `see`. Returns whether it succeeded.
pub(crate) fn run_seen(command: &mut Command, see: impl Fn(&str) + Sync) -> Result<bool> {
    let line = line(command);
    eprintln!("$ {line}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{line}`"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        if let Some(err) = err {
            let see = &see;
            scope.spawn(move || pass_on(err, &mut std::io::stderr(), see));
        }
        if let Some(out) = out {
            pass_on(out, &mut std::io::stdout(), &see);
        }
    });
    Ok(child.wait()?.success())
}

fn pass_on(from: impl Read, to: &mut impl Write, see: &(impl Fn(&str) + Sync)) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        // A closed stdout is no reason to stop a test run.
        let _ = to.write_all(&line);
        see(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

/// What it prints on stdout; its stderr is passed on. Fails when it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` does not print UTF-8"))
}

/// Whether `cargo NAME` can be run.
pub(crate) fn has_subcommand(name: &str) -> bool {
    let mut probe = cargo(&[name, "--version"]);
    let status = probe
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
