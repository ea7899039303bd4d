//! Which bytes of a heap are whose: blocks that are handed out, room that is free, and pages that are shared no more. Pure.

use std::collections::BTreeMap;

/// Pages of this size are asked for in large blocks.
pub(super) const HUGE: u64 = 2 << 20;

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    /// What was asked for.
    bytes: u64,
    /// Whole pages.
    pages: u64,
}

/// The room of a heap, by place.
#[derive(Debug)]
pub(super) struct Table {
    page: u64,
    /// Free room: place and length, none touching the next.
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, Taken>,
    /// Ranges that were severed: place and length.
    severed: BTreeMap<u64, u64>,
}

impl Table {
    /// All of `lo..hi` is free.
    pub(super) fn new(lo: u64, hi: u64, page: u64) -> Table {
        Table {
            page,
            free: BTreeMap::from([(lo, hi - lo)]),
            taken: BTreeMap::new(),
            severed: BTreeMap::new(),
        }
    }

    /// Takes whole pages for `bytes`, the first room that fits; large ones begin where large pages do.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let pages = bytes.max(1).checked_next_multiple_of(self.page)?;
        let align = if pages >= HUGE { HUGE } else { self.page };
        let (lo, len, at) = self.free.iter().find_map(|(lo, len)| {
            let at = lo.checked_next_multiple_of(align)?;
            (at.checked_add(pages)? <= lo + len).then_some((*lo, *len, at))
        })?;
        self.free.remove(&lo);
        if at > lo {
            self.free.insert(lo, at - lo);
        }
        let end = at + pages;
        if lo + len > end {
            self.free.insert(end, lo + len - end);
        }
        self.taken.insert(at, Taken { bytes, pages });
        Some(at)
    }

    /// Takes a block back. Returns the ranges of it that are free again: all but what was severed, which stays out of use.
    pub(super) fn give(&mut self, at: u64) -> Vec<(u64, u64)> {
        let Some(block) = self.taken.remove(&at) else {
            return vec![];
        };
        let end = at + block.pages;
        let mut free = vec![];
        let mut lo = at;
        for (cut, len) in self.severed.range(at..end) {
            if *cut > lo {
                free.push((lo, cut - lo));
            }
            lo = cut + len;
        }
        if end > lo {
            free.push((lo, end - lo));
        }
        for (lo, len) in &free {
            self.join(*lo, *len);
        }
        free
    }

    /// Adds free room, as one piece with what it touches.
    fn join(&mut self, mut lo: u64, mut len: u64) {
        if let Some((before, n)) = self.free.range(..lo).next_back()
            && before + n == lo
        {
            (lo, len) = (*before, n + len);
        }
        if let Some(n) = self.free.remove(&(lo + len)) {
            len += n;
        }
        self.free.insert(lo, len);
    }

    /// Free room that is not to be used any more.
    pub(super) fn retire(&mut self, at: u64, len: u64) {
        let Some((lo, n)) = self.free.range(..=at).next_back().map(|(lo, n)| (*lo, *n)) else {
            return;
        };
        self.free.remove(&lo);
        for (lo, hi) in [(lo, at), (at + len, lo + n)] {
            if hi > lo {
                self.free.insert(lo, hi - lo);
            }
        }
    }

    /// These pages are shared no more. Whole pages.
    pub(super) fn sever(&mut self, at: u64, len: u64) {
        self.severed.insert(at, len);
    }

    /// What of a block was severed: places and lengths.
    pub(super) fn severed(&self, at: u64) -> Vec<(u64, u64)> {
        let Some(block) = self.taken.get(&at) else {
            return vec![];
        };
        let range = self.severed.range(at..at + block.pages);
        range.map(|(at, len)| (*at, *len)).collect()
    }

    /// Bytes of a block that others can reach: whole pages, but for what was severed.
    pub(super) fn shared(&self, at: u64) -> u64 {
        let pages = self.taken.get(&at).map_or(0, |block| block.pages);
        let severed = self.severed(at).iter().map(|(_, len)| len).sum();
        pages.saturating_sub(severed)
    }

    /// The block that a place is in, or after.
    pub(super) fn block_of(&self, place: u64) -> Option<u64> {
        self.taken.range(..=place).next_back().map(|(at, _)| *at)
    }

    /// Whether none of these bytes was severed.
    pub(super) fn is_shared(&self, at: u64, bytes: u64) -> bool {
        let before = self.severed.range(..at + bytes.max(1)).next_back();
        before.is_none_or(|(lo, len)| lo + len <= at)
    }

    /// Whether no other bytes in use are on the pages of these.
    pub(super) fn is_alone(&self, at: u64, bytes: u64) -> bool {
        let Some((lo, block)) = self.taken.range(..=at).next_back() else {
            return false;
        };
        let end = at + bytes;
        let last = lo + block.bytes;
        at.is_multiple_of(self.page)
            && end <= last
            && (end.is_multiple_of(self.page) || end == last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn table() -> Table {
        Table::new(16 * PAGE, 4 * HUGE, PAGE)
    }

    #[test]
    fn room_that_was_given_back_is_one_piece_again() {
        let mut t = table();
        let whole = t.free.clone();
        let a = t.take(1).unwrap();
        let b = t.take(3 * PAGE).unwrap();
        let c = t.take(2 * PAGE + 1).unwrap();
        assert_eq!((a, b, c), (16 * PAGE, 17 * PAGE, 20 * PAGE));
        // The hole is used again.
        t.give(b);
        assert_eq!(t.take(2 * PAGE), Some(b));
        t.give(a);
        t.give(c);
        assert_eq!(t.give(b), [(b, 2 * PAGE)]);
        assert_eq!(t.free, whole);
        assert!(t.give(b).is_empty(), "given back twice");
    }

    #[test]
    fn large_blocks_begin_at_large_pages_and_too_large_ones_nowhere() {
        let mut t = table();
        assert_eq!(t.take(HUGE), Some(HUGE));
        assert_eq!(t.take(HUGE + 1), Some(2 * HUGE));
        assert_eq!(t.take(HUGE), None);
        assert_eq!(t.take(u64::MAX), None);
        assert_eq!(t.take(PAGE), Some(16 * PAGE));
    }

    #[test]
    fn severed_pages_are_never_handed_out_again() {
        let mut t = table();
        let a = t.take(5 * PAGE).unwrap();
        t.sever(a + PAGE, 2 * PAGE);
        assert_eq!(t.severed(a), [(a + PAGE, 2 * PAGE)]);
        assert_eq!((t.shared(a), t.shared(a + PAGE)), (3 * PAGE, 0));
        assert_eq!(t.block_of(a + 4 * PAGE), Some(a));
        for (at, bytes, shared) in [
            (a, PAGE, true),
            (a, PAGE + 1, false),
            (a + 2 * PAGE, 1, false),
            (a + 3 * PAGE, PAGE, true),
            (a + PAGE, 0, false),
        ] {
            assert_eq!(t.is_shared(at, bytes), shared, "{bytes} bytes at {at}");
        }
        assert_eq!(t.give(a), [(a, PAGE), (a + 3 * PAGE, 2 * PAGE)]);
        assert_eq!(t.take(2 * PAGE), Some(a + 3 * PAGE));
        assert_eq!(t.take(PAGE), Some(a));
        assert_eq!(t.take(PAGE), Some(a + 5 * PAGE));
    }

    #[test]
    fn bytes_are_alone_where_no_neighbour_is_on_their_pages() {
        let mut t = table();
        let a = t.take(2 * PAGE + 100).unwrap();
        for (at, bytes, alone) in [
            (a, 2 * PAGE + 100, true),
            (a, 2 * PAGE, true),
            (a + PAGE, PAGE + 100, true),
            (a + PAGE, PAGE, true),
            (a, 100, false),
            (a + 4, PAGE, false),
            (a + 2 * PAGE, 100, true),
            (a + 2 * PAGE, 101, false),
            (a + 3 * PAGE, 1, false),
        ] {
            assert_eq!(t.is_alone(at, bytes), alone, "{bytes} bytes at {}", at - a);
        }
    }
}
