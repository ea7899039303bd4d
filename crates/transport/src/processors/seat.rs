//! What ranks tell each other of their processors when they meet, and what follows for all: pure.

use super::Cpus;
use std::collections::HashMap;

/// Where one rank runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Its memory node, where it is known.
    pub node: Option<u32>,
    /// The processors that it may use; none where they are not known.
    pub cpus: Cpus,
    /// How many of them at a time, which a control group may say.
    pub parallel: u32,
}

/// Bytes before the set.
const HEAD: usize = 8;

impl Seat {
    /// That of the calling thread, which is on `node`.
    pub fn here(node: Option<u32>) -> Seat {
        let parallel = std::thread::available_parallelism().map_or(1, |n| n.get());
        Seat {
            node,
            cpus: Cpus::own(),
            parallel: u32::try_from(parallel).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.node.unwrap_or(u32::MAX).to_le_bytes().to_vec();
        bytes.extend(self.parallel.to_le_bytes());
        bytes.extend(self.cpus.words.iter().flat_map(|w| w.to_le_bytes()));
        bytes
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Seat> {
        let (head, set) = bytes.split_at_checked(HEAD)?;
        let (words, rest) = set.as_chunks::<8>();
        let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let known = words.len() <= Cpus::MOST as usize / 64 && words.last() != Some(&[0; 8]);
        if !rest.is_empty() || !known {
            return None;
        }
        Some(Seat {
            node: number(0).filter(|node| *node != u32::MAX),
            cpus: Cpus {
                words: words.iter().map(|w| u64::from_le_bytes(*w)).collect(),
            },
            parallel: number(4)?,
        })
    }
}

/// What the seats of all ranks come to; equal on every rank but for [`Seats::here_crowded`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Each rank's memory node, numbered so that it is the same only for ranks of one host and node; `None` where some rank does not know its own, or no host's ranks are on several.
    pub nodes: Option<Vec<u32>>,
    /// On some host not every rank can have a processor of its own.
    pub crowded: bool,
    /// On this rank's host.
    pub here_crowded: bool,
}

impl Seats {
    /// `hosts` and `seats` are by rank.
    pub fn of(rank: usize, hosts: &[u32], seats: &[Seat]) -> Seats {
        let mut on: HashMap<u32, Vec<&Seat>> = HashMap::new();
        for (host, seat) in hosts.iter().zip(seats) {
            on.entry(*host).or_default().push(seat);
        }
        let crowded = |host: &u32| on.get(host).is_some_and(|seats| is_crowded(seats));
        Seats {
            nodes: nodes(hosts, seats),
            crowded: on.keys().any(crowded),
            here_crowded: hosts.get(rank).is_some_and(crowded),
        }
    }
}

fn nodes(hosts: &[u32], seats: &[Seat]) -> Option<Vec<u32>> {
    let mut numbers: HashMap<(u32, u32), u32> = HashMap::new();
    let mut all = Vec::with_capacity(hosts.len());
    for (host, seat) in hosts.iter().zip(seats) {
        let next = numbers.len() as u32;
        all.push(*numbers.entry((*host, seat.node?)).or_insert(next));
    }
    let mut there: Vec<u32> = hosts.to_vec();
    there.sort_unstable();
    there.dedup();
    (numbers.len() > there.len()).then_some(all)
}

/// Whether the ranks of a host cannot each have a processor of their own.
fn is_crowded(seats: &[&Seat]) -> bool {
    let few = |seat: &&Seat| (seat.parallel as usize) < seats.len();
    // A set that is not known, or of which not all may be used at a time, limits by its number.
    let limited = |seat: &&Seat| seat.cpus.is_empty() || (seat.parallel as usize) < seat.cpus.len();
    seats.iter().filter(|seat| limited(seat)).any(few) || !is_matched(seats)
}

/// Whether each can be given a processor of its set that nobody else is given: augmenting paths, the smallest sets first.
fn is_matched(seats: &[&Seat]) -> bool {
    let mut sets: Vec<&Cpus> = seats
        .iter()
        .map(|s| &s.cpus)
        .filter(|c| !c.is_empty())
        .collect();
    if sets.windows(2).all(|pair| pair[0] == pair[1]) {
        return sets.first().is_none_or(|all| sets.len() <= all.len());
    }
    sets.sort_by_key(|set| set.len());
    let mut given: HashMap<u32, usize> = HashMap::new();
    (0..sets.len()).all(|seat| seek(&sets, seat, &mut given))
}

/// Gives one more rank a processor, for which others may have to move.
fn seek(sets: &[&Cpus], seat: usize, given: &mut HashMap<u32, usize>) -> bool {
    // How each processor was come to: whose turn it was then.
    let mut from: HashMap<u32, usize> = HashMap::new();
    let mut turns = vec![seat];
    while let Some(turn) = turns.pop() {
        for cpu in sets[turn].iter() {
            if from.contains_key(&cpu) {
                continue;
            }
            from.insert(cpu, turn);
            let Some(&holder) = given.get(&cpu) else {
                return move_along(seat, cpu, &from, given);
            };
            turns.push(holder);
        }
    }
    false
}

/// `free` goes to whoever came to it, whose own goes to whoever came to that, and so on back to `seat`.
fn move_along(
    seat: usize,
    free: u32,
    from: &HashMap<u32, usize>,
    given: &mut HashMap<u32, usize>,
) -> bool {
    let mut cpu = free;
    loop {
        let taker = from[&cpu];
        let before = given.iter().find(|(_, holder)| **holder == taker);
        let before = before.map(|(cpu, _)| *cpu);
        given.insert(cpu, taker);
        match before {
            Some(left) if taker != seat => cpu = left,
            _ => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(node: Option<u32>, cpus: &str) -> Seat {
        let cpus = Cpus::parse(cpus).unwrap();
        Seat {
            node,
            parallel: cpus.len() as u32,
            cpus,
        }
    }

    #[test]
    fn seats_are_read_as_they_are_written() {
        for seat in [
            Seat::default(),
            seat(Some(0), "0"),
            seat(Some(3), "0-63"),
            seat(None, "5,64,1000"),
            Seat::here(Some(1)),
        ] {
            assert_eq!(Seat::of_bytes(&seat.to_bytes()), Some(seat));
        }
        for bad in [&[][..], &[0; 7], &[0; 9], &[0; 16], &[1; 8 + 8 * 1025]] {
            assert_eq!(Seat::of_bytes(bad), None, "{} bytes", bad.len());
        }
    }

    #[test]
    fn nodes_are_numbered_by_host_and_node() {
        let of = |hosts: &[u32], nodes: &[Option<u32>]| {
            let seats: Vec<Seat> = nodes.iter().map(|n| seat(*n, "0")).collect();
            Seats::of(0, hosts, &seats).nodes
        };
        let (a, b) = (Some(4), Some(9));
        assert_eq!(of(&[0, 0, 0, 0], &[b, a, b, a]), Some(vec![0, 1, 0, 1]));
        // The same number on another host is another node.
        assert_eq!(of(&[0, 0, 1, 1], &[a, b, a, a]), Some(vec![0, 1, 2, 2]));
        assert_eq!(of(&[0, 0, 1, 1], &[a, a, b, b]), None, "one for each host");
        assert_eq!(of(&[0, 0], &[a, None]), None);
        assert_eq!(of(&[0, 0], &[a, a]), None);
        assert_eq!(of(&[], &[]), None);
    }

    fn check(cpus: &[&str], crowded: bool) {
        let seats: Vec<Seat> = cpus.iter().map(|c| seat(None, c)).collect();
        let hosts = vec![0; seats.len()];
        let got = Seats::of(0, &hosts, &seats);
        assert_eq!(
            (got.crowded, got.here_crowded),
            (crowded, crowded),
            "{cpus:?}"
        );
    }

    #[test]
    fn a_host_is_crowded_where_not_every_rank_can_have_a_processor() {
        check(&["0-1"; 2], false);
        check(&["0-1"; 3], true);
        // Bound to their own, and two to one of many.
        check(&["0", "1", "2", "3"], false);
        check(&["0", "0"], true);
        check(&["0", "0", "1-7"], true);
        check(&["0-1", "0-1", "0-1", "2-9"], true);
        check(&["0-1", "0-1", "1-2", "0-3"], false);
        // Others must move for the last one.
        check(&["0-1", "1-2", "2-3", "3-4", "0,4"], false);
        check(&["0-1", "1-2", "2,0", "0-2"], true);
        check(&["5", "5-6", "6-7", "5-7"], true);
        check(&[""; 0], false);
    }

    #[test]
    fn a_limit_of_processors_at_a_time_counts() {
        let limited = Seat {
            parallel: 2,
            ..seat(None, "0-7")
        };
        let of = |n: usize| Seats::of(0, &vec![0; n], &vec![limited.clone(); n]).crowded;
        assert!(!of(2));
        assert!(of(3));
        // Where sets are not known, their number.
        let unknown = Seat {
            parallel: 2,
            ..Seat::default()
        };
        let of = |n: usize| Seats::of(0, &vec![0; n], &vec![unknown.clone(); n]).crowded;
        assert!(!of(2));
        assert!(of(3));
    }

    #[test]
    fn a_crowded_host_is_everybodys_and_its_own() {
        let seats = [seat(None, "0"), seat(None, "0"), seat(None, "0-3")];
        let of = |rank| {
            let s = Seats::of(rank, &[0, 0, 1], &seats);
            (s.crowded, s.here_crowded)
        };
        assert_eq!(
            [of(0), of(1), of(2)],
            [(true, true), (true, true), (true, false)]
        );
    }

    /// As many as any choice of processors serves, tried out one by one.
    #[test]
    fn matching_is_what_trying_everything_finds() {
        fn tries(sets: &[Vec<u32>], taken: u32) -> bool {
            match sets.split_first() {
                None => true,
                Some((set, others)) => set
                    .iter()
                    .any(|cpu| taken >> cpu & 1 == 0 && tries(others, taken | 1 << cpu)),
            }
        }
        let mut state = 7u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as u32
        };
        let (mut some, mut none) = (0, 0);
        for _ in 0..2000 {
            let n = 1 + next() % 6;
            let sets: Vec<Vec<u32>> = (0..n)
                .map(|_| {
                    let bits = 1 + next() % 63;
                    (0..6).filter(|b| bits >> b & 1 == 1).collect()
                })
                .collect();
            let seats: Vec<Seat> = sets
                .iter()
                .map(|set| Seat {
                    cpus: set.iter().copied().collect(),
                    parallel: set.len() as u32,
                    node: None,
                })
                .collect();
            let want = tries(&sets, 0);
            assert_eq!(
                is_matched(&seats.iter().collect::<Vec<_>>()),
                want,
                "{sets:?}"
            );
            some += u32::from(want);
            none += u32::from(!want);
        }
        assert!(some > 30 && none > 30, "{some} {none}");
    }
}
