//! Groups: of any members, made in any order, split, in grids, made again; and rebuilt.

use crate::LINK;
use crate::common::config;
use gaggle_core::{Cause, Group, Mean, Rank, Sum, SystemClock};
use gaggle_engine::Engine;
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::{sync::Arc, time::Duration};

fn total(group: &Group) -> u64 {
    let mut x = [u64::from(
        group.communicator().info().world_ranks[group.rank().idx()].0,
    )];
    group.all_reduce(&mut x, Sum).unwrap();
    x[0]
}

#[test]
fn colours_split_a_group() {
    for world in [1u32, 2, 3, 5, 6, 8] {
        LINK.local(world, &config(), |_, group| {
            let me = group.rank().0;
            // The last rank of three or more takes no part; the order is turned round.
            let colour = (world < 3 || me + 1 < world).then_some(me % 2);
            let part = group.split(colour, -i64::from(me)).unwrap();
            let Some(part) = part else {
                assert_eq!(colour, None);
                return;
            };
            let members: Vec<u32> = (0..world)
                .filter(|r| (world < 3 || r + 1 < world) && r % 2 == me % 2)
                .rev()
                .collect();
            let info = part.communicator().info().clone();
            let ranks: Vec<u32> = info.world_ranks.iter().map(|r| r.0).collect();
            assert_eq!(ranks, members);
            assert_eq!(total(&part), members.iter().map(|r| u64::from(*r)).sum());
        });
    }
}

#[test]
fn grids_have_a_group_per_axis() {
    for (world, extents) in [
        (6u32, vec![2usize, 3]),
        (6, vec![6]),
        (6, vec![1, 6, 1]),
        (8, vec![4, 2]),
        (8, vec![2, 2, 2]),
        (1, vec![]),
    ] {
        LINK.local(world, &config(), |_, group| {
            let axes = group.grid(&extents).unwrap();
            assert_eq!(axes.len(), extents.len());
            let me = group.rank().idx();
            for (axis, along) in axes.iter().enumerate() {
                assert_eq!(along.size(), extents[axis]);
                let stride: usize = extents[axis + 1..].iter().product();
                assert_eq!(along.rank().idx(), me / stride % extents[axis]);
                let first = me - along.rank().idx() * stride;
                let sum: usize = (0..extents[axis]).map(|i| first + i * stride).sum();
                assert_eq!(total(along), sum as u64);
            }
        });
    }
    LINK.local(6, &config(), |_, group| {
        for wrong in [vec![], vec![5], vec![2, 2], vec![6, 0], vec![usize::MAX, 2]] {
            let e = group.grid(&wrong).unwrap_err();
            assert!(matches!(e.cause(), Cause::Invalid { .. }), "{e}");
        }
        group.barrier().unwrap();
    });
}

#[test]
fn many_groups_are_made_in_any_order() {
    const WORLD: u32 = 5;
    LINK.local(WORLD, &config(), |_, group| {
        let me = group.rank();
        // All pairs and triples, under two keys each.
        let mut wanted: Vec<(Vec<Rank>, &str)> = vec![];
        for set in 0u32..1 << WORLD {
            let members: Vec<Rank> = (0..WORLD).filter(|r| set >> r & 1 == 1).map(Rank).collect();
            if (2..=3).contains(&members.len()) && members.contains(&me) {
                wanted.push((members.clone(), "a"));
                wanted.push((members, "b"));
            }
        }
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(me.0));
        wanted.shuffle(&mut rng);
        let mut groups: Vec<(Vec<Rank>, &str, Group)> = wanted
            .into_iter()
            .map(|(members, key)| {
                let made = group.subgroup(&members, key).unwrap();
                (members, key, made)
            })
            .collect();
        groups.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let works: Vec<_> = groups
            .iter()
            .map(|(members, key, made)| {
                let x = vec![u64::from(me.0) + u64::from(*key == "b") * 100; 3];
                (members, key, made.start_all_reduce(x, Sum))
            })
            .collect();
        for (members, key, work) in works {
            let extra = if *key == "b" { 100 } else { 0 };
            let want: u64 = members.iter().map(|r| u64::from(r.0) + extra).sum();
            assert_eq!(work.wait().unwrap(), [want; 3]);
        }
    });
}

#[test]
fn a_group_that_is_made_again_is_another_one() {
    LINK.local(3, &config(), |_, group| {
        let all = [0, 1, 2].map(Rank);
        let first = group.subgroup(&all, "x").unwrap();
        let second = group.subgroup(&all, "x").unwrap();
        let (a, b) = (first.communicator().info(), second.communicator().info());
        assert_eq!((a.incarnation, b.incarnation), (0, 1));
        assert_ne!(a.id, b.id);
        let op = gaggle_core::Op::new(gaggle_core::Kind::Barrier);
        let described = second
            .communicator()
            .describe(&op, gaggle_core::DType::U8, 0)
            .unwrap();
        assert_eq!(described.incarnation, 1);
        // Their operations do not meet: one waits while the other works.
        let waits = (group.rank() != Rank(0)).then(|| first.start_all_reduce(vec![1u64; 2], Sum));
        assert_eq!(total(&second), 3);
        // Aborted and made again, it works.
        first.abort("over");
        if let Some(work) = waits {
            let e = work.wait().unwrap_err().error;
            assert!(matches!(e.cause(), Cause::Aborted { .. }), "{e}");
        }
        assert!(first.barrier().is_err());
        let third = group.subgroup(&all, "x").unwrap();
        assert_eq!(third.communicator().info().incarnation, 2);
        assert_eq!(total(&third), 3);
        assert_eq!(total(&second), 3);
    });
}

/// Ranks of a world, of which the `dead` die without a word before they do anything.
fn with_dead(world: u32, dead: &[u32], f: impl Fn(Group) + Sync) {
    let seats = LINK.seats(world);
    std::thread::scope(|s| {
        for (link, control) in seats {
            let f = &f;
            if dead.contains(&control.me().0) {
                drop((link, control));
                continue;
            }
            s.spawn(move || {
                let clock = Arc::new(SystemClock::new());
                let engine = Engine::new(vec![link], control, clock, config()).unwrap();
                f(engine.group());
            });
        }
    });
}

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn survivors_go_on_as_a_new_group() {
    for (world, dead) in [
        (2u32, vec![1u32]),
        (3, vec![0]),
        (4, vec![0]),
        (4, vec![2, 3]),
        (5, vec![1, 3]),
        (8, vec![0, 1, 2]),
    ] {
        with_dead(world, &dead, |group| {
            let e = group.all_reduce(&mut [1.0f32; 100], Sum).unwrap_err();
            assert!(
                matches!(e.cause(), Cause::PeerLost { .. } | Cause::Aborted { .. }),
                "{e}"
            );
            let new = group.rebuild(LIMIT).unwrap();
            let (info, old) = (new.communicator().info(), group.communicator().info());
            let alive: Vec<Rank> = (0..world).filter(|r| !dead.contains(r)).map(Rank).collect();
            assert_eq!(info.world_ranks, alive);
            assert_eq!((info.epoch, info.initial_size), (old.epoch + 1, world));
            assert_ne!(info.id, old.id);
            let want: u64 = alive.iter().map(|r| u64::from(r.0)).sum();
            assert_eq!(total(&new), want);
            // A sum is n times the mean, with the new n.
            let x = [f64::from(old.rank.0) * 1.5, 0.25];
            let (mut sum, mut mean) = (x, x);
            new.all_reduce(&mut sum, Sum).unwrap();
            new.all_reduce(&mut mean, Mean).unwrap();
            for (s, m) in sum.iter().zip(mean) {
                assert!((s - m * alive.len() as f64).abs() < 1e-12);
            }
            // Asked again, the old group gives the same one; itself it is of no use any more.
            let again = group.rebuild(LIMIT).unwrap();
            assert_eq!(again.communicator().info(), info);
            assert!(group.barrier().is_err());
            new.barrier().unwrap();
        });
    }
}

#[test]
fn a_minority_is_told() {
    for (world, dead) in [(2u32, vec![0u32]), (4, vec![0, 1]), (5, vec![1, 2, 3])] {
        // Who left before the others have looked would be missed as well.
        let told = std::sync::Barrier::new(world as usize - dead.len());
        with_dead(world, &dead, |group| {
            group.barrier().unwrap_err();
            let e = group.rebuild(LIMIT).unwrap_err();
            assert!(matches!(e.cause(), Cause::Rebuild { .. }), "{e}");
            assert!(e.to_string().contains("no majority"), "{e}");
            let lost: Vec<Rank> = dead.iter().copied().map(Rank).collect();
            told.wait();
            assert_eq!(e.culprits(), lost, "{e}");
        });
    }
}

#[test]
fn who_does_not_come_is_named() {
    let over = std::sync::Barrier::new(3);
    LINK.local(3, &config(), |_, group| {
        if group.rank() != Rank(1) {
            let e = group.rebuild(Duration::from_millis(300)).unwrap_err();
            assert_eq!(e.culprits(), [Rank(1)], "{e}");
            assert!(e.to_string().contains("nothing from rank 1"), "{e}");
        }
        over.wait();
        // Now all come.
        let new = group.rebuild(LIMIT).unwrap();
        assert_eq!(new.size(), 3);
        assert_eq!(total(&new), 3);
        // And once more, from the new one; calling for it ends what is still in flight there.
        over.wait();
        let newer = new.rebuild(LIMIT).unwrap();
        assert_eq!(newer.communicator().info().epoch, 2);
        assert_eq!(total(&newer), 3);
    });
}
