//! The tables of `ARCHITECTURE.md` against what cargo knows.

use crate::workspace::{Package, short};
use std::collections::{BTreeMap, BTreeSet};

type Packages = BTreeMap<String, Package>;
/// For each crate, by short name, what it depends on.
type Edges = BTreeMap<String, BTreeSet<String>>;

/// What is wrong with the page.
pub(super) fn faults(page: &str, packages: &Packages) -> Vec<String> {
    let mut faults = Vec::new();
    let real = real(packages);
    let written = table(page, ["crate", "depends on"]);
    let written: Edges = written
        .into_iter()
        .map(|[name, deps]| (name, list(&deps)))
        .collect();
    if written.is_empty() {
        faults.push("ARCHITECTURE.md: no table `| crate | depends on |`; `cargo xtask tidy --edges` prints it".into());
    } else {
        faults.extend(compare(&written, &real));
    }
    let rows = table(page, ["layer", "crates"]);
    let mut layers = BTreeMap::new();
    for [layer, crates] in rows {
        match layer.parse::<u32>() {
            Ok(layer) => layers.extend(list(&crates).into_iter().map(|name| (name, layer))),
            Err(_) => faults.push(format!("ARCHITECTURE.md: `{layer}` is no layer number")),
        }
    }
    faults.extend(layer_faults(&layers, &real));
    faults
}

/// The edge table in Markdown.
pub(super) fn edges_of(packages: &Packages) -> String {
    let mut text = String::from("| crate | depends on |\n|---|---|\n");
    for (name, deps) in real(packages) {
        let deps: Vec<&str> = deps.iter().map(String::as_str).collect();
        let deps = if deps.is_empty() {
            "—".into()
        } else {
            deps.join(", ")
        };
        text.push_str(&format!("| {name} | {deps} |\n"));
    }
    text
}

fn real(packages: &Packages) -> Edges {
    let edges = packages.values().map(|p| {
        let deps = p.depends_on.iter().map(|d| short(d).to_owned()).collect();
        (p.short().to_owned(), deps)
    });
    edges.collect()
}

fn compare(written: &Edges, real: &Edges) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, deps) in real {
        let Some(told) = written.get(name) else {
            faults.push(format!(
                "ARCHITECTURE.md: the edge table has no row for {name}"
            ));
            continue;
        };
        let missing = deps.difference(told).map(|d| {
            format!("ARCHITECTURE.md: {name} depends on {d}, the edge table does not say so")
        });
        let stale = told.difference(deps).map(|d| {
            format!("ARCHITECTURE.md: the edge table has {name} depend on {d}, which it does not")
        });
        faults.extend(missing.chain(stale));
    }
    let gone = written.keys().filter(|name| !real.contains_key(*name));
    faults.extend(gone.map(|name| {
        format!("ARCHITECTURE.md: the edge table speaks of {name}, which is no crate")
    }));
    faults
}

fn layer_faults(layers: &BTreeMap<String, u32>, edges: &Edges) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, deps) in edges {
        let Some(mine) = layers.get(name) else {
            faults.push(format!(
                "ARCHITECTURE.md: the layer table does not place {name}"
            ));
            continue;
        };
        for dep in deps {
            if let Some(theirs) = layers.get(dep).filter(|theirs| *theirs >= mine) {
                faults.push(format!("{name} (layer {mine}) depends on {dep} (layer {theirs}): edges go to lower layers only"));
            }
        }
    }
    faults
}

/// The rows of the first table with this head.
fn table(page: &str, head: [&str; 2]) -> Vec<[String; 2]> {
    let mut rows = page.lines().map(row);
    let is_head = |row: &Option<[String; 2]>| {
        row.as_ref()
            .is_some_and(|[a, b]| a == head[0] && b == head[1])
    };
    if !rows.any(|row| is_head(&row)) {
        return Vec::new();
    }
    // The line under the head is made of dashes.
    rows.skip(1).map_while(|row| row).collect()
}

fn row(line: &str) -> Option<[String; 2]> {
    let cells = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let (a, b) = cells.split_once('|')?;
    Some([a.trim().to_owned(), b.trim().to_owned()])
}

fn list(cell: &str) -> BTreeSet<String> {
    let names = cell.split(',').map(|name| name.trim().trim_matches('`'));
    names
        .filter(|name| !name.is_empty() && *name != "—" && *name != "-")
        .map(|name| short(name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(rows: &[(&str, &str)]) -> Edges {
        rows.iter()
            .map(|(name, deps)| ((*name).to_owned(), list(deps)))
            .collect()
    }

    #[test]
    fn a_table_is_found_among_others() {
        let page = "# x\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| crate | depends on |\n|---|---|\n| engine | core, `kernels` |\n| core | — |\ntext\n| z | y |\n";
        let rows = table(page, ["crate", "depends on"]);
        assert_eq!(rows.len(), 2);
        assert_eq!(list(&rows[0][1]), list("gaggle-kernels, core"));
        assert!(list(&rows[1][1]).is_empty());
        assert!(table(page, ["no", "such"]).is_empty());
    }

    #[test]
    fn each_difference_is_named() {
        let real = edges(&[("core", "—"), ("engine", "core")]);
        assert!(compare(&real, &real).is_empty());
        let check = |written: &[(&str, &str)], fault: &str| {
            let faults = compare(&edges(written), &real);
            assert!(faults.len() == 1 && faults[0].contains(fault), "{faults:?}");
        };
        check(
            &[("core", ""), ("engine", "")],
            "engine depends on core, the edge table does not",
        );
        check(
            &[("core", ""), ("engine", "core, half")],
            "has engine depend on half",
        );
        check(&[("engine", "core")], "no row for core");
        check(
            &[("core", ""), ("engine", "core"), ("sim", "")],
            "speaks of sim",
        );
    }

    #[test]
    fn edges_go_down() {
        let layers = BTreeMap::from([
            ("core".to_owned(), 0),
            ("optim".to_owned(), 1),
            ("engine".to_owned(), 1),
        ]);
        assert!(layer_faults(&layers, &edges(&[("engine", "core"), ("optim", "core")])).is_empty());
        let faults = layer_faults(
            &layers,
            &edges(&[("engine", "optim"), ("core", "optim"), ("new", "core")]),
        );
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert_eq!(
            faults[1],
            "engine (layer 1) depends on optim (layer 1): edges go to lower layers only"
        );
        assert!(faults[2].contains("does not place new"));
    }
}
