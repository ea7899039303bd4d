//! `torch_ops`: collectives and neighbour averages.

use super::{Case, Scene, Worlds, case, expect, scene::LENGTHS, typed};
use crate::work::{Number, Trouble};
use gaggle::{Kind, Mean, Op, Rank, Reduce, Reduction, Sum};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

mod gathers;
mod neighbours;

use gathers::*;
use neighbours::*;

/// Where r − 1 is somebody else.
const TWO: Worlds = Worlds::From(2);
/// Where r + 2 is somebody else as well, and another than r − 1 at that.
const FOUR: Worlds = Worlds::From(4);
const EVEN: Worlds = Worlds::EvenFrom(2);

pub(super) const CASES: &[Case] = &[
    typed!(
        "torch_ops",
        broadcast,
        A8,
        Worlds::All,
        "the root's random integers; the input stays"
    ),
    typed!(
        "torch_ops",
        broadcast_inplace,
        A8,
        Worlds::All,
        "x = r: the root's number, in place"
    ),
    typed!("torch_ops", allreduce_avg, H, Worlds::All, "identical x: x"),
    typed!(
        "torch_ops",
        allreduce_sum,
        H32,
        Worlds::All,
        "identical x: n · x"
    ),
    typed!(
        "torch_ops",
        allreduce_avg_inplace,
        H,
        Worlds::All,
        "x = r: (n − 1)/2"
    ),
    typed!(
        "torch_ops",
        allreduce_fusion,
        H,
        Worlds::All,
        "two at once, x and x + ½: each its mean"
    ),
    typed!(
        "torch_ops",
        allreduce_fusion_inplace,
        H,
        Worlds::All,
        "two at once: (n − 1)/2, and + ½"
    ),
    typed!(
        "torch_ops",
        allgather,
        A8,
        Worlds::All,
        "2^dim elements of x = r: block i is i"
    ),
    typed!(
        "torch_ops",
        allgather_variable_size,
        A8,
        Worlds::All,
        "lengths differ: all in rank order"
    ),
    case!(
        "torch_ops",
        neighbor_allreduce_sum_precision,
        Worlds::All,
        "2^−256 with weights 1: (D + 1) · 2^−256, exactly"
    ),
    case!(
        "torch_ops",
        neighbor_allreduce_avg_precision,
        Worlds::All,
        "2^−256 averaged: 2^−256, exactly"
    ),
    case!(
        "torch_ops",
        neighbor_allreduce_dynamic_topo_check,
        FOUR,
        "from r − 1, to r + 2: an error on every rank"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_outside_static_topo_move,
        H,
        TWO,
        "self 0, from {r + 1: 1}, to r − 1: (r + 1) mod n"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_dynamic_topo_move,
        H,
        TWO,
        "self 0, from {r − 1: 1}, to r + 1: (r − 1) mod n"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_empty_send_neighbors,
        H,
        EVEN,
        "even ranks send to r + 1 and hear nobody: r; odd ones: 2r − 1"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_dynamic_topo_avg,
        H,
        Worlds::All,
        "weights 1/(D + 1) given: S/(D + 1)"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_avg,
        H,
        Worlds::All,
        "the graph's weights: S/(D + 1)"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_avg_meshgrid,
        H,
        Worlds::All,
        "Σ closed neighbourhood/(degree + 1)"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_avg_biring,
        H,
        Worlds::All,
        "((r − 1) + r + (r + 1))/3; n = 2: ½"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_avg_ring_1,
        H,
        Worlds::All,
        "(r + (r + 1))/2"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_avg_ring_2,
        H,
        Worlds::All,
        "(r + (r − 1))/2"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_avg_star,
        H,
        Worlds::All,
        "every centre c: centre (n − 1)/2, leaf (r + c)/2"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_sum,
        H,
        Worlds::All,
        "all weights 1: S, exactly"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_dst_weight,
        F,
        Worlds::All,
        "self ½, from 1, to ½: S/2"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_weighted_avg,
        H,
        Worlds::All,
        "star with its weights: centre (n − 1)/2, leaf r(1 − 1/n)"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_fusion,
        F,
        Worlds::All,
        "two at once, x and x + ½: S/(D + 1), and + ½"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_fusion_alot,
        F,
        Worlds::All,
        "50 at once, x + i: S/(D + 1) + i"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_dynamic_topo_fusion,
        F,
        Worlds::All,
        "50 at once, weights given, x + i: S/(D + 1) + i"
    ),
    typed!(
        "torch_ops",
        neighbor_allreduce_dst_weight_fusion,
        F,
        Worlds::All,
        "50 at once, x = i + rK: ½(K · S + i(D + 1))"
    ),
    typed!(
        "torch_ops",
        neighbor_allgather,
        A8,
        Worlds::All,
        "D blocks, in-neighbours ascending"
    ),
    typed!(
        "torch_ops",
        neighbor_allgather_dynamic,
        A8,
        Worlds::All,
        "all others' blocks, by rank"
    ),
    typed!(
        "torch_ops",
        neighbor_allgather_dynamic_variable_size,
        A8,
        Worlds::All,
        "all others' blocks, by rank, each as long as it is"
    ),
    case!(
        "torch_ops",
        neighbor_allgather_order,
        Worlds::All,
        "one element each: the in-neighbours"
    ),
    case!(
        "torch_ops",
        neighbor_allgather_order_dynamic,
        Worlds::All,
        "one element each: in the random order asked for"
    ),
    typed!("torch_ops", pair_gossip, H, EVEN, "(r + t)/2"),
    typed!("torch_ops", pair_gossip_weighted, H, EVEN, "¼r + ¾t"),
];

/// Integers that fit every type, others on every rank, the same in every run.
fn random<T: Number>(rank: u32, len: usize) -> Vec<T> {
    let mut rng = ChaCha8Rng::seed_from_u64(123_456);
    rng.set_stream(rank.into());
    (0..len)
        .map(|_| T::of(f64::from(rng.random_range(0..100_u8))))
        .collect()
}

fn broadcast<T: Number>(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        for root in 0..s.n {
            let x: Vec<T> = random(s.me, len);
            let mut y = vec![T::of(0.0); len];
            let op = Op::new(Kind::Broadcast { root: Rank(root) });
            s.group.run_into(&op, &x, &mut y)?;
            expect::exactly(&x, &random(s.me, len))?;
            expect::exactly(&y, &random(root, len))?;
        }
    }
    Ok(())
}

fn broadcast_inplace<T: Number>(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        for root in 0..s.n {
            let mut x: Vec<T> = s.own(len);
            s.group.broadcast(&mut x, Rank(root))?;
            expect::exactly(&x, &vec![T::of(f64::from(root)); len])?;
        }
    }
    Ok(())
}

fn allreduce_avg<T: Number + gaggle::Float>(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        let x: Vec<T> = random(0, len);
        let mut y = vec![T::of(0.0); len];
        s.group.all_reduce_into(&x, &mut y, Mean)?;
        expect::near(&y, |i| x[i].to_f64())?;
    }
    Ok(())
}

fn allreduce_sum<T: Number>(s: &Scene) -> Result<(), Trouble>
where
    Sum: Reduction<T>,
{
    for len in LENGTHS {
        // Up to 8 · 99: exact even in f16.
        let x: Vec<T> = random(0, len);
        let mut y = vec![T::of(0.0); len];
        s.group.all_reduce_into(&x, &mut y, Sum)?;
        let mut whole = ChaCha8Rng::seed_from_u64(123_456);
        let want: Vec<T> = (0..len)
            .map(|_| T::of(f64::from(whole.random_range(0..100_u8)) * f64::from(s.n)))
            .collect();
        expect::exactly(&y, &want)?;
    }
    Ok(())
}

/// (n − 1)/2: the mean of all ranks' numbers.
fn mean_rank(s: &Scene) -> f64 {
    f64::from(s.n - 1) / 2.0
}

fn allreduce_avg_inplace<T: Number + gaggle::Float>(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        let mut x: Vec<T> = s.own(len);
        s.group.all_reduce(&mut x, Mean)?;
        expect::near(&x, |_| mean_rank(s))?;
    }
    Ok(())
}

fn allreduce_fusion<T: Number + gaggle::Float>(s: &Scene) -> Result<(), Trouble> {
    let mean = || Op::new(Kind::AllReduce(Reduce::Mean));
    for len in LENGTHS {
        let x: Vec<T> = random(0, len);
        let shifted: Vec<T> = x.iter().map(|v| T::of(v.to_f64() + 0.5)).collect();
        let zeros = || vec![T::of(0.0); len];
        let first = s.group.start_into(mean(), x.clone(), zeros());
        let second = s.group.start_into(mean(), shifted.clone(), zeros());
        let (_, y, _) = first.wait().map_err(|f| f.error)?;
        expect::near(&y, |i| x[i].to_f64())?;
        let (_, y, _) = second.wait().map_err(|f| f.error)?;
        expect::near(&y, |i| shifted[i].to_f64())?;
    }
    Ok(())
}

fn allreduce_fusion_inplace<T: Number + gaggle::Float>(s: &Scene) -> Result<(), Trouble> {
    for len in LENGTHS {
        let x: Vec<T> = s.own(len);
        let shifted = vec![T::of(f64::from(s.me) + 0.5); len];
        let first = s.group.start_all_reduce(x, Mean);
        let second = s.group.start_all_reduce(shifted, Mean);
        let y = first.wait().map_err(|f| f.error)?;
        expect::near(&y, |_| mean_rank(s))?;
        let y = second.wait().map_err(|f| f.error)?;
        expect::near(&y, |_| mean_rank(s) + 0.5)?;
    }
    Ok(())
}
