//! Plans that are wrong on purpose: each is rejected with a message that names ranks and steps.

use crate::{all_reduce, plans, request};
use gaggle_collectives::{
    Action, Arrive, Buf, Call, Fault, Operand, Plan, Promise, Span, Step, check,
};
use gaggle_core::{Algorithm, Codec, Counts, Form, Rank, Reduce};
use smallvec::smallvec;
use std::sync::Arc;

/// Changes one rank's list of steps.
fn change(plans: &mut [Plan], rank: usize, with: impl FnOnce(&mut Vec<Step>)) {
    let mut steps: Vec<Step> = plans[rank].iter().collect();
    with(&mut steps);
    plans[rank].steps = Arc::new(steps);
}

/// The fault of `promise`'s plans after a change.
fn fault(promise: &Promise, with: impl FnOnce(&mut Vec<Plan>)) -> Fault {
    let mut plans = plans(promise);
    with(&mut plans);
    check(&plans, promise).expect_err("the plans are wrong on purpose")
}

fn sum_of_2() -> Promise {
    let algorithm = Algorithm::RecursiveDoubling;
    Promise::of_all(&all_reduce(Reduce::Sum, algorithm, 2, 4))
}

fn ring_sum(world: u32, len: u64) -> Promise {
    Promise::of_all(&all_reduce(Reduce::Sum, Algorithm::Ring, world, len))
}

#[test]
fn missing_receive() {
    let fault = fault(
        &Promise::of_all(&request(
            Call::Broadcast {
                root: Rank(0),
                algorithm: Algorithm::Binomial,
            },
            3,
            4,
        )),
        |p| {
            change(p, 2, Vec::clear);
        },
    );
    assert!(matches!(fault, Fault::NoReceive { .. }));
    assert_eq!(
        fault.to_string(),
        "rank 0 step 0 (send #0 to rank 2: user[0..4]): rank 2 has no receive for it"
    );
}

#[test]
fn missing_send() {
    let fault = fault(
        &Promise::of_all(&request(
            Call::Broadcast {
                root: Rank(0),
                algorithm: Algorithm::Binomial,
            },
            3,
            4,
        )),
        |p| {
            change(p, 0, |steps| {
                steps.remove(0);
            });
        },
    );
    assert!(matches!(fault, Fault::NoSend { .. }));
    assert_eq!(
        fault.to_string(),
        "rank 2 step 0 (recv #0 from rank 0: user[0..4]): rank 0 has no send for it"
    );
}

#[test]
fn wrong_length() {
    let fault = fault(
        &Promise::of_all(&request(
            Call::Broadcast {
                root: Rank(1),
                algorithm: Algorithm::Binomial,
            },
            2,
            4,
        )),
        |p| {
            change(p, 0, |steps| {
                let Action::Recv { dst, .. } = &mut steps[0].action else {
                    panic!("rank 0 receives first");
                };
                dst.len = 3;
            });
        },
    );
    assert!(matches!(
        fault,
        Fault::Length {
            sent: 4,
            expected: 3,
            ..
        }
    ));
    assert_eq!(
        fault.to_string(),
        "rank 1 step 0 (send #0 to rank 0: user[0..4]) sends 4 elements where rank 0 step 0 (recv #0 from rank 1: user[0..3]) expects 3"
    );
}

#[test]
fn codecs_and_wire_types_that_differ() {
    let bf16 = |steps: &mut Vec<Step>| {
        if let Action::Send { codec, .. } = &mut steps[0].action {
            *codec = Codec::Bf16;
        }
    };
    let wide = |steps: &mut Vec<Step>| {
        if let Action::Send { wire, .. } = &mut steps[0].action {
            *wire = Buf::Scratch;
        }
    };
    let one = fault(&sum_of_2(), |p| change(p, 0, bf16));
    assert_eq!(
        one.to_string(),
        "rank 0 step 0 (send #0 to rank 1: user[0..4] in bf16) and rank 1 step 1 (recv #0 from rank 0: scratch[0..4]) differ in codec"
    );
    let other = fault(&sum_of_2(), |p| change(p, 0, wide));
    assert!(
        other
            .to_string()
            .ends_with("differ in the type on the wire")
    );
}

#[test]
fn cyclic_wait() {
    // Each rank sends only what it has received and folded first.
    let fault = fault(&sum_of_2(), |p| {
        for rank in 0..2 {
            change(p, rank, |steps| {
                steps.swap(0, 1);
                steps[1].after = smallvec![0];
            });
        }
    });
    let Fault::Deadlock { cycle } = &fault else {
        panic!("no deadlock: {fault}");
    };
    assert_eq!(cycle.len(), 4);
    assert_eq!(
        fault.to_string(),
        "deadlock of ranks 0 and 1: rank 0 step 0 (recv #0 from rank 1: scratch[0..4]) waits for rank 1 step 1 (send #0 to rank 0: user[0..4]) waits for rank 1 step 0 (recv #0 from rank 0: scratch[0..4]) waits for rank 0 step 1 (send #0 to rank 1: user[0..4]) waits for rank 0 step 0 (recv #0 from rank 1: scratch[0..4])"
    );
}

#[test]
fn overlapping_writes() {
    let fault = fault(
        &Promise::of_all(&request(
            Call::AllGather {
                counts: Counts::Equal,
                algorithm: Algorithm::Direct,
            },
            3,
            4,
        )),
        |p| {
            change(p, 0, |steps| {
                let Action::Recv { dst, .. } = &mut steps[3].action else {
                    panic!("step 3 receives");
                };
                dst.at += 2;
            });
        },
    );
    assert!(matches!(fault, Fault::Race { .. }));
    assert_eq!(
        fault.to_string(),
        "rank 0 step 2 (recv #0 from rank 2: user[8..12]) and rank 0 step 3 (recv #0 from rank 1: user[6..10]) both touch user[8..10] and neither waits for the other"
    );
}

#[test]
fn a_receive_into_what_is_still_being_sent() {
    let fault = fault(&ring_sum(3, 9), |p| {
        change(p, 1, |steps| {
            for step in steps.iter_mut() {
                if matches!(
                    step.action,
                    Action::Recv {
                        arrive: Arrive::Store,
                        ..
                    }
                ) {
                    step.after.clear();
                }
            }
        });
    });
    assert!(matches!(fault, Fault::Race { .. }));
    assert_eq!(
        fault.to_string(),
        "rank 1 step 2 (send #1 to rank 2: user[0..3]) and rank 1 step 7 (recv #3 from rank 0: user[0..3]) both touch user[0..3] and neither waits for the other"
    );
}

#[test]
fn contribution_twice() {
    let fault = fault(&sum_of_2(), |p| {
        change(p, 1, |steps| {
            steps.push(Step {
                action: steps[2].action.clone(),
                after: smallvec![2],
            });
        });
    });
    assert!(matches!(fault, Fault::Twice { .. }));
    assert_eq!(
        fault.to_string(),
        "rank 1 step 3 (fold user[0..4] = scratch[0..4] + user[0..4]): the contribution of rank 0 to element 0 is counted twice"
    );
}

#[test]
fn contribution_missing() {
    let fault = fault(&ring_sum(3, 9), |p| {
        change(p, 0, |steps| {
            // Rank 0 replaces its own chunk 2 by what has come from rank 2.
            let Action::Recv { arrive, .. } = &mut steps[1].action else {
                panic!("step 1 receives");
            };
            *arrive = Arrive::Store;
        });
    });
    assert!(matches!(fault, Fault::Missing { .. }));
    assert_eq!(
        fault.to_string(),
        "rank 0 ends with element 6 without the contribution of rank 0; it was last written by rank 0 step 7 (recv #3 from rank 2: user[6..9])"
    );
}

#[test]
fn fold_order_that_differs_between_ranks() {
    let fault = fault(&sum_of_2(), |p| {
        change(p, 1, |steps| {
            let Action::Fold { operands, .. } = &mut steps[2].action else {
                panic!("step 2 folds");
            };
            operands.reverse();
        });
    });
    assert_eq!(
        fault.to_string(),
        "ranks 0 and 1 compute element 0 in different ways: rank 0 step 2 (fold user[0..4] = user[0..4] + scratch[0..4]), rank 1 step 2 (fold user[0..4] = user[0..4] + scratch[0..4])"
    );
}

#[test]
fn owner_that_keeps_what_the_codec_loses() {
    let mut request = all_reduce(Reduce::Sum, Algorithm::Direct, 2, 4);
    request.codec = Codec::Bf16;
    let fault = fault(&Promise::of_all(&request), |p| {
        change(p, 0, |steps| {
            let recode = steps
                .iter()
                .position(|s| matches!(s.action, Action::Recode { .. }))
                .expect("the owner recodes");
            steps.remove(recode);
            for step in &mut steps[recode..] {
                for after in &mut step.after {
                    *after -= u32::from(*after as usize >= recode);
                }
            }
        });
    });
    assert!(matches!(fault, Fault::Unequal { .. }));
    assert!(
        fault
            .to_string()
            .starts_with("ranks 0 and 1 compute element 0")
    );
}

fn ring_mean() -> Promise {
    Promise::of_all(&all_reduce(Reduce::Mean, Algorithm::Ring, 3, 9))
}

#[test]
fn mean_that_is_not_divided_or_not_weighed() {
    let no_op = |from: fn(&Action) -> bool| {
        fault(&ring_mean(), |p| {
            change(p, 1, |steps| {
                let at = steps
                    .iter()
                    .position(|s| from(&s.action))
                    .expect("the plan has such a step");
                // The order stays; nothing is done to the elements.
                let span = Span::user(0, 0);
                steps[at].action = Action::Weigh { span, slot: 0 };
            });
        })
    };
    let undivided = no_op(|a| matches!(a, Action::Divide { .. }));
    assert_eq!(
        undivided.to_string(),
        "rank 0 ends with element 6 not divided by the sum of the weights; it was last written by rank 0 step 9 (recv #3 from rank 2: user[6..9], weight to w4)"
    );
    let unweighed = no_op(|a| matches!(a, Action::Weigh { .. }));
    assert_eq!(
        unweighed.to_string(),
        "rank 2 step 2 (recv #0 from rank 1: fold into user[3..6] of weight w0, sum to w1): meets a value that has not been weighed"
    );
}

#[test]
fn weights_that_belong_to_others() {
    let fault = fault(&ring_mean(), |p| {
        change(p, 2, |steps| {
            let Action::Divide { slot, .. } = &mut steps[5].action else {
                panic!("step 5 divides: {}", steps[5]);
            };
            *slot = 0;
        });
    });
    assert_eq!(
        fault.to_string(),
        "rank 2 step 5 (divide user[0..3] by w0): meets a weight that is not the value's own"
    );
}

#[test]
fn weight_slots_without_order() {
    let read_early = fault(&ring_mean(), |p| {
        change(p, 2, |steps| steps[3].after.clear());
    });
    assert_eq!(
        read_early.to_string(),
        "rank 2 step 3 (send #1 to rank 0: user[3..6], weight w1): weight slot 1 is read without waiting for its writer"
    );
    let unknown = fault(&ring_sum(3, 9), |p| {
        change(p, 0, |steps| {
            if let Action::Send { weight, .. } = &mut steps[0].action {
                *weight = Some(0);
            }
        });
    });
    assert!(
        unknown
            .to_string()
            .ends_with("weight slot 0 does not exist")
    );
    let no_total = fault(&ring_mean(), |p| p[1].total = Some(1));
    assert_eq!(
        no_total.to_string(),
        "rank 1 ends with a total weight that lacks rank 2"
    );
}

#[test]
fn a_mean_of_nothing_may_not_touch_the_buffer() {
    let mut request = all_reduce(Reduce::Mean, Algorithm::Ring, 2, 4);
    request.widen = true;
    let fault = fault(&Promise::of_all(&request), |p| {
        change(p, 1, |steps| {
            let copy_out = steps.iter_mut().rev().find_map(|s| match &mut s.action {
                Action::Copy { unless_zero, .. } => Some(unless_zero),
                _ => None,
            });
            *copy_out.expect("the result is copied out") = None;
        });
    });
    assert_eq!(
        fault.to_string(),
        "rank 1 step 6 (copy scratch[0..2] to user[0..2]): reads element 0 of a buffer that holds nothing yet"
    );
}

#[test]
fn nonsense_in_one_plan() {
    let broken = |with: fn(&mut Vec<Step>)| fault(&sum_of_2(), |p| change(p, 1, with));
    let beyond = broken(|steps| {
        if let Action::Send { src, .. } = &mut steps[0].action {
            src.at = 1;
        }
    });
    assert_eq!(
        beyond.to_string(),
        "rank 1 step 0 (send #0 to rank 0: user[1..5]): user[1..5] lies outside the buffer of 4 elements"
    );
    let forward = broken(|steps| steps[1].after.push(2));
    assert_eq!(
        forward.to_string(),
        "rank 1 step 1 (recv #0 from rank 0: scratch[0..4]): waits for step 2, which is not earlier"
    );
    let oneself = broken(|steps| {
        if let Action::Send { to, .. } = &mut steps[0].action {
            *to = Rank(1);
        }
    });
    assert_eq!(
        oneself.to_string(),
        "rank 1 step 0 (send #0 to rank 1: user[0..4]): rank 1 is no peer"
    );
    let twice = broken(|steps| {
        let again = Step {
            after: smallvec![2],
            ..steps[0].clone()
        };
        steps.push(again);
    });
    assert!(
        twice.to_string().ends_with("use tag 0 on one link"),
        "{twice}"
    );
    let uneven = broken(|steps| {
        if let Action::Fold { operands, .. } = &mut steps[2].action {
            operands[0].span.len = 2;
        }
    });
    assert!(
        uneven
            .to_string()
            .ends_with("folds operands of different lengths")
    );
    let unwritten = broken(|steps| {
        if let Action::Fold { operands, .. } = &mut steps[2].action {
            operands.push(Operand {
                span: operands[0].span,
                slot: None,
            });
        }
    });
    assert!(
        unwritten.to_string().contains("counted twice"),
        "{unwritten}"
    );
}

#[test]
fn reading_what_nothing_was_written_to() {
    let fault = fault(&sum_of_2(), |p| {
        p[0].scratch_len = 8;
        change(p, 0, |steps| {
            if let Action::Fold { operands, .. } = &mut steps[2].action {
                operands[1].span.at = 4;
            }
        });
    });
    assert_eq!(
        fault.to_string(),
        "rank 0 step 2 (fold user[0..4] = user[0..4] + scratch[4..8]): reads element 4 of a buffer that holds nothing yet"
    );
}

#[test]
fn elements_that_do_not_belong_together() {
    let mut request = all_reduce(Reduce::Sum, Algorithm::RecursiveDoubling, 2, 4);
    request.slice = 2;
    let fault = fault(&Promise::of_all(&request), |p| {
        change(p, 0, |steps| {
            let spans: Vec<Span> = steps
                .iter()
                .filter_map(|s| match &s.action {
                    Action::Recv { dst, .. } => Some(*dst),
                    _ => None,
                })
                .collect();
            let mut others = spans.into_iter().rev();
            for step in steps.iter_mut() {
                if let Action::Recv { dst, .. } = &mut step.action {
                    *dst = others.next().expect("as many as there were");
                }
            }
            for step in steps.iter_mut() {
                if let Action::Fold { .. } = step.action {
                    step.after = smallvec![0, 1, 2, 3];
                }
            }
        });
    });
    assert_eq!(
        fault.to_string(),
        "rank 0 step 4 (fold user[0..2] = user[0..2] + scratch[0..2]): combines element 0 with element 2"
    );
}

#[test]
fn a_barrier_that_does_not_wait_for_all() {
    let fault = fault(&Promise::of_all(&request(Call::Barrier, 4, 0)), |p| {
        for rank in 0..4 {
            change(p, rank, |steps| steps[3].after.clear());
        }
    });
    assert_eq!(
        fault.to_string(),
        "rank 0 can end all its 4 steps before rank 1 have begun"
    );
}

#[test]
fn an_average_with_the_wrong_neighbour_or_form() {
    let ask = |rank: u32, form| {
        let other = vec![Rank(1 - rank)];
        let call = Call::Mix {
            from: other.clone(),
            to: other,
            scaled: false,
            form,
        };
        let mut r = request(call, 2, 3);
        r.rank = Rank(rank);
        r
    };
    let promise = Promise::of(&[ask(0, Form::Sum), ask(1, Form::Delta)]);
    let done = plans(&Promise::of(&[ask(0, Form::Delta), ask(1, Form::Delta)]));
    let fault = check(&done, &promise).expect_err("rank 0 was promised the other form");
    assert_eq!(
        fault.to_string(),
        "rank 0 ends with element 0 that is not the average of its neighbours'; it was last written by rank 0 step 2 (mix user[0..3] in delta form with scratch[0..3])"
    );
}

#[test]
fn plans_that_are_not_the_promised_operations() {
    let promise = ring_sum(3, 9);
    let mut two = plans(&promise);
    two.pop();
    assert_eq!(
        check(&two, &promise).unwrap_err().to_string(),
        "rank 2: 2 plans for 3 ranks"
    );
    let mut swapped = plans(&promise);
    swapped.swap(0, 1);
    assert_eq!(
        check(&swapped, &promise).unwrap_err().to_string(),
        "rank 0: its plan is for rank 1 of 3"
    );
    assert_eq!(
        check(&plans(&ring_sum(3, 8)), &promise)
            .unwrap_err()
            .to_string(),
        "rank 0: its plan is for 8 elements, the operation for 9"
    );
}
