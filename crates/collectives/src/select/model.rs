//! The cost model: how long an algorithm takes, from its rounds, messages and bytes.

use super::eligible::{BOARD_BYTES, Facts};
use super::{LinkClass, Question, Tables};
use gaggle_core::{Algorithm, Codec, OpKind};

/// How the ranks are spread over hosts, and over the memory nodes of a host that all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    hosts: Spread,
    /// Where there are several.
    nodes: Option<Spread>,
}

/// How ranks are spread over hosts or nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    /// How many there are.
    n: u32,
    /// Ranks on the fullest one.
    most: u32,
    /// Ranks on the emptiest one.
    least: u32,
    /// Whether all have as many ranks.
    even: bool,
    /// Of the ranks that follow each other around the ring, how many links leave the one that has the most such links.
    ring_links: u32,
}

impl Spread {
    fn of(world: u32, numbers: Option<&[u32]>) -> Spread {
        let world = world.max(1);
        let alone = Spread {
            n: world,
            most: 1,
            least: 1,
            even: true,
            ring_links: 1,
        };
        let Some(hosts) = numbers.filter(|h| h.len() == world as usize) else {
            return alone;
        };
        let Some(&first) = hosts.first() else {
            return alone;
        };
        if hosts.iter().all(|&h| h == first) {
            return Spread {
                n: 1,
                most: world,
                least: world,
                even: true,
                ring_links: 0,
            };
        }
        let next = hosts.iter().cycle().skip(1);
        let mut all: Vec<(u32, bool)> = hosts.iter().zip(next).map(|(a, b)| (*a, a != b)).collect();
        all.sort_unstable();
        let (mut n, mut most, mut least, mut ring_links) = (0, 0, u32::MAX, 0);
        for ranks in all.chunk_by(|a, b| a.0 == b.0) {
            let here = ranks.len() as u32;
            n += 1;
            most = most.max(here);
            least = least.min(here);
            let leaving = ranks.iter().filter(|(_, leaves)| *leaves).count() as u32;
            ring_links = ring_links.max(leaving);
        }
        Spread {
            n,
            most,
            least,
            even: most == least,
            ring_links,
        }
    }
}

impl Hosts {
    pub(super) fn of(question: &Question<'_>) -> Hosts {
        let nodes = question.places().nodes_of_one_host();
        Hosts {
            hosts: Spread::of(question.world, question.hosts),
            nodes: nodes
                .filter(|nodes| nodes.len() == question.world as usize)
                .map(|nodes| Spread::of(question.world, Some(nodes))),
        }
    }

    /// What two-level plans keep together.
    fn groups(&self) -> &Spread {
        self.nodes.as_ref().unwrap_or(&self.hosts)
    }

    /// With how many ranks of other hosts a rank of few on its own exchanges something; 0 where that grows no faster than a logarithm.
    pub(super) fn far_peers(&self, algorithm: Algorithm, world: u32, radix: u32) -> u32 {
        let elsewhere = world.saturating_sub(self.hosts.least);
        match algorithm {
            Algorithm::Knomial => {
                let most = u64::from(radix - 1) * levels(world.into(), radix.into());
                elsewhere.min(u32::try_from(most).unwrap_or(u32::MAX))
            }
            Algorithm::Direct | Algorithm::Exchange => elsewhere,
            Algorithm::TwoLevelDirect => self.hosts.n.saturating_sub(1),
            _ => 0,
        }
    }

    pub(super) fn facts(&self, tables: &Tables) -> Facts {
        Facts {
            two_levels: self.groups().n > 1 && self.groups().most > 1,
            mapped: self.hosts.n == 1 && tables.mapped,
        }
    }
}

/// What happens on the longest way through the plans.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Messages that follow each other.
    rounds: u64,
    /// Messages sent and received, each counted, by the threads on that way.
    messages: u64,
    /// Of these, how many are received while the last one is under way: what they cost is hidden by the latency, as far as that goes.
    hidden: u64,
    /// Bytes through the busiest rank's link, one way.
    bytes: u64,
    /// Operand bytes that the busiest rank folds.
    folded: u64,
    /// Plain bytes that the busiest rank encodes and decodes.
    coded: u64,
    /// Plain bytes that the busiest rank copies.
    copied: u64,
    /// Looks at another rank's lines in memory that both have mapped, each with what it must wait for.
    looks: u64,
    /// Bytes that the busiest rank reads and writes in such memory, its own included.
    mapped: u64,
}

impl Work {
    /// In nanoseconds, where `share` ranks use one link of the class.
    fn on(&self, class: &LinkClass, share: u64) -> u64 {
        self.turns(class).saturating_add(self.volume(class, share))
    }

    /// What messages take, however short.
    fn turns(&self, class: &LinkClass) -> u64 {
        let waiting = self.rounds.saturating_mul(class.latency_ns);
        let busy = self.messages.saturating_mul(class.message_ns);
        let hidden = self.hidden.saturating_mul(class.message_ns);
        let looks = self.looks.saturating_mul(class.look_ns);
        waiting
            .saturating_add(busy.saturating_sub(hidden.min(waiting)))
            .saturating_add(looks)
    }

    /// What their bytes take.
    fn volume(&self, class: &LinkClass, share: u64) -> u64 {
        let through = |bytes: u64, per_us: u64| {
            let ns = u128::from(bytes) * 1000 / u128::from(per_us.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        [
            through(self.bytes.saturating_mul(share.max(1)), class.bytes_per_us),
            through(self.folded, class.fold_bytes_per_us),
            through(self.coded, class.codec_bytes_per_us),
            through(self.copied, class.fold_bytes_per_us),
            through(self.mapped, class.mapped_bytes_per_us),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

/// ⌈log_radix(n)⌉.
fn levels(n: u64, radix: u64) -> u64 {
    let radix = radix.max(2);
    let (mut levels, mut reach) = (0, 1u64);
    while reach < n {
        reach = reach.saturating_mul(radix);
        levels += 1;
    }
    levels
}

/// More bytes or slices than these make no difference to the choice, and products of fewer are numbers.
const MOST_BYTES: u64 = 1 << 50;
const MOST_SLICES: u64 = 1 << 24;

/// What is asked for, on one level: among how many, how many bytes, in slices of how many.
#[derive(Clone, Copy)]
struct Level {
    p: u64,
    /// Plain bytes of the whole vector.
    s: u64,
    slice: u64,
    radix: u64,
}

impl Level {
    fn log(&self) -> u64 {
        levels(self.p, 2)
    }
    /// 1 where P is no power of two.
    fn beyond(&self) -> u64 {
        u64::from(!self.p.is_power_of_two())
    }
    fn others(&self) -> u64 {
        self.p.saturating_sub(1)
    }
    /// The bytes of all shares but one.
    fn but_own(&self) -> u64 {
        self.s - self.s / self.p.max(1)
    }
    fn slices(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.slice.max(1)).clamp(1, MOST_SLICES)
    }

    fn all_reduce(&self, algorithm: Algorithm) -> Work {
        let (log, beyond, s) = (self.log(), self.beyond(), self.s);
        match algorithm {
            Algorithm::Ring => Work {
                rounds: 2 * self.others(),
                messages: 4 * self.others() * self.slices(s / self.p.max(1)),
                bytes: 2 * self.but_own(),
                folded: self.but_own(),
                ..Work::default()
            },
            Algorithm::RecursiveDoubling => Work {
                rounds: log + beyond,
                messages: 2 * (log + beyond) * self.slices(s),
                bytes: s.saturating_mul(log + beyond),
                folded: s.saturating_mul(log),
                ..Work::default()
            },
            Algorithm::HalvingDoubling => Work {
                rounds: 2 * log,
                messages: 4 * log.max(self.slices(self.but_own())) + beyond * 4 * self.slices(s),
                bytes: 2 * self.but_own() + beyond * 2 * s,
                folded: self.but_own() + beyond * s,
                ..Work::default()
            },
            Algorithm::Binomial | Algorithm::Knomial => {
                let (up, down) = (self.reduce(algorithm), self.broadcast(algorithm));
                up.then(down)
            }
            Algorithm::DoubleTree => {
                let n = self.slices(s / 2);
                Work {
                    // Up and down both trees; the first slice goes all the way, the others follow.
                    rounds: 2 * log,
                    messages: 4 * log + 6 * n,
                    bytes: (2 * s).saturating_add(2 * log * self.slice.min(s)),
                    folded: s,
                    ..Work::default()
                }
            }
            Algorithm::Exchange => Work {
                rounds: u64::from(self.p > 1),
                messages: 2 * self.others() * self.slices(s),
                hidden: self.others().saturating_sub(1),
                bytes: s.saturating_mul(self.others()),
                folded: s.saturating_mul(self.others()),
                ..Work::default()
            },
            // Direct.
            _ => Work {
                rounds: 2 * u64::from(self.p > 1),
                messages: 4 * self.others() * self.slices(s / self.p.max(1)),
                hidden: 2 * self.others().saturating_sub(1),
                bytes: 2 * self.but_own(),
                folded: self.but_own(),
                ..Work::default()
            },
        }
    }

    fn reduce(&self, algorithm: Algorithm) -> Work {
        let (log, s) = (self.log(), self.s);
        match algorithm {
            Algorithm::Binomial => Work {
                rounds: log,
                messages: 2 * log * self.slices(s),
                bytes: s.saturating_mul(log),
                folded: s.saturating_mul(log),
                ..Work::default()
            },
            Algorithm::Knomial => {
                let levels = levels(self.p, self.radix);
                let at_root = levels * (self.radix - 1).min(self.others());
                Work {
                    rounds: levels,
                    messages: (at_root + levels) * self.slices(s),
                    bytes: s.saturating_mul(at_root),
                    folded: s.saturating_mul(at_root),
                    ..Work::default()
                }
            }
            Algorithm::HalvingDoubling => Work {
                rounds: 2 * log,
                messages: 4 * log,
                bytes: 2 * self.but_own() + self.beyond() * s,
                folded: self.but_own() + self.beyond() * s,
                ..Work::default()
            },
            Algorithm::DoubleTree => Work {
                rounds: log,
                messages: 2 * log + 3 * self.slices(s / 2),
                bytes: s.saturating_add(log * self.slice.min(s)),
                folded: s,
                ..Work::default()
            },
            // Direct: everything meets at the root.
            _ => Work {
                rounds: u64::from(self.p > 1),
                messages: (self.others() + 1) * self.slices(s),
                bytes: s.saturating_mul(self.others()),
                folded: s.saturating_mul(self.others()),
                ..Work::default()
            },
        }
    }

    fn broadcast(&self, algorithm: Algorithm) -> Work {
        let s = self.s;
        match algorithm {
            Algorithm::Binomial | Algorithm::Knomial | Algorithm::DoubleTree => Work {
                folded: 0,
                ..self.reduce(algorithm)
            },
            Algorithm::Pipelined => {
                let hops = self.others().saturating_sub(1);
                Work {
                    rounds: self.others(),
                    messages: 2 * (hops + self.slices(s)),
                    bytes: s.saturating_add(hops.saturating_mul(self.slice.min(s))),
                    ..Work::default()
                }
            }
            _ => Work {
                rounds: u64::from(self.p > 1),
                messages: (self.others() + 1) * self.slices(s),
                bytes: s.saturating_mul(self.others()),
                ..Work::default()
            },
        }
    }

    /// Gather and scatter: all parts but one pass the root.
    fn rooted(&self, algorithm: Algorithm) -> Work {
        let slices = self.slices(self.s / self.p.max(1));
        match algorithm {
            Algorithm::Binomial => Work {
                rounds: self.log(),
                messages: 2 * self.log().max(self.slices(self.but_own())),
                bytes: self.but_own(),
                copied: self.but_own(),
                ..Work::default()
            },
            _ => Work {
                rounds: u64::from(self.p > 1),
                messages: (self.others() + 1) * slices,
                bytes: self.but_own(),
                ..Work::default()
            },
        }
    }

    fn all_gather(&self, algorithm: Algorithm) -> Work {
        let each = Work {
            messages: 2 * self.others() * self.slices(self.s / self.p.max(1)),
            bytes: self.but_own(),
            ..Work::default()
        };
        match algorithm {
            Algorithm::Ring => Work {
                rounds: self.others(),
                ..each
            },
            Algorithm::RecursiveDoubling | Algorithm::Bruck => Work {
                rounds: self.log(),
                messages: 2 * self.log().max(self.slices(self.but_own())),
                copied: match algorithm {
                    Algorithm::Bruck => self.s,
                    _ => 0,
                },
                ..each
            },
            _ => Work {
                rounds: u64::from(self.p > 1),
                hidden: self.others().saturating_sub(1),
                ..each
            },
        }
    }

    fn reduce_scatter(&self, algorithm: Algorithm) -> Work {
        let gathered = match algorithm {
            Algorithm::HalvingDoubling => self.all_gather(Algorithm::RecursiveDoubling),
            other => self.all_gather(other),
        };
        match algorithm {
            Algorithm::HalvingDoubling => Work {
                bytes: gathered.bytes + self.beyond() * self.s,
                folded: self.but_own() + self.beyond() * self.s,
                ..gathered
            },
            _ => Work {
                folded: self.but_own(),
                ..gathered
            },
        }
    }

    fn all_to_all(&self, algorithm: Algorithm) -> Work {
        match algorithm {
            Algorithm::Bruck => Work {
                rounds: self.log(),
                messages: 2 * self.slices(self.s / 2) * self.log(),
                bytes: self.log().saturating_mul(self.s / 2),
                copied: self.s.saturating_mul(2 + self.log()),
                ..Work::default()
            },
            _ => self.all_gather(Algorithm::Direct),
        }
    }

    /// Over memory that all ranks have mapped: on their boards, where buffers lie, or through staging memory.
    ///
    /// Where it is fused the engine takes boards for what fits them, and else sees only when all have met whether somebody's buffer is ordinary: the model goes by buffers that are mapped.
    fn fused(&self, kind: OpKind, algorithm: Algorithm) -> Work {
        let (s, but_own) = (self.s, self.but_own());
        let own = match kind {
            OpKind::AllGather | OpKind::Gather => s / self.p.max(1),
            _ => s,
        };
        let boards =
            algorithm == Algorithm::Boards || (algorithm == Algorithm::Fused && own <= BOARD_BYTES);
        if boards {
            // Each shows its own and reads everybody's.
            let read = match kind {
                OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce => {
                    s.saturating_mul(self.p)
                }
                _ => s,
            };
            return Work {
                looks: self.others(),
                mapped: own.saturating_add(read),
                ..Work::default()
            };
        }
        // Of an all-reduce each reads its share of all, and writes it for all.
        let where_it_lies = match kind {
            OpKind::AllReduce
            | OpKind::AllGather
            | OpKind::Broadcast
            | OpKind::AllToAll
            | OpKind::Gather
            | OpKind::Scatter => s.saturating_mul(2),
            _ => s.saturating_add(own / self.p.max(1)),
        };
        // What others need of a rank's is copied in, and what is theirs copied out.
        let copies = match kind {
            OpKind::AllReduce => but_own.saturating_mul(4),
            OpKind::ReduceScatter | OpKind::AllToAll => but_own.saturating_mul(2),
            _ => own.saturating_mul(2),
        };
        match algorithm {
            Algorithm::Staged => Work {
                looks: (2 * self.others()).saturating_mul(1 + self.slices(s)),
                mapped: where_it_lies.saturating_add(copies),
                ..Work::default()
            },
            _ => Work {
                looks: 2 * self.others(),
                mapped: where_it_lies,
                ..Work::default()
            },
        }
    }

    fn of(&self, question: &Question<'_>, algorithm: Algorithm) -> Work {
        if algorithm.planned() == Algorithm::Fused {
            return self.fused(question.kind, algorithm);
        }
        match question.kind {
            OpKind::AllReduce => self.all_reduce(algorithm),
            OpKind::Reduce => self.reduce(algorithm),
            OpKind::Broadcast => self.broadcast(algorithm),
            OpKind::Gather | OpKind::Scatter => self.rooted(algorithm),
            OpKind::AllGather => self.all_gather(algorithm),
            OpKind::ReduceScatter => self.reduce_scatter(algorithm),
            OpKind::AllToAll => self.all_to_all(algorithm),
            OpKind::Barrier => Work {
                rounds: self.log(),
                messages: 2 * self.log(),
                ..Work::default()
            },
            OpKind::Mix | OpKind::NeighbourGather | OpKind::HierarchicalMix => {
                let degree = u64::from(question.degree);
                let averages = question.kind != OpKind::NeighbourGather;
                Work {
                    rounds: 1,
                    messages: 2 * degree * self.slices(self.s),
                    bytes: self.s.saturating_mul(degree),
                    folded: u64::from(averages) * self.s.saturating_mul(degree + 1),
                    ..Work::default()
                }
            }
            OpKind::Message => Work {
                rounds: 1,
                messages: 1 + self.slices(self.s),
                bytes: self.s,
                ..Work::default()
            },
        }
    }
}

impl Level {
    /// Bytes through the busiest rank's link that are partial results; what is given counts as some where it is a sum already, of the ranks of a host.
    fn partial(&self, kind: OpKind, algorithm: Algorithm, given: bool) -> u64 {
        let (s, but_own) = (self.s, self.but_own());
        let whole = match (kind, algorithm) {
            (_, Algorithm::Fused) => 0,
            (OpKind::AllReduce, Algorithm::RecursiveDoubling) => {
                s.saturating_mul(self.log() + self.beyond())
            }
            (OpKind::AllReduce | OpKind::Reduce, Algorithm::Binomial | Algorithm::Knomial) => {
                self.reduce(algorithm).bytes
            }
            (OpKind::AllReduce | OpKind::Reduce, Algorithm::DoubleTree) => s,
            (OpKind::AllReduce, Algorithm::Exchange) => s.saturating_mul(self.others()),
            (OpKind::Reduce, Algorithm::Direct) => s.saturating_mul(self.others()),
            (OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter, _) => but_own,
            _ => 0,
        };
        if given {
            return whole;
        }
        // What is as the caller gave it.
        let first = match (kind, algorithm) {
            (OpKind::ReduceScatter, Algorithm::Ring) => s / self.p.max(1),
            (_, Algorithm::Ring) => 0,
            (_, Algorithm::HalvingDoubling | Algorithm::DoubleTree) if self.p > 2 => s / 2,
            // Leaves.
            (_, Algorithm::Knomial) => {
                let leaves = (self.radix - 1).min(self.others());
                s.saturating_mul(leaves)
            }
            (_, Algorithm::RecursiveDoubling | Algorithm::Binomial) => s,
            _ => whole,
        };
        whole.saturating_sub(first)
    }
}

impl Work {
    /// Around a ring every link has one sender all the time; where many send to one at once, or partners change, links are filled less well: with 4 and 8 hosts by 2 to 15 % (docs/benchmarks.md, rate-limited hosts). A 16th is taken.
    fn crowded(self, question: &Question<'_>, algorithm: Algorithm, ranks: u64) -> Work {
        let steady = matches!(algorithm, Algorithm::Ring);
        match question.kind {
            OpKind::AllReduce if ranks > 2 && !steady => Work {
                bytes: self.bytes.saturating_add(self.bytes / 16),
                ..self
            },
            _ => self,
        }
    }

    /// One after the other.
    fn then(self, other: Work) -> Work {
        Work {
            rounds: self.rounds + other.rounds,
            messages: self.messages + other.messages,
            hidden: self.hidden + other.hidden,
            bytes: self.bytes.saturating_add(other.bytes),
            folded: self.folded.saturating_add(other.folded),
            coded: self.coded.saturating_add(other.coded),
            copied: self.copied.saturating_add(other.copied),
            looks: self.looks + other.looks,
            mapped: self.mapped.saturating_add(other.mapped),
        }
    }

    /// Where ranks share processors, all that is done costs everybody's time: with two ranks to a processor, what each of them does comes twice on the longest way; along trees of few messages that way is as long by itself.
    ///
    /// What comes from several at once has left the caches when it is used, around a ring it comes from one: a quarter (docs/benchmarks.md, chosen against forced).
    fn shared(self, algorithm: Algorithm) -> Work {
        let eighths = |n: u64, by: u64| {
            let n = u128::from(n) * u128::from(by) / 8;
            u64::try_from(n).unwrap_or(u64::MAX)
        };
        let (bytes, rest) = match algorithm {
            Algorithm::Binomial | Algorithm::Knomial | Algorithm::Pipelined => return self,
            // 2S(P−1) bytes in all, as around a ring, of which a rank sends no more than 2S.
            Algorithm::DoubleTree => (15, 12),
            Algorithm::Ring => (16, 16),
            _ => (20, 16),
        };
        Work {
            messages: eighths(self.messages, rest),
            bytes: eighths(self.bytes, bytes),
            folded: eighths(self.folded, rest),
            coded: eighths(self.coded, rest),
            copied: eighths(self.copied, rest),
            looks: eighths(self.looks, rest),
            mapped: eighths(self.mapped, rest),
            ..self
        }
    }

    /// Where partial results are kept in a wider type than what is given: of the bytes so many travel and are folded as such, and are made of the caller's elements and into them.
    fn widened(self, partial: u64, codec: Codec, question: &Question<'_>) -> Work {
        let plain = question.dtype.size() as u64;
        let wide = question.dtype.accumulator().size() as u64;
        if codec != Codec::None || plain >= wide {
            return self;
        }
        let more = partial / plain.max(1) * (wide - plain);
        Work {
            bytes: self.bytes.saturating_add(more),
            folded: self.folded.saturating_add(more),
            copied: self.copied.saturating_add(more),
            ..self
        }
    }

    /// With the codec on the wire: fewer bytes, and work at both ends for what passes.
    fn in_codec(self, codec: Codec, question: &Question<'_>) -> Work {
        let plain = question.dtype.size() as u64 * Codec::BLOCK;
        match codec.wire_bytes(question.dtype, Codec::BLOCK) {
            Some(wire) if codec != Codec::None && plain > 0 => {
                let bytes = u128::from(self.bytes) * u128::from(wire) / u128::from(plain);
                Work {
                    bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
                    coded: self.bytes.saturating_mul(2),
                    ..self
                }
            }
            _ => self,
        }
    }
}

impl Spread {
    /// What a rank sees of its host's memory, of which some is on other nodes, in a plan that knows nothing of them.
    ///
    /// Most plans reach all others alike, and what is on other nodes is as much as there are ranks there; around a ring the node counts that most links leave.
    fn seen(&self, question: &Question<'_>, tables: &Tables, algorithm: Algorithm) -> LinkClass {
        let p = u64::from(question.world.max(1));
        let far = p.saturating_sub(self.most.into());
        let part = match (algorithm.planned(), question.kind) {
            // What is read is there, what is written is here.
            (Algorithm::Fused, OpKind::AllGather | OpKind::AllToAll) => (far, 2 * p),
            // Of the root's memory a rank of another node has all to read.
            (Algorithm::Fused, OpKind::Broadcast) => (1, 2),
            (Algorithm::Fused, _) => (far, p),
            (Algorithm::Ring | Algorithm::Pipelined, _) => {
                (self.ring_links.into(), self.most.into())
            }
            _ => (far, p.saturating_sub(1)),
        };
        tables.inside.partly(&tables.across, part)
    }
}

/// Messages of at least so many bytes stay where they are, in memory that the receiver has mapped.
const LENT_BYTES: u64 = 32 << 10;

impl Level {
    /// Whether all but few of the messages of a plan by direct are so long, as far as memory is registered, which is what the model goes by.
    fn lends(&self, tables: &Tables) -> bool {
        let message = (self.s / self.p.max(1)).min(self.slice);
        tables.mapped && message >= LENT_BYTES
    }

    /// By direct, where everything lies and is folded in memory that all have mapped: contributions are read there, and results written.
    fn direct(&self, kind: OpKind, lends: bool) -> Work {
        let (s, p, but_own) = (self.s, self.p.max(1), self.but_own());
        let (work, read, written) = match kind {
            OpKind::ReduceScatter => (self.reduce_scatter(Algorithm::Direct), s, s / p),
            OpKind::AllGather => (self.all_gather(Algorithm::Direct), but_own, but_own),
            OpKind::Reduce => (self.reduce(Algorithm::Direct), s.saturating_mul(p), s),
            _ => (self.broadcast(Algorithm::Direct), s, s),
        };
        match lends {
            true => Work {
                bytes: 0,
                folded: 0,
                mapped: read.saturating_add(written),
                ..work
            },
            false => work,
        }
    }
}

/// In two levels on the memory nodes of one host: a rank is at both levels itself, one after the other.
fn predict_on_nodes(
    question: &Question<'_>,
    tables: &Tables,
    nodes: &Spread,
    (flat, outer, codec): (Level, Algorithm, Codec),
) -> u64 {
    let inside = Level {
        p: u64::from(nodes.most),
        ..flat
    };
    let near = |kind| inside.direct(kind, inside.lends(tables));
    let even = nodes.even;
    let around = match question.kind {
        OpKind::AllReduce if even => near(OpKind::ReduceScatter).then(near(OpKind::AllGather)),
        // To one rank of each node, and back.
        OpKind::AllReduce => near(OpKind::Reduce).then(near(OpKind::Broadcast)),
        kind => near(kind),
    };
    // Each of a node's ranks has a share of what crosses, or one of them has all.
    let shares = match question.kind {
        OpKind::AllReduce | OpKind::ReduceScatter | OpKind::AllGather if even => inside.p,
        _ => 1,
    };
    let among = Level {
        p: u64::from(nodes.n),
        s: flat.s / shares.max(1),
        ..flat
    };
    let partial = among.partial(question.kind, outer, inside.p > 1);
    let mut here = Work::default();
    let between = match (question.kind, outer) {
        (OpKind::AllReduce, Algorithm::Direct) if codec == Codec::None && among.lends(tables) => {
            // Partial results are in nobody else's reach; of results what is read is there, and what is written here.
            here.mapped = among.but_own();
            let gathered = Work {
                mapped: among.but_own(),
                ..among.direct(OpKind::AllGather, true)
            };
            let scattered = among.direct(OpKind::ReduceScatter, false);
            scattered.widened(partial, codec, question).then(gathered)
        }
        _ => among
            .of(question, outer)
            .widened(partial, codec, question)
            .in_codec(codec, question),
    };
    let around = around.then(here);
    let (around, between) = match tables.crowded {
        true => (around.shared(Algorithm::Direct), between.shared(outer)),
        false => (around, between),
    };
    around
        .on(&tables.inside, 1)
        .saturating_add(between.on(&tables.across, 1))
}

/// The predicted time, in nanoseconds.
pub(super) fn predict(
    question: &Question<'_>,
    tables: &Tables,
    hosts: &Hosts,
    algorithm: Algorithm,
    codec: Codec,
) -> u64 {
    let slice = slice(question, tables, algorithm).saturating_mul(question.dtype.size() as u64);
    let flat = Level {
        p: u64::from(question.world.max(1)),
        s: question.bytes().min(MOST_BYTES),
        slice,
        radix: u64::from(question.radix.max(2)),
    };
    if question.kind == OpKind::HierarchicalMix {
        let inside = Level {
            p: u64::from(hosts.hosts.most),
            ..flat
        };
        let share = Level {
            s: flat.s / inside.p.max(1),
            ..flat
        };
        let around = inside.reduce_scatter(Algorithm::Direct);
        let around = around.then(inside.all_gather(Algorithm::Direct));
        let between = share.of(question, algorithm).in_codec(codec, question);
        return around
            .on(&tables.inside, 1)
            .saturating_add(between.on(&tables.between, inside.p));
    }
    let Some(outer) = algorithm.between_hosts() else {
        let partial = flat.partial(question.kind, algorithm.planned(), false);
        let mut work = flat
            .of(question, algorithm)
            .widened(partial, codec, question)
            .in_codec(codec, question);
        if hosts.hosts.n == 1 {
            if tables.crowded {
                work = work.shared(algorithm);
            }
            let seen = hosts.nodes.map(|n| n.seen(question, tables, algorithm));
            return work.on(seen.as_ref().unwrap_or(&tables.inside), 1);
        }
        let work = work.crowded(question, algorithm, flat.p);
        // The ranks of a host share its link; around a ring only those whose neighbour is elsewhere use it.
        let share = match algorithm {
            Algorithm::Ring | Algorithm::Pipelined => hosts.hosts.ring_links,
            _ => hosts.hosts.most,
        };
        return work.on(&tables.between, u64::from(share.max(1)));
    };
    if let Some(nodes) = &hosts.nodes {
        return predict_on_nodes(question, tables, nodes, (flat, outer, codec));
    }
    let hosts = &hosts.hosts;
    let inside = Level {
        p: u64::from(hosts.most),
        ..flat
    };
    let among = Level {
        p: u64::from(hosts.n),
        ..flat
    };
    let around = match question.kind {
        OpKind::AllReduce if hosts.even => {
            let scattered = inside.reduce_scatter(Algorithm::Direct);
            scattered.then(inside.all_gather(Algorithm::Direct))
        }
        // To one rank of each host, and back.
        OpKind::AllReduce => inside
            .reduce(Algorithm::Direct)
            .then(inside.broadcast(Algorithm::Direct)),
        OpKind::Reduce => inside.reduce(Algorithm::Direct),
        OpKind::Broadcast => inside.broadcast(Algorithm::Direct),
        OpKind::ReduceScatter => inside.reduce_scatter(Algorithm::Direct),
        _ => inside.all_gather(Algorithm::Direct),
    };
    // The ranks of a host carry a share each over its one link, or one of them carries all.
    let partial = among.partial(question.kind, outer, inside.p > 1);
    let between = among
        .of(question, outer)
        .widened(partial, codec, question)
        .in_codec(codec, question);
    let between = between.crowded(question, outer, among.p);
    let turns = around
        .turns(&tables.inside)
        .saturating_add(between.turns(&tables.between));
    let volumes = [
        around.volume(&tables.inside, 1),
        between.volume(&tables.between, 1),
    ];
    // A slice goes on as soon as it is folded, so that of the shorter level only the first one's way is added.
    let n_slices = match question.kind {
        OpKind::AllReduce => inside.slices(inside.s / inside.p.max(1)),
        _ => 1,
    };
    let [more, less] = match volumes {
        [a, b] if a < b => [b, a],
        other => other,
    };
    turns.saturating_add(more).saturating_add(less / n_slices)
}

/// Longest message in elements.
///
/// Chains and double trees have a best slice: the longer way of the first slice against the messages' own cost, √(S × (latency + messages' cost) × bandwidth ÷ hops); it is kept to whole blocks of the codecs and never longer than the tables say.
pub(super) fn slice(question: &Question<'_>, tables: &Tables, algorithm: Algorithm) -> u64 {
    let size = question.dtype.size() as u64;
    let most = (tables.slice_bytes / size).max(1);
    let hops = match algorithm {
        Algorithm::Pipelined | Algorithm::TwoLevelPipelined => {
            u64::from(question.world.saturating_sub(2))
        }
        Algorithm::DoubleTree | Algorithm::TwoLevelDoubleTree => {
            2 * levels(u64::from(question.world), 2)
        }
        _ => return most,
    };
    if hops == 0 {
        return most;
    }
    let class = match question.places().nodes_of_one_host() {
        Some(_) => &tables.across,
        None => &tables.between,
    };
    let per_message = 2 * class.message_ns;
    let squared =
        u128::from(question.bytes()) * u128::from(per_message) * u128::from(class.bytes_per_us)
            / 1000
            / u128::from(hops);
    let bytes = u64::try_from(squared.isqrt()).unwrap_or(u64::MAX);
    let elements = (bytes / size).next_multiple_of(Codec::BLOCK);
    elements.clamp(Codec::BLOCK.min(most), most)
}
