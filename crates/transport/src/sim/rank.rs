//! One rank's ends of all its links, as data.

use super::state::Opening;
use gaggle_core::{Down, LinkStats, MsgKey, TransportError, Wake, XferId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Whether a rank takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Here,
    Left,
    Dead,
}

/// One rank's ends of all its links.
pub(super) struct RankState {
    pub(super) links_taken: bool,
    pub(super) plane_taken: bool,
    /// On the data links.
    pub(super) life: Life,
    /// In the control plane.
    pub(super) plane: Life,
    pub(super) n_transfers: u64,
    pub(super) n_arrivals: u64,
    pub(super) sends: BTreeMap<XferId, SendState>,
    pub(super) recvs: BTreeMap<XferId, RecvState>,
    pub(super) links: Vec<LinkState>,
    /// Messages that have begun to arrive, in the order in which they did.
    pub(super) inbox: BTreeMap<u64, Inbound>,
    pub(super) ended: VecDeque<(XferId, Result<(), TransportError>)>,
    pub(super) downs: VecDeque<u32>,
    /// The transfer that a callback is about.
    pub(super) calling: Option<XferId>,
    pub(super) wake: Option<Arc<dyn Wake>>,
    pub(super) stats: LinkStats,
    pub(super) words: VecDeque<Heard>,
    pub(super) plane_wake: Option<Arc<dyn Wake>>,
    /// Who has been reported lost or left by the control plane.
    pub(super) gone: BTreeSet<u32>,
}

/// One rank's end of the link to one peer.
#[derive(Default)]
pub(super) struct LinkState {
    pub(super) down: Option<Down>,
    /// Messages begun without a grant whose credit has not come back, and their bytes so far.
    pub(super) owed: BTreeMap<MsgKey, u64>,
    /// Receives that the peer has posted for messages that have not begun.
    pub(super) grants: BTreeSet<MsgKey>,
    /// When the last part so far arrives at the peer.
    pub(super) last_arrival: Duration,
}

pub(super) struct SendState {
    pub(super) peer: u32,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) unit: u32,
    pub(super) priority: i32,
    pub(super) head: Vec<u8>,
    pub(super) filled: u64,
    /// Its number on the wire, once it has begun.
    pub(super) message: Option<u64>,
    /// The receiver has asked for it, or let it go: nothing holds it up any more.
    pub(super) granted: bool,
    /// Between two parts.
    pub(super) paused: bool,
}

pub(super) struct RecvState {
    pub(super) peer: u32,
    pub(super) key: MsgKey,
    pub(super) bytes: u64,
    pub(super) unit: u32,
}

/// A message that has begun to arrive.
pub(super) struct Inbound {
    pub(super) src: u32,
    pub(super) message: u64,
    pub(super) key: MsgKey,
    pub(super) head: Vec<u8>,
    pub(super) bytes: u64,
    /// Arrived and not yet consumed.
    pub(super) data: Vec<u8>,
    pub(super) arrived: u64,
    pub(super) consumed: u64,
    pub(super) announced: bool,
    pub(super) recv: Option<XferId>,
    pub(super) opened: bool,
}

impl Inbound {
    pub(super) fn is_whole(&self) -> bool {
        self.arrived == self.bytes
    }
}

/// What the control plane has for a rank.
pub(super) enum Heard {
    Message(u32, Vec<u8>),
    Lost(u32, String),
    Left(u32),
}

impl RankState {
    pub(super) fn new(world: u32) -> RankState {
        RankState {
            links_taken: false,
            plane_taken: false,
            life: Life::Here,
            plane: Life::Here,
            n_transfers: 0,
            n_arrivals: 0,
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            links: (0..world).map(|_| LinkState::default()).collect(),
            inbox: BTreeMap::new(),
            ended: VecDeque::new(),
            downs: VecDeque::new(),
            calling: None,
            wake: None,
            stats: LinkStats::default(),
            words: VecDeque::new(),
            plane_wake: None,
            gone: BTreeSet::new(),
        }
    }

    pub(super) fn fresh_id(&mut self) -> XferId {
        self.n_transfers += 1;
        XferId(self.n_transfers)
    }

    pub(super) fn begin(&mut self, src: u32, message: u64, open: Opening) {
        let posted = |(_, r): &(&XferId, &RecvState)| r.peer == src && r.key == open.key;
        let recv = self.recvs.iter().find(posted).map(|(id, _)| *id);
        if recv.is_none() {
            self.stats.early_messages += 1;
        }
        let n = self.n_arrivals;
        self.n_arrivals += 1;
        self.inbox.insert(
            n,
            Inbound {
                src,
                message,
                key: open.key,
                head: open.head,
                bytes: open.bytes,
                data: Vec::new(),
                arrived: 0,
                consumed: 0,
                announced: false,
                recv,
                opened: false,
            },
        );
    }
}
