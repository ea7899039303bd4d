//! The command line of `gaggle perf`.

use super::{measure::Iterations, operation::Place, *};
use crate::args::{Args, Task as Command};
use clap::Parser;

fn args(line: &str) -> PerfArgs {
    match Args::try_parse_from(line.split_whitespace()).unwrap().task {
        Command::Perf(args) => *args,
        other => panic!("{line} is not perf: {other:?}"),
    }
}

fn task(line: &str) -> Task {
    Task::read(&args(line)).unwrap()
}

fn variant(dtype: DType, reduce: Reduce) -> Variant {
    Variant { dtype, reduce }
}

/// The sizes that are measured in a world of so many.
fn measured(line: &str, world: u32) -> Vec<u64> {
    task(line).passes(world, 0).unwrap()[0].1.sizes.clone()
}

fn refused(line: &str, why: &str) {
    let text = match Args::try_parse_from(line.split_whitespace()) {
        Err(e) => e.to_string(),
        Ok(_) => Task::read(&args(line)).unwrap_err(),
    };
    assert!(text.contains(why), "{line}: {text}");
}

#[test]
fn the_flags_are_those_of_nccl_tests() {
    let t = task("gaggle perf all_reduce -b 1K -e 1M -f 4 -n 7 -w 2 -c 0 -o max -d int32");
    assert_eq!(t.operation, Operation::AllReduce);
    let kib = |n: u64| n << 10;
    assert_eq!(
        t.wishes.sizes,
        [kib(1), kib(4), kib(16), kib(64), kib(256), kib(1024)]
    );
    assert_eq!(t.wishes.iterations, Iterations::Fixed(7));
    assert_eq!((t.wishes.warm, t.wishes.check), (Some(2), false));
    assert_eq!(t.variants, [variant(DType::I32, Reduce::Max)]);
    let long = task(
        "gaggle perf all_reduce --minbytes 1K --maxbytes 1M --stepfactor 4 --iters 7 --warmup_iters 2 --check 0 --op max --datatype int32",
    );
    assert_eq!(long.wishes, t.wishes);
    let steps = task("gaggle perf broadcast -b 8 -e 32 -i 8").wishes.sizes;
    assert_eq!(steps, [8, 16, 24, 32]);
    let mean = task("gaggle perf reduce -o avg -r 1");
    assert_eq!(mean.variants, [variant(DType::F32, Reduce::Mean)]);
    assert_eq!(mean.roots, Every::One(1));
    assert_eq!(task("gaggle perf reduce --root 1").roots, Every::One(1));
}

#[test]
fn all_of_nccl_tests_is_everything_that_the_operation_has() {
    let n = |line: &str, world| task(line).passes(world, 0).unwrap().len();
    let defined = |dtype: DType| {
        let all = Reduce::ALL.into_iter().filter(|r| *r != Reduce::User);
        all.filter(|r| r.is_defined_on(dtype)).count()
    };
    let all: usize = DType::ALL.into_iter().map(defined).sum();
    assert_eq!(n("gaggle perf all-reduce -o all -d all", 3), all);
    assert_eq!(
        n("gaggle perf reduce -o all -r -1", 3),
        3 * defined(DType::F32)
    );
    assert_eq!(n("gaggle perf broadcast -r all", 5), 5);
    let floats = DType::ALL.into_iter().filter(|d| d.is_float()).count();
    assert_eq!(n("gaggle perf mix -d all", 3), floats);
    assert_eq!(n("gaggle perf all-gather -d all", 3), DType::ALL.len());
    assert_eq!(n("gaggle perf all-reduce -d all --codec bf16", 3), 1);
    assert_eq!(n("gaggle perf barrier -d all", 3), 1);
    let passes = task("gaggle perf reduce -o all -d all -r all")
        .passes(2, 1)
        .unwrap();
    let roots: Vec<u32> = passes.iter().take(3).map(|(s, _)| s.root).collect();
    assert_eq!(roots, [0, 1, 0]);
}

/// Rounded down to whole elements and equal parts, sizes that come to nothing or to the same are one row at most.
#[test]
fn sizes_between_two_ends_are_measured_once_each() {
    assert_eq!(measured("gaggle perf all-reduce -b 1 -e 7 -f 2", 2), [4]);
    assert_eq!(measured("gaggle perf all-reduce -b 0 -e 8", 2), [0, 4]);
    assert_eq!(
        measured("gaggle perf all-reduce -b 4 -e 12 -i 1", 2),
        [4, 8, 12]
    );
    assert_eq!(
        measured("gaggle perf all-gather -b 4 -e 64 -f 2", 3),
        [16, 32, 64]
    );
    assert_eq!(
        measured("gaggle perf all-gather-v -b 1 -e 64", 3),
        [4, 16, 64]
    );
    // Those that are named are there, so that what is printed has a line for each.
    assert_eq!(
        measured("gaggle perf all-gather --sizes 1,1,4", 3),
        [1, 1, 4]
    );
    assert_eq!(measured("gaggle perf barrier", 3), [0]);
    let none = task("gaggle perf all-gather -b 16 -e 16 -d f64").check_world(3);
    let why = none.unwrap_err();
    assert!(
        why.contains("no size from 16 to 16 bytes holds an element of f64"),
        "{why}"
    );
    assert!(why.contains("at least 24"), "{why}");
}

#[test]
fn what_is_not_said_is_usual() {
    let t = task("gaggle perf all-reduce");
    assert_eq!((t.wishes.sizes[0], t.wishes.sizes.len()), (8, 12));
    assert_eq!(t.wishes.places, Place::BOTH);
    assert!(t.wishes.check);
    assert_eq!(task("gaggle perf reduce -b 1g").wishes.sizes, [1 << 30]);
    assert_eq!(task("gaggle perf reduce -e 4").wishes.sizes, [4]);
    assert_eq!(task("gaggle perf barrier").wishes.sizes, [0]);
    assert_eq!(task("gaggle perf barrier").wishes.places, [Place::In]);
    assert_eq!(task("gaggle perf send-recv").wishes.places, [Place::Out]);
    assert_eq!(task("gaggle perf reduce -b 0 -e 5").wishes.sizes, [0, 4]);
}

#[test]
fn programs_that_are_compared_are_asked_alike() {
    let t = task(
        "gaggle perf --csv --op neighbor_onepeer --dtype bf16 --sizes 4,1048576 --budget 0.3 --min-iters 3 --warm 1 --ranks 2 --transport tcp",
    );
    assert_eq!(t.operation, Operation::Neighbour);
    assert_eq!(t.topology, "one-peer-exp");
    assert_eq!(t.wishes.sizes, [4, 1 << 20]);
    assert_eq!(t.variants, [variant(DType::Bf16, Reduce::Sum)]);
    assert_eq!(t.wishes.places, [Place::Out]);
    let budget = |seconds, least, most| Iterations::Budget {
        seconds,
        least,
        most,
    };
    assert_eq!(t.wishes.iterations, budget(0.3, 3, 4000));
    assert_eq!(t.wishes.warm, Some(1));
    let t = task("gaggle perf --csv --op allreduce");
    assert_eq!(t.wishes.places, [Place::In]);
    assert_eq!(
        (t.wishes.warm, t.wishes.iterations),
        (None, budget(1.0, 5, 4000))
    );
    // Both meanings of --op.
    let t = task("gaggle perf --op reduce_scatter --op prod");
    assert_eq!(t.operation, Operation::ReduceScatter);
    assert_eq!(t.variants, [variant(DType::F32, Reduce::Prod)]);
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    for (line, why) in [
        ("gaggle perf", "say which operation: all-reduce"),
        (
            "gaggle perf all-deduce",
            "no operation is called 'all-deduce'",
        ),
        (
            "gaggle perf all-reduce --op median",
            "no reduction is called 'median'",
        ),
        ("gaggle perf all-reduce --op user", "not measured here"),
        ("gaggle perf all-reduce --op broadcast", "said twice"),
        ("gaggle perf all-reduce --op sum --op max", "said twice"),
        ("gaggle perf broadcast --op max", "broadcast combines none"),
        (
            "gaggle perf all-reduce -o avg -d i32",
            "mean is not defined on i32",
        ),
        ("gaggle perf pair-gossip -d i32", "averages need floats"),
        (
            "gaggle perf all-reduce -d f64 --codec bf16",
            "applies to f32",
        ),
        ("gaggle perf all-reduce -d complex", "no element type"),
        (
            "gaggle perf all-reduce -b 2M -e 1M",
            "--minbytes is 2097152",
        ),
        (
            "gaggle perf all-reduce -b 1 -e 1M -i 1",
            "more than 10000 sizes",
        ),
        ("gaggle perf all-reduce -e 1M -i 0", "leads nowhere"),
        ("gaggle perf all-reduce -f 1", "1 is not in 2.."),
        ("gaggle perf all-reduce -f 2 -i 8", "cannot be used with"),
        ("gaggle perf all-reduce -b many", "number of bytes"),
        ("gaggle perf all-reduce -n 0", "0 is not in 1.."),
        (
            "gaggle perf all-reduce -n 5 --budget 1",
            "cannot be used with",
        ),
        ("gaggle perf all-reduce --max-iters 5", "limits of --budget"),
        (
            "gaggle perf all-reduce --budget 1 --min-iters 9 --max-iters 5",
            "--min-iters is 9",
        ),
        ("gaggle perf all-reduce --budget nan", "seconds above 0"),
        ("gaggle perf all-reduce -c 2", "2 is not in 0..=1"),
        (
            "gaggle perf all-reduce --ranks 2 --threads 2",
            "cannot be used with",
        ),
        ("gaggle perf all-reduce --ranks 0", "at least 1 rank"),
        (
            "gaggle perf all-reduce --transport pigeon",
            "there are auto, shm, tcp",
        ),
        (
            "gaggle perf all-reduce --algorithm magic",
            "no algorithm is called 'magic'",
        ),
        (
            "gaggle perf all-reduce --csv --place both",
            "say --place in or out",
        ),
        (
            "gaggle perf send-recv --place in",
            "send-recv does not run in-place",
        ),
        ("gaggle perf all-reduce --topology nope", "it has none"),
        ("gaggle perf all-reduce -r 1", "all-reduce has none"),
        ("gaggle perf broadcast -r -2", "all (or -1)"),
        (
            "gaggle perf mix --per-machine 2",
            "not for neighbour-all-reduce",
        ),
        ("gaggle perf all-reduce --force-codec", "--codec"),
        ("gaggle perf all-reduce --csv --json -", "leave one out"),
        ("gaggle perf all-reduce --csv -d all", "say one of each"),
        ("gaggle perf broadcast --csv -r all", "say one of each"),
        ("gaggle perf broadcast -o all", "broadcast combines none"),
        ("gaggle perf mix -d all --codec f16 -o all", "combines none"),
        (
            "gaggle perf neighbor_ring --topology star",
            "the operation's name says the topology ring",
        ),
    ] {
        refused(line, why);
    }
}

#[test]
fn worlds_that_cannot_be_are_refused() {
    let refused = |line: &str, world, why: &str| {
        let text = task(line).check_world(world).unwrap_err();
        assert!(text.contains(why), "{line}: {text}");
    };
    refused("gaggle perf send-recv", 1, "at least 2 ranks");
    refused(
        "gaggle perf broadcast -r 3",
        3,
        "--root is 3, but there are 3 ranks",
    );
    refused("gaggle perf mix --topology moebius", 4, "--topology");
    refused(
        "gaggle perf hierarchical --per-machine 3",
        4,
        "whole machines of 3",
    );
    for world in [1, 2, 3, 5, 7, 8] {
        task("gaggle perf hierarchical").check_world(world).unwrap();
        task("gaggle perf neighbor_exp2")
            .check_world(world)
            .unwrap();
    }
}

#[test]
fn who_this_process_is_follows_from_options_and_environment() {
    let read = |line: &str, vars: &[(&str, &str)]| {
        Standing::read(&args(line), &|name| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    };
    let rank = [("RANK", "1"), ("WORLD_SIZE", "4")];
    let member = |again: Option<&str>| {
        Ok(Standing::Member {
            again: again.map(str::to_owned),
        })
    };
    assert_eq!(read("gaggle perf mix", &[]), Ok(Standing::Starts(2)));
    assert_eq!(
        read("gaggle perf mix --ranks 5 --transport tcp", &[]),
        Ok(Standing::Starts(5))
    );
    assert_eq!(
        read("gaggle perf mix --threads 3", &[]),
        Ok(Standing::Threads(3))
    );
    assert_eq!(
        read("gaggle perf mix --transport threads --ranks 3", &[]),
        Ok(Standing::Threads(3))
    );
    assert_eq!(read("gaggle perf mix", &rank), member(None));
    assert_eq!(read("gaggle perf mix --ranks 4", &rank), member(None));
    assert_eq!(
        read("gaggle perf mix --transport tcp", &rank),
        member(Some("tcp"))
    );
    let told = [rank[0], rank[1], ("GAGGLE_TRANSPORT", "tcp")];
    assert_eq!(read("gaggle perf mix --transport tcp", &told), member(None));
    let peers = [rank[0], rank[1], ("PEER_TRANSPORT", "tcp")];
    assert_eq!(read("gaggle perf mix --csv", &peers), member(Some("tcp")));
    assert_eq!(read("gaggle perf mix", &peers), member(None));
    let unknown = [rank[0], rank[1], ("PEER_TRANSPORT", "pigeon")];
    for (line, vars, why) in [
        (
            "gaggle perf mix --csv",
            &unknown[..],
            "PEER_TRANSPORT is pigeon",
        ),
        ("gaggle perf mix --ranks 3", &rank[..], "a job of 4"),
        (
            "gaggle perf mix --threads 3",
            &rank[..],
            "cannot be threads",
        ),
        (
            "gaggle perf mix --threads 3 --transport tcp",
            &[][..],
            "for processes",
        ),
        (
            "gaggle perf mix --registered --transport tcp",
            &[][..],
            "--registered needs ranks of one host",
        ),
        ("gaggle perf mix --registered", &told[..], "--registered"),
        (
            "gaggle perf mix --registered --csv",
            &peers[..],
            "--registered",
        ),
    ] {
        let text = read(line, vars).unwrap_err();
        assert!(text.contains(why), "{line}: {text}");
    }
}
