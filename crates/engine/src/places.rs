//! Where a group's members are: on which hosts, and on which memory nodes.

use crate::{config::EngineConfig, sync::Arc};
use gaggle_collectives::select;
use gaggle_core::GroupInfo;

/// The members' hosts and memory nodes, in their order, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) hosts: Option<Arc<[u32]>>,
    pub(crate) nodes: Option<Arc<[u32]>>,
}

impl Places {
    pub(crate) fn of(config: &EngineConfig, group: &GroupInfo) -> Places {
        let members = |all: &Option<Arc<[u32]>>| -> Option<Arc<[u32]>> {
            let all = all.as_ref()?;
            let ranks = group.world_ranks.iter();
            ranks.map(|r| all.get(r.idx()).copied()).collect()
        };
        Places {
            hosts: members(&config.hosts),
            nodes: members(&config.nodes),
        }
    }

    /// What a choice goes by.
    pub(crate) fn view(&self) -> select::Places<'_> {
        select::Places {
            hosts: self.hosts.as_deref(),
            nodes: self.nodes.as_deref(),
        }
    }

    /// What two-level plans go by.
    pub(crate) fn groups(&self) -> Option<Arc<[u32]>> {
        match self.view().nodes_of_one_host() {
            Some(_) => self.nodes.clone(),
            None => self.hosts.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::Rank;

    #[test]
    fn a_group_has_the_places_of_its_members() {
        let mut config = EngineConfig {
            hosts: Some([0, 0, 0, 1].into()),
            nodes: Some([0, 0, 1, 2].into()),
            ..EngineConfig::default()
        };
        let of = |ranks: &[u32], config: &EngineConfig| {
            Places::of(
                config,
                &GroupInfo {
                    id: 0,
                    rank: Rank(0),
                    world_ranks: ranks.iter().map(|r| Rank(*r)).collect(),
                    epoch: 0,
                    initial_size: 4,
                    incarnation: 0,
                },
            )
            .groups()
        };
        assert_eq!(
            of(&[0, 1, 2, 3], &config).as_deref(),
            Some(&[0, 0, 0, 1][..])
        );
        assert_eq!(of(&[2, 1, 0], &config).as_deref(), Some(&[1, 0, 0][..]));
        assert_eq!(of(&[1, 0], &config).as_deref(), Some(&[0, 0][..]));
        assert_eq!(of(&[3, 9], &config), None);
        config.nodes = None;
        assert_eq!(of(&[2, 1, 0], &config).as_deref(), Some(&[0, 0, 0][..]));
    }
}
