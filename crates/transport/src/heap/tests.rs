//! Heaps of two and three ranks, mapped twice in one process.

use super::*;
use gaggle_core::{Buffer, Words};

fn buffer(heap: &MappedHeaps, n: usize) -> Buffer<u8> {
    Buffer::on(heap.block(n).unwrap(), n).unwrap()
}

fn at(b: &Buffer<u8>, lo: usize) -> NonNull<u8> {
    NonNull::from(&b[lo..]).cast()
}

#[test]
fn peers_read_and_write_what_lies_at_a_place_and_nothing_beyond() {
    let heaps = heaps(3, 1 << 20).unwrap();
    let mut b = buffer(&heaps[1], 5000);
    assert!(b.iter().all(|x| *x == 0) && b.is_registered());
    b[4000..4100].fill(7);
    let place = heaps[1].place(at(&b, 4000), 1000).unwrap();
    for reader in &heaps {
        let mut out = [0; 101];
        assert!(reader.read(Rank(1), place, &mut out));
        assert_eq!((out[99], out[100]), (7, 0));
    }
    for (offset, n) in [(0, 1), (1, 7), (3, 64), (5, 900)] {
        assert!(heaps[2].write(Rank(1), place + offset, &vec![9; n as usize]));
        let lo = 4000 + offset as usize;
        assert!(b[lo..lo + n as usize].iter().all(|x| *x == 9));
    }
    let stack = [0u8; 4];
    assert_eq!(heaps[1].place(NonNull::from(&stack[..]).cast(), 4), None);
    assert_eq!(heaps[0].place(at(&b, 0), 1), None, "another rank's");
    let mut out = [0; 2];
    for rank in [Rank(1), Rank(7)] {
        assert!(!heaps[0].read(rank, u64::MAX, &mut out));
        assert!(!heaps[0].read(rank, heaps[1].own().map.len() - 1, &mut out));
        assert!(!heaps[0].write(rank, heaps[1].own().map.len() - 1, &out));
        assert!(!heaps[0].write(rank, 0, &out), "the header");
    }
}

#[test]
fn a_window_is_the_bytes_at_a_place_and_none_where_there_are_none() {
    use gaggle_core::{Stores, Window, copy_window};
    let heaps = heaps(2, 1 << 20).unwrap();
    let mut b = buffer(&heaps[1], 5000);
    b[17..4020].fill(7);
    let place = heaps[1].place(at(&b, 0), 5000).unwrap();
    let there = heaps[0].window(Rank(1), place + 16, 4005).unwrap();
    let mut out = vec![1; 4005];
    copy_window(
        WindowMut::from(&mut out[..]),
        there.into(),
        Stores::Streamed,
    );
    assert_eq!((out[0], out[1], out[4003], out[4004]), (0, 7, 7, 0));
    out.fill(9);
    copy_window(there, Window::from(&out[..]), Stores::Streamed);
    assert_eq!((b[15], b[16], b[4020], b[4021]), (0, 9, 9, 0));
    let end = heaps[1].own().map.len();
    for wrong in [end - 3, end, u64::MAX - 3, 0, HEADER - 1] {
        assert!(heaps[0].window(Rank(1), wrong, 4).is_none(), "{wrong}");
    }
    assert!(heaps[0].window(Rank(5), place, 4).is_none(), "nobody's");
    assert!(heaps[0].window(Rank(1), place, usize::MAX).is_none());
}

#[test]
fn a_word_is_stored_by_its_owner_and_loaded_by_all() {
    let heaps = heaps(2, 1 << 20).unwrap();
    let b = buffer(&heaps[1], 4096);
    let place = heaps[1].place(at(&b, 64), 8).unwrap();
    assert_eq!(heaps[0].load(Rank(1), place), Some(0));
    assert!(heaps[1].store(place, u64::MAX - 3));
    for reader in &heaps {
        assert_eq!(reader.load(Rank(1), place), Some(u64::MAX - 3));
    }
    let end = heaps[1].own().map.len();
    for wrong in [place + 4, end - 7, end, u64::MAX] {
        assert_eq!(heaps[0].load(Rank(1), wrong), None, "{wrong}");
        assert!(!heaps[1].store(wrong, 1), "{wrong}");
    }
    assert_eq!(heaps[0].load(Rank(5), place), None, "nobody's");
    assert!(!heaps[1].store(0, 1), "the header");
    assert_eq!(heaps[1].given_up(Rank(1)), 0);
}

#[test]
fn severed_pages_keep_their_content_and_are_out_of_reach() {
    let heaps = heaps(2, 1 << 20).unwrap();
    let (mut a, b) = (buffer(&heaps[0], 9000), buffer(&heaps[0], 10));
    a.fill(1);
    let place = heaps[0].place(at(&a, 0), 9000).unwrap();
    assert!(heaps[1].write(Rank(0), place + 8999, &[5]));
    assert!(heaps[0].sever(at(&a, 1), 100).is_err(), "not alone");
    heaps[0].sever(at(&a, 0), 9000).unwrap();
    assert!(heaps[1].write(Rank(0), place, &[9; 9000]));
    assert!(a[..8999].iter().all(|x| *x == 1) && a[8999] == 5);
    assert_eq!(heaps[0].place(at(&a, 10), 1), None);
    // The neighbour is shared as before.
    let place = heaps[0].place(at(&b, 0), 10).unwrap();
    assert!(heaps[1].write(Rank(0), place, &[3; 10]));
    assert_eq!(b[..], [3; 10]);
    drop(a);
    // Stragglers may write to the old pages for ever: they are nobody's any more.
    let c = buffer(&heaps[0], 9000);
    assert!(heaps[0].place(at(&c, 0), 9000).unwrap() > place);
    assert!(c.iter().all(|x| *x == 0));
}

/// Parts of a block, in any order, each larger than what is copied at once.
#[test]
fn parts_are_severed_by_themselves_and_cost_no_memory_twice() {
    let heaps = heaps(2, 64 << 20).unwrap();
    let page = rustix::param::page_size();
    let n = (8 << 20) + page + 10;
    let mut a = buffer(&heaps[0], n);
    for (i, x) in a.iter_mut().enumerate() {
        *x = (i / page) as u8;
    }
    let in_use = || rustix::fs::fstat(heaps[0].own().fd()).unwrap().st_blocks as usize * 512;
    let before = in_use();
    let place = heaps[0].place(at(&a, 0), n).unwrap();
    let parts = [
        (5 << 20, 3 << 20),
        (0, page),
        (8 << 20, page + 10),
        (page, (5 << 20) - page),
    ];
    for (lo, len) in parts {
        heaps[0].sever(at(&a, lo), len).unwrap();
        assert!(heaps[0].sever(at(&a, lo), len).is_err(), "severed twice");
        assert!(heaps[1].write(Rank(0), place + lo as u64, &[255; 100]));
    }
    assert!((0..n).all(|i| a[i] == (i / page) as u8));
    // But for what was written since, all is given back.
    assert!(
        before > 8 << 20 && in_use() <= 64 << 10,
        "{} of {before}",
        in_use()
    );
    drop(a);
    assert!(in_use() <= 64 << 10, "{} are left", in_use());
    let b = buffer(&heaps[0], 4 << 20);
    assert!(b.iter().all(|x| *x == 0));
}

#[test]
fn what_was_given_back_is_zero_when_it_is_handed_out_again() {
    let heaps = heaps(1, 8 << 20).unwrap();
    let mut a = buffer(&heaps[0], 5 << 20);
    let start = a.as_ptr();
    a.fill(1);
    drop(a);
    let a = buffer(&heaps[0], 5 << 20);
    assert!(a.as_ptr() == start && a.iter().all(|x| *x == 0));
    assert!(start.addr().is_multiple_of(2 << 20));
    assert!(heaps[0].block(6 << 20).is_none(), "used up");
    assert!(heaps[0].block(usize::MAX).is_none());
}

#[test]
fn what_a_rank_gives_up_is_seen_by_those_who_began_before() {
    let heaps = heaps(2, 1 << 20).unwrap();
    let since = heaps[1].given_up(Rank(0));
    assert!(!heaps[1].has_given_up(Rank(0), 5, since));
    heaps[0].give_up(4);
    assert!(!heaps[1].has_given_up(Rank(0), 5, since));
    heaps[0].give_up(5);
    assert!(heaps[1].has_given_up(Rank(0), 5, since));
    let later = heaps[1].given_up(Rank(0));
    assert!(!heaps[1].has_given_up(Rank(0), 5, later));
    for op in 0..N_NAMES {
        heaps[0].give_up(100 + op);
    }
    assert!(heaps[1].has_given_up(Rank(0), 6, later), "too many to tell");
    assert_eq!(heaps[1].given_up(Rank(9)), 0);
}

#[test]
fn a_file_that_may_shrink_is_refused() {
    let fd = rustix::fs::memfd_create("bad", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 8 << 20).unwrap();
    let own = SharedHeap::with_len(1 << 20).unwrap();
    let e = MappedHeaps::new(Rank(0), own, vec![(Rank(1), fd)]).unwrap_err();
    assert!(e.to_string().contains("heap of rank 1"), "{e}");
}

#[test]
fn peers_find_what_is_announced_until_there_is_no_more_room() {
    let heaps = heaps(2, 1 << 20).unwrap();
    let found = |name| heaps[1].announced(Rank(0), name);
    assert_eq!(found(7), Announced::NotYet);
    heaps[0].announce(7, Some(1 << 16));
    // The same place to begin with, and the number that stands for no number.
    heaps[0].announce(7 + N_ENTRIES as u64, None);
    heaps[0].announce(0, Some(8));
    assert_eq!(found(7), Announced::At(1 << 16));
    assert_eq!(found(7 + N_ENTRIES as u64), Announced::Never);
    assert_eq!(found(0), Announced::At(8));
    assert_eq!(found(8), Announced::NotYet);
    assert_eq!(heaps[1].announced(Rank(5), 7), Announced::Never);
    for name in 0..MOST_ENTRIES as u64 {
        heaps[0].announce(1_000_000 + name, Some(64));
    }
    assert_eq!(found(1_000_000), Announced::At(64));
    assert_eq!(found(8), Announced::Never, "no more room");
    assert_eq!(found(7), Announced::At(1 << 16));
}

#[test]
fn words_of_a_heap_are_the_same_for_all_and_outlive_it() {
    let heaps = heaps(2, 1 << 20).unwrap();
    let block = heaps[0].block(100).unwrap();
    let place = heaps[0].place(block.start(), 100).unwrap();
    let own = heaps[0].words(Rank(0), place, 12).unwrap();
    let theirs = heaps[1].words(Rank(0), place, 12).unwrap();
    own.fill(1, &[3; 20]);
    own.store(0, 5);
    let mut out = [0; 20];
    assert_eq!(theirs.load(0), 5);
    theirs.read(1, &mut out);
    assert_eq!(out, [3; 20]);
    assert!(heaps[1].words(Rank(0), place + 1, 1).is_none());
    assert!(heaps[1].words(Rank(0), u64::MAX - 7, 1).is_none());
    assert!(heaps[1].words(Rank(7), place, 1).is_none());
    drop((heaps, block));
    theirs.store(0, 6);
    assert_eq!(own.load(0), 6);
}

#[test]
fn what_is_reserved_stays_as_it_is_when_its_rank_has_gone() {
    let mut heaps = heaps(2, 1 << 20).unwrap();
    let theirs = heaps.pop().unwrap();
    let place = heaps[0].reserve(5000).unwrap();
    heaps[0].words(Rank(0), place, 625).unwrap().store(624, 7);
    let block = heaps[0].block(5000).unwrap();
    assert_ne!(heaps[0].place(block.start(), 5000), Some(place));
    drop((heaps, block));
    let words = theirs.words(Rank(0), place, 625).unwrap();
    assert_eq!((words.load(0), words.load(624)), (0, 7));
    assert_eq!(theirs.reserve(1 << 30), None);
}

#[test]
fn what_is_promised_to_one_rank_is_not_promised_to_another() {
    let there = budget::available();
    let most = (there / 10) as usize;
    let heaps = heaps(2, there).unwrap();
    let outstanding = || {
        heaps[0]
            .own()
            .map
            .len()
            .min(promises::outstanding(&*heaps[0].own().map))
    };
    let before = outstanding();
    let first = heaps[0].block(6 * most).unwrap();
    assert!(outstanding() >= before + 6 * most as u64);
    // Nothing of it is touched.
    for rank in &heaps {
        assert!(rank.block(6 * most).is_none(), "{most} twelve times");
    }
    assert!(heaps[1].block(most).is_some(), "there is enough for that");
    drop(first);
    assert_eq!(outstanding(), before);
    assert!(heaps[1].block(6 * most).is_some());
    assert_eq!(outstanding(), before, "what was refused is not promised");
}

#[test]
fn touched_and_severed_memory_is_no_promise_any_more() {
    let heaps = heaps(1, 8 << 20).unwrap();
    let outstanding = || promises::outstanding(&*heaps[0].own().map);
    let before = outstanding();
    let mut a = buffer(&heaps[0], 1 << 20);
    assert_eq!(outstanding(), before + (1 << 20));
    a[..1 << 19].fill(1);
    assert!(outstanding() <= before + (1 << 19));
    heaps[0].sever(at(&a, 0), 1 << 20).unwrap();
    assert!(outstanding() <= before);
    drop(a);
    assert!(outstanding() <= before);
    assert!(heaps[0].reserve(1 << 16).is_some());
    assert_eq!(outstanding(), before + (1 << 16));
}

/// What the system's settings say is what it does, as far as these tests can know: on a system that gives memory files no large pages only that there are none.
#[test]
fn large_blocks_have_large_pages_where_the_system_gives_any() {
    use std::io::Write;
    let heaps = heaps(1, 32 << 20).unwrap();
    let mut a = buffer(&heaps[0], 16 << 20);
    a.fill(1);
    let large = large::in_use(a.as_ptr().addr(), a.len()).unwrap();
    match LargePages::here() {
        LargePages::Never => {
            assert_eq!(large, 0);
            let here = LargePages::here();
            writeln!(
                io::stderr(),
                "\nNOT TESTED: large pages; registered memory is in {here}"
            )
            .unwrap();
        }
        here => assert!(large > 0, "of 16 MiB none, where there should be {here}"),
    }
}
