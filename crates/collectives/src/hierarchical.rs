//! Neighbour averaging between machines, in which every rank takes part.
//!
//! Inside a machine the ranks' values are averaged, each rank owning one chunk of the mean; each rank exchanges its chunk with its counterparts on the neighbour machines and averages; then the chunks are gathered inside.
//! So every link between machines carries every byte once, spread over all ranks, and all ranks of a machine end with equal bits.
//!
//! Cost, with L ranks per machine, S bytes, and e machines to send to: 3 rounds, S(1 + e/L + (L−1)/L) bytes sent per rank at most, e·S/L of them to other machines.
//!
//! Source: Ying et al., BlueFog, 2021, section 4.3 (there one rank of each machine carries everything).

use crate::build::{Build, Team};
use crate::neighbour::{self, Exchange};
use crate::parts::Parts;
use crate::plan::{Buf, Plan, PlanError, Request, Span};
use crate::reduce_scatter::{self, Given};
use crate::{all_gather, all_gather::Places};
use gaggle_core::{Algorithm, Codec, Form, Rank};

/// What is asked for.
pub(crate) struct Machines<'a> {
    pub machines: &'a [Vec<Rank>],
    pub from: &'a [u32],
    pub to: &'a [u32],
    pub scaled: bool,
    pub form: Form,
}

/// The plan.
///
/// # Errors
/// More steps than there are numbers for; a rank in no machine or in two; machines of different sizes; a machine that is no neighbour.
pub(crate) fn plan_hierarchical(req: &Request, with: &Machines<'_>) -> Result<Plan, PlanError> {
    let (machine, place) = check_machines(req, with)?;
    let members = &with.machines[machine];
    let team = Team::of(members.clone(), place as u32);
    let parts = Parts::shares(req.len, team.len());
    let at = |part| parts.at(part);
    let dst = Span::user(0, req.len);
    let own = crate::build::sub(dst, parts.at(team.me));
    let mut b = Build::new(req);
    let all = b.contribution(0, req.len);
    let mean = if team.len() == 1 {
        b.place(dst, &all)
    } else {
        let given = Given {
            all: &all,
            at: &at,
            first: Buf::User,
        };
        reduce_scatter::direct(&mut b, &team, &given, Some(own))
    };
    b.carries = false;
    b.codec = req.codec;
    let counterpart = |&m: &u32| with.machines[m as usize][place];
    let exchange = Exchange {
        from: with.from.iter().map(counterpart).collect(),
        to: with.to.iter().map(counterpart).collect(),
        scaled: with.scaled,
        form: with.form,
    };
    let chunk = b.plain(mean.span);
    neighbour::exchange(&mut b, &exchange, &chunk, own);
    b.codec = Codec::None;
    let chunk = b.plain(own);
    all_gather::direct(&mut b, &team, &chunk, &Places { dst, at: &at });
    b.finish(Algorithm::Hierarchical, Some(&mean))
}

/// This rank's machine and place in it.
fn check_machines(req: &Request, with: &Machines<'_>) -> Result<(usize, usize), PlanError> {
    let bad = |what, rank| PlanError::BadRank {
        what,
        rank,
        world: req.world,
    };
    let mut place = vec![None; req.world as usize];
    for (m, members) in with.machines.iter().enumerate() {
        for (i, &rank) in members.iter().enumerate() {
            match place.get_mut(rank.idx()) {
                Some(empty @ None) => *empty = Some((m, i)),
                _ => return Err(bad("member of a machine", rank)),
            }
        }
    }
    if let Some(rank) = place.iter().position(Option::is_none) {
        return Err(bad("member of no machine", Rank(rank as u32)));
    }
    let sizes = || with.machines.iter().map(Vec::len);
    let size = sizes().next().unwrap_or(0);
    if let Some(other) = sizes().position(|s| s != size) {
        return Err(PlanError::Unsupported {
            kind: "hierarchical_mix",
            what: format!(
                "needs machines of equal size: machine 0 has size {size}, machine {other} has {}",
                with.machines[other].len()
            ),
        });
    }
    let Some(own) = place[req.rank.idx()] else {
        return Err(bad("member of no machine", req.rank));
    };
    for (what, machines) in [("in-machine", with.from), ("out-machine", with.to)] {
        let mut seen = vec![false; with.machines.len()];
        for &m in machines {
            match seen.get_mut(m as usize) {
                Some(seen) if !*seen && m as usize != own.0 => *seen = true,
                _ => {
                    return Err(PlanError::BadRank {
                        what,
                        rank: Rank(m),
                        world: with.machines.len() as u32,
                    });
                }
            }
        }
    }
    Ok(own)
}
