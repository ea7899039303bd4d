//! EquiTopo: graphs made of random cyclic shifts, whose mixing does not depend on the number of ranks (Song et al. 2022, "Communication-efficient topologies for decentralized learning with O(1) consensus rate").
//!
//! The basis: A_u\[i, i + u\] = (n − 1)/n and A_u\[i, i\] = 1/n for u = 1..n; the mean of all of them is exactly J.

use crate::{
    error::{TopologyError, checked_world},
    random::{pair, rng_of},
};
use gaggle_core::{Form, Rank, Round, Topology};
use rand::Rng;

fn parameter(topology: &str, what: String) -> TopologyError {
    TopologyError::Parameter {
        topology: topology.into(),
        what,
    }
}

fn checked_shifts(topology: &str, n: u32, shifts: &[u32]) -> Result<(), TopologyError> {
    match shifts.iter().find(|u| **u == 0 || **u >= n) {
        Some(u) => Err(parameter(
            topology,
            format!(
                "a shift of {n} ranks is from 1 to {}, not {u}",
                n.saturating_sub(1)
            ),
        )),
        None if shifts.is_empty() && n > 1 => Err(parameter(topology, "no shifts".into())),
        None => Ok(()),
    }
}

fn checked_eta(topology: &str, eta: f64) -> Result<(), TopologyError> {
    match eta > 0.0 && eta <= 1.0 {
        true => Ok(()),
        false => Err(parameter(
            topology,
            format!("η is above 0 and at most 1, not {eta}"),
        )),
    }
}

/// More shifts than these are no sparse graph any more.
const MOST_SHIFTS: usize = 1 << 20;

/// D-EquiStatic and U-EquiStatic: the mean of M shifts, or of it and its transpose.
///
/// As many messages per rank and round as there are distinct shifts (twice that for the undirected form, where they do not meet); ρ ≤ ε with probability 1 − p for M = ⌊8·ln(2n/p)/(3ε²)⌋, whatever n.
#[derive(Clone, Debug)]
pub struct EquiStatic {
    n: u32,
    undirected: bool,
    /// Distance to the sender and weight, by distance.
    taps: Vec<(u32, f64)>,
    keep: f64,
}

impl EquiStatic {
    /// The mean of these shifts, each from 1 to n − 1, repeated ones counted as often as they are there.
    ///
    /// # Errors
    /// A world of no ranks, no shifts, or one out of range.
    pub fn of_shifts(
        world: usize,
        shifts: &[u32],
        undirected: bool,
    ) -> Result<EquiStatic, TopologyError> {
        let name = EquiStatic::name_of(undirected);
        let n = checked_world(name, world)?;
        checked_shifts(name, n, shifts)?;
        let each = match undirected {
            true => 0.5 / shifts.len() as f64,
            false => 1.0 / shifts.len() as f64,
        };
        let part = each * f64::from(n - 1) / f64::from(n);
        let mut taps: Vec<(u32, f64)> = Vec::new();
        let mut add = |d: u32| match taps.iter_mut().find(|t| t.0 == d) {
            Some(tap) => tap.1 += part,
            None => taps.push((d, part)),
        };
        for u in shifts {
            add(*u);
            if undirected {
                add(n - u);
            }
        }
        taps.sort_unstable_by_key(|t| t.0);
        let keep = 1.0 / f64::from(n);
        Ok(EquiStatic {
            n,
            undirected,
            taps,
            keep,
        })
    }

    /// `count` shifts drawn with replacement from a seed.
    ///
    /// # Errors
    /// A world or a count of 0; more than a million shifts.
    pub fn random(
        world: usize,
        count: usize,
        undirected: bool,
        seed: u64,
    ) -> Result<EquiStatic, TopologyError> {
        let name = EquiStatic::name_of(undirected);
        let n = checked_world(name, world)?;
        if count > MOST_SHIFTS {
            return Err(parameter(
                name,
                format!("{count} shifts are more than {MOST_SHIFTS}"),
            ));
        }
        let mut rng = rng_of(seed, 0);
        let shifts: Vec<u32> = match n {
            1 => vec![],
            _ => (0..count).map(|_| rng.random_range(1..n)).collect(),
        };
        EquiStatic::of_shifts(world, &shifts, undirected)
    }

    /// M = ⌊8·ln(2n/p)/(3ε²)⌋: how many shifts make ρ ≤ ε with probability 1 − p (Theorem 1).
    pub fn shifts_for(world: usize, epsilon: f64, p: f64) -> usize {
        // A float's way to an integer saturates, and gives 0 for what is no number.
        (8.0 * (2.0 * world as f64 / p).ln() / (3.0 * epsilon * epsilon)) as usize
    }

    fn name_of(undirected: bool) -> &'static str {
        match undirected {
            true => "u-equi-static",
            false => "d-equi-static",
        }
    }
}

impl Topology for EquiStatic {
    fn name(&self) -> &str {
        EquiStatic::name_of(self.undirected)
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        Some(1)
    }
    fn round(&self, rank: Rank, _t: u64, out: &mut Round) {
        out.from.clear();
        out.to.clear();
        let at = |d: u32| Rank(((u64::from(rank.0) + u64::from(d)) % u64::from(self.n)) as u32);
        out.from.extend(self.taps.iter().map(|(d, w)| (at(*d), *w)));
        out.to
            .extend(self.taps.iter().map(|(d, _)| (at(self.n - d), 1.0)));
        out.keep = match self.n {
            1 => 1.0,
            _ => self.keep,
        };
        out.form = Form::Delta;
    }
}

/// OD-EquiDyn and OU-EquiDyn: one peer per round, at a distance that is drawn for every round.
///
/// OD: W = (1 − η)·I + η·A_u. In the mean square what is left of a disagreement per round is (n − 1)/(2n) for η = ½.
/// OU: ranks are paired up at distance u, from a drawn start on, and paired ranks average with weight η·(n − 1)/n; those without a partner keep their value.
/// One message per rank and round; never repeats.
#[derive(Clone, Debug)]
pub struct EquiDyn {
    n: u32,
    undirected: bool,
    eta: f64,
    seed: u64,
    /// What is drawn from; all distances where it is empty.
    shifts: Vec<u32>,
}

impl EquiDyn {
    /// Distances from 1 to n − 1, drawn from a seed that all ranks share. The paper's η is ½.
    ///
    /// # Errors
    /// A world of no ranks; η outside 0..=1, or 0.
    pub fn new(
        world: usize,
        undirected: bool,
        eta: f64,
        seed: u64,
    ) -> Result<EquiDyn, TopologyError> {
        let name = EquiDyn::name_of(undirected);
        checked_eta(name, eta)?;
        Ok(EquiDyn {
            n: checked_world(name, world)?,
            undirected,
            eta,
            seed,
            shifts: vec![],
        })
    }

    /// Draws from these distances only, as from those of an [`EquiStatic`].
    ///
    /// # Errors
    /// None, or one out of range.
    pub fn among(mut self, shifts: &[u32]) -> Result<EquiDyn, TopologyError> {
        checked_shifts(EquiDyn::name_of(self.undirected), self.n, shifts)?;
        self.shifts = shifts.to_vec();
        Ok(self)
    }

    fn name_of(undirected: bool) -> &'static str {
        match undirected {
            true => "ou-equi-dyn",
            false => "od-equi-dyn",
        }
    }
}

impl Topology for EquiDyn {
    fn name(&self) -> &str {
        EquiDyn::name_of(self.undirected)
    }
    fn world(&self) -> usize {
        self.n as usize
    }
    fn period(&self) -> Option<u64> {
        None
    }
    fn round(&self, rank: Rank, t: u64, out: &mut Round) {
        let n = self.n;
        if n == 1 {
            return pair(None, 0.0, out);
        }
        let mut rng = rng_of(self.seed, t);
        let u = match self.shifts.len() {
            0 => rng.random_range(1..n),
            m => self.shifts[rng.random_range(0..m)],
        };
        let weight = self.eta * f64::from(n - 1) / f64::from(n);
        if self.undirected {
            let start = rng.random_range(0..n);
            return pair(partner(n, u, start, rank.0).map(Rank), weight, out);
        }
        let at = |d: u32| Rank(((u64::from(rank.0) + u64::from(d)) % u64::from(n)) as u32);
        out.from.clear();
        out.to.clear();
        out.from.push((at(u), weight));
        out.to.push((at(n - u), 1.0));
        out.keep = 1.0 - weight;
        out.form = Form::Delta;
    }
}

/// Whom `rank` is paired with when ranks are gone through from `start` on, and each that is free is paired with the one `u` further on if that is free.
///
/// In closed form, with places counted from the start: blocks of u places pair up, the first with the second and so on. Where u is more than half of the world only the first n − u find somebody ahead; those between them and place u pair up at distance n − u.
fn partner(n: u32, u: u32, start: u32, rank: u32) -> Option<u32> {
    let (n, u) = (u64::from(n), u64::from(u));
    let (start, rank) = (u64::from(start), u64::from(rank));
    let place = (rank + n - start) % n;
    let back = n - u;
    let other = if 2 * u <= n {
        match (place / u).is_multiple_of(2) {
            true => Some(place + u).filter(|p| *p < n),
            false => Some(place - u),
        }
    } else if place < back {
        Some(place + u)
    } else if place >= u {
        Some(place - u)
    } else {
        match (place / back).is_multiple_of(2) {
            true => Some(place - back),
            false => Some(place + back).filter(|p| *p < u),
        }
    };
    other.map(|p| ((p + start) % n) as u32)
}

#[cfg(test)]
mod tests {
    use super::partner;

    /// As it is told: one after the other.
    fn scanned(n: u32, u: u32, start: u32) -> Vec<Option<u32>> {
        let mut pairs = vec![None; n as usize];
        for i in (0..n).map(|i| (start + i) % n) {
            let j = (i + u) % n;
            if pairs[i as usize].is_none() && pairs[j as usize].is_none() {
                pairs[i as usize] = Some(j);
                pairs[j as usize] = Some(i);
            }
        }
        pairs
    }

    #[test]
    fn partners_are_those_of_the_scan() {
        for n in 2..=33 {
            for (u, start) in (1..n).flat_map(|u| (0..n).map(move |s| (u, s))) {
                let found: Vec<_> = (0..n).map(|r| partner(n, u, start, r)).collect();
                assert_eq!(found, scanned(n, u, start), "n {n}, u {u}, start {start}");
            }
        }
    }

    /// Pairs of the reference implementation.
    #[test]
    fn known_pairs() {
        let pairs = |n, u, start| -> Vec<(u32, u32)> {
            (0..n)
                .filter_map(|r| Some((r, partner(n, u, start, r)?)))
                .filter(|(a, b)| a < b)
                .collect()
        };
        assert_eq!(pairs(8, 3, 0), [(0, 3), (1, 4), (2, 5)]);
        assert_eq!(pairs(8, 2, 5), [(0, 6), (1, 3), (2, 4), (5, 7)]);
        assert_eq!(pairs(5, 2, 1), [(1, 3), (2, 4)]);
    }
}
