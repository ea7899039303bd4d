//! Collectives over device memory: in stream order, blocking and asynchronous, and memory that comes back whatever happens.

#![allow(clippy::unwrap_used, reason = "the helpers are test code, too")]

use gaggle::{
    Cause, Error, Group, Kind, Max, Mean, Op, Rank, Sum,
    core::{Lane, Reduce, Space, StableBuf, Weight},
};
use gaggle_spikes::device::{Device, DeviceVec, Stream, world};
use std::{
    sync::{Arc, mpsc::channel},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

/// Runs every rank of a world on a thread of its own, with a device and a stream for computing.
fn ranks<R: Send>(n: u32, f: impl Fn(Group, Stream) -> R + Sync) -> Vec<R> {
    let devices: Vec<_> = (0..n).map(Device::new).collect();
    let comms = world(&devices).unwrap();
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = comms
            .into_iter()
            .zip(&devices)
            .map(|(comm, device)| {
                scope.spawn(move || f(Group::new(comm), Stream::new(device).unwrap()))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn all_reduce(reduce: Reduce) -> Op {
    Op::new(Kind::AllReduce(reduce)).within(Duration::from_secs(20))
}

#[test]
fn devices_end_with_the_bits_of_the_engine() {
    for n in [1, 2, 3, 5, 7, 8] {
        for len in [0, 1, n - 1, n, n + 1, 4099] {
            let input = |rank: Rank| -> Vec<f32> {
                let at = |i: u32| ((i * 31 + rank.0 * 17) % 101) as f32 / 7.0 - 5.0;
                (0..len).map(at).collect()
            };
            let want = gaggle::local(n as usize, |group| {
                let (mut sum, mut mean, mut max) = (
                    input(group.rank()),
                    input(group.rank()),
                    input(group.rank()),
                );
                let direct = |op: Op| op.by(gaggle::Algorithm::Direct);
                group
                    .run(&direct(all_reduce(Reduce::Sum)), &mut sum)
                    .unwrap();
                let weight = Weight::samples(group.rank().0 + 1);
                group
                    .run(
                        &direct(all_reduce(Reduce::Mean)).weighing(weight),
                        &mut mean,
                    )
                    .unwrap();
                group
                    .run(&direct(all_reduce(Reduce::Max)), &mut max)
                    .unwrap();
                [sum, mean, max]
            });
            let want = want.unwrap().swap_remove(0);
            let got = ranks(n, |group, stream| {
                let weight = Weight::samples(group.rank().0 + 1);
                let mine = input(group.rank());
                // Blocking, asynchronous, and out of place.
                let mut sum = stream.upload(&mine);
                group.run_buf(&all_reduce(Reduce::Sum), &mut sum).unwrap();
                let mean = group.start(
                    all_reduce(Reduce::Mean).weighing(weight),
                    stream.upload(&mine),
                );
                let (x, y) = (stream.upload(&mine), DeviceVec::new(&stream, mine.len()));
                let max = group.start_into(all_reduce(Reduce::Max), x, y);
                let (x, max, _) = max.wait().unwrap();
                assert_eq!(stream.download(&x), mine, "the input is as it was");
                let mean = mean.wait().unwrap();
                [
                    stream.download(&sum),
                    stream.download(&mean),
                    stream.download(&max),
                ]
            });
            for got in got {
                assert_eq!(got, want);
            }
        }
    }
}

/// The first kernel of every stream is held back until all has been enqueued: nobody but the device has waited.
#[test]
fn a_step_is_enqueued_without_the_host_waiting() {
    let all = ranks(3, |group, compute| {
        let (go, gate) = channel::<()>();
        let mut x = compute.upload(&[group.rank().0 as f32 + 1.0; 4]);
        compute.launch(move |_| gate.recv().unwrap());
        compute.map(&mut x, |v: f32| v * 10.0);
        let work = group.start(all_reduce(Reduce::Sum), x);
        assert!(!work.is_done());
        let mut x = work.enqueued().unwrap();
        assert!(
            !x.ready().unwrap().is_done(),
            "it comes back before it is ready"
        );
        // Behind the collective, and another one behind that.
        compute.map(&mut x, |v| v + 0.5);
        let mut x = group.start(all_reduce(Reduce::Max), x).enqueued().unwrap();
        compute.map(&mut x, |v| -v);
        go.send(()).unwrap();
        compute.download(&x)
    });
    assert_eq!(all, [[-60.5f32; 4]; 3]);
}

#[test]
fn a_blocking_call_waits_for_the_work_before_it() {
    let all = ranks(2, |group, compute| {
        let mut x = compute.upload(&[1.0f64, 2.0]);
        compute.map(&mut x, |v| v * 3.0);
        group.run_buf(&all_reduce(Reduce::Sum), &mut x).unwrap();
        let y = group.run_buf(&Op::new(Kind::Broadcast { root: Rank(1) }), &mut x);
        y.unwrap();
        compute.download(&x)
    });
    assert_eq!(all, [[6.0, 12.0]; 2]);
}

#[test]
fn a_future_is_woken_by_the_device() {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let all = ranks(2, |group, compute| {
        let mut work = group.start_all_reduce(compute.upload(&[2i32, 3]), Sum);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            match std::pin::Pin::new(&mut work).poll(&mut cx) {
                Poll::Ready(x) => return compute.download(&x.unwrap()),
                Poll::Pending => thread::park_timeout(Duration::from_secs(20)),
            }
        }
    });
    assert_eq!(all, [[4, 6]; 2]);
}

#[test]
fn memory_of_another_space_is_refused_and_comes_back() {
    ranks(2, |group, _| {
        let is_refused = |error: &Error| {
            matches!(error.cause(), Cause::Unsupported { .. })
                && error.to_string().contains("the buffer is host")
        };
        let failed = group
            .start_all_reduce(vec![1.0f32; 3], Mean)
            .wait()
            .unwrap_err();
        assert!(is_refused(&failed.error), "{failed}");
        assert_eq!(failed.buf, Some(vec![1.0; 3]));
        let error = group.all_reduce(&mut [1.0f32], Mean).unwrap_err();
        assert!(is_refused(&error), "{error}");
        let stranger = Stream::new(&Device::new(9)).unwrap();
        let failed = group
            .start_all_reduce(stranger.upload(&[1u8]), Max)
            .wait()
            .unwrap_err();
        assert!(failed.error.to_string().contains("cuda:9"), "{failed}");
        assert_eq!(stranger.download(&failed.buf.unwrap()), [1]);
    });
}

#[test]
fn the_engine_refuses_device_memory_and_gives_it_back() {
    let all = gaggle::local(2, |group| {
        let stream = Stream::new(&Device::new(4)).unwrap();
        let mut x = stream.upload(&[group.rank().0 as f32]);
        let is_refused = |error: &Error| {
            matches!(error.cause(), Cause::Unsupported { .. })
                && error.to_string().contains("cuda:4")
        };
        assert_eq!(x.space(), Space::Cuda { ordinal: 4 });
        let error = group.run_buf(&all_reduce(Reduce::Sum), &mut x).unwrap_err();
        assert!(is_refused(&error), "{error}");
        let failed = group.start_all_reduce(x, Sum).wait().unwrap_err();
        assert!(is_refused(&failed.error), "{failed}");
        let x = failed.buf.unwrap();
        let into = group
            .start_into(all_reduce(Reduce::Sum), x, vec![0.0f32])
            .wait();
        let failed = into.err().unwrap();
        assert!(is_refused(&failed.error), "{:?}", failed.error);
        let mine = stream.download(&failed.input.unwrap());
        // The group is as good as before.
        group.barrier().unwrap();
        mine
    });
    assert_eq!(all.unwrap(), [[0.0], [1.0]]);
}

#[test]
fn a_rank_that_does_not_come_is_named_and_the_memory_comes_back_untouched() {
    ranks(3, |group, compute| {
        if group.rank() == Rank(1) {
            return;
        }
        let op = all_reduce(Reduce::Sum).within(Duration::from_millis(100));
        let x = compute.upload(&[5.0f32, 6.0]);
        let failed = group.start(op, x).wait().unwrap_err();
        assert_eq!(failed.error.culprits(), [Rank(1)], "{failed}");
        assert_eq!(compute.download(&failed.buf.unwrap()), [5.0, 6.0]);
        // As with NCCL, that was the end of the communicator.
        let again = group.run_buf(&all_reduce(Reduce::Sum), &mut compute.upload(&[1.0f32]));
        assert_eq!(again.unwrap_err().culprits(), [Rank(1)]);
    });
}

#[test]
fn an_error_after_the_memory_came_back_is_told_by_the_lanes_next_operation() {
    ranks(2, |group, compute| {
        let reduce = if group.rank() == Rank(0) {
            Reduce::Sum
        } else {
            Reduce::Max
        };
        let x = group.start(all_reduce(reduce).on(Lane(3)), compute.upload(&[1.0f32]));
        let canceller = x.canceller().unwrap();
        let x = x.enqueued();
        // Told at once where it was over already.
        if let Ok(x) = x {
            assert!(x.ready().unwrap().wait(Duration::from_secs(20)));
            let mut y = compute.upload(&[1.0f32]);
            let error = group
                .run_buf(&all_reduce(Reduce::Sum).on(Lane(3)), &mut y)
                .unwrap_err();
            assert!(matches!(error.cause(), Cause::Mismatch { .. }), "{error}");
            assert_eq!(compute.download(&x), [1.0]);
        }
        canceller.cancel("too late, and harmless");
    });
}

#[test]
fn dropped_work_is_freed_behind_its_kernel() {
    let all = ranks(2, |group, compute| {
        let x = compute.upload(&[group.rank().0 as f32; 100]);
        drop(group.start(all_reduce(Reduce::Sum), x));
        let mut y = compute.upload(&[1.0f32]);
        group.run_buf(&all_reduce(Reduce::Sum), &mut y).unwrap();
        compute.download(&y)
    });
    assert_eq!(all, [[2.0]; 2]);
}

#[test]
fn a_cancelled_operation_gives_its_memory_back() {
    ranks(2, |group, compute| {
        if group.rank() == Rank(1) {
            return;
        }
        let work = group.start(all_reduce(Reduce::Sum), compute.upload(&[7u32]));
        work.canceller().unwrap().cancel("no longer wanted");
        let failed = work.wait().unwrap_err();
        assert!(
            matches!(failed.error.cause(), Cause::Cancelled { by: Rank(0), .. }),
            "{failed}"
        );
        assert_eq!(compute.download(&failed.buf.unwrap()), [7]);
    });
}
