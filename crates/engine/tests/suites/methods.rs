//! The methods of a group, called as a user calls them, against what their documentation says; operations with options are tried in the other suites.

use crate::LINK;
use crate::common::{WORLDS, config};
use gaggle_core::{Bool, Bor, Form, Max, Rank, Round, Sum};

/// Rank r's values: none alike.
fn part(rank: u32, len: usize) -> Vec<i64> {
    (0..len as i64)
        .map(|i| i64::from(rank) * 1000 + i)
        .collect()
}

/// Rank r has r + 1 elements, rank 1 none.
fn count(rank: u32) -> u64 {
    if rank == 1 { 0 } else { u64::from(rank) + 1 }
}

fn joined(world: u32) -> Vec<i64> {
    (0..world)
        .flat_map(|r| part(r, count(r) as usize))
        .collect()
}

#[test]
fn parts_of_lengths_that_the_others_do_not_know() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            let counts: Vec<u64> = (0..world).map(count).collect();
            let mine = part(me, count(me) as usize);
            for root in [0, world - 1].map(Rank) {
                let (all, told) = group.gather_any(&mine, root).unwrap();
                let (want, lengths) = match group.rank() == root {
                    true => (joined(world), counts.clone()),
                    false => (vec![], vec![]),
                };
                assert_eq!((all, told), (want, lengths));
                // And back.
                let got = match group.rank() == root {
                    true => group.scatter_any(&joined(world), &counts, root),
                    false => group.scatter_any(&[] as &[i64], &[], root),
                };
                assert_eq!(got.unwrap(), mine);
            }
            let (all, told) = group.all_gather_any(&mine).unwrap();
            assert_eq!((all, told), (joined(world), counts));
        });
    }
}

#[test]
fn everybody_sends_everybody_something_else() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            // From r to s: r + 2s elements of the value 100r + s.
            let n = |r: u32, s: u32| u64::from(r + 2 * s);
            let of = |r: u32, s: u32| vec![100 * r + s; n(r, s) as usize];
            let x: Vec<u32> = (0..world).flat_map(|s| of(me, s)).collect();
            let send: Vec<u64> = (0..world).map(|s| n(me, s)).collect();
            let recv: Vec<u64> = (0..world).map(|r| n(r, me)).collect();
            let want: Vec<u32> = (0..world).flat_map(|r| of(r, me)).collect();
            assert_eq!(group.all_to_all_v(&x, &send, &recv).unwrap(), want);
            let (got, told) = group.all_to_all_any(&x, &send).unwrap();
            assert_eq!((got, told), (want, recv));
        });
    }
}

#[test]
fn sums_beside_the_input_and_in_parts() {
    for world in WORLDS {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            let (x, mut y) = (part(me, 7), vec![0; 7]);
            group.all_reduce_into(&x, &mut y, Sum).unwrap();
            let sum = |i: i64| (0..i64::from(world)).map(|r| r * 1000 + i).sum::<i64>();
            assert_eq!(y, (0..7).map(sum).collect::<Vec<_>>());
            assert_eq!(x, part(me, 7), "the input is as it was");
            // Rank r gets its part of the largest.
            let counts: Vec<u64> = (0..world).map(count).collect();
            let before: u64 = counts[..me as usize].iter().sum();
            let x = part(me, counts.iter().sum::<u64>() as usize);
            let top = i64::from(world - 1) * 1000;
            let want: Vec<i64> = (before..before + count(me))
                .map(|i| top + i as i64)
                .collect();
            assert_eq!(group.reduce_scatter_v(&x, &counts, Max).unwrap(), want);
            let mut any = [Bool::from(me == world / 2), Bool::from(false)];
            group.all_reduce(&mut any, Bor).unwrap();
            assert_eq!(any.map(bool::from), [true, false]);
        });
    }
}

#[test]
fn pairs_gossip_with_the_weights_that_they_name() {
    LINK.local(4, &config(), |_, group| {
        let me = f64::from(group.rank().0);
        // 0 with 1, 2 with 3.
        let partner = Rank(group.rank().0 ^ 1);
        let theirs = f64::from(partner.0);
        let mut x = [me, 10.0 * me];
        group.pair_gossip(&mut x, partner, 0).unwrap();
        assert_eq!(x, [(me + theirs) / 2.0, 5.0 * (me + theirs)]);
        let mut x = [me, 8.0 * me];
        group
            .pair_gossip_weighted(&mut x, partner, 0.25, 1)
            .unwrap();
        assert_eq!(x, [0.75 * me + 0.25 * theirs, 6.0 * me + 2.0 * theirs]);
    });
}

#[test]
fn neighbours_average_beside_their_input() {
    // Directed and uneven: rank 0 hears 1 and 2 with sender's factors, 1 hears nobody, 2 hears 1 alone, 3 has nobody at all.
    LINK.local(4, &config(), |_, group| {
        let none = Round {
            keep: 1.0,
            form: Form::Sum,
            ..Round::default()
        };
        let round = match group.rank().0 {
            0 => Round {
                from: vec![(Rank(2), 0.5), (Rank(1), 0.25)],
                keep: 0.125,
                ..none
            },
            1 => Round {
                to: vec![(Rank(0), 2.0), (Rank(2), 1.0)],
                ..none
            },
            2 => Round {
                from: vec![(Rank(1), 0.5)],
                to: vec![(Rank(0), 3.0)],
                keep: 0.5,
                ..none
            },
            _ => none,
        };
        let of = |r: u32| [f64::from(r + 1), 16.0 * f64::from(r + 1)];
        let x = of(group.rank().0);
        let y = group.neighbour_all_reduce(&x, &round, 0).unwrap();
        assert_eq!(x, of(group.rank().0), "the input is as it was");
        let want = |x: [f64; 4]| match group.rank().0 {
            0 => 0.125 * x[0] + 0.5 * 3.0 * x[2] + 0.25 * 2.0 * x[1],
            2 => 0.5 * x[2] + 0.5 * x[1],
            r => x[r as usize],
        };
        let column = |i: usize| [0, 1, 2, 3].map(|r| of(r)[i]);
        assert_eq!(y, [want(column(0)), want(column(1))]);
        // And side by side, of whatever lengths.
        let ranks = |of: &[(Rank, f64)]| of.iter().map(|(r, _)| *r).collect::<Vec<_>>();
        let (from, to) = (ranks(&round.from), ranks(&round.to));
        let mine = part(group.rank().0, group.rank().idx() * 3);
        let (y, told) = group
            .neighbour_all_gather_any(&mine, &from, &to, 1)
            .unwrap();
        let parts = |r: &Rank| part(r.0, r.idx() * 3);
        assert_eq!(y, from.iter().flat_map(parts).collect::<Vec<_>>());
        let lengths = |r: &Rank| r.idx() as u64 * 3;
        assert_eq!(told, from.iter().map(lengths).collect::<Vec<_>>());
    });
}

#[test]
fn machines_average_their_means() {
    // Three machines of two ranks each, neither in order; machine 0 hears both others, 1 hears 0, 2 nobody.
    let machines = [[4, 1], [0, 5], [3, 2]].map(|m| m.map(Rank).to_vec());
    let mean = |m: usize| {
        let ranks = [[4.0, 1.0], [0.0, 5.0], [3.0, 2.0]][m];
        (ranks[0] + ranks[1]) / 2.0
    };
    LINK.local(6, &config(), |_, group| {
        let at = |m: &Vec<Rank>| m.contains(&group.rank());
        let machine = machines.iter().position(at).unwrap();
        let (from, to, keep) = match machine {
            0 => (
                vec![(Rank(1), 0.25), (Rank(2), 0.25)],
                vec![(Rank(1), 1.0)],
                0.5,
            ),
            1 => (vec![(Rank(0), 0.5)], vec![(Rank(0), 1.0)], 0.5),
            _ => (vec![], vec![(Rank(0), 1.0)], 1.0),
        };
        let round = Round {
            from,
            to,
            keep,
            form: Form::Delta,
        };
        for (t, len) in (0..).zip([0usize, 1, 2, 7, 1031]) {
            let own = f64::from(group.rank().0);
            let mut x: Vec<f64> = (0..len).map(|i| own + 8.0 * i as f64).collect();
            group
                .hierarchical_mix(&mut x, &machines, &round, t)
                .unwrap();
            let want = match machine {
                0 => 0.5 * mean(0) + 0.25 * mean(1) + 0.25 * mean(2),
                1 => 0.5 * mean(1) + 0.5 * mean(0),
                _ => mean(2),
            };
            let want: Vec<f64> = (0..len).map(|i| want + 8.0 * i as f64).collect();
            assert_eq!(x, want);
        }
    });
}
