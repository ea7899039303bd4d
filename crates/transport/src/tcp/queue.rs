//! Which send a link's next frame belongs to.
//!
//! The order: larger priority first; of equal priority those of at most [`SMALL`] bytes first, which delay the others by next to nothing; then first come, first served.
//! The choice is made anew for every frame, so that an urgent message waits for what has been framed, and for nothing else.
//!
//! Nobody starves: of every [`SHARE`] frames that are made while sends wait that are not equally urgent, one belongs to the send that has waited longest.
//! So an urgent stream keeps 15 of 16 parts of the link, and n sends that are less urgent have begun and ended one after the other once the link has made 16 frames for each frame of theirs, whatever else is posted meanwhile.

use gaggle_core::XferId;
use std::{cmp::Reverse, collections::BinaryHeap};

/// A send of at most this many bytes goes before longer ones of its priority.
pub(super) const SMALL: u64 = 4096;
/// Of so many frames one belongs to the send that has waited longest.
pub(super) const SHARE: u32 = 16;

/// A send that could go next. The order of jobs is the one of the module's documentation; the greatest goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Job {
    pub(super) priority: i32,
    pub(super) small: bool,
    pub(super) order: Reverse<u64>,
    pub(super) id: XferId,
}

impl Job {
    fn urgency(&self) -> (i32, bool) {
        (self.priority, self.small)
    }
}

/// The sends of one link that could go next.
#[derive(Debug)]
pub(super) struct Queue {
    jobs: BinaryHeap<Job>,
    /// Not all are, or were since it was last empty, equally urgent.
    mixed: bool,
    /// Frames since the one that belonged to the longest waiting.
    since: u32,
}

impl Queue {
    pub(super) fn with_capacity(n: usize) -> Queue {
        Queue {
            jobs: BinaryHeap::with_capacity(n),
            mixed: false,
            since: 0,
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        self.mixed |= self
            .jobs
            .peek()
            .is_some_and(|top| top.urgency() != job.urgency());
        self.jobs.push(job);
    }

    /// The send whose turn it is, taken out. Whoever makes a frame of it says so with [`made`](Queue::made), and pushes it again if it is not over.
    pub(super) fn pop(&mut self) -> Option<Job> {
        if self.mixed && self.since + 1 >= SHARE {
            return self.pop_oldest();
        }
        let job = self.jobs.pop();
        if self.jobs.is_empty() {
            self.mixed = false;
        }
        job
    }

    /// One in [`SHARE`] times: looks at all of them.
    fn pop_oldest(&mut self) -> Option<Job> {
        let mut jobs = std::mem::take(&mut self.jobs).into_vec();
        let oldest = (0..jobs.len()).max_by_key(|i| jobs[*i].order);
        let job = oldest.map(|i| jobs.swap_remove(i));
        self.mixed = !jobs.is_empty();
        self.jobs = BinaryHeap::from(jobs);
        job
    }

    /// A frame has been made of the send that was taken out last.
    pub(super) fn made(&mut self) {
        // Without anybody else no time is owed.
        self.since = match self.mixed {
            true if self.since + 1 < SHARE => self.since + 1,
            _ => 0,
        };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        (self.mixed, self.since) = (false, 0);
    }
}

impl Extend<Job> for Queue {
    fn extend<I: IntoIterator<Item = Job>>(&mut self, jobs: I) {
        for job in jobs {
            self.push(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(priority: i32, small: bool, order: u64) -> Job {
        Job {
            priority,
            small,
            order: Reverse(order),
            id: XferId(order),
        }
    }

    /// Whose frames are made, when each send has so many.
    fn frames(queue: &mut Queue, mut of: impl FnMut(u64) -> u64, n: usize) -> Vec<u64> {
        let mut made = std::collections::HashMap::new();
        let mut row = Vec::new();
        while row.len() < n {
            let Some(job) = queue.pop() else {
                break;
            };
            let id = job.id.0;
            row.push(id);
            let count = made.entry(id).or_insert(0);
            *count += 1;
            if *count < of(id) {
                queue.push(job);
            }
            queue.made();
        }
        row
    }

    #[test]
    fn urgent_first_then_small_then_first_come() {
        let mut queue = Queue::with_capacity(4);
        queue.extend([
            job(0, false, 1),
            job(0, false, 2),
            job(0, true, 3),
            job(-1, true, 4),
            job(7, false, 5),
            job(7, false, 6),
        ]);
        assert_eq!(frames(&mut queue, |_| 1, 100), [5, 6, 3, 1, 2, 4]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_urgent_send_waits_for_no_frame_that_is_not_made_yet() {
        let mut queue = Queue::with_capacity(4);
        queue.push(job(0, false, 1));
        assert_eq!(frames(&mut queue, |_| 1000, 10), [1; 10]);
        queue.push(job(1, false, 2));
        assert_eq!(frames(&mut queue, |_| 5, 5), [2; 5]);
    }

    #[test]
    fn of_sixteen_frames_one_is_the_oldest_ones() {
        let mut queue = Queue::with_capacity(4);
        queue.extend([job(0, false, 1), job(3, false, 2), job(9, false, 3)]);
        let row = frames(&mut queue, |_| u64::MAX, 160);
        assert_eq!(row.iter().filter(|id| **id == 1).count(), 10);
        assert_eq!(row.iter().filter(|id| **id == 3).count(), 150);
        let turns: Vec<usize> = (0..160).filter(|i| row[*i] == 1).collect();
        assert!(turns.windows(2).all(|w| w[1] - w[0] == SHARE as usize));
    }

    #[test]
    fn every_send_ends_under_an_endless_urgent_stream() {
        let mut queue = Queue::with_capacity(4);
        let mut order = 0;
        for priority in [0, -5, 0, 3, -9] {
            order += 1;
            queue.push(job(priority, false, order));
        }
        let (old, frames_each) = (order, 7);
        let mut left = vec![frames_each; old as usize + 1];
        let mut ended = 0;
        let mut made = 0;
        while ended < old {
            // There is always another urgent one.
            order += 1;
            queue.push(job(100, order % 2 == 0, order));
            let job = queue.pop().expect("never empty");
            if job.id.0 <= old {
                left[job.id.0 as usize] -= 1;
                match left[job.id.0 as usize] {
                    0 => ended += 1,
                    _ => queue.push(job),
                }
            }
            queue.made();
            made += 1;
            assert!(made <= SHARE as u64 * old * frames_each, "{ended} ended");
        }
    }

    #[test]
    fn what_cannot_go_does_not_use_up_a_turn() {
        let mut queue = Queue::with_capacity(4);
        queue.extend([job(0, false, 1), job(0, false, 2), job(9, false, 3)]);
        assert_eq!(frames(&mut queue, |_| u64::MAX, 15), [3; 15]);
        // The oldest is void or blocked: no frame is made of it.
        assert_eq!(queue.pop().map(|j| j.id.0), Some(1));
        assert_eq!(frames(&mut queue, |_| u64::MAX, 2), [2, 3]);
    }

    #[test]
    fn equals_are_served_in_order_without_turns() {
        let mut queue = Queue::with_capacity(4);
        queue.extend((1..=3).map(|i| job(5, false, i)));
        let row = frames(&mut queue, |_| 40, 1000);
        let expected: Vec<u64> = (1..=3).flat_map(|i| [i; 40]).collect();
        assert_eq!(row, expected);
    }
}
