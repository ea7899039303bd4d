//! The workspace as cargo sees it.

use crate::tool;
use anyhow::{Context, Result};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// One of our packages.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its folder.
    pub(crate) dir: PathBuf,
    pub(crate) version: String,
    pub(crate) rust_version: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) features: BTreeSet<String>,
    /// Our packages that it is built on; dev-dependencies are not edges.
    pub(crate) depends_on: BTreeSet<String>,
}

impl Package {
    /// The name in tables: without `gaggle-`.
    pub(crate) fn short(&self) -> &str {
        short(&self.name)
    }
}

pub(crate) fn short(name: &str) -> &str {
    name.strip_prefix("gaggle-").unwrap_or(name)
}

/// What `cargo metadata` says.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) packages: BTreeMap<String, Package>,
    pub(crate) target_dir: PathBuf,
}

impl Workspace {
    pub(crate) fn load() -> Result<Workspace> {
        let text = tool::output(&mut tool::cargo(&[
            "metadata",
            "--no-deps",
            "--format-version=1",
        ]))?;
        Workspace::parse(&text).context("cannot make sense of `cargo metadata`")
    }

    fn parse(text: &str) -> Result<Workspace> {
        let value: Value = serde_json::from_str(text)?;
        let packages = value["packages"].as_array().context("no packages")?;
        let names: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
        let string = |v: &Value| v.as_str().map(str::to_owned);
        let package = |p: &Value| -> Option<Package> {
            let ours = |d: &&Value| {
                d["kind"] != "dev"
                    && d["path"].is_string()
                    && d["name"].as_str().is_some_and(|n| names.contains(n))
            };
            Some(Package {
                name: string(&p["name"])?,
                dir: Path::new(p["manifest_path"].as_str()?).parent()?.into(),
                version: string(&p["version"])?,
                rust_version: string(&p["rust_version"]),
                license: string(&p["license"]),
                features: p["features"].as_object()?.keys().cloned().collect(),
                depends_on: p["dependencies"]
                    .as_array()?
                    .iter()
                    .filter(ours)
                    .filter_map(|d| string(&d["name"]))
                    .collect(),
            })
        };
        let packages = packages
            .iter()
            .map(|p| package(p).context("a package without a name or a place"));
        Ok(Workspace {
            packages: packages
                .map(|p| p.map(|p| (p.name.clone(), p)))
                .collect::<Result<_>>()?,
            target_dir: value["target_directory"]
                .as_str()
                .context("no target directory")?
                .into(),
        })
    }

    /// A program that the dev profile has built.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.target_dir
            .join("debug")
            .join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
    }
}
