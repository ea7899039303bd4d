//! What a plan costs: rounds, messages and bytes, counted from its steps; and the formulas that the counts must equal.

use crate::binomial;
use crate::plan::{Action, Buf, Call, Plan, Request};
use crate::program::{forward, share};
use gaggle_core::{Algorithm, Codec, Counts, DType, OpKind, Rank};
use std::{collections::BTreeMap, fmt};

/// What one rank's part costs. Bytes are payload: headers, descriptors and weights travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Cost {
    /// Rounds of the algorithm: messages that follow each other on the longest way through all ranks' plans; slices of one vector count once.
    ///
    /// The way may be one shorter in recursive doubling and in a binomial tree where P is no power of two: nothing makes a rank wait for a round to end.
    ///
    /// `None` where it depends on more than the plan says, as on the hosts: then [`depth`](crate::check::depth()) counts.
    pub rounds: Option<u64>,
    /// How many messages this rank sends.
    pub messages_sent: u64,
    /// How many it receives.
    pub messages_received: u64,
    /// Payload bytes it sends.
    pub bytes_sent: u64,
    /// Payload bytes it receives.
    pub bytes_received: u64,
    /// The same by peer, ascending.
    pub links: BTreeMap<Rank, LinkCost>,
}

/// What goes over one rank's link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkCost {
    /// Payload bytes to the peer.
    pub bytes_sent: u64,
    /// Payload bytes from the peer.
    pub bytes_received: u64,
}

impl Cost {
    /// Of a plan on elements of type `dtype`; `None` where the plan's codec does not apply to it.
    ///
    /// Takes time proportional to the number of steps.
    ///
    /// ```
    /// use gaggle_collectives::{Call, Cost, Request, plan};
    /// use gaggle_core::{Algorithm, Codec, Counts, DType, Rank, Reduce};
    ///
    /// let request = Request {
    ///     call: Call::AllReduce { reduce: Reduce::Sum, algorithm: Algorithm::Ring },
    ///     rank: Rank(0),
    ///     world: 4,
    ///     len: 1000,
    ///     slice: 100,
    ///     codec: Codec::None,
    ///     widen: false,
    ///     ..Request::default()
    /// };
    /// let cost = Cost::of(&plan(&request)?, DType::F32).expect("plain messages");
    /// assert_eq!((cost.rounds, cost.bytes_sent), (Some(6), 6000));
    /// # Ok::<(), gaggle_collectives::PlanError>(())
    /// ```
    pub fn of(plan: &Plan, dtype: DType) -> Option<Cost> {
        let mut cost = Cost {
            rounds: rounds(plan),
            ..Cost::default()
        };
        for step in plan.iter() {
            match step.action {
                Action::Send {
                    to,
                    src,
                    wire,
                    codec,
                    ..
                } => {
                    let bytes = wire_bytes(plan.kind, dtype, wire, codec, src.len)?;
                    cost.messages_sent += 1;
                    cost.bytes_sent += bytes;
                    cost.links.entry(to).or_default().bytes_sent += bytes;
                }
                Action::Recv {
                    from,
                    dst,
                    wire,
                    codec,
                    ..
                } => {
                    let bytes = wire_bytes(plan.kind, dtype, wire, codec, dst.len)?;
                    cost.messages_received += 1;
                    cost.bytes_received += bytes;
                    cost.links.entry(from).or_default().bytes_received += bytes;
                }
                _ => {}
            }
        }
        Some(cost)
    }
}

/// `6 rounds; sends 6 messages, 6000 bytes; receives 6 messages, 6000 bytes`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rounds) = self.rounds {
            write!(f, "{rounds} rounds; ")?;
        }
        write!(
            f,
            "sends {} messages, {} bytes; receives {} messages, {} bytes",
            self.messages_sent, self.bytes_sent, self.messages_received, self.bytes_received
        )
    }
}

/// Bytes of a message of `len` elements.
fn wire_bytes(kind: OpKind, dtype: DType, wire: Buf, codec: Codec, len: u64) -> Option<u64> {
    let elements = match wire {
        Buf::User | Buf::Input => dtype,
        Buf::Scratch => kind.scratch_type(dtype),
    };
    codec.wire_bytes(elements, len)
}

/// Rounds of the operation that a plan is part of. [`depth`](crate::check::depth()) counts the longest chain in all ranks' plans.
fn rounds(plan: &Plan) -> Option<u64> {
    let p = u64::from(plan.world);
    let log = u64::from(u32::BITS - (plan.world - 1).leading_zeros());
    let beyond = u64::from(!plan.world.is_power_of_two());
    let once = u64::from(p > 1);
    // There and back.
    let ways = match plan.kind {
        OpKind::AllReduce => 2,
        _ => 1,
    };
    Some(match plan.algorithm {
        Algorithm::Ring => ways * (p - 1),
        Algorithm::Pipelined => p - 1,
        Algorithm::Direct => ways * once,
        Algorithm::Exchange => once,
        Algorithm::Binomial => ways * log,
        // Where P is no power of two, ⌊log₂P⌋ rounds and one more before and after.
        Algorithm::RecursiveDoubling if plan.kind == OpKind::AllReduce => log + beyond,
        Algorithm::Dissemination | Algorithm::Bruck => log,
        Algorithm::Neighbour => 1,
        // Of arrivals.
        Algorithm::Fused => 2 * once,
        _ => return None,
    })
}

/// Payload bytes that the rank of `req` sends, by the algorithm's formula; `None` where the codec does not apply to `dtype` or codes in blocks, and where no formula is stated: [`Cost::of`] counts.
///
/// Takes time independent of the plan's length.
pub fn bytes_sent(req: &Request, dtype: DType) -> Option<u64> {
    let plain = req.codec.wire_type(dtype)?.size() as u64;
    let others = u64::from(req.world - 1);
    let chunk = |idx: u32| {
        let (lo, hi) = share(req.len, req.world, idx);
        hi - lo
    };
    Some(match &req.call {
        Call::AllReduce { algorithm, .. } => match algorithm {
            Algorithm::Direct => {
                let own = chunk(req.rank.0);
                (req.len - own + others * own) * plain
            }
            Algorithm::Exchange => others * req.len * plain,
            Algorithm::RecursiveDoubling => doubling_bytes(req, dtype),
            Algorithm::Ring if req.world == 1 => 0,
            // All chunks but the owned one while reducing; all but the next rank's while gathering.
            Algorithm::Ring => {
                let partial = partial_size(req, dtype);
                let owned = chunk(forward(req.rank.0, 1, req.world));
                let not_sent = chunk(forward(req.rank.0, 2, req.world));
                (req.len - owned) * partial + (req.len - not_sent) * plain
            }
            _ => return None,
        },
        Call::Broadcast {
            root,
            algorithm: Algorithm::Binomial,
        } => u64::from(binomial::n_children_of(req.rank, *root, req.world)) * req.len * plain,
        Call::AllGather {
            counts: Counts::Equal,
            algorithm: Algorithm::Ring | Algorithm::Direct,
        } => others * req.len * plain,
        Call::Barrier => 0,
        Call::Mix { to, .. } => to.len() as u64 * req.len * plain,
        _ => return None,
    })
}

/// Bytes of an element of a partial result.
fn partial_size(req: &Request, dtype: DType) -> u64 {
    let kept = if req.widen {
        dtype.accumulator()
    } else {
        dtype
    };
    kept.size() as u64
}

/// The caller's vector once, partial results in every later round, the result to a rank beyond the power of two.
fn doubling_bytes(req: &Request, dtype: DType) -> u64 {
    let plain = dtype.size() as u64;
    let rounds = u64::from(req.world.ilog2());
    let n_lower = 1u32 << req.world.ilog2();
    if req.rank.0 >= n_lower {
        return req.len * plain;
    }
    let has_beyond = req.rank.0 < req.world - n_lower;
    let n_plain = if has_beyond { 1 } else { rounds.min(1) };
    let n_partial = rounds + u64::from(has_beyond) - n_plain;
    req.len * (n_plain * plain + n_partial * partial_size(req, dtype))
}
