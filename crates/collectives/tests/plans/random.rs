//! Random graphs, lengths and slices.

use crate::{all_reduce, plans, request};
use gaggle_collectives::{Call, Cost, Promise, Request, bytes_sent, check};
use gaggle_core::{Algorithm, Codec, Counts, DType, Form, Rank, Reduce};
use proptest::prelude::*;

/// All ranks' requests on a graph given by its edges; each rank names its neighbours in an order of its own.
fn mix(world: u32, edges: &[bool], len: u64, slice: u64, bits: u8) -> Promise {
    let edge = |a: u32, b: u32| a != b && edges[(a * world + b) as usize];
    let of = |r: u32| {
        let mut from: Vec<Rank> = (0..world).filter(|&s| edge(s, r)).map(Rank).collect();
        let mut to: Vec<Rank> = (0..world).filter(|&t| edge(r, t)).map(Rank).collect();
        let n = from.len().max(1);
        let by = r as usize % n;
        from.rotate_left(by);
        to.reverse();
        let call = Call::Mix {
            from,
            to,
            scaled: bits & 1 != 0,
            form: if bits & 2 != 0 {
                Form::Sum
            } else {
                Form::Delta
            },
        };
        Request {
            rank: Rank(r),
            slice,
            codec: if bits & 4 != 0 {
                Codec::Bf16
            } else {
                Codec::None
            },
            ..request(call, world, len)
        }
    };
    Promise::of(&(0..world).map(of).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn neighbours_of_any_graph_average(
        world in 1u32..=12,
        edges in prop::collection::vec(any::<bool>(), 144),
        len in 0u64..40,
        slice in 1u64..12,
        bits in 0u8..8,
    ) {
        let promise = mix(world, &edges, len, slice, bits);
        let plans = plans(&promise);
        prop_assert!(check(&plans, &promise).is_ok(), "{}", check(&plans, &promise).unwrap_err());
        for (plan, req) in plans.iter().zip(promise.requests()) {
            let cost = Cost::of(plan, DType::F32).expect("f32 has every codec");
            prop_assert_eq!(Some(cost.bytes_sent), bytes_sent(req, DType::F32));
        }
    }

    #[test]
    fn neighbours_who_disagree_are_found(
        world in 2u32..=12,
        edges in prop::collection::vec(any::<bool>(), 144),
        from in 0u32..12,
        to in 0u32..12,
        len in 0u64..10,
    ) {
        let (from, to) = (from % world, to % world);
        prop_assume!(from != to && edges[(from * world + to) as usize]);
        let promise = mix(world, &edges, len, 4, 0);
        let mut requests = promise.requests().to_vec();
        if let Call::Mix { from: sources, .. } = &mut requests[to as usize].call {
            sources.retain(|r| r.0 != from);
        }
        let promise = Promise::of(&requests);
        let fault = check(&plans(&promise), &promise).unwrap_err().to_string();
        let head = format!("rank {from} step ");
        let tail = format!("rank {to} has no receive for it");
        prop_assert!(fault.starts_with(&head) && fault.ends_with(&tail), "{}", fault);
    }

    #[test]
    fn collectives_of_any_length_and_slice(
        world in 1u32..=20,
        len in 0u64..200,
        slice in 1u64..64,
        which in 0usize..7,
        mean in any::<bool>(),
        widen in any::<bool>(),
        root in 0u32..20,
    ) {
        let reduce = if mean { Reduce::Mean } else { Reduce::Max };
        let base = match which {
            0 => all_reduce(reduce, Algorithm::Ring, world, len),
            1 => all_reduce(reduce, Algorithm::RecursiveDoubling, world, len),
            2 => all_reduce(reduce, Algorithm::Direct, world, len),
            3 => Request { codec: Codec::Bf16, ..all_reduce(reduce, Algorithm::Direct, world, len) },
            4 => request(Call::Broadcast { root: Rank(root % world) , algorithm: Algorithm::Binomial }, world, len),
            5 => request(Call::AllGather { counts: Counts::Equal, algorithm: Algorithm::Ring }, world, len / 8),
            _ => request(Call::AllGather { counts: Counts::Equal, algorithm: Algorithm::Direct }, world, len / 8),
        };
        let promise = Promise::of_all(&Request { slice, widen, ..base });
        let plans = plans(&promise);
        prop_assert!(check(&plans, &promise).is_ok(), "{}", check(&plans, &promise).unwrap_err());
    }
}
