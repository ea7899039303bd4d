//! Loans of ordinary memory, and their end.

use super::raw_lent::Lent;
use std::{
    ptr::NonNull,
    sync::{Arc, Barrier, mpsc},
};

#[test]
fn what_is_recalled_is_visited_no_more() {
    let lent = Lent::default();
    let mut bytes = [7u8; 16];
    // SAFETY: recalled before the bytes go.
    let number = unsafe { lent.lend(NonNull::from(&mut bytes).cast(), 16) };
    assert!(lent.visit(number, 8, 9).is_none());
    assert!(lent.visit(number, 17, 0).is_none());
    assert!(lent.visit(number, u64::MAX, 1).is_none());
    assert!(lent.visit(number + 1, 0, 1).is_none());
    let window = lent.visit(number, 8, 8).unwrap();
    assert_eq!(window.len(), 8);
    lent.leave(number);
    lent.recall(number);
    assert!(lent.visit(number, 0, 1).is_none());
    lent.recall(number);
}

#[test]
fn a_recall_waits_for_whoever_is_there_and_turns_others_away() {
    let lent = Arc::new(Lent::default());
    let mut bytes = [1u8; 64];
    // SAFETY: recalled before the bytes go.
    let number = unsafe { lent.lend(NonNull::from(&mut bytes[..]).cast(), 64) };
    let (there, is_over) = (Arc::new(Barrier::new(2)), mpsc::channel());
    let visitor = {
        let (lent, there) = (Arc::clone(&lent), Arc::clone(&there));
        std::thread::spawn(move || {
            let window = lent.visit(number, 0, 64).unwrap();
            there.wait();
            // The owner is on its way in: it is marked when nobody else gets in.
            while lent.visit(number, 0, 1).is_some() {
                lent.leave(number);
                std::thread::yield_now();
            }
            window.write(0, &[9; 64], gaggle_core::Stores::Cached);
            is_over.0.send(()).unwrap();
            lent.leave(number);
        })
    };
    there.wait();
    lent.recall(number);
    assert!(is_over.1.try_recv().is_ok(), "it has returned too early");
    assert!(bytes.iter().all(|b| *b == 9));
    bytes.fill(2);
    visitor.join().unwrap();
    assert!(bytes.iter().all(|b| *b == 2));
}
