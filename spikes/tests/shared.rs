//! The fused step between real processes: the engine's bits, and memory that is what its owner was told it is.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle::{Algorithm, Kind, Op, core::Reduce};
use gaggle_integration_tests::process::{Running, lives, signal, until};
use gaggle_spikes::shared::work::{Sample, contribution, lengths, line, weight};
use half::bf16;
use std::{fs, path::Path, process::Command};

/// Every rank of a world, as a process of its own.
fn ranks(world: u32, test: &str, role: &[&str]) -> Vec<Running> {
    let meeting = format!("gaggle-spike-{}-{test}", std::process::id());
    let rank = |rank: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spike-shared"));
        command
            .arg("rank")
            .args(role)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("SPIKE_MEETING", &meeting);
        Running::start(command)
    };
    (0..world).map(rank).collect()
}

/// What the engine makes of the same, by the direct plan over the in-process transport.
fn by_the_engine<T: Sample>(world: u32, reduce: Reduce) -> Vec<String> {
    let lines = gaggle::local(world as usize, |group| {
        let mut lines = Vec::new();
        for n in lengths(world as usize) {
            let mut x = contribution::<T>(group.rank(), n);
            let op = Op::new(Kind::AllReduce(reduce)).by(Algorithm::Direct);
            group
                .run(&op.weighing(weight(group.rank())), &mut x)
                .unwrap();
            lines.push(line(reduce, "in", &x));
            lines.push(line(reduce, "out", &x));
        }
        lines
    });
    lines.unwrap().swap_remove(0)
}

#[test]
fn processes_end_with_the_bits_of_the_engine() {
    let shm = || fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    let before = shm();
    for world in [1, 2, 3, 5] {
        let mut want = Vec::new();
        for reduce in [Reduce::Sum, Reduce::Mean, Reduce::Max] {
            want.extend(by_the_engine::<f32>(world, reduce));
            want.extend(by_the_engine::<f64>(world, reduce));
            want.extend(by_the_engine::<bf16>(world, reduce));
            if reduce != Reduce::Mean {
                want.extend(by_the_engine::<i32>(world, reduce));
            }
        }
        for rank in ranks(world, &format!("compare-{world}"), &["compare"]) {
            let ended = rank.wait();
            assert!(ended.status.success(), "{ended:#?}");
            let got: Vec<&str> = ended.out.lines().collect();
            assert_eq!(got, want);
        }
    }
    assert_eq!(shm(), before, "nothing has a name");
}

#[test]
fn another_operation_is_a_mismatch_on_all_ranks_before_anything_is_touched() {
    for (world, deviating) in [(2, "[Rank(0), Rank(1)]"), (3, "[Rank(1)]")] {
        for rank in ranks(world, &format!("mismatch-{world}"), &["mismatch"]) {
            let ended = rank.wait();
            assert!(ended.status.success(), "{ended:#?}");
            assert_eq!(ended.out.trim(), format!("mismatch {deviating}"));
        }
    }
}

/// What a rank says after `word`.
fn said(rank: &Running, word: &str) -> String {
    let lines = rank.lines();
    let found = lines
        .iter()
        .find_map(|l| l.strip_prefix(word)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("no {word}: {lines:#?}"))
        .to_owned()
}

fn hear(rank: &mut Running, word: &str) -> String {
    rank.hear(1, word, |l| l.split(' ').next() == Some(word));
    said(rank, word)
}

/// What the ranks other than 1 are told, whether their memory is as before, and its digest then and after rank 1 has gone on.
struct Seen {
    told: String,
    untouched: bool,
    digests: [String; 2],
}

/// Rank 1 stands still somewhere until all others have failed, and then goes on.
fn stopped(world: u32, how: &str, sever: &str) -> Vec<Seen> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut all = ranks(
        world,
        &format!("{how}-{sever}-{world}"),
        &["fail", how, sever, path],
    );
    let mut straggler = all.remove(1);
    let mut digests = Vec::new();
    for rank in &mut all {
        digests.push(hear(rank, "digest"));
    }
    // Until here it has stood still.
    assert!(is_stopped(straggler.pid()), "{:?}", straggler.lines());
    signal(straggler.pid(), "CONT");
    // It has written what it had in hand, and has failed in its turn.
    let told = hear(&mut straggler, "told");
    assert!(told.contains("aborted by rank"), "{told}");
    assert!(straggler.wait().status.success());
    fs::write(Path::new(path).join("later"), "").unwrap();
    all.into_iter()
        .zip(digests)
        .map(|(mut rank, before)| {
            let later = hear(&mut rank, "later");
            let again = hear(&mut rank, "again");
            let (told, untouched) = (said(&rank, "told"), said(&rank, "untouched") == "true");
            assert_eq!(again, told, "the group is told the same again");
            let ended = rank.wait();
            assert!(ended.status.success(), "{ended:#?}");
            Seen {
                told,
                untouched,
                digests: [before, later],
            }
        })
        .collect()
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[test]
fn memory_is_what_its_owner_was_told_though_a_stopped_peer_goes_on_in_its_tile() {
    for world in [2, 3] {
        for how in ["before-write", "mid-write"] {
            for seen in stopped(world, how, "sever") {
                // Whoever gives up first names rank 1; the others may learn of that instead.
                let names = seen.told.contains("nothing from rank 1 for");
                assert!(
                    names || seen.told.contains("aborted by rank"),
                    "{}",
                    seen.told
                );
                assert!(names || world > 2, "{}", seen.told);
                assert!(
                    seen.told.ends_with("; the buffer is partly written"),
                    "{}",
                    seen.told
                );
                assert!(!seen.untouched, "{how}");
                assert_eq!(seen.digests[0], seen.digests[1], "{how}, {world} ranks");
            }
        }
    }
}

/// Shows that the tests above can fail: the same without severing.
#[test]
fn memory_that_is_not_severed_changes_under_its_owner() {
    for how in ["before-write", "mid-write"] {
        for seen in stopped(2, how, "keep") {
            assert_ne!(seen.digests[0], seen.digests[1], "{how}");
        }
    }
}

#[test]
fn nothing_is_written_where_a_rank_has_not_arrived_and_that_is_said() {
    for world in [2, 3] {
        for seen in stopped(world, "before-arrival", "sever") {
            assert!(!seen.told.contains("partly written"), "{}", seen.told);
            assert!(seen.untouched);
            assert_eq!(seen.digests[0], seen.digests[1]);
        }
    }
}

#[test]
fn a_rank_that_is_killed_in_its_tile_leaves_nothing() {
    let shm = || fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    let before = shm();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut all = ranks(2, "killed", &["fail", "mid-write", "sever", path]);
    let mut victim = all.remove(1);
    hear(&mut victim, "ready");
    until("it stands still in a tile", || is_stopped(victim.pid()));
    signal(victim.pid(), "KILL");
    let survivor = &mut all[0];
    let digest = hear(survivor, "digest");
    assert!(said(survivor, "told").contains("nothing from rank 1 for"));
    let pid = victim.pid();
    assert!(!victim.wait().status.success());
    assert!(!lives(pid));
    fs::write(dir.path().join("later"), "").unwrap();
    assert_eq!(hear(survivor, "later"), digest);
    assert!(all.remove(0).wait().status.success());
    assert_eq!(shm(), before);
}
