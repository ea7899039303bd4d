//! Which processors are on which memory node, as the system's files say, and which node a rank is on.

use super::Cpus;
use std::{fmt, fs, path::Path, str::FromStr};

/// The memory nodes of a machine that have processors. A machine whose files say nothing, or nonsense, has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// By number, ascending; empty where there is one that has everything.
    nodes: Vec<(u32, Cpus)>,
}

impl Nodes {
    /// Those of this machine.
    pub fn of_machine() -> Nodes {
        Nodes::under(Path::new("/sys"))
    }

    /// As `devices/system/node/node*/cpulist` below `root` says.
    pub fn under(root: &Path) -> Nodes {
        Nodes {
            nodes: read(&root.join("devices/system/node")).unwrap_or_default(),
        }
    }

    /// How many there are; at least 1.
    pub fn count(&self) -> usize {
        self.nodes.len().max(1)
    }

    /// For each of so many ranks the processors of one node, of those in `own`: as many ranks to each node, neighbours together. Nodes that have none of these are left out; where there is none at all, or one, every rank has all of `own`.
    pub fn spread(&self, ranks: u32, own: &Cpus) -> Vec<Cpus> {
        let there = self.nodes.iter().map(|(_, cpus)| cpus.both(own));
        let mut there: Vec<Cpus> = there.filter(|cpus| !cpus.is_empty()).collect();
        if there.len() < 2 {
            there = vec![own.clone()];
        }
        let (n, ranks) = (there.len() as u64, u64::from(ranks));
        let of = |rank: u64| there[(rank * n / ranks) as usize].clone();
        (0..ranks).map(of).collect()
    }

    /// The node on which all of `cpus` are, as far as any node has them; `None` where they are on several, or on none.
    pub fn node_of(&self, cpus: &Cpus) -> Option<u32> {
        if self.nodes.is_empty() {
            return (!cpus.is_empty()).then_some(0);
        }
        let mut with = self.nodes.iter().filter(|(_, there)| there.meets(cpus));
        match (with.next(), with.next()) {
            (Some((number, _)), None) => Some(*number),
            _ => None,
        }
    }
}

/// `None` where anything is not as it should be: half a description is worse than none.
fn read(dir: &Path) -> Option<Vec<(u32, Cpus)>> {
    let mut nodes: Vec<(u32, Cpus)> = Vec::new();
    for entry in fs::read_dir(dir).ok()? {
        let name = entry.ok()?.file_name();
        let number = name
            .to_str()
            .and_then(|n| n.strip_prefix("node")?.parse::<u32>().ok());
        // There are other files.
        let Some(number) = number else {
            continue;
        };
        let list = fs::read_to_string(dir.join(&name).join("cpulist")).ok()?;
        let cpus = Cpus::parse(&list)?;
        // Nodes of memory alone have none.
        if cpus.is_empty() {
            continue;
        }
        if nodes.iter().any(|(_, others)| others.meets(&cpus)) {
            return None;
        }
        nodes.push((number, cpus));
    }
    nodes.sort_by_key(|(number, _)| *number);
    Some(nodes)
}

/// What `GAGGLE_NODE` says of the memory node that a rank is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeSetting {
    /// The one on which all processors are that the rank may use, if there is such.
    #[default]
    Auto,
    /// None is known.
    Off,
    /// This one, whatever the machine is like.
    Number(u32),
}

impl NodeSetting {
    /// The node of a process that calls this, on the machine that this is.
    pub fn node(self) -> Option<u32> {
        self.node_among(Nodes::of_machine, Cpus::own)
    }

    fn node_among(self, nodes: impl Fn() -> Nodes, own: impl Fn() -> Cpus) -> Option<u32> {
        match self {
            NodeSetting::Auto => nodes().node_of(&own()),
            NodeSetting::Off => None,
            NodeSetting::Number(number) => Some(number),
        }
    }
}

/// Not `auto`, `off` or the number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoNodeSetting;

impl fmt::Display for NoNodeSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("auto, off or the number of a memory node")
    }
}

impl std::error::Error for NoNodeSetting {}

/// `auto`, `off`, or a number from 0 to 4294967294.
impl FromStr for NodeSetting {
    type Err = NoNodeSetting;

    fn from_str(text: &str) -> Result<NodeSetting, NoNodeSetting> {
        match text.trim() {
            "" | "auto" => Ok(NodeSetting::Auto),
            "off" => Ok(NodeSetting::Off),
            number => match number.parse() {
                // The last one is kept for "not known" where ranks tell each other.
                Ok(number) if number < u32::MAX => Ok(NodeSetting::Number(number)),
                _ => Err(NoNodeSetting),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine made of these files below `devices/system/node`.
    fn machine(files: &[(&str, &str)]) -> Nodes {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = root.path().join("devices/system/node").join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Nodes::under(root.path())
    }

    fn check(nodes: &Nodes, cpus: &str, want: Option<u32>) {
        let got = nodes.node_of(&Cpus::parse(cpus).unwrap());
        assert_eq!(got, want, "{cpus} of {nodes:?}");
    }

    #[test]
    fn a_rank_is_on_the_node_that_has_all_its_processors() {
        let two = machine(&[
            ("node0/cpulist", "0-3,8-11\n"),
            ("node1/cpulist", "4-7,12-15\n"),
            ("online", "0-1\n"),
            ("has_cpu", "0-1\n"),
        ]);
        assert_eq!(two.count(), 2);
        for (cpus, want) in [
            ("0-3,8-11", Some(0)),
            ("2", Some(0)),
            ("9-10", Some(0)),
            ("4-7", Some(1)),
            ("12,15", Some(1)),
            ("3-4", None),
            ("0-15", None),
            ("", None),
            // One that no node has is not running, or new.
            ("16", None),
            ("7,16", Some(1)),
        ] {
            check(&two, cpus, want);
        }
        let four = machine(&[
            ("node0/cpulist", "0,4\n"),
            ("node2/cpulist", "1,5\n"),
            ("node3/cpulist", "2,6\n"),
            ("node10/cpulist", "3,7\n"),
        ]);
        assert_eq!(four.count(), 4);
        check(&four, "3,7", Some(10));
        check(&four, "5", Some(2));
        check(&four, "0-3", None);
    }

    #[test]
    fn ranks_are_spread_over_nodes_in_their_order() {
        let two = machine(&[
            ("node0/cpulist", "0-3,8-11\n"),
            ("node1/cpulist", "4-7,12-15\n"),
        ]);
        let check = |nodes: &Nodes, ranks, own: &str, want: &[&str]| {
            let of = |list: &str| Cpus::parse(list).unwrap();
            let want: Vec<Cpus> = want.iter().map(|list| of(list)).collect();
            assert_eq!(nodes.spread(ranks, &of(own)), want, "{ranks} on {own}");
        };
        let (a, b) = ("0-3,8-11", "4-7,12-15");
        check(&two, 4, "0-15", &[a, a, b, b]);
        check(&two, 3, "0-15", &[a, a, b]);
        check(&two, 1, "0-15", &[a]);
        check(&two, 0, "0-15", &[]);
        check(&two, 2, "2-5", &["2-3", "4-5"]);
        // What this process may not use is nobody's.
        check(&two, 2, "4-7", &["4-7"; 2]);
        check(&two, 2, "20", &["20"; 2]);
        check(&machine(&[]), 2, "0-7", &["0-7"; 2]);
        for rank in two.spread(4, &Cpus::parse("0-15").unwrap()) {
            assert!(two.node_of(&rank).is_some());
        }
    }

    #[test]
    fn nodes_without_processors_do_not_count() {
        let nodes = machine(&[
            ("node0/cpulist", "0-1\n"),
            ("node1/cpulist", "\n"),
            ("node2/cpulist", "2-3\n"),
        ]);
        assert_eq!(nodes.count(), 2);
        check(&nodes, "2-3", Some(2));
        let one = machine(&[("node0/cpulist", "0-3\n"), ("node1/cpulist", "")]);
        assert_eq!(one.count(), 1);
        check(&one, "0-3", Some(0));
    }

    #[test]
    fn missing_and_garbled_descriptions_are_of_one_node() {
        for files in [
            &[][..],
            &[("online", "0\n")],
            &[("node0/cpulist", "0-1\n"), ("node1/cpulist", "2-x\n")],
            &[("node0/cpulist", "0-1\n"), ("node1/meminfo", "nothing\n")],
            &[("node0/cpulist", "0-2\n"), ("node1/cpulist", "2-3\n")],
            &[("node0/cpulist", "0-99999999999\n")],
            &[("nodes/cpulist", "0-1\n"), ("node-1/cpulist", "2\n")],
        ] {
            let nodes = machine(files);
            assert_eq!(nodes.count(), 1, "{files:?}");
            check(&nodes, "0-3", Some(0));
            check(&nodes, "77", Some(0));
            check(&nodes, "", None);
        }
    }

    #[test]
    fn a_setting_is_auto_off_or_a_number() {
        for (text, want) in [
            ("", Some(NodeSetting::Auto)),
            (" auto ", Some(NodeSetting::Auto)),
            ("off", Some(NodeSetting::Off)),
            ("0", Some(NodeSetting::Number(0))),
            (" 12", Some(NodeSetting::Number(12))),
            ("4294967294", Some(NodeSetting::Number(u32::MAX - 1))),
            ("4294967295", None),
            ("-1", None),
            ("on", None),
            ("0,1", None),
        ] {
            assert_eq!(text.parse::<NodeSetting>().ok(), want, "{text:?}");
        }
        let two = || machine(&[("node0/cpulist", "0\n"), ("node1/cpulist", "1\n")]);
        let of =
            |setting: NodeSetting, cpus| setting.node_among(two, || Cpus::parse(cpus).unwrap());
        assert_eq!(of(NodeSetting::Auto, "1"), Some(1));
        assert_eq!(of(NodeSetting::Auto, "0-1"), None);
        assert_eq!(of(NodeSetting::Off, "1"), None);
        assert_eq!(of(NodeSetting::Number(7), "1"), Some(7));
    }
}
