//! What is chosen, and why.

use gaggle_collectives::{
    Action, Call, Cost, Request, plan,
    select::{
        Ineligible, LinkClass, MOST_PEERS, Overrides, Question, Selection, Tables, Why, choose,
    },
};
use gaggle_core::{Algorithm, Codec, Counts, DType, Mode, OpKind, Properties, Rank, Reduce};

fn chosen(question: &Question<'_>) -> Result<Selection, Ineligible> {
    choose(&Tables::network(), &Overrides::default(), question)
}

fn all_reduce(world: u32, len: u64) -> Question<'static> {
    Question::new(OpKind::AllReduce, DType::F32, world, len)
}

#[test]
fn few_rounds_for_little_and_few_bytes_for_much() {
    for world in [4, 8, 16, 32] {
        let small = chosen(&all_reduce(world, 16)).unwrap();
        // One round, as long as its messages take less than the rounds it saves.
        let few = match world {
            32 => Algorithm::RecursiveDoubling,
            _ => Algorithm::Exchange,
        };
        assert_eq!(small.algorithm, few, "{world}");
        let large = chosen(&all_reduce(world, 1 << 24)).unwrap();
        assert_eq!(large.algorithm, Algorithm::Ring, "{world}: {large}");
        // Two rounds, before the ring's fewer collisions are worth its many.
        if world <= 16 {
            let between = chosen(&all_reduce(world, 1 << 18)).unwrap();
            assert_eq!(between.algorithm, Algorithm::Direct, "{world}: {between}");
        }
        assert!(small.time() < large.time());
        assert_eq!(small.why, Why::Fastest);
    }
}

/// No world, length or table makes the arithmetic overflow, and more bytes never take less time by the same algorithm.
#[test]
fn every_question_has_an_answer() {
    let classes = LinkClass::NAMED.map(|(_, class)| class);
    let extreme = LinkClass {
        latency_ns: u64::MAX,
        message_ns: u64::MAX / 2,
        bytes_per_us: 0,
        fold_bytes_per_us: 0,
        codec_bytes_per_us: 0,
        look_ns: u64::MAX,
        mapped_bytes_per_us: 0,
    };
    for between in classes.into_iter().chain([extreme]) {
        for slice_bytes in [1, 64 << 10, u64::MAX] {
            let tables = Tables {
                slice_bytes,
                ..Tables::of(LinkClass::THREADS, between)
            };
            for kind in OpKind::ALL {
                for world in [1, 2, 3, 33, 1 << 20, u32::MAX] {
                    let mut last: Vec<(Algorithm, u64)> = Vec::new();
                    for len in [0, 1, 1000, 1 << 20, 600_000_000, 1 << 40, u64::MAX] {
                        let q = Question::new(kind, DType::F32, world, len);
                        let s = choose(&tables, &Overrides::default(), &q).unwrap();
                        assert!(s.slice >= 1);
                        assert!(s.candidates.is_sorted_by_key(|c| c.nanoseconds));
                        for (algorithm, before) in &last {
                            let now = s.candidates.iter().find(|c| c.algorithm == *algorithm);
                            let now = now.map(|c| c.nanoseconds).unwrap();
                            assert!(now >= *before, "{kind:?} {algorithm} {world} {len}");
                        }
                        let pairs = s.candidates.iter().map(|c| (c.algorithm, c.nanoseconds));
                        last = pairs.collect();
                    }
                }
            }
        }
    }
}

#[test]
fn the_callers_choice_goes_first_and_overrides_second() {
    let overrides: Overrides = "all_reduce:4k-=ring".parse().unwrap();
    let of = |q: &Question<'_>| choose(&Tables::network(), &overrides, q).unwrap();
    let asked = Question {
        algorithm: Some(Algorithm::Direct),
        ..all_reduce(4, 2000)
    };
    assert_eq!(
        (of(&asked).algorithm, of(&asked).why),
        (Algorithm::Direct, Why::Asked)
    );
    let overridden = of(&all_reduce(4, 2000));
    assert_eq!(overridden.algorithm, Algorithm::Ring);
    let text = overridden.to_string();
    assert!(
        text.contains("the override 'all_reduce:4k-=ring' names it"),
        "{text}"
    );
    assert_eq!(of(&all_reduce(4, 10)).algorithm, Algorithm::Exchange);
}

#[test]
fn what_is_promised_decides_what_is_eligible() {
    let ordered = Question {
        mode: Mode::Ordered,
        ..all_reduce(4, 16)
    };
    let s = chosen(&ordered).unwrap();
    let those: Vec<Algorithm> = s.candidates.iter().map(|c| c.algorithm).collect();
    assert_eq!(those, [Algorithm::Exchange, Algorithm::Direct]);
    assert!(
        s.to_string().contains("ordered: folded in rank order"),
        "{s}"
    );
    let exact = Question {
        mode: Mode::Exact,
        ..ordered
    };
    let s = chosen(&exact).unwrap();
    assert_eq!((s.algorithm, s.why), (Algorithm::Direct, Why::Only));
    // Integers and extrema have the same bits in any order.
    for (dtype, reduce) in [(DType::I32, Reduce::Sum), (DType::F32, Reduce::Max)] {
        let free = Question {
            dtype,
            reduce,
            ..ordered
        };
        assert!(chosen(&free).unwrap().candidates.len() > 2);
    }
    let asked = Question {
        algorithm: Some(Algorithm::Ring),
        ..ordered
    };
    let error = chosen(&asked).unwrap_err().to_string();
    assert_eq!(
        error,
        "all_reduce by ring rounds partial results, in an order of its own; what can: direct, exchange"
    );
    // An override is no promise: it is passed over, and that is said.
    let overrides = "all_reduce:=ring".parse().unwrap();
    let s = choose(&Tables::network(), &overrides, &ordered).unwrap();
    assert_eq!(s.algorithm, Algorithm::Exchange);
    assert!(
        s.to_string()
            .contains("the override by ring is passed over"),
        "{s}"
    );
}

#[test]
fn a_users_reduction_is_believed() {
    let of = |commutative, associative| Question {
        reduce: Reduce::User,
        user: Some(Properties {
            commutative,
            associative,
        }),
        ..all_reduce(8, 16)
    };
    let at_once = chosen(&of(true, false)).unwrap();
    let those: Vec<Algorithm> = at_once.candidates.iter().map(|c| c.algorithm).collect();
    assert_eq!(those, [Algorithm::Exchange, Algorithm::Direct]);
    assert!(chosen(&of(true, true)).unwrap().candidates.len() > 2);
    let kept = chosen(&of(false, true)).unwrap();
    assert!(
        kept.candidates
            .iter()
            .all(|c| c.algorithm != Algorithm::Ring)
    );
}

#[test]
fn a_codec_that_costs_more_than_it_saves_is_declined() {
    let coded = |len, codec| Question {
        codec,
        reduce: Reduce::Mean,
        ..all_reduce(4, len)
    };
    let gigabit = Tables::of(LinkClass::LOOPBACK, LinkClass::GIGABIT);
    for codec in [Codec::Bf16, Codec::F16, Codec::Int8] {
        let s = choose(&gigabit, &Overrides::default(), &coded(1 << 20, codec)).unwrap();
        assert_eq!((s.codec, s.declined), (codec, None), "{s}");
        let s = choose(
            &Tables::threads(),
            &Overrides::default(),
            &coded(1 << 20, codec),
        )
        .unwrap();
        assert_eq!(s.codec, Codec::None);
        assert!(
            s.to_string()
                .contains(&format!("{codec} is declined, because")),
            "{s}"
        );
        let forced = Question {
            codec_forced: true,
            ..coded(1 << 20, codec)
        };
        let s = choose(&Tables::threads(), &Overrides::default(), &forced).unwrap();
        assert_eq!((s.codec, s.algorithm), (codec, Algorithm::Direct));
        assert!(s.candidates.iter().all(|c| c.algorithm != Algorithm::Ring));
    }
    let asked = Question {
        algorithm: Some(Algorithm::Ring),
        ..coded(1 << 20, Codec::Bf16)
    };
    let error = chosen(&asked).unwrap_err().to_string();
    assert!(
        error.contains("all_reduce by ring would round to the codec at every hop"),
        "{error}"
    );
    let doubles = Question {
        dtype: DType::F64,
        ..coded(8, Codec::Bf16)
    };
    let error = chosen(&doubles).unwrap_err().to_string();
    assert!(error.contains("codecs are for f32"), "{error}");
}

#[test]
fn tables_that_differ_hash_differently() {
    let base = Tables::network();
    let mut all = vec![
        base,
        Tables::threads(),
        Tables::one_host(),
        Tables {
            slice_bytes: 1,
            ..base
        },
        Tables {
            mapped: true,
            ..base
        },
        Tables {
            crowded: true,
            ..base
        },
    ];
    for change in [
        |c: &mut LinkClass| c.latency_ns += 1,
        |c: &mut LinkClass| c.message_ns += 1,
        |c: &mut LinkClass| c.bytes_per_us += 1,
        |c: &mut LinkClass| c.fold_bytes_per_us += 1,
        |c: &mut LinkClass| c.codec_bytes_per_us += 1,
        |c: &mut LinkClass| c.look_ns += 1,
        |c: &mut LinkClass| c.mapped_bytes_per_us += 1,
    ] {
        let (mut inside, mut across, mut between) = (base, base, base);
        change(&mut inside.inside);
        change(&mut across.across);
        change(&mut between.between);
        all.extend([inside, across, between]);
    }
    let hashes: std::collections::BTreeSet<u64> = all.iter().map(Tables::hash).collect();
    assert_eq!(hashes.len(), all.len());
    assert_eq!(base.hash(), Tables::network().hash());
}

/// Where ranks share hosts, what crosses the network between them decides; on one host there is nothing to cross.
#[test]
fn ranks_that_share_hosts_go_in_two_levels() {
    let of = |hosts: &[u32], len| {
        let question = Question {
            hosts: Some(hosts),
            ..all_reduce(hosts.len() as u32, len)
        };
        choose(&Tables::network(), &Overrides::default(), &question).unwrap()
    };
    let is_two_level = |s: &Selection| s.algorithm.between_hosts().is_some();
    let round_robin: Vec<u32> = (0..16).map(|r| r % 4).collect();
    let large = of(&round_robin, 1 << 22);
    assert!(is_two_level(&large), "{large}");
    // A ring that passes each host's link once has as few bytes there as two ranks have; two levels have fewer.
    for (n_hosts, per_host) in [(2u32, 2u32), (2, 4), (3, 2), (4, 2), (4, 4), (8, 2)] {
        let hosts: Vec<u32> = (0..n_hosts * per_host).map(|r| r / per_host).collect();
        for len in [1 << 18, 1 << 22, 1 << 24] {
            for links in [LinkClass::TEN_GIGABIT, LinkClass::GIGABIT] {
                let tables = Tables {
                    between: links,
                    ..Tables::network()
                };
                let question = Question {
                    hosts: Some(&hosts),
                    ..all_reduce(n_hosts * per_host, len)
                };
                let s = choose(&tables, &Overrides::default(), &question).unwrap();
                assert!(is_two_level(&s), "{hosts:?} {len}: {s}");
            }
        }
    }
    let one_host = of(&[7; 16], 1 << 22);
    assert!(
        one_host
            .candidates
            .iter()
            .all(|c| c.algorithm.between_hosts().is_none())
    );
    let own_hosts: Vec<u32> = (0..16).collect();
    assert_eq!(
        of(&own_hosts, 1 << 22),
        chosen(&all_reduce(16, 1 << 22)).unwrap()
    );
    let asked = Question {
        hosts: Some(&[7; 16]),
        algorithm: Some(Algorithm::TwoLevelRing),
        ..all_reduce(16, 4)
    };
    let error = chosen(&asked).unwrap_err().to_string();
    assert!(
        error.contains("needs several hosts, or memory nodes of one, and ranks that share one"),
        "{error}"
    );
}

/// Where ranks have mapped each other's memory nothing beats one pass over it; its ways are never chosen, and there for whoever names them.
#[test]
fn ways_of_fused_are_taken_only_where_they_are_named() {
    let tables = Tables {
        mapped: true,
        ..Tables::shared()
    };
    for world in [2, 3, 4, 8] {
        let hosts = vec![0; world as usize];
        for len in [1, 16, 1024, 1025, 1 << 14, 1 << 18, 1 << 24] {
            for crowded in [false, true] {
                let tables = Tables { crowded, ..tables };
                let question = Question {
                    hosts: Some(&hosts),
                    ..all_reduce(world, len)
                };
                let of = |algorithm| {
                    let question = Question {
                        algorithm,
                        ..question
                    };
                    choose(&tables, &Overrides::default(), &question)
                };
                let free = of(None).unwrap();
                assert_eq!(free.algorithm, Algorithm::Fused, "{world} {len}: {free}");
                let ways = [Algorithm::Boards, Algorithm::Staged];
                let others = free.candidates.iter().map(|c| c.algorithm);
                assert!(others.into_iter().all(|a| !ways.contains(&a)), "{free}");
                let staged = of(Some(Algorithm::Staged)).unwrap();
                assert_eq!(staged.algorithm, Algorithm::Staged);
                assert!(staged.nanoseconds > free.nanoseconds, "{staged}");
                assert_eq!(of(Some(Algorithm::Boards)).is_ok(), len <= 1024);
            }
        }
    }
    let overrides: Overrides = "all_reduce:=staged".parse().unwrap();
    let question = Question {
        hosts: Some(&[3, 3]),
        ..all_reduce(2, 1 << 20)
    };
    let named = choose(&tables, &overrides, &question).unwrap();
    assert_eq!(named.algorithm, Algorithm::Staged);
    let apart = choose(&tables, &overrides, &all_reduce(2, 1 << 20)).unwrap();
    assert!(apart.passed_over.is_some(), "{apart}");
}

/// Ranks that share processors wait for each other's messages: along a tree there are fewer than from everybody to everybody.
#[test]
fn ranks_that_share_processors_send_fewer_messages() {
    let hosts = [0; 8];
    let question = Question {
        hosts: Some(&hosts),
        ..all_reduce(8, 1 << 12)
    };
    let of = |crowded| {
        let tables = Tables {
            crowded,
            ..Tables::one_host()
        };
        choose(&tables, &Overrides::default(), &question).unwrap()
    };
    let time = |s: &Selection, algorithm| {
        let found = s.candidates.iter().find(|c| c.algorithm == algorithm);
        found.unwrap().nanoseconds
    };
    for algorithm in [Algorithm::Exchange, Algorithm::Direct, Algorithm::Ring] {
        assert!(time(&of(true), algorithm) > time(&of(false), algorithm));
    }
    let tree = Algorithm::Knomial;
    assert_eq!(time(&of(true), tree), time(&of(false), tree));
}

/// The plan itself says whom a rank is connected with.
#[test]
fn nobody_is_connected_with_everybody_where_there_are_many() {
    let kinds = [
        OpKind::AllReduce,
        OpKind::Reduce,
        OpKind::Broadcast,
        OpKind::Gather,
        OpKind::Scatter,
        OpKind::AllGather,
        OpKind::ReduceScatter,
        OpKind::AllToAll,
    ];
    let mut spared = 0;
    for world in [100u32, 300, 1000] {
        let eights: Vec<u32> = (0..world).map(|r| r / 8).collect();
        for hosts in [None, Some(&eights[..])] {
            let host = |rank: u32| hosts.map_or(rank, |h| h[rank as usize]);
            for kind in kinds {
                for bytes in [8u64, 64 << 10, 1 << 20, 16 << 20, 256 << 20] {
                    let question = Question {
                        hosts,
                        ..Question::new(kind, DType::F32, world, bytes / 4)
                    };
                    let s = chosen(&question).unwrap();
                    spared += usize::from(s.why == Why::FastestOfFewPeers);
                    let call = call_of(kind, s.algorithm);
                    for rank in [0, 1, world / 2, world - 1] {
                        let mut request = Request::new(call.clone(), Rank(rank), world, 3);
                        request.hosts = hosts.map(Into::into);
                        let plan = plan(&request).unwrap();
                        let mut peers: Vec<u32> = plan
                            .iter()
                            .filter_map(|step| match step.action {
                                Action::Send { to, .. } => Some(to.0),
                                Action::Recv { from, .. } => Some(from.0),
                                _ => None,
                            })
                            .filter(|peer| host(*peer) != host(rank))
                            .collect();
                        peers.sort_unstable();
                        peers.dedup();
                        let n = peers.len();
                        assert!(n <= MOST_PEERS as usize, "{n}: {kind:?} of {world}: {s}");
                    }
                }
            }
        }
    }
    assert!(spared > 10, "{spared}");
    // Unless there is no other way, or the caller wants it.
    let exact = Question {
        mode: Mode::Exact,
        ..all_reduce(300, 1 << 20)
    };
    assert_eq!(chosen(&exact).unwrap().why, Why::Only);
    let asked = Question {
        algorithm: Some(Algorithm::Direct),
        ..all_reduce(300, 1 << 20)
    };
    assert_eq!(chosen(&asked).unwrap().algorithm, Algorithm::Direct);
}

fn call_of(kind: OpKind, algorithm: Algorithm) -> Call {
    let (root, reduce, counts) = (Rank(3), Reduce::Sum, Counts::Equal);
    match kind {
        OpKind::AllReduce => Call::AllReduce { reduce, algorithm },
        OpKind::Reduce => Call::Reduce {
            reduce,
            root,
            algorithm,
        },
        OpKind::Broadcast => Call::Broadcast { root, algorithm },
        OpKind::Gather => Call::Gather {
            root,
            counts,
            algorithm,
        },
        OpKind::Scatter => Call::Scatter {
            root,
            counts,
            algorithm,
        },
        OpKind::AllGather => Call::AllGather { counts, algorithm },
        OpKind::ReduceScatter => Call::ReduceScatter {
            reduce,
            counts,
            algorithm,
        },
        _ => Call::AllToAll {
            send: Counts::Equal,
            recv: Counts::Equal,
            algorithm,
        },
    }
}

#[test]
fn a_barrier_is_a_look_at_every_board_where_there_are_boards() {
    let hosts = [1; 5];
    let barrier = Question {
        hosts: Some(&hosts),
        ..Question::new(OpKind::Barrier, DType::U8, 5, 0)
    };
    let of = |mapped, question: &Question<'_>| {
        let tables = Tables {
            mapped,
            ..Tables::default()
        };
        choose(&tables, &Overrides::default(), question)
    };
    let there = of(true, &barrier).unwrap();
    let messages = of(false, &barrier).unwrap();
    assert_eq!(there.algorithm, Algorithm::Boards, "{there}");
    assert_eq!(messages.algorithm, Algorithm::Dissemination, "{messages}");
    assert!(there.time() < messages.time(), "{there} {messages}");
    let apart = Question {
        hosts: None,
        ..barrier
    };
    assert_eq!(of(true, &apart).unwrap().why, Why::Only);
    let asked = Question {
        algorithm: Some(Algorithm::Boards),
        ..barrier
    };
    let e = of(false, &asked).unwrap_err();
    assert!(e.to_string().contains("buffers mapped"), "{e}");
}

/// Partial results of 16-bit floats travel in 32 bits, which the plans that have none do without: the model counts as many bytes as the plans send.
#[test]
fn what_travels_in_a_wider_type_is_counted() {
    // Bytes alone take time.
    let class = LinkClass {
        latency_ns: 0,
        message_ns: 0,
        bytes_per_us: 1,
        fold_bytes_per_us: u64::MAX,
        codec_bytes_per_us: u64::MAX,
        look_ns: 0,
        mapped_bytes_per_us: u64::MAX,
    };
    let tables = Tables::of(class, class);
    let named = [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Direct,
        Algorithm::Exchange,
    ];
    for world in [2u32, 4, 8] {
        let len = 1 << 16;
        for algorithm in named {
            for dtype in [DType::F32, DType::Bf16] {
                let question = Question {
                    algorithm: Some(algorithm),
                    ..Question::new(OpKind::AllReduce, dtype, world, len)
                };
                let selection = choose(&tables, &Overrides::default(), &question).unwrap();
                let predicted = selection.time().as_nanos() as u64 / 1000;
                let request = Request {
                    widen: dtype == DType::Bf16,
                    ..crate::all_reduce(Reduce::Sum, algorithm, world, len)
                };
                let cost = Cost::of(&plan(&request).unwrap(), dtype).unwrap();
                let sent = cost.bytes_sent;
                // A 16th where several send to one.
                let more = match (world, algorithm) {
                    (2, _) | (_, Algorithm::Ring) => 0,
                    _ => 1,
                };
                let low = sent;
                let high = sent + more * sent / 16 + 16;
                assert!(
                    (low..=high).contains(&predicted),
                    "{algorithm} of {dtype} among {world}: {predicted} for {sent}"
                );
            }
        }
    }
}
