//! `cargo xtask tidy`: what the compiler does not check.
//!
//! - every edge between our crates stands in the table under "Edges" in `ARCHITECTURE.md`, and goes to a lower layer of the table "Layers";
//! - one version, one licence, one minimum Rust, stated once;
//! - each source file says what it is for; no `allow`, `expect` or `ignore` without a reason;
//! - relative links in Markdown lead somewhere.

mod tables;
mod text;

use crate::workspace::{Package, Workspace, root};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn run() -> Result<()> {
    let faults = faults()?;
    if faults.is_empty() {
        println!("tidy: nothing to say");
        return Ok(());
    }
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    bail!("tidy: {} faults", faults.len());
}

/// The table as it should stand.
pub(crate) fn print_edges() -> Result<()> {
    print!("{}", tables::edges_of(&Workspace::load()?.packages));
    Ok(())
}

/// Everything that is wrong, one line each.
fn faults() -> Result<Vec<String>> {
    let workspace = Workspace::load()?;
    let mut faults = Vec::new();
    let path = root().join("ARCHITECTURE.md");
    match fs::read_to_string(&path) {
        Ok(page) => faults.extend(tables::faults(&page, &workspace.packages)),
        Err(error) => faults.push(format!("ARCHITECTURE.md: {error}")),
    }
    faults.extend(manifests(&workspace)?);
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md"] {
        if fs::metadata(root().join(name)).map_or(0, |m| m.len()) == 0 {
            faults.push(format!("{name} is missing"));
        }
    }
    let mut files = Vec::new();
    walk(root(), &mut files)?;
    for file in files {
        let name = file
            .strip_prefix(root())
            .unwrap_or(&file)
            .display()
            .to_string();
        let read = || fs::read_to_string(&file).with_context(|| format!("cannot read {name}"));
        let found = match file.extension().and_then(|e| e.to_str()) {
            Some("rs") => text::rust(&read()?),
            Some("md") => text::markdown(&read()?, |link| {
                file.parent().is_some_and(|dir| dir.join(link).exists())
            }),
            _ => continue,
        };
        faults.extend(
            found
                .into_iter()
                .map(|(line, fault)| format!("{name}:{line}: {fault}")),
        );
    }
    Ok(faults)
}

/// Facts that have one source: the workspace's manifest.
fn manifests(workspace: &Workspace) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut packages = workspace.packages.values();
    let Some(first) = packages.next() else {
        return Ok(vec!["the workspace has no package".into()]);
    };
    let facts = |p: &Package| (p.version.clone(), p.rust_version.clone(), p.license.clone());
    for package in packages {
        if facts(package) != facts(first) {
            faults.push(format!(
                "{}: version, rust-version or licence differ from {}'s",
                package.name, first.name
            ));
        }
    }
    if first.rust_version.is_none() || first.license.is_none() {
        faults.push("the workspace states no rust-version or no licence".into());
    }
    for package in workspace.packages.values() {
        let path = package.dir.join("Cargo.toml");
        let manifest =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for key in ["version", "edition", "rust-version", "license"] {
            if !manifest
                .lines()
                .any(|line| line.trim() == format!("{key}.workspace = true"))
            {
                faults.push(format!(
                    "{}: `{key}` does not come from the workspace",
                    package.name
                ));
            }
        }
        if !manifest.contains("[lints]\nworkspace = true") {
            faults.push(format!(
                "{}: does not take the workspace's lints",
                package.name
            ));
        }
    }
    let toolchain = fs::read_to_string(root().join("rust-toolchain.toml")).unwrap_or_default();
    if !toolchain.contains("channel = ") {
        faults.push("rust-toolchain.toml names no channel".into());
    }
    Ok(faults)
}

/// All files of the checkout: no hidden folders, nothing that was built.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && !name.starts_with('.') && name != "target" && name != "shared" {
            walk(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let faults = faults().unwrap();
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}
