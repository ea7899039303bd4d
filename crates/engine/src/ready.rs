//! Which step runs next: receives at once, everything else by priority, and nobody starves.
//!
//! The rule: receives first, as they came, whatever their priority; then the step of the largest priority, among equals the one that has waited longest; but every [`AGING`]-th pick is the one that has waited longest of all.

use std::collections::VecDeque;

/// Every so many-th pick goes to whoever has waited longest.
pub(crate) const AGING: u32 = 16;
/// Queues of priorities that are not in use are kept up to this number, so that their room is used again.
const KEPT: usize = 64;

/// A step of an operation that waits for nothing but its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) idx: usize,
    pub(crate) serial: u64,
    pub(crate) step: u32,
}

#[derive(Debug)]
struct Queue {
    priority: i32,
    /// With the number of its arrival.
    items: VecDeque<(u64, Item)>,
}

/// Steps that may run.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    receives: VecDeque<Item>,
    /// Largest priority first.
    queues: Vec<Queue>,
    arrivals: u64,
    picks: u32,
}

impl Ready {
    /// A receive that may be posted.
    pub(crate) fn push_receive(&mut self, item: Item) {
        self.receives.push_back(item);
    }

    /// Any other step.
    pub(crate) fn push(&mut self, priority: i32, item: Item) {
        self.arrivals += 1;
        let at = self.queues.partition_point(|q| q.priority > priority);
        if self.queues.get(at).is_none_or(|q| q.priority != priority) {
            if self.queues.len() >= KEPT {
                self.queues.retain(|q| !q.items.is_empty());
            }
            let at = self.queues.partition_point(|q| q.priority > priority);
            let items = VecDeque::new();
            self.queues.insert(at, Queue { priority, items });
            self.queues[at].items.push_back((self.arrivals, item));
        } else {
            self.queues[at].items.push_back((self.arrivals, item));
        }
    }

    /// Whether there is a receive to post.
    pub(crate) fn has_receive(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.receives.is_empty() && self.queues.iter().all(|q| q.items.is_empty())
    }

    /// The next step to run.
    pub(crate) fn pick(&mut self) -> Option<Item> {
        if let Some(item) = self.receives.pop_front() {
            return Some(item);
        }
        self.picks = self.picks.wrapping_add(1);
        let waiting = self.queues.iter_mut().filter(|q| !q.items.is_empty());
        let queue = if self.picks.is_multiple_of(AGING) {
            waiting.min_by_key(|q| q.items.front().map(|(arrival, _)| *arrival))
        } else {
            waiting.min_by_key(|q| std::cmp::Reverse(q.priority))
        };
        queue?.items.pop_front().map(|(_, item)| item)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.receives.clear();
        for queue in &mut self.queues {
            queue.items.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(step: u32) -> Item {
        Item {
            idx: 0,
            serial: 1,
            step,
        }
    }

    fn order(ready: &mut Ready) -> Vec<u32> {
        std::iter::from_fn(|| ready.pick())
            .map(|i| i.step)
            .collect()
    }

    #[test]
    fn larger_priorities_go_first_and_equals_in_order() {
        let mut ready = Ready::default();
        for (step, priority) in [(0, 0), (1, 5), (2, -3), (3, 5), (4, 0)] {
            ready.push(priority, item(step));
        }
        ready.push_receive(item(9));
        assert_eq!(order(&mut ready), [9, 1, 3, 0, 4, 2]);
        assert!(ready.is_empty());
    }

    #[test]
    fn every_sixteenth_pick_is_the_oldest() {
        let mut ready = Ready::default();
        ready.push(-1, item(1000));
        // Urgent work never ends: two come for each that goes.
        let mut served = None;
        for n in 0..AGING {
            ready.push(7, item(n));
            ready.push(7, item(n));
            if ready.pick() == Some(item(1000)) {
                served = Some(n);
            }
        }
        assert_eq!(served, Some(AGING - 1));
    }

    #[test]
    fn queues_of_unused_priorities_do_not_pile_up() {
        let mut ready = Ready::default();
        for p in 0..10_000 {
            ready.push(p, item(0));
            assert!(ready.pick().is_some());
        }
        assert!(ready.queues.len() <= KEPT);
    }
}
