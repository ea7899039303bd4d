//! When operations have to be looked at: a heap of times, in which what has become void is dropped when it comes up.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

/// A time at which an operation wants to be looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Alarm {
    pub(crate) at: Duration,
    pub(crate) idx: usize,
    pub(crate) serial: u64,
}

/// All alarms. An alarm is void when its operation is over or wants to be looked at at another time; the owner says which.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<Alarm>>);

/// Below this many, void alarms are not looked for.
const FEW: usize = 64;

impl Timers {
    /// Adds an alarm. Where void ones may outnumber the `live` operations they are dropped first, so that the heap stays within twice their number.
    pub(crate) fn set(&mut self, alarm: Alarm, live: usize, valid: impl Fn(&Alarm) -> bool) {
        if self.0.len() > FEW + 2 * live {
            self.0.retain(|Reverse(alarm)| valid(alarm));
        }
        self.0.push(Reverse(alarm));
    }

    /// The next alarm that is not void.
    pub(crate) fn next(&mut self, valid: impl Fn(&Alarm) -> bool) -> Option<Duration> {
        while let Some(Reverse(alarm)) = self.0.peek() {
            if valid(alarm) {
                return Some(alarm.at);
            }
            self.0.pop();
        }
        None
    }

    /// Takes out an alarm that is due; it may be void.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Alarm> {
        match self.0.peek() {
            Some(Reverse(alarm)) if alarm.at <= now => self.0.pop().map(|Reverse(alarm)| alarm),
            _ => None,
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn void_alarms_are_dropped() {
        let mut timers = Timers::default();
        let ms = Duration::from_millis;
        for serial in 0..100_000 {
            let alarm = Alarm {
                at: ms(1000 + serial),
                idx: 0,
                serial,
            };
            // Only the newest is valid, as for an operation that is started again and again.
            timers.set(alarm, 1, |a| a.serial + 1 >= serial);
            assert!(timers.len() <= FEW + 3);
        }
        assert_eq!(timers.next(|a| a.serial == 99_999), Some(ms(100_999)));
        assert_eq!(timers.due(ms(100_998)), None);
        assert_eq!(timers.due(ms(100_999)).map(|a| a.serial), Some(99_999));
        assert_eq!(timers.due(Duration::MAX), None);
    }
}
