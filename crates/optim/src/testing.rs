//! A mixer without a network: all ranks in one thread, averages by a dense matrix; and the loop that steps all of them.

use crate::Decentralised;
use gaggle_core::{
    At, Cause, Codec, Error, Exchange, Float, Form, Mixer, Rank, Round, Topology, With, name_ranks,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// One of n ranks that share a table of messages. It never waits: to finish before everybody whose value is needed has started is an error.
///
/// For f32 and f64 its averages have the bits that an engine gives, though it shares no code with one: in f64, term by term in the order in which the round lists its in-neighbours, in delta form, x_i + Σ_j a·(x_j − x_i), where a row sums to one, and else as keep·x_i + Σ_j a·x_j; a sender's own weight b makes of x_j what is on the wire, b·x_j rounded to T.
/// A mean over everybody is the sum in rank order, divided once: what an engine gives where its plan folds all contributions at once, as it does for short vectors; plans with partial results (for long ones) round elsewhere.
pub struct DenseMixer<T> {
    rank: usize,
    board: Arc<Mutex<Board<T>>>,
    slots: Vec<Slot<T>>,
}

/// Row i of round t.
type Rows = Box<dyn Fn(u64, usize) -> Row + Send + Sync>;

/// As many rows of a topology are kept.
const KEPT_ROWS: u64 = 1 << 16;

/// What receiver i puts on itself, where that is not what is left of one, and on the others, in the order in which they are listed.
#[derive(Clone)]
struct Row {
    keep: Option<f64>,
    from: Vec<Edge>,
}

/// A way from a sender, with both ends' weights.
#[derive(Clone, Copy)]
struct Edge {
    sender: usize,
    /// a: the receiver's.
    weight: f64,
    /// b: the sender's.
    share: f64,
}

impl Edge {
    /// What is on the wire for the sender's `x`, widened.
    fn sent<T: Float>(&self, x: T) -> f64 {
        match self.share {
            1.0 => x.to_f64(),
            share => T::from_f64(share * x.to_f64()).to_f64(),
        }
    }
}

struct Board<T> {
    world: usize,
    rows: Rows,
    /// By slot and step.
    posted: BTreeMap<(usize, u64), Posted<T>>,
}

struct Posted<T> {
    values: Vec<Option<Vec<T>>>,
    with: With,
    round: u64,
    n_finished: usize,
}

struct Slot<T> {
    out: Vec<T>,
    mean: Vec<T>,
    weights: Vec<f64>,
    /// The round that was started and not yet finished.
    open: Option<u64>,
}

impl<T: Float> DenseMixer<T> {
    /// `n` ranks; in round t receiver i puts `weights(t, i, j)` on sender j. Rows are taken to sum to one; `weights(t, i, i)` is not asked for.
    pub fn world(
        n: usize,
        weights: impl Fn(u64, usize, usize) -> f64 + Send + Sync + 'static,
    ) -> Vec<DenseMixer<T>> {
        Self::of_rows(n, move |t, i| Row {
            keep: None,
            from: (0..n)
                .filter(|j| *j != i)
                .map(|sender| Edge {
                    sender,
                    weight: weights(t, i, sender),
                    share: 1.0,
                })
                .filter(|edge| edge.weight != 0.0)
                .collect(),
        })
    }

    fn of_rows(n: usize, rows: impl Fn(u64, usize) -> Row + Send + Sync + 'static) -> Vec<Self> {
        let board = Arc::new(Mutex::new(Board {
            world: n,
            rows: Box::new(rows),
            posted: BTreeMap::new(),
        }));
        let mixer = |rank| DenseMixer {
            rank,
            board: board.clone(),
            slots: Vec::new(),
        };
        (0..n).map(mixer).collect()
    }

    /// All ranks of `topology`, with its weights.
    pub fn of(topology: Arc<dyn Topology>) -> Vec<DenseMixer<T>> {
        let (world, period) = (topology.world(), topology.period());
        let row = move |t: u64, i: usize| {
            let part = |rank: usize| {
                let mut round = Round::default();
                topology.round(Rank(rank as u32), t, &mut round);
                round
            };
            let mine = part(i);
            let sent = |j: usize| {
                let to = part(j).to;
                to.into_iter().find(|(p, _)| p.idx() == i).map(|e| e.1)
            };
            Row {
                keep: (mine.arithmetic() == Form::Sum).then_some(mine.keep),
                from: mine
                    .from
                    .iter()
                    .filter_map(|&(j, weight)| {
                        Some(Edge {
                            sender: j.idx(),
                            weight,
                            share: sent(j.idx())?,
                        })
                    })
                    .collect(),
            }
        };
        // Rounds that repeat are asked for once.
        match period.filter(|p| p.saturating_mul(world as u64) <= KEPT_ROWS) {
            None => DenseMixer::of_rows(world, row),
            Some(period) => {
                let kept: Vec<Vec<Row>> = (0..period.max(1))
                    .map(|t| (0..world).map(|i| row(t, i)).collect())
                    .collect();
                DenseMixer::of_rows(world, move |t, i| {
                    kept[(t % kept.len() as u64) as usize][i].clone()
                })
            }
        }
    }

    fn board(&self) -> MutexGuard<'_, Board<T>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Float> Mixer<T> for DenseMixer<T> {
    fn rank(&self) -> Rank {
        Rank(self.rank as u32)
    }

    fn world(&self) -> usize {
        self.board().world
    }

    fn messages(&mut self, exchange: &Exchange) -> usize {
        match exchange.with {
            With::EachNeighbour => self.board().receivers(exchange.round, self.rank).count(),
            _ => 1,
        }
    }

    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T] {
        while self.slots.len() <= slot {
            self.slots.push(Slot {
                out: Vec::new(),
                mean: Vec::new(),
                weights: Vec::new(),
                open: None,
            });
        }
        let out = &mut self.slots[slot].out;
        out.resize(n, T::from_f64(0.0));
        out
    }

    fn start(&mut self, exchange: &Exchange, t: u64) -> Result<(), Error> {
        let op = || format!("start of slot {}, round {t}", exchange.slot);
        if exchange.codec != Codec::None {
            return Err(Cause::Unsupported {
                op: op(),
                what: "the dense mixer moves values as they are; use the plain codec".into(),
            }
            .into());
        }
        let Some(slot) = self.slots.get_mut(exchange.slot) else {
            return Err(Error::invalid(op(), "its outbox was never filled"));
        };
        if slot.open.is_some() {
            return Err(Error::invalid(op(), "the slot is in flight"));
        }
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let world = board.world;
        let posted = board
            .posted
            .entry((exchange.slot, t))
            .or_insert_with(|| Posted {
                values: vec![None; world],
                with: exchange.with,
                round: exchange.round,
                n_finished: 0,
            });
        if (posted.with, posted.round) != (exchange.with, exchange.round) {
            let (with, round) = (posted.with, posted.round);
            let what = format!("another rank exchanges with {with:?} in round {round}");
            return Err(Error::invalid(op(), what));
        }
        posted.values[self.rank] = Some(slot.out.clone());
        slot.open = Some(t);
        Ok(())
    }

    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        let Some((t, mean, weights)) = self
            .slots
            .get_mut(slot)
            .and_then(|s| Some((s.open?, &mut s.mean, &mut s.weights)))
        else {
            return Err(Error::invalid(
                format!("finish of slot {slot}"),
                "it was not started",
            ));
        };
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.mix(self.rank, (slot, t), mean, weights)?;
        self.slots[slot].open = None;
        Ok(())
    }

    fn mean(&self, slot: usize) -> &[T] {
        self.slots.get(slot).map_or(&[], |s| &s.mean)
    }

    fn weights(&self, slot: usize) -> &[f64] {
        self.slots.get(slot).map_or(&[], |s| &s.weights)
    }
}

impl<T: Float> Board<T> {
    /// Who takes something of `sender` in this round, in rank order.
    fn receivers(&self, round: u64, sender: usize) -> impl Iterator<Item = usize> {
        let takes = move |i: &usize| {
            (self.rows)(round, *i)
                .from
                .iter()
                .any(|e| e.sender == sender)
        };
        (0..self.world).filter(takes)
    }

    /// Where in the sender's outbox the message for `me` lies: its number, and how many there are.
    fn place(&self, round: u64, sender: usize, me: usize) -> (usize, usize) {
        let mut all = self.receivers(round, sender);
        let before = all.by_ref().take_while(|i| *i != me).count();
        (before, before + 1 + all.count())
    }

    /// What each in-neighbour has for `me`, and the weights.
    fn gather(
        &self,
        me: usize,
        posted: &Posted<T>,
        row: &Row,
        (to, weights): (&mut Vec<T>, &mut Vec<f64>),
    ) {
        let mut edges = row.from.clone();
        edges.sort_unstable_by_key(|e| e.sender);
        let sum: f64 = row.from.iter().map(|e| e.weight * e.share).sum();
        weights.push(row.keep.unwrap_or(1.0 - sum));
        for edge in edges {
            weights.push(edge.weight * edge.share);
            let j = edge.sender;
            let (at, of) = self.place(posted.round, j, me);
            let all = posted.values[j].as_deref().unwrap_or(&[]);
            let len = all.len() / of;
            to.extend(&all[at * len..][..len]);
        }
    }

    fn mix(
        &mut self,
        me: usize,
        (slot, t): (usize, u64),
        mean: &mut Vec<T>,
        weights: &mut Vec<f64>,
    ) -> Result<(), Error> {
        let op = || format!("finish of slot {slot}, round {t}");
        let world = self.world;
        let Some(posted) = self.posted.get(&(slot, t)) else {
            return Err(Error::invalid(op(), "it was not started"));
        };
        let row = match posted.with {
            With::Everyone | With::EachMember => Row {
                keep: None,
                from: (0..world)
                    .filter(|sender| *sender != me)
                    .map(|sender| Edge {
                        sender,
                        weight: 1.0,
                        share: 1.0,
                    })
                    .collect(),
            },
            _ => (self.rows)(posted.round, me),
        };
        let needed = &row.from;
        let absent: Vec<Rank> = needed
            .iter()
            .filter(|e| posted.values[e.sender].is_none())
            .map(|e| Rank(e.sender as u32))
            .collect();
        if !absent.is_empty() {
            let what = format!(
                "{} not started; begin on all ranks first",
                name_ranks(&absent)
            );
            return Err(Error::invalid(op(), what));
        }
        let value = |j: usize| posted.values[j].as_deref().unwrap_or(&[]);
        let own = value(me);
        let differs = |j: usize| value(j).len() != own.len() && posted.with != With::EachNeighbour;
        if let Some(Edge { sender, .. }) = needed.iter().find(|e| differs(e.sender)) {
            let (got, want) = (value(*sender).len(), own.len());
            let what = format!("rank {sender} sent {got} elements, wanted {want}");
            return Err(Error::invalid(op(), what));
        }
        mean.clear();
        weights.clear();
        match posted.with {
            // The plain sum in rank order: the same bits on every rank.
            With::Everyone => mean.extend((0..own.len()).map(|k| {
                let sum: f64 = (0..world).map(|j| value(j)[k].to_f64()).sum();
                T::from_f64(sum / world as f64)
            })),
            With::EachMember => (0..world).for_each(|j| mean.extend(value(j))),
            With::EachNeighbour => self.gather(me, posted, &row, (mean, weights)),
            _ => mean.extend(own.iter().enumerate().map(|(k, own)| {
                let sent = |e: &Edge| (e.weight, e.sent(value(e.sender)[k]));
                let terms = needed.iter().map(sent);
                T::from_f64(match row.keep {
                    None => in_delta_form(own.to_f64(), terms),
                    Some(keep) => in_sum_form(std::iter::once((keep, own.to_f64())).chain(terms)),
                })
            })),
        }
        if let Some(posted) = self.posted.get_mut(&(slot, t)) {
            posted.n_finished += 1;
            if posted.n_finished == world {
                self.posted.remove(&(slot, t));
            }
        }
        Ok(())
    }
}

/// own + Σ w·(x − own), where terms of weight 0 are not read, and one that equals the own value adds nothing, whatever its weight and sign.
fn in_delta_form(own: f64, terms: impl Iterator<Item = (f64, f64)>) -> f64 {
    terms
        .filter(|(w, x)| *w != 0.0 && *x != own)
        .fold(own, |sum, (w, x)| sum + w * (x - own))
}

/// Σ w·x, where terms of weight 0 are not read, and a weight of 1 multiplies nothing.
fn in_sum_form(terms: impl Iterator<Item = (f64, f64)>) -> f64 {
    terms
        .filter(|(w, _)| *w != 0.0)
        .map(|(w, x)| if w == 1.0 { x } else { w * x })
        .reduce(|sum, x| sum + x)
        .unwrap_or(0.0)
}

/// One step of all `ranks`, driven from one thread: `gradient(rank, x, g)` writes the gradient of `rank` at x into g.
///
/// # Errors
/// The first rank's that fails.
///
/// # Panics
/// Where there are more ranks than vectors in `x`.
pub fn lockstep<T: Float>(
    ranks: &mut [Decentralised<T>],
    lr: f64,
    x: &mut [Vec<T>],
    mut gradient: impl FnMut(usize, &[T], &mut [T]),
) -> Result<(), Error> {
    let mut g: Vec<Vec<T>> = x.iter().map(|x| vec![T::from_f64(0.0); x.len()]).collect();
    for at in At::ALL {
        if at == At::AfterGradient {
            for (r, (x, g)) in x.iter().zip(&mut g).enumerate() {
                gradient(r, x, g);
            }
        }
        if at == At::AfterMean && !ranks.iter().any(Decentralised::is_open) {
            break;
        }
        let seen = |r: usize| {
            if at == At::BeforeForward {
                &[]
            } else {
                &g[r][..]
            }
        };
        for (r, rank) in ranks.iter_mut().enumerate() {
            rank.begin(at, lr, &mut x[r], seen(r))?;
        }
        for (r, rank) in ranks.iter_mut().enumerate() {
            rank.end(at, &mut x[r], seen(r))?;
        }
    }
    Ok(())
}
