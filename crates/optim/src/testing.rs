//! A mixer without a network: all ranks in one thread, averages by a dense matrix.

use gaggle_core::{
    Cause, Codec, Error, Exchange, Float, MixedMean, Mixer, Rank, Round, Topology, With, name_ranks,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// One of n ranks that share a table of messages. It never waits: to finish before everybody whose value is needed has started is an error.
///
/// Averages are taken in f64, in delta form and in rank order: x_i + Σ_j W\[i,j\]·(x_j − x_i).
pub struct DenseMixer<T> {
    rank: usize,
    board: Arc<Mutex<Board<T>>>,
    slots: Vec<Slot<T>>,
}

/// Weight that receiver i puts on sender j in round t: `weights(t, i, j)`.
type Weights = Box<dyn Fn(u64, usize, usize) -> f64 + Send + Sync>;

struct Board<T> {
    world: usize,
    weights: Weights,
    /// By slot and round.
    posted: BTreeMap<(usize, u64), Posted<T>>,
}

struct Posted<T> {
    values: Vec<Option<Vec<T>>>,
    with: With,
    n_finished: usize,
}

struct Slot<T> {
    out: Vec<T>,
    mean: Vec<T>,
    /// The round that was started and not yet finished.
    open: Option<u64>,
}

impl<T: Float> DenseMixer<T> {
    /// `n` ranks; in round t receiver i puts `weights(t, i, j)` on sender j. Rows are taken to sum to one; `weights(t, i, i)` is not asked for.
    pub fn world(
        n: usize,
        weights: impl Fn(u64, usize, usize) -> f64 + Send + Sync + 'static,
    ) -> Vec<DenseMixer<T>> {
        let board = Arc::new(Mutex::new(Board {
            world: n,
            weights: Box::new(weights),
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
        DenseMixer::world(topology.world(), move |t, i, j| {
            let list = |rank: usize, senders: bool, peer: usize| {
                let mut round = Round::default();
                topology.round(Rank(rank as u32), t, &mut round);
                let list = if senders { round.from } else { round.to };
                let mut found = list.into_iter().filter(|(p, _)| p.idx() == peer);
                found.next().map_or(0.0, |(_, w)| w)
            };
            list(i, true, j) * list(j, false, i)
        })
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

    fn outbox(&mut self, slot: usize, n: usize) -> &mut [T] {
        while self.slots.len() <= slot {
            self.slots.push(Slot {
                out: Vec::new(),
                mean: Vec::new(),
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
                n_finished: 0,
            });
        if posted.with != exchange.with {
            let what = format!("another rank exchanges with {:?}", posted.with);
            return Err(Error::invalid(op(), what));
        }
        posted.values[self.rank] = Some(slot.out.clone());
        slot.open = Some(t);
        Ok(())
    }

    fn finish(&mut self, slot: usize) -> Result<(), Error> {
        let Some((t, mean)) = self
            .slots
            .get_mut(slot)
            .and_then(|s| Some((s.open?, &mut s.mean)))
        else {
            return Err(Error::invalid(
                format!("finish of slot {slot}"),
                "it was not started",
            ));
        };
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.mix(self.rank, slot, t, mean)?;
        self.slots[slot].open = None;
        Ok(())
    }

    fn mean(&self, slot: usize) -> MixedMean<'_, T> {
        MixedMean {
            values: self.slots.get(slot).map_or(&[], |s| &s.mean),
            weight: 1.0,
        }
    }
}

impl<T: Float> Board<T> {
    fn mix(&mut self, me: usize, slot: usize, t: u64, mean: &mut Vec<T>) -> Result<(), Error> {
        let op = || format!("finish of slot {slot}, round {t}");
        let world = self.world;
        let Some(posted) = self.posted.get_mut(&(slot, t)) else {
            return Err(Error::invalid(op(), "it was not started"));
        };
        let weight = |j: usize| match posted.with {
            With::Neighbours => (self.weights)(t, me, j),
            _ => 1.0 / world as f64,
        };
        let needed: Vec<(usize, f64)> = (0..world)
            .filter(|&j| j != me)
            .map(|j| (j, weight(j)))
            .filter(|(_, w)| *w != 0.0)
            .collect();
        let absent: Vec<Rank> = needed
            .iter()
            .filter(|(j, _)| posted.values[*j].is_none())
            .map(|(j, _)| Rank(*j as u32))
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
        if let Some((j, _)) = needed.iter().find(|(j, _)| value(*j).len() != own.len()) {
            let (got, want) = (value(*j).len(), own.len());
            let what = format!("rank {j} sent {got} elements, wanted {want}");
            return Err(Error::invalid(op(), what));
        }
        mean.clear();
        if posted.with == With::Everyone {
            // The plain sum in rank order: the same bits on every rank.
            mean.extend((0..own.len()).map(|k| {
                let sum: f64 = (0..world).map(|j| value(j)[k].to_f64()).sum();
                T::from_f64(sum / world as f64)
            }));
        } else {
            mean.extend(own.iter().enumerate().map(|(k, x)| {
                let x = x.to_f64();
                let pulled = |(j, w): &(usize, f64)| w * (value(*j)[k].to_f64() - x);
                T::from_f64(x + needed.iter().map(pulled).sum::<f64>())
            }));
        }
        posted.n_finished += 1;
        if posted.n_finished == world {
            self.posted.remove(&(slot, t));
        }
        Ok(())
    }
}
