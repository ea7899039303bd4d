//! Where the members of a group are, and which of them a two-level plan keeps together.

/// Which members share a host, and a memory node there. Equal on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places<'a> {
    /// Each member's host, as any number; `None`: all on hosts of their own.
    pub hosts: Option<&'a [u32]>,
    /// Each member's memory node (NUMA), as any number, equal only for members of one host and node; `None`: not known.
    pub nodes: Option<&'a [u32]>,
}

/// Whether all are the same.
fn is_one(numbers: &[u32]) -> bool {
    numbers.windows(2).all(|pair| pair[0] == pair[1])
}

impl<'a> Places<'a> {
    /// On these hosts; of memory nodes nothing is known.
    pub fn on(hosts: Option<&'a [u32]>) -> Places<'a> {
        Places { hosts, nodes: None }
    }

    /// The memory nodes, where all members are on one host, and on several nodes of it. Takes time proportional to the number of members.
    pub fn nodes_of_one_host(&self) -> Option<&'a [u32]> {
        let (hosts, nodes) = (self.hosts?, self.nodes?);
        let fits = hosts.len() == nodes.len() && is_one(hosts) && !is_one(nodes);
        fits.then_some(nodes)
    }

    /// By what two-level plans go ([`Request::hosts`](crate::Request::hosts)): the nodes of one host, or else the hosts.
    pub fn groups(&self) -> Option<&'a [u32]> {
        self.nodes_of_one_host().or(self.hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_the_groups_of_one_host_and_hosts_of_several() {
        let of = |hosts: Option<&'static [u32]>, nodes: Option<&'static [u32]>| {
            Places { hosts, nodes }.groups()
        };
        assert_eq!(of(Some(&[7, 7, 7]), Some(&[1, 1, 2])), Some(&[1, 1, 2][..]));
        assert_eq!(of(Some(&[7, 7, 8]), Some(&[1, 2, 3])), Some(&[7, 7, 8][..]));
        assert_eq!(of(Some(&[7, 7]), Some(&[4, 4])), Some(&[7, 7][..]));
        assert_eq!(of(Some(&[7, 7]), None), Some(&[7, 7][..]));
        // Of ranks whose hosts are not known it is not known whether they share one.
        assert_eq!(of(None, Some(&[1, 2])), None);
        // Lists that do not fit each other.
        assert_eq!(of(Some(&[7, 7]), Some(&[1, 2, 3])), Some(&[7, 7][..]));
        assert_eq!(of(Some(&[]), Some(&[])), Some(&[][..]));
    }
}
