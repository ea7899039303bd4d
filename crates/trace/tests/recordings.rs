//! What is written is read; what is broken is said to be; who is to blame is found.

#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle_core::{
    Algorithm, Cause, Class, Codec, DType, Descriptor, Divisor, Error, GroupInfo, OpId, OpKind,
    Rank, Reduce, descriptor::ModeBits,
};
use gaggle_trace::{
    About, Basis, Candidate, Failure, FailureKind, Job, MergeError, Phase, ReadError, Recorder,
    Recording, Start, State, Ticket, Why, choose_latest,
    place::{self, Limits, Place},
};
use proptest::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

fn group(world: u32, rank: u32) -> GroupInfo {
    GroupInfo {
        id: 7,
        rank: Rank(rank),
        world_ranks: (0..world).map(Rank).collect(),
        epoch: 0,
        initial_size: world,
        incarnation: 0,
    }
}

fn all_reduce(seq: u64) -> Descriptor {
    Descriptor {
        id: OpId {
            group: 7,
            lane: 0,
            class: Class::Collective,
            seq,
        },
        incarnation: 0,
        epoch: 0,
        kind: OpKind::AllReduce,
        dtype: DType::F32,
        reduce: Reduce::Sum,
        count: 1000,
        root: Rank(0),
        codec: Codec::None,
        algorithm: Algorithm::Ring,
        divisor: Divisor::Contributors,
        mode: ModeBits::default(),
        priority: 0,
        slice: 65536,
        tables: 0,
    }
}

fn start(recorder: &mut Recorder, world: u32, rank: u32, seq: u64) -> Ticket {
    let before = (rank + world - 1) % world;
    recorder.start(&Start {
        descriptor: &all_reduce(seq),
        group: &group(world, rank),
        sources: 1 << before,
    })
}

fn recorders(dir: &Path, world: u32, run: u64) -> Vec<Recorder> {
    let about = |r| About::new("job", world, Rank(r)).in_run(run).keeping(64);
    (0..world)
        .map(|r| Recorder::create(dir, &about(r)).unwrap())
        .collect()
}

fn candidates(dir: &Path) -> Vec<Candidate> {
    let found = place::recordings(dir).unwrap();
    found
        .into_iter()
        .map(|path| Candidate {
            recording: Recording::read(&path).unwrap(),
            alive: place::is_alive(&path),
            path,
        })
        .collect()
}

fn lost(rank: u32) -> Failure {
    let cause = Cause::PeerLost {
        op: "all_reduce #1".into(),
        rank: Rank(rank),
        world_rank: Rank(rank),
        why: "connection reset".into(),
        partly_written: false,
    };
    Failure::of(&Error::from(cause), &group(8, 0))
}

#[test]
fn what_is_written_is_read() {
    let dir = TempDir::new().unwrap();
    let about = About::new("a job/é", 4, Rank(2))
        .in_run(9)
        .in_epoch(3)
        .keeping(8);
    let mut r = Recorder::create(dir.path(), &about).unwrap();
    let before = gaggle_trace::now();
    let t = start(&mut r, 4, 2, 5);
    r.arrived(t, Rank(1), Rank(1), 100);
    r.waiting(t, &[Rank(0), Rank(3)]);
    r.arrived(t, Rank(3), Rank(3), 11);
    r.done(t, 77, &[Rank(0)]);
    let hangs = start(&mut r, 4, 2, 6);
    r.waiting(hangs, &[Rank(1)]);
    let fails = start(&mut r, 4, 2, 7);
    r.failed(fails, 3, &[Rank(1), Rank(3)], &lost(1));
    // Read while it is being written, as after a crash.
    let read = Recording::read(r.path()).unwrap();
    let h = &read.header;
    assert_eq!((h.job.as_str(), h.run, h.epoch), ("a job/é", 9, 3));
    assert_eq!((h.world, h.rank, h.pid), (4, Rank(2), std::process::id()));
    assert_eq!((h.state, h.started), (State::Running, 3));
    assert!(place::is_alive(r.path()));
    assert_eq!(read.groups.len(), 1);
    assert_eq!(read.groups[0].members, group(4, 2).world_ranks);
    let [first, second, third] = read.operations.as_slice() else {
        panic!("{read:?}")
    };
    assert_eq!((first.serial, first.phase), (1, Phase::Done));
    assert_eq!(first.descriptor, all_reduce(5));
    assert_eq!((first.bytes_received, first.bytes_sent), (111, 77));
    assert_eq!(first.last_from, Some(Rank(3)));
    assert_eq!((first.sources, first.heard), (0b10, 0b1010));
    assert_eq!(
        (first.awaited.as_slice(), first.n_awaited),
        (&[Rank(0)][..], 1)
    );
    assert_eq!((first.group_rank, first.group_size), (Rank(2), 4));
    assert!(before <= first.started && first.started <= first.first_arrival.unwrap());
    assert!(first.first_arrival <= first.last_arrival && first.last_arrival <= first.finished);
    assert_eq!((second.phase, second.finished), (Phase::Waiting, None));
    assert_eq!(second.awaited, [Rank(1)]);
    assert_eq!(third.awaited, [Rank(1), Rank(3)]);
    let failure = third.failure.as_ref().unwrap();
    assert_eq!(
        (failure.kind, failure.culprit),
        (FailureKind::Lost, Some(Rank(1)))
    );
    assert_eq!(failure.text, "connection reset");
    assert_eq!(read.torn, 0);
    // Something went wrong: the file stays, and says that its rank has left.
    assert!(r.keep() && !r.keep());
    let path = r.path().to_owned();
    r.close();
    assert_eq!(Recording::read(&path).unwrap().header.state, State::Left);
    assert!(!place::is_alive(&path));
}

#[test]
fn a_clean_end_leaves_nothing_and_a_dropped_recorder_everything() {
    let dir = TempDir::new().unwrap();
    let about = About::new("job", 1, Rank(0));
    let clean = Recorder::create(dir.path(), &about).unwrap();
    let again = Recorder::create(dir.path(), &about).unwrap();
    assert_ne!(clean.path(), again.path(), "a process may have several");
    let meta = fs::metadata(clean.path()).unwrap();
    assert_eq!(meta.len(), 1 << 20);
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        assert_eq!(meta.mode() & 0o777, 0o600);
        assert!(
            meta.blocks() * 512 >= meta.len(),
            "no hole that a full disk could punish"
        );
    }
    clean.close();
    assert_eq!(place::recordings(dir.path()).unwrap().len(), 1);
    drop(again);
    assert_eq!(place::recordings(dir.path()).unwrap().len(), 1);
}

#[test]
fn old_operations_make_room_and_hanging_ones_stay() {
    let dir = TempDir::new().unwrap();
    let about = About::new("job", 2, Rank(0)).keeping(5);
    let mut r = Recorder::create(dir.path(), &about).unwrap();
    let hangs = start(&mut r, 2, 0, 0);
    let mut last = hangs;
    for seq in 1..101 {
        last = start(&mut r, 2, 0, seq);
        r.done(last, 0, &[]);
    }
    let read = Recording::read(r.path()).unwrap();
    let seqs: Vec<u64> = read
        .operations
        .iter()
        .map(|o| o.descriptor.id.seq)
        .collect();
    assert_eq!(seqs, [0, 97, 98, 99, 100]);
    assert_eq!(read.forgotten(), 96);
    // More in flight than places: the oldest go, and what is said of them later is not written over others.
    for seq in 200..210 {
        start(&mut r, 2, 0, seq);
    }
    r.done(hangs, 1, &[]);
    r.done(last, 1, &[]);
    let read = Recording::read(r.path()).unwrap();
    assert_eq!(read.operations.len(), 5);
    assert!(read.operations.iter().all(|o| o.phase == Phase::Started));
}

#[test]
fn groups_are_remembered_until_there_is_no_room() {
    let dir = TempDir::new().unwrap();
    let mut r = Recorder::create(dir.path(), &About::new("job", 5000, Rank(1))).unwrap();
    for id in 0..10 {
        let mut info = group(5000, 1);
        info.id = id;
        for _ in 0..2 {
            let mut descriptor = all_reduce(id);
            descriptor.id.group = id;
            let start = Start {
                descriptor: &descriptor,
                group: &info,
                sources: 0,
            };
            let t = r.start(&start);
            r.done(t, 0, &[]);
        }
    }
    let read = Recording::read(r.path()).unwrap();
    // 20,024 bytes each.
    assert_eq!(read.groups.len(), 3);
    assert!(read.groups.iter().all(|g| g.members.len() == 5000));
    let places: Vec<_> = read.operations.iter().map(|o| o.group).collect();
    assert_eq!(places[..6], [0, 0, 1, 1, 2, 2].map(Some));
    assert!(places[6..].iter().all(Option::is_none));
}

#[test]
fn files_that_are_not_ours_are_told_apart() {
    let dir = TempDir::new().unwrap();
    let r = Recorder::create(dir.path(), &About::new("job", 1, Rank(0)).keeping(4)).unwrap();
    let good = fs::read(r.path()).unwrap();
    let of = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Recording::parse(&bytes).unwrap_err().to_string()
    };
    assert!(Recording::parse(&good).is_ok());
    assert!(matches!(
        Recording::parse(b""),
        Err(ReadError::NotARecording)
    ));
    assert_eq!(of(&|b| b[0] = b'X'), "it is not a recording of gaggle's");
    assert_eq!(
        of(&|b| b[8] = 9),
        "it has version 9 of the format, this program reads 1"
    );
    assert_eq!(of(&|b| b[8] = 0), "it was never completely begun");
    assert_eq!(
        of(&|b| b.truncate(66_000)),
        "it has 66000 bytes where 66560 are expected"
    );
    assert_eq!(
        of(&|b| b.truncate(100)),
        "it has 100 bytes where 65536 are expected"
    );
    assert!(of(&|b| b[24..28].fill(255)).contains("makes no sense"));
    assert!(of(&|b| b[32] = 1).contains("rank"));
    assert!(matches!(
        Recording::read(&dir.path().join("nothing")),
        Err(ReadError::Io(_))
    ));
}

#[test]
fn a_torn_slot_is_recognised() {
    let dir = TempDir::new().unwrap();
    let mut r = Recorder::create(dir.path(), &About::new("job", 2, Rank(0)).keeping(4)).unwrap();
    let done = start(&mut r, 2, 0, 0);
    r.done(done, 0, &[]);
    start(&mut r, 2, 0, 1);
    let mut bytes = fs::read(r.path()).unwrap();
    // Its end in the middle of a change: the descriptor is there, the rest is doubtful.
    bytes[65536] = 77;
    let read = Recording::parse(&bytes).unwrap();
    assert_eq!((read.torn, read.operations.len()), (1, 2));
    assert!(read.operations[0].torn && !read.operations[1].torn);
    // Its end in the middle of a start: there is no number.
    bytes[65536 + 8] = 0;
    let read = Recording::parse(&bytes).unwrap();
    assert_eq!((read.torn, read.operations.len()), (1, 1));
}

/// A world in which rank 1 dies in the third operation, without having called it.
fn crash(dir: &Path) {
    let mut all = recorders(dir, 4, 1);
    for seq in 0..2 {
        let tickets: Vec<Ticket> = (0..4)
            .map(|r| start(&mut all[r as usize], 4, r, seq))
            .collect();
        for (r, t) in tickets.into_iter().enumerate() {
            let from = Rank((r as u32 + 3) % 4);
            all[r].arrived(t, from, from, 1000);
            all[r].done(t, 1000, &[]);
        }
    }
    for r in [0, 2, 3] {
        let t = start(&mut all[r as usize], 4, r, 2);
        if r != 3 {
            all[r as usize].failed(t, 0, &[Rank(1)], &lost(1));
            all[r as usize].keep();
        }
    }
    let rest = all.split_off(3);
    // Ranks 0 and 2 leave, 1 and 3 are killed.
    drop(all.remove(1));
    all.into_iter().for_each(Recorder::close);
    drop(rest);
}

#[test]
fn the_dead_rank_is_named_first() {
    let dir = TempDir::new().unwrap();
    crash(dir.path());
    let job = Job::merge(candidates(dir.path())).unwrap();
    assert_eq!(job.title(), "job job: 4 of 4 ranks have left a recording");
    let blamed = job.blamed();
    assert_eq!(blamed.len(), 1, "{blamed:?}");
    assert_eq!(blamed[0].rank, Rank(1));
    assert!(blamed[0].ended_without_leaving);
    let by: Vec<Rank> = blamed[0].named_by.iter().map(|n| n.by).collect();
    assert_eq!(by, [Rank(0), Rank(2)]);
    assert_eq!(blamed[0].awaited_by, [Rank(3)]);
    let [flying] = job.in_flight().try_into().unwrap();
    assert_eq!(flying.rank, Rank(3));
    assert_eq!(flying.waits_for.len(), 1);
    assert_eq!(
        (flying.waits_for[0].rank, flying.waits_for[0].why),
        (Rank(1), Why::NotCalled)
    );
    assert!(job.late().iter().any(|l| l.rank == Rank(1)));
    let fates: Vec<&str> = job.ranks.iter().map(|r| r.fate()).collect();
    assert_eq!(
        fates,
        [
            "left after failures",
            "ended without leaving",
            "left after failures",
            "ended without leaving"
        ]
    );
    assert_eq!(job.clocks.len(), 1);
    assert_eq!(job.slowest(3).len(), 3);
}

#[test]
fn who_waits_is_less_to_blame_than_who_does_not() {
    let dir = TempDir::new().unwrap();
    let mut all = recorders(dir.path(), 3, 1);
    // 0 waits for 1, which waits for 2 in another operation; 2 does nothing.
    let mut on_lane = |r: u32, lane: u32, awaited: u32| {
        let mut descriptor = all_reduce(0);
        descriptor.id.lane = lane;
        let info = group(3, r);
        let t = all[r as usize].start(&Start {
            descriptor: &descriptor,
            group: &info,
            sources: 0,
        });
        all[r as usize].waiting(t, &[Rank(awaited)]);
    };
    on_lane(0, 0, 1);
    on_lane(1, 1, 2);
    let job = Job::merge(candidates(dir.path())).unwrap();
    let ranks: Vec<Rank> = job.blamed().iter().map(|b| b.rank).collect();
    assert_eq!(ranks, [Rank(2), Rank(1)]);
    assert!(job.ranks.iter().all(|r| r.alive && r.fate() == "alive"));
}

#[test]
fn late_ranks_are_found() {
    let dir = TempDir::new().unwrap();
    let mut all = recorders(dir.path(), 3, 1);
    let mut paths: Vec<PathBuf> = vec![];
    for r in [0, 1, 2] {
        for seq in 0..4 {
            let t = start(&mut all[r as usize], 3, r, seq);
            all[r as usize].done(t, 0, &[]);
        }
        paths.push(all[r as usize].path().to_owned());
    }
    let files: Vec<Candidate> = paths
        .into_iter()
        .zip([0, 500, 20])
        .map(|(path, late)| {
            let mut recording = Recording::read(&path).unwrap();
            for op in &mut recording.operations {
                // Each rank calls so much after rank 0, and all end together.
                op.started = 1_000_000 + op.serial * 10_000 + late;
                op.finished = Some(1_000_000 + op.serial * 10_000 + 600);
            }
            Candidate {
                recording,
                alive: false,
                path,
            }
        })
        .collect();
    let job = Job::merge(files).unwrap();
    let [late] = job.late().try_into().unwrap();
    assert_eq!(
        (late.rank, late.waited, late.operations),
        (Rank(1), 4 * (500 + 480), 4)
    );
    let slow = job.slowest(1)[0];
    assert_eq!(
        (slow.rank, slow.took, slow.late),
        (Rank(0), 600, Some((Rank(1), 500)))
    );
    assert_eq!(job.end(), 30_600);
    assert_eq!(
        job.time(1, job.ranks[1].recording.operations[0].started),
        500
    );
}

/// Recordings of ranks on two hosts, the second's clock being `ahead`; each message takes between 10 and 50 µs.
fn two_hosts(dir: &Path, ahead: i64, both_ways: bool) -> Vec<Candidate> {
    fs::create_dir_all(dir).unwrap();
    let mut all = recorders(dir, 4, 1);
    for (r, recorder) in all.iter_mut().enumerate() {
        for seq in 0..50 {
            let t = start(recorder, 4, r as u32, seq);
            recorder.done(t, 0, &[]);
        }
    }
    let mut files = candidates(dir);
    for file in &mut files {
        let h = &mut file.recording.header;
        let r = u64::from(h.rank.0);
        let far = r >= 2;
        if far {
            h.clock ^= 1;
            h.host = "far".into();
        }
        let base = 1_000_000_000_000_u64;
        let local = |t: u64| {
            if far {
                t.checked_add_signed(ahead).unwrap()
            } else {
                t
            }
        };
        h.start = local(base);
        h.wall_start = 5_000_000_000_000 + base + r * 1_000_000;
        for op in &mut file.recording.operations {
            let begin = base + op.serial * 1_000_000;
            // Who comes last differs from operation to operation.
            let started = begin + (op.serial * 7 + r * 13) % 5 * 20_000;
            op.started = local(started);
            op.finished = Some(local(
                begin + 80_000 + 10_000 + (op.serial * 11 + r) % 5 * 10_000,
            ));
            if !both_ways && far {
                op.phase = Phase::Started;
                op.finished = None;
            }
        }
    }
    files
}

#[test]
fn the_offset_of_another_host_is_recovered_within_its_uncertainty() {
    for ahead in [0, 123_456_789, -99_000_000, 3_600_000_000_000] {
        let dir = TempDir::new().unwrap();
        let job = Job::merge(two_hosts(dir.path(), ahead, true)).unwrap();
        assert_eq!(job.clock_of, [0, 0, 1, 1]);
        let clock = &job.clocks[1];
        assert_eq!((clock.host.as_str(), clock.basis), ("far", Basis::Bounds));
        let (got, u) = (clock.offset, clock.uncertainty.unwrap() as i64);
        assert!((got + ahead).abs() <= u, "{ahead}: {got} ± {u}");
        assert!(u <= 50_000, "{u}");
    }
}

#[test]
fn with_bounds_in_one_direction_the_wall_clock_is_believed_as_far_as_they_allow() {
    let dir = TempDir::new().unwrap();
    let ahead = 40_000_000;
    let job = Job::merge(two_hosts(dir.path(), ahead, false)).unwrap();
    let clock = &job.clocks[1];
    assert_eq!((clock.basis, clock.uncertainty), (Basis::WallClock, None));
    // By its wall clock the far host's recording began 2 ms later, which the near host's ends do not allow.
    assert_eq!(clock.offset, -ahead + 10_000);
    // Without any operation there is only the wall clock.
    let mut files = two_hosts(dir.path().join("none").as_path(), ahead, true);
    for file in &mut files {
        file.recording.operations.clear();
    }
    let job = Job::merge(files).unwrap();
    assert_eq!(job.clocks[1].offset, -ahead + 2_000_000);
    assert_eq!(job.clocks[1].basis, Basis::WallClock);
}

#[test]
fn other_jobs_and_doubles_are_refused() {
    let dir = TempDir::new().unwrap();
    assert_eq!(Job::merge(vec![]).unwrap_err(), MergeError::Nothing);
    let old = recorders(dir.path(), 2, 1);
    let new = recorders(dir.path(), 2, 2);
    let all = candidates(dir.path());
    let error = Job::merge(all.clone()).unwrap_err();
    assert!(
        matches!(&error, MergeError::DifferentJobs { jobs } if jobs.len() == 2),
        "{error}"
    );
    let (chosen, others) = choose_latest(all.clone());
    assert_eq!((chosen.len(), others.len()), (2, 1));
    let job = Job::merge(chosen).unwrap();
    assert_eq!(job.run, 2);
    let twice = vec![all[0].clone(), all[0].clone()];
    assert!(matches!(
        Job::merge(twice).unwrap_err(),
        MergeError::Twice { rank: Rank(0), .. }
    ));
    let one = vec![all[0].clone()];
    assert_eq!(Job::merge(one).unwrap().absent(), [Rank(1)]);
    drop((old, new));
}

#[test]
fn old_recordings_are_pruned_and_living_ones_never() {
    let dir = TempDir::new().unwrap();
    let make = |n: usize| -> Vec<Recorder> {
        let about = About::new("job", 1, Rank(0)).keeping(4);
        (0..n)
            .map(|_| Recorder::create(dir.path(), &about).unwrap())
            .collect()
    };
    let age = |path: &Path, secs: u64| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(secs))
            .unwrap();
    };
    let living = make(2);
    let dead: Vec<PathBuf> = make(6).into_iter().map(|r| r.path().to_owned()).collect();
    for (i, path) in dead.iter().enumerate() {
        age(path, 1000 * (i as u64 + 1));
    }
    for r in &living {
        age(r.path(), 1_000_000);
    }
    fs::write(dir.path().join("other.trace"), "somebody else's").unwrap();
    age(&dir.path().join("other.trace"), 1_000_000);
    let left = || place::recordings(dir.path()).unwrap().len();
    let mut limits = Limits::default();
    assert_eq!((place::prune(dir.path(), &limits).unwrap(), left()), (0, 9));
    limits.age = Duration::from_secs(5500);
    assert_eq!((place::prune(dir.path(), &limits).unwrap(), left()), (1, 8));
    assert!(!dead[5].exists());
    // Files that cannot go count as well.
    limits.files = 6;
    assert_eq!((place::prune(dir.path(), &limits).unwrap(), left()), (2, 6));
    assert!(!dead[3].exists() && dead[2].exists());
    limits.files = 0;
    limits.fresh = Duration::from_secs(1500);
    assert_eq!((place::prune(dir.path(), &limits).unwrap(), left()), (2, 4));
    limits.bytes = 0;
    assert_eq!((place::prune(dir.path(), &limits).unwrap(), left()), (1, 3));
    assert!(living.iter().all(|r| r.path().exists()));
    assert!(dir.path().join("other.trace").exists());
}

#[cfg(unix)]
#[test]
fn the_private_directory_is_closed_and_a_foreign_one_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = TempDir::new().unwrap();
    let mine = dir.path().join("mine");
    let private = Place::Private(mine.clone());
    assert_eq!(private.prepare().unwrap(), Some(mine.as_path()));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&mine), 0o700);
    fs::set_permissions(&mine, fs::Permissions::from_mode(0o755)).unwrap();
    private.prepare().unwrap();
    assert_eq!(mode(&mine), 0o700);
    // A link that somebody has put in its place.
    let link = dir.path().join("link");
    symlink(&mine, &link).unwrap();
    assert!(Place::Private(link).prepare().is_err());
    // `/` is there, but root's; for root, a file is no directory either.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Place::Private(file.clone()).prepare().is_err());
    assert!(Place::Named(file).prepare().is_err());
    assert_eq!(Place::Off.prepare().unwrap(), None);
    let gone = Recorder::create(
        &dir.path().join("not there"),
        &About::new("job", 1, Rank(0)),
    );
    assert!(gone.unwrap_err().to_string().contains("not there"));
}

/// A recording with a bit of everything.
fn sample() -> Vec<u8> {
    let dir = TempDir::new().unwrap();
    let mut r = Recorder::create(dir.path(), &About::new("job", 4, Rank(2)).keeping(6)).unwrap();
    for seq in 0..5 {
        let t = start(&mut r, 4, 2, seq);
        r.arrived(t, Rank(1), Rank(1), 100);
        match seq {
            0 | 1 => r.done(t, 5, &[]),
            2 => r.waiting(t, &[Rank(0), Rank(3)]),
            3 => r.failed(t, 5, &[Rank(1)], &lost(1)),
            _ => {}
        }
    }
    fs::read(r.path()).unwrap()
}

/// Everything that is made of a recording.
fn look_at(recordings: Vec<Recording>) {
    let candidates = recordings.into_iter().map(|recording| Candidate {
        path: "x".into(),
        recording,
        alive: false,
    });
    let (chosen, _) = choose_latest(candidates.collect());
    if let Ok(job) = Job::merge(chosen) {
        let _ = (
            job.title(),
            job.end(),
            job.blamed(),
            job.late(),
            job.slowest(10),
        );
        for flight in job.in_flight() {
            let _ = job.stream(flight.at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Recording::parse(&bytes);
        let mut long = gaggle_trace::MAGIC.to_vec();
        long.extend(&bytes);
        let _ = Recording::parse(&long);
    }

    #[test]
    fn no_change_of_a_recording_makes_looking_at_it_panic(
        head in proptest::collection::vec((0_usize..600, any::<u8>()), 0..4),
        group in proptest::collection::vec((4096_usize..4160, any::<u8>()), 0..4),
        slots in proptest::collection::vec((65536_usize..67072, any::<u8>()), 0..40),
        cut in proptest::option::weighted(0.1, 0_usize..67072),
    ) {
        let mut bytes = sample();
        let good = Recording::parse(&bytes).unwrap();
        for (at, byte) in head.into_iter().chain(group).chain(slots) {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        if let Ok(read) = Recording::parse(&bytes) {
            look_at(vec![read, good]);
        }
    }
}
