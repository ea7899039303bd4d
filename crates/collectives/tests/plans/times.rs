//! Predicted times: of plans, and of choices.

use crate::{all_reduce, cases, plans, request};
use gaggle_collectives::select::{LinkClass, Overrides, Places, Question, Tables, choose};
use gaggle_collectives::{Call, Promise, Request, timeline};
use gaggle_core::{Algorithm, DType, OpKind, Rank, Reduce};

fn time(promise: &Promise, tables: &Tables) -> u64 {
    let plans = plans(promise);
    let times =
        timeline(&plans, DType::F32, tables, Places::default()).expect("the plans fit together");
    times.nanoseconds
}

/// One message: its cost at both ends, the latency, its bytes' time.
#[test]
fn a_message_takes_what_the_table_says() {
    let class = LinkClass {
        latency_ns: 1000,
        message_ns: 100,
        bytes_per_us: 4,
        fold_bytes_per_us: 1,
        codec_bytes_per_us: 1,
        look_ns: 1,
        mapped_bytes_per_us: 1,
    };
    let tables = Tables::of(class, class);
    let call = Call::Broadcast {
        root: Rank(0),
        algorithm: Algorithm::Binomial,
    };
    let promise = Promise::of_all(&request(call, 2, 8));
    assert_eq!(time(&promise, &tables), 100 + 1000 + 32 * 1000 / 4 + 100);
}

/// Slices travel while others are folded: many are faster than one, and no plan is faster than its bytes.
#[test]
fn slices_overlap() {
    let tables = Tables::of(LinkClass::THREADS, LinkClass::TEN_GIGABIT);
    let len = 1 << 20;
    let of = |slice| {
        let request = Request {
            slice,
            ..all_reduce(Reduce::Sum, Algorithm::Ring, 4, len)
        };
        time(&Promise::of_all(&request), &tables)
    };
    let (whole, sliced) = (of(len), of(1 << 14));
    assert!(sliced < whole, "{sliced} {whole}");
    let bytes = 4 * len * 2 * 3 / 4;
    assert!(sliced > bytes * 1000 / tables.between.bytes_per_us);
}

/// What the formulas choose is no more than half as slow again as the fastest plan, step by step, of all that were eligible.
#[test]
fn formulas_choose_what_step_by_step_is_among_the_fastest() {
    let mut worst = Vec::new();
    for (name, class) in LinkClass::NAMED {
        let tables = Tables::of(class, class);
        for kind in [
            OpKind::AllReduce,
            OpKind::Reduce,
            OpKind::Broadcast,
            OpKind::AllGather,
            OpKind::ReduceScatter,
            OpKind::AllToAll,
            OpKind::Gather,
            OpKind::Scatter,
        ] {
            for world in [2, 3, 5, 8, 16] {
                for bytes in [64u64, 4 << 10, 64 << 10, 1 << 20, 16 << 20] {
                    let len = (bytes / 4).next_multiple_of(world);
                    let question = Question::new(kind, DType::F32, world as u32, len);
                    let chosen = choose(&tables, &Overrides::default(), &question).unwrap();
                    let step_by_step = |algorithm| {
                        let asked = Question {
                            algorithm: Some(algorithm),
                            ..question
                        };
                        let slice = choose(&tables, &Overrides::default(), &asked)
                            .unwrap()
                            .slice;
                        let promise = cases::plain(kind, algorithm, world as u32, len, slice);
                        time(&promise, &tables)
                    };
                    let times = chosen.candidates.iter().map(|c| step_by_step(c.algorithm));
                    let best = times.min().unwrap();
                    let got = step_by_step(chosen.algorithm);
                    if got > best + best / 2 {
                        worst.push(format!(
                            "{name} {kind:?} {world} ranks {bytes} bytes: {got} by {}, {best} is possible; {chosen}",
                            chosen.algorithm
                        ));
                    }
                }
            }
        }
    }
    assert!(
        worst.is_empty(),
        "{} cases:\n{}",
        worst.len(),
        worst.join("\n")
    );
}

/// The same where ranks share hosts, whose link to the others they share, too.
#[test]
fn formulas_know_that_hosts_share_their_link() {
    let tables = Tables::network();
    let mut worst = Vec::new();
    for (n_hosts, each) in [(2u32, 4u32), (4, 2), (4, 4), (3, 3)] {
        let world = n_hosts * each;
        let hosts: Vec<u32> = (0..world).map(|r| r / each).collect();
        for bytes in [64u64, 64 << 10, 1 << 20, 16 << 20] {
            let len = (bytes / 4).next_multiple_of(world.into());
            let question = Question {
                hosts: Some(&hosts),
                ..Question::new(OpKind::AllReduce, DType::F32, world, len)
            };
            let chosen = choose(&tables, &Overrides::default(), &question).unwrap();
            let step_by_step = |algorithm| {
                let plain = cases::plain(OpKind::AllReduce, algorithm, world, len, chosen.slice);
                let requests = plain.requests().iter().map(|r| Request {
                    hosts: Some(hosts.clone().into()),
                    ..r.clone()
                });
                let plans = plans(&Promise::of(&requests.collect::<Vec<_>>()));
                let times = timeline(&plans, DType::F32, &tables, Places::on(Some(&hosts)));
                times.expect("the plans fit together").nanoseconds
            };
            let times = chosen.candidates.iter().map(|c| step_by_step(c.algorithm));
            let best = times.min().unwrap();
            let got = step_by_step(chosen.algorithm);
            if got > best + best / 2 {
                worst.push(format!(
                    "{n_hosts}x{each} {bytes} bytes: {got}, {best} is possible; {chosen}"
                ));
            }
        }
    }
    assert!(
        worst.is_empty(),
        "{} cases:\n{}",
        worst.len(),
        worst.join("\n")
    );
}
