//! On which processors a rank may run, on which memory node (NUMA) these are, and what the ranks of a host make of that together.
//!
//! [`Cpus`] is a set of processors, [`Nodes`] is what the system says of a machine, [`Seat`] is what each rank tells the others when they meet, [`Seats`] is what follows.

mod nodes;
mod seat;

pub use nodes::{NoNodeSetting, NodeSetting, Nodes};
pub use seat::{Seat, Seats};

/// A set of processors, by the system's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus {
    /// Bit i of word w is processor 64·w + i; the last word is not 0.
    words: Vec<u64>,
}

impl Cpus {
    /// Numbers are below this.
    pub const MOST: u32 = 1 << 16;

    /// Those on which the calling thread may run; none where the system does not say. Linux only.
    pub fn own() -> Cpus {
        #[cfg(target_os = "linux")]
        {
            use rustix::thread::{CpuSet, sched_getaffinity};
            let Ok(set) = sched_getaffinity(None) else {
                return Cpus::default();
            };
            let all = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
            all.map(|cpu| cpu as u32).collect()
        }
        #[cfg(not(target_os = "linux"))]
        Cpus::default()
    }

    /// As the system writes them: `0-3,8-11`; white space around is nothing. `None` where that is no such list.
    pub fn parse(list: &str) -> Option<Cpus> {
        let list = list.trim();
        if list.is_empty() {
            return Some(Cpus::default());
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < Cpus::MOST);
        let mut all = Vec::new();
        for range in list.split(',') {
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(range)?, number(range)?),
            };
            if last < first {
                return None;
            }
            all.extend(first..=last);
        }
        Some(all.into_iter().collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.words).flat_map(|(word, bits)| {
            let there = move |bit: &u32| bits >> bit & 1 == 1;
            (0..64).filter(there).map(move |bit| 64 * word + bit)
        })
    }

    /// Those that are in both.
    pub fn both(&self, other: &Cpus) -> Cpus {
        self.iter().filter(|cpu| other.has(*cpu)).collect()
    }

    /// Whether this one is among them.
    pub fn has(&self, cpu: u32) -> bool {
        let word = self.words.get(cpu as usize / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Whether some are in both.
    pub fn meets(&self, other: &Cpus) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }
}

impl FromIterator<u32> for Cpus {
    /// # Panics
    /// Where a number is not below [`Cpus::MOST`].
    fn from_iter<I: IntoIterator<Item = u32>>(all: I) -> Cpus {
        let mut words = Vec::new();
        for cpu in all {
            assert!(cpu < Cpus::MOST, "processor {cpu}");
            let word = cpu as usize / 64;
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << (cpu % 64);
        }
        Cpus { words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_system_writes_them() {
        for (text, want) in [
            ("", &[][..]),
            ("\n", &[]),
            ("0\n", &[0]),
            ("0-3", &[0, 1, 2, 3]),
            ("0-1,8-9\n", &[0, 1, 8, 9]),
            ("5,3,3-4", &[3, 4, 5]),
            ("63-64,128", &[63, 64, 128]),
            ("65535", &[65_535]),
        ] {
            let cpus = Cpus::parse(text).unwrap();
            assert_eq!(cpus.iter().collect::<Vec<_>>(), want, "{text:?}");
            assert_eq!((cpus.len(), cpus.is_empty()), (want.len(), want.is_empty()));
        }
        for text in [
            "x",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "65536",
            "0-9999999",
            "1 2",
            "0x1",
        ] {
            assert_eq!(Cpus::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn sets_meet_where_they_share_a_processor() {
        let of = |text| Cpus::parse(text).unwrap();
        assert!(of("0-3").meets(&of("3-9")));
        assert!(!of("0-3").meets(&of("4-9,200")));
        assert!(!of("").meets(&of("0")));
        assert!(of("200").meets(&of("0,200")));
        assert_eq!(of("0-9,200").both(&of("8-11,200")), of("8-9,200"));
        assert_eq!(of("0-3").both(&of("100-200")), Cpus::default());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_thread_may_run_somewhere() {
        let most = std::thread::available_parallelism().unwrap().get();
        assert!(Cpus::own().len() >= most);
    }
}
