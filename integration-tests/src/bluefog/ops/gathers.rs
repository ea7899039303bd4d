//! Gathers, from everybody and from neighbours.

use super::{Number, Scene, Trouble, expect};
use gaggle::Rank;
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

/// Elements of rank i's part in the tests of unequal lengths: its first axis, times a few.
fn varied(i: u32) -> usize {
    [17, 32, 81, 12, 15, 23, 22][i as usize % 7] * 3
}

fn block<T: Number>(i: u32, len: usize) -> Vec<T> {
    vec![T::of(f64::from(i)); len]
}

/// The blocks of these ranks, side by side.
fn blocks<T: Number>(of: &[u32], len: impl Fn(u32) -> usize) -> Vec<T> {
    of.iter().flat_map(|i| block(*i, len(*i))).collect()
}

fn ranks(of: &[u32]) -> Vec<Rank> {
    of.iter().copied().map(Rank).collect()
}

pub(super) fn allgather<T: Number>(s: &Scene) -> Result<(), Trouble> {
    let all: Vec<u32> = (0..s.n).collect();
    for len in [2, 4, 8] {
        let y = s.group.all_gather::<T>(&s.own(len))?;
        expect::exactly(&y, &blocks(&all, |_| len))?;
    }
    Ok(())
}

pub(super) fn allgather_variable_size<T: Number>(s: &Scene) -> Result<(), Trouble> {
    let all: Vec<u32> = (0..s.n).collect();
    let (y, counts) = s.group.all_gather_any::<T>(&s.own(varied(s.me)))?;
    let want: Vec<u64> = all.iter().map(|i| varied(*i) as u64).collect();
    expect::exactly(&counts, &want)?;
    expect::exactly(&y, &blocks(&all, varied))
}

fn ascending(mut list: Vec<u32>) -> Vec<u32> {
    list.sort_unstable();
    list
}

pub(super) fn neighbor_allgather<T: Number>(s: &Scene) -> Result<(), Trouble> {
    let from = ascending(s.in_exp2(s.me));
    let to = ranks(&s.out_exp2(s.me));
    for len in super::LENGTHS {
        let x: Vec<T> = s.own(len);
        let y = s
            .group
            .neighbour_all_gather(&x, &ranks(&from), &to, s.next_round())?;
        expect::exactly(&y, &blocks(&from, |_| len))?;
    }
    Ok(())
}

fn others(s: &Scene) -> Vec<u32> {
    (0..s.n).filter(|r| *r != s.me).collect()
}

pub(super) fn neighbor_allgather_dynamic<T: Number>(s: &Scene) -> Result<(), Trouble> {
    let others = others(s);
    let peers = ranks(&others);
    for len in super::LENGTHS {
        let x: Vec<T> = s.own(len);
        let y = s
            .group
            .neighbour_all_gather(&x, &peers, &peers, s.next_round())?;
        expect::exactly(&y, &blocks(&others, |_| len))?;
    }
    Ok(())
}

pub(super) fn neighbor_allgather_dynamic_variable_size<T: Number>(
    s: &Scene,
) -> Result<(), Trouble> {
    let others = others(s);
    let peers = ranks(&others);
    let x: Vec<T> = s.own(varied(s.me));
    let (y, counts) = s
        .group
        .neighbour_all_gather_any(&x, &peers, &peers, s.next_round())?;
    let want: Vec<u64> = others.iter().map(|i| varied(*i) as u64).collect();
    expect::exactly(&counts, &want)?;
    expect::exactly(&y, &blocks(&others, varied))
}

pub(super) fn neighbor_allgather_order(s: &Scene) -> Result<(), Trouble> {
    let from = ascending(s.in_exp2(s.me));
    let to = ranks(&s.out_exp2(s.me));
    let y = s
        .group
        .neighbour_all_gather(&[s.me], &ranks(&from), &to, s.next_round())?;
    expect::exactly(&y, &from)
}

pub(super) fn neighbor_allgather_order_dynamic(s: &Scene) -> Result<(), Trouble> {
    let to = ranks(&others(s));
    for seed in 0..5 {
        let mut from = others(s);
        from.shuffle(&mut ChaCha8Rng::seed_from_u64(seed * 100 + u64::from(s.me)));
        let y = s
            .group
            .neighbour_all_gather(&[s.me], &ranks(&from), &to, s.next_round())?;
        expect::exactly(&y, &from)?;
    }
    Ok(())
}
