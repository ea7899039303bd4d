//! Two levels: inside each host, and between hosts by another algorithm; or inside each memory node of one host, and between nodes.
//!
//! What is said of hosts here holds of nodes: a plan goes by the groups that [`Request::hosts`] names.
//!
//! Where all hosts have equally many ranks, every rank takes part between hosts: a reduce-scatter inside leaves each with one chunk, on which it works with its counterparts on the other hosts; an all-gather inside follows.
//! Where they have not, one rank of each host, its leader, works for all: the lowest, or the root.
//! Inside, contributions are folded directly, in rank order. A codec is on the wire between hosts alone.
//!
//! Cost, with H hosts of L ranks and S bytes: two rounds inside and those of the other algorithm among H; between hosts a rank sends 1/L of what the other algorithm sends for S bytes, or where hosts differ a leader all of it.
//!
//! Source: Jia et al., Highly scalable deep learning training system with mixed-precision, 2018, section 3.3 (hierarchical all-reduce); the leaders' form is that of MPICH.

use crate::build::{Build, Team, Value, sub};
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use crate::reduce_scatter::{self, Given};
use crate::tree::{self, Shape};
use crate::{all_gather, all_gather::Places, doubling, halving_doubling};
use gaggle_core::{Algorithm, Codec, Counts, Rank};

/// Who shares a host with whom.
struct Hosts {
    /// The ranks of each host, ascending; hosts in the order of their first ranks.
    members: Vec<Vec<Rank>>,
    /// This rank's host.
    host: u32,
    /// This rank's place there.
    place: u32,
}

impl Hosts {
    fn of(req: &Request) -> Result<Hosts, PlanError> {
        let world = req.world as usize;
        let numbers: Vec<u32> = match &req.hosts {
            None => (0..req.world).collect(),
            Some(hosts) if hosts.len() == world => hosts.to_vec(),
            Some(hosts) => {
                return Err(PlanError::BadCounts {
                    field: "hosts",
                    what: format!("{} numbers for {world} ranks", hosts.len()),
                });
            }
        };
        let mut known: std::collections::BTreeMap<u32, u32> = Default::default();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let (mut host, mut place) = (0, 0);
        for (rank, number) in numbers.into_iter().enumerate() {
            let idx = *known.entry(number).or_insert(members.len() as u32);
            if idx as usize == members.len() {
                members.push(Vec::new());
            }
            let here = &mut members[idx as usize];
            if rank == req.rank.idx() {
                (host, place) = (idx, here.len() as u32);
            }
            here.push(Rank(rank as u32));
        }
        Ok(Hosts {
            members,
            host,
            place,
        })
    }

    fn are_equal(&self) -> bool {
        self.members
            .iter()
            .all(|m| m.len() == self.members[0].len())
    }

    fn n(&self) -> u32 {
        self.members.len() as u32
    }

    fn here(&self) -> &[Rank] {
        &self.members[self.host as usize]
    }

    fn inside(&self) -> Team {
        Team::of(self.here().to_vec(), self.place)
    }

    /// The ranks with this one's place on each host.
    fn counterparts(&self) -> Team {
        let all = self.members.iter().map(|m| m[self.place as usize]);
        Team::of(all.collect(), self.host)
    }

    /// In which type the hosts' values travel: some may be partial results.
    fn first(&self) -> Buf {
        match self.members.iter().any(|m| m.len() > 1) {
            true => Buf::Scratch,
            false => Buf::User,
        }
    }

    /// The rank that works for each host: the lowest, or `root`; counted from the root's host.
    fn leaders(&self, root: Option<Rank>) -> Leaders {
        let root_host = root.and_then(|r| self.members.iter().position(|m| m.contains(&r)));
        let mut ranks: Vec<Rank> = self.members.iter().map(|m| m[0]).collect();
        let by = root_host.unwrap_or(0);
        if let Some(root) = root {
            ranks[by] = root;
        }
        let leader = ranks[self.host as usize];
        ranks.rotate_left(by);
        let me = crate::program::back(self.host, by as u32, self.n());
        let leads = self.here()[self.place as usize] == leader;
        Leaders {
            leader,
            team: leads.then(|| Team::of(ranks, me)),
        }
    }
}

struct Leaders {
    /// This host's.
    leader: Rank,
    /// All of them, where this rank is one.
    team: Option<Team>,
}

/// The team inside, the leader first and the others in rank order.
fn from_leader(hosts: &Hosts, leader: Rank) -> Team {
    let mut ranks = hosts.here().to_vec();
    ranks.retain(|&r| r != leader);
    ranks.insert(0, leader);
    let own = hosts.here()[hosts.place as usize];
    let me = ranks.iter().position(|&r| r == own).unwrap_or(0);
    Team::of(ranks, me as u32)
}

/// The plan of an all-reduce, between hosts by `between`.
///
/// # Errors
/// More steps or elements than there are numbers for; a list of hosts that does not fit the world.
pub(crate) fn plan_all_reduce(req: &Request, between: Algorithm) -> Result<Plan, PlanError> {
    let hosts = Hosts::of(req)?;
    let mut b = Build::new(req);
    let all = b.contribution(0, req.len);
    let dst = Span::user(0, req.len);
    let first = hosts.first();
    let result = if hosts.are_equal() {
        let inside = hosts.inside();
        let parts = Parts::shares(req.len, inside.len());
        let at = |part| parts.at(part);
        let given = Given {
            all: &all,
            at: &at,
            first: Buf::User,
        };
        let own = sub(dst, parts.at(inside.me));
        let whole = hosts.n() == 1;
        let partial = reduce_scatter::direct(&mut b, &inside, &given, whole.then_some(own));
        let result = all_reduce(&mut b, &hosts.counterparts(), between, &partial, own, first);
        let gathered = all_gather::direct(&mut b, &inside, &result, &Places { dst, at: &at });
        Value::join(dst, &gathered)
    } else {
        let leaders = hosts.leaders(None);
        let inside = from_leader(&hosts, leaders.leader);
        let partial = fold_inside(&mut b, &hosts, leaders.leader, &all, None);
        let result = match (&leaders.team, partial) {
            (Some(team), Some(partial)) => {
                Some(all_reduce(&mut b, team, between, &partial, dst, first))
            }
            _ => None,
        };
        tree::broadcast(&mut b, &inside, Shape::Star, result.as_ref(), dst)
    };
    b.finish(req.call.algorithm(), Some(&result))
}

/// Everybody's contribution to the leader, who folds them in rank order into `dst`, or where the first one came.
fn fold_inside(
    b: &mut Build<'_>,
    hosts: &Hosts,
    leader: Rank,
    own: &Value,
    dst: Option<Span>,
) -> Option<Value> {
    let inside = hosts.inside();
    if inside.len() == 1 && dst.is_none() {
        return Some(own.clone());
    }
    tree::reduce_directly(b, &inside, leader, own, dst)
}

/// All of the team's contributions combined, in everybody's `dst`.
fn all_reduce(
    b: &mut Build<'_>,
    team: &Team,
    by: Algorithm,
    own: &Value,
    dst: Span,
    first: Buf,
) -> Value {
    if team.len() == 1 {
        return b.place(dst, own);
    }
    let parts = Parts::shares(own.span.len, team.len());
    let at = |part| parts.at(part);
    let given = Given {
        all: own,
        at: &at,
        first,
    };
    let places = Places { dst, at: &at };
    let mine = sub(dst, parts.at(team.me));
    match by {
        Algorithm::Ring => {
            let part = reduce_scatter::ring(b, team, &given, Some(mine));
            Value::join(dst, &all_gather::ring(b, team, &part, &places))
        }
        Algorithm::RecursiveDoubling => doubling::all_reduce(b, team, own, dst, first),
        Algorithm::HalvingDoubling => halving_doubling::all_reduce(b, team, own, dst, first),
        Algorithm::DoubleTree => {
            let shapes = [Shape::Binary, Shape::BinaryMirrored];
            tree::all_reduce(b, team, &shapes, own, dst, first)
        }
        Algorithm::Binomial => tree::all_reduce(b, team, &[Shape::Knomial(2)], own, dst, first),
        _ => {
            b.codec = b.request().codec;
            let part = reduce_scatter::direct(b, team, &given, Some(mine));
            if b.codec != Codec::None {
                b.recode(&part);
            }
            let all = all_gather::direct(b, team, &part, &places);
            b.codec = Codec::None;
            Value::join(dst, &all)
        }
    }
}

/// The plan of a reduction to `root`: to each host's leader, then along a binomial tree.
///
/// # Errors
/// As [`plan_all_reduce`].
pub(crate) fn plan_reduce(req: &Request, root: Rank) -> Result<Plan, PlanError> {
    let hosts = Hosts::of(req)?;
    let mut b = Build::new(req);
    let all = b.contribution(0, req.len);
    let dst = Span::user(0, req.len);
    let leaders = hosts.leaders(Some(root));
    let at_once = (hosts.n() == 1).then_some(dst);
    let partial = fold_inside(&mut b, &hosts, leaders.leader, &all, at_once);
    let result = match (&leaders.team, partial) {
        (Some(team), Some(partial)) => {
            let first = hosts.first();
            tree::reduce(&mut b, team, Shape::Knomial(2), &partial, dst, first)
        }
        _ => None,
    };
    b.finish(req.call.algorithm(), result.as_ref())
}

/// The plan of a broadcast from `root`: between the hosts' leaders along a tree or a chain, then to all of a host.
///
/// # Errors
/// As [`plan_all_reduce`].
pub(crate) fn plan_broadcast(
    req: &Request,
    root: Rank,
    between: Algorithm,
) -> Result<Plan, PlanError> {
    let hosts = Hosts::of(req)?;
    let mut b = Build::new(req);
    let own = b.contribution(0, req.len);
    let dst = Span::user(0, req.len);
    if req.rank == root {
        b.place(dst, &own);
    }
    let leaders = hosts.leaders(Some(root));
    let shape = match between {
        Algorithm::Pipelined => Shape::Chain,
        _ => Shape::Knomial(2),
    };
    let value = leaders
        .team
        .as_ref()
        .map(|team| tree::broadcast(&mut b, team, shape, Some(&own), dst));
    let inside = from_leader(&hosts, leaders.leader);
    tree::broadcast(&mut b, &inside, Shape::Star, value.as_ref(), dst);
    b.finish(req.call.algorithm(), None)
}

/// The plan of an all-gather, between hosts around a ring.
///
/// # Errors
/// As [`plan_all_reduce`]; counts that do not fit.
pub(crate) fn plan_all_gather(req: &Request, counts: &Counts) -> Result<Plan, PlanError> {
    let hosts = Hosts::of(req)?;
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let (at, len) = parts.at(req.rank.0);
    let all = Span::user(0, parts.total());
    let of = |rank: Rank| sub(all, parts.at(rank.0));
    let mut b = Build::new(req);
    let own = b.contribution(at, len);
    b.place(of(req.rank), &own);
    if hosts.are_equal() {
        let counterparts = hosts.counterparts();
        let theirs = |host: u32| parts.at(counterparts.rank(host).0);
        let places = Places {
            dst: all,
            at: &theirs,
        };
        let held = all_gather::ring(&mut b, &counterparts, &own, &places);
        let inside = hosts.inside();
        for to in inside.after_me() {
            for part in &held {
                b.send(inside.rank(to), part, Buf::User);
            }
        }
        for from in inside.before_me() {
            for members in &hosts.members {
                b.recv(inside.rank(from), of(members[from as usize]), Buf::User);
            }
        }
        return b.finish(req.call.algorithm(), None);
    }
    let leaders = hosts.leaders(None);
    let others = |host: u32| hosts.members[host as usize].iter().copied();
    let Some(team) = leaders.team else {
        b.send(leaders.leader, &own, Buf::User);
        for rank in (0..hosts.n()).flat_map(others).filter(|&r| r != req.rank) {
            b.recv(leaders.leader, of(rank), Buf::User);
        }
        return b.finish(req.call.algorithm(), None);
    };
    for &rank in hosts.here().iter().filter(|&&r| r != req.rank) {
        b.recv(rank, of(rank), Buf::User);
    }
    let (me, n) = (team.me, team.len());
    for hop in 1..n {
        let around = |by| crate::program::back(me, by, n);
        for rank in others(around(hop - 1)) {
            let part = b.plain(of(rank));
            b.send(
                team.rank(crate::program::forward(me, 1, n)),
                &part,
                Buf::User,
            );
        }
        for rank in others(around(hop)) {
            b.recv(team.rank(around(1)), of(rank), Buf::User);
        }
    }
    for &to in hosts.here().iter().filter(|&&r| r != req.rank) {
        for rank in (0..n).flat_map(others).filter(|&r| r != to) {
            let part = b.plain(of(rank));
            b.send(to, &part, Buf::User);
        }
    }
    b.finish(req.call.algorithm(), None)
}

/// The plan of a reduce-scatter, between hosts directly.
///
/// # Errors
/// As [`plan_all_reduce`]; counts that do not fit.
pub(crate) fn plan_reduce_scatter(req: &Request, counts: &Counts) -> Result<Plan, PlanError> {
    let hosts = Hosts::of(req)?;
    let parts = Parts::of(counts, req.len, req.world as usize, "counts")?;
    let (own_at, own_len) = parts.at(req.rank.0);
    let mut b = Build::new(req);
    let all = b.contribution(0, parts.total());
    let dst = Span::user(if req.out_of_place { 0 } else { own_at }, own_len);
    let first = hosts.first();
    let result = if hosts.are_equal() {
        let inside = hosts.inside();
        let mut partials = Vec::new();
        for members in &hosts.members {
            // Of the parts of one host's ranks, each rank here folds its counterpart's.
            let at = |place: u32| parts.at(members[place as usize].0);
            let given = Given {
                all: &all,
                at: &at,
                first: Buf::User,
            };
            let whole = hosts.n() == 1;
            partials.push(reduce_scatter::direct(
                &mut b,
                &inside,
                &given,
                whole.then_some(dst),
            ));
        }
        let partial = partials[hosts.host as usize].clone();
        let at = |_| (0, own_len);
        let given = Given {
            all: &partial,
            at: &at,
            first,
        };
        reduce_scatter::direct_from(&mut b, &hosts.counterparts(), &given, &partials, Some(dst))
    } else {
        let leaders = hosts.leaders(None);
        let partial = fold_inside(&mut b, &hosts, leaders.leader, &all, None);
        let (Some(team), Some(partial)) = (leaders.team, partial) else {
            let part = b.recv(leaders.leader, dst, Buf::User);
            return b.finish(req.call.algorithm(), Some(&part));
        };
        lead_reduce_scatter(&mut b, &hosts, &team, &parts, &partial, dst)
    };
    b.finish(req.call.algorithm(), Some(&result))
}

/// A leader's exchange of its host's partial results, and what each rank here gets of them; returns its own.
fn lead_reduce_scatter(
    b: &mut Build<'_>,
    hosts: &Hosts,
    team: &Team,
    parts: &Parts,
    partial: &Value,
    dst: Span,
) -> Value {
    for to in team.after_me() {
        for rank in &hosts.members[to as usize] {
            b.send(team.rank(to), &partial.part(parts.at(rank.0)), Buf::Scratch);
        }
    }
    let mut operands: Vec<Vec<Value>> = hosts
        .here()
        .iter()
        .map(|rank| vec![partial.part(parts.at(rank.0)); team.len() as usize])
        .collect();
    for from in team.before_me() {
        for (rank, operands) in hosts.here().iter().zip(&mut operands) {
            let room = b.room(parts.len(rank.0));
            operands[from as usize] = b.recv(team.rank(from), room, Buf::Scratch);
        }
    }
    let mut own = None;
    for (rank, operands) in hosts.here().iter().zip(&operands) {
        if *rank == team.rank(team.me) {
            own = Some(b.fold(dst, operands));
        } else {
            let room = operands.iter().zip(0..).find(|(_, host)| *host != team.me);
            let place = room.map_or(operands[0].span, |(v, _)| v.span);
            let part = b.fold(place, operands);
            b.send(*rank, &part, Buf::User);
        }
    }
    own.unwrap_or_else(|| b.plain(dst))
}
