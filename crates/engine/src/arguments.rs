//! What an operation may be called with: lengths, counts, ranks, and whether it makes sense in place. Nothing is sent where one of these is wrong.

use gaggle_core::{Counts, DType, Error, Kind, Rank};

/// The memory of a call, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) dtype: DType,
    /// What is written; in place also what is read.
    pub(crate) io: u64,
    /// What is only read; `None` in place.
    pub(crate) input: Option<u64>,
}

impl Shape {
    /// A call on `len` elements per rank, counted as in a plan's request: for explanations. In place, where that has a meaning.
    pub(crate) fn of_len(
        kind: &Kind,
        dtype: DType,
        len: u64,
        me: Rank,
        world: u32,
    ) -> Option<Shape> {
        let all = len.checked_mul(u64::from(world));
        let sum = |counts: &Counts, equal: Option<u64>| match counts {
            Counts::Known(list) => list.iter().try_fold(0u64, |n, c| n.checked_add(*c)),
            Counts::Equal => equal,
            Counts::Discover => Some(0),
        };
        let own = |counts: &Counts| match counts {
            Counts::Known(list) => list.get(me.idx()).copied().unwrap_or(0),
            _ => len,
        };
        let in_place = |io| Shape {
            dtype,
            io,
            input: None,
        };
        let beside = |io, input| Shape {
            dtype,
            io,
            input: Some(input),
        };
        Some(match kind {
            Kind::Barrier => in_place(0),
            Kind::Gather { counts, .. } | Kind::AllGather(counts)
                if *counts == Counts::Discover =>
            {
                beside(0, len)
            }
            Kind::Gather { root, counts } | Kind::Scatter { root, counts } if *root == me => {
                in_place(sum(counts, all)?)
            }
            Kind::Gather { counts, .. } | Kind::Scatter { counts, .. } => in_place(own(counts)),
            Kind::AllGather(counts) | Kind::ReduceScatter { counts, .. } => {
                in_place(sum(counts, all)?)
            }
            Kind::AllToAll {
                send: Counts::Equal,
                recv: Counts::Equal,
            } => in_place(all?),
            Kind::AllToAll { send, recv } => beside(sum(recv, all)?, sum(send, all)?),
            Kind::NeighbourGather { from, counts, .. } => {
                let all = len.checked_mul(from.len() as u64);
                beside(sum(counts, all)?, len)
            }
            _ => in_place(len),
        })
    }
}

/// How long an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// As a plan's request counts it; where counts differ, this rank's own.
    pub(crate) len: u64,
    /// As a descriptor says it.
    pub(crate) count: u64,
    /// Whether ranks give different counts.
    pub(crate) counted: bool,
    /// Whether the ranks have to tell each other their counts first.
    pub(crate) discover: bool,
}

impl Extent {
    fn equal(len: u64) -> Extent {
        Extent {
            len,
            count: len,
            counted: false,
            discover: false,
        }
    }

    /// All ranks give the same list.
    fn listed(len: u64, counts: &Counts) -> Extent {
        Extent {
            len,
            count: counts.hash(),
            counted: true,
            discover: false,
        }
    }

    /// No rank knows all counts.
    fn private(len: u64, discover: bool) -> Extent {
        Extent {
            len,
            count: 0,
            counted: true,
            discover,
        }
    }
}

/// Checks a call's memory and counts.
///
/// # Errors
/// What was wanted and what was given.
pub(crate) fn measure(kind: &Kind, shape: &Shape, me: Rank, world: u32) -> Result<Extent, Error> {
    let call = Call {
        name: kind.op_kind().name(),
        shape,
        world,
    };
    let root_of = |root: Rank| {
        call.rank("root", root)?;
        Ok::<bool, Error>(root == me)
    };
    let own = |list: &[u64]| list[me.idx()];
    match kind {
        Kind::AllReduce(_) | Kind::HierarchicalMix { .. } | Kind::Mix { .. } => {
            call.input_if_any(shape.io)?;
            Ok(Extent::equal(shape.io))
        }
        Kind::Reduce { root, .. } => {
            let on_root = root_of(*root)?;
            let len = shape.input.unwrap_or(shape.io);
            if on_root || shape.io != 0 {
                call.io(len)?;
            }
            Ok(Extent::equal(len))
        }
        Kind::Broadcast { root } => {
            let on_root = root_of(*root)?;
            if on_root || shape.input != Some(0) {
                call.input_if_any(shape.io)?;
            }
            Ok(Extent::equal(shape.io))
        }
        Kind::Gather { root, counts } => {
            let on_root = root_of(*root)?;
            match counts {
                Counts::Equal => {
                    let len = match shape.input {
                        Some(part) => {
                            call.io(if on_root { call.times(part)? } else { 0 })?;
                            part
                        }
                        None if on_root => call.share(shape.io, "buffer")?,
                        None => shape.io,
                    };
                    Ok(Extent::equal(len))
                }
                Counts::Known(list) => {
                    let total = call.counts("counts", list, world as usize)?;
                    let (part, whole) = (own(list), if on_root { total } else { 0 });
                    match shape.input {
                        Some(_) => {
                            call.input(part)?;
                            call.io(whole)?;
                        }
                        None => call.io(if on_root { total } else { part })?,
                    }
                    Ok(Extent::listed(part, counts))
                }
                Counts::Discover => call.discover(),
            }
        }
        Kind::Scatter { root, counts } => {
            let on_root = root_of(*root)?;
            match counts {
                Counts::Equal => {
                    let len = match shape.input {
                        Some(_) => {
                            call.input(if on_root { call.times(shape.io)? } else { 0 })?;
                            shape.io
                        }
                        None if on_root => call.share(shape.io, "buffer")?,
                        None => shape.io,
                    };
                    Ok(Extent::equal(len))
                }
                Counts::Known(list) => {
                    let total = call.counts("counts", list, world as usize)?;
                    let part = own(list);
                    match shape.input {
                        Some(_) => {
                            call.input(if on_root { total } else { 0 })?;
                            call.io(part)?;
                        }
                        None => call.io(if on_root { total } else { part })?,
                    }
                    Ok(Extent::listed(part, counts))
                }
                Counts::Discover => Err(call.wrong(
                    "the root alone knows the counts: it tells them first (`Group::scatter_any`)",
                )),
            }
        }
        Kind::AllGather(counts) => match counts {
            Counts::Equal => {
                let len = match shape.input {
                    Some(part) => {
                        call.io(call.times(part)?)?;
                        part
                    }
                    None => call.share(shape.io, "buffer")?,
                };
                Ok(Extent::equal(len))
            }
            Counts::Known(list) => {
                let total = call.counts("counts", list, world as usize)?;
                call.input_if_any(own(list))?;
                call.io(total)?;
                Ok(Extent::listed(own(list), counts))
            }
            Counts::Discover => call.discover(),
        },
        Kind::ReduceScatter { counts, .. } => match counts {
            Counts::Equal => {
                let len = match shape.input {
                    Some(_) => {
                        call.input(call.times(shape.io)?)?;
                        shape.io
                    }
                    None => call.share(shape.io, "buffer")?,
                };
                Ok(Extent::equal(len))
            }
            Counts::Known(list) => {
                let total = call.counts("counts", list, world as usize)?;
                match shape.input {
                    Some(_) => {
                        call.input(total)?;
                        call.io(own(list))?;
                    }
                    None => call.io(total)?,
                }
                Ok(Extent::listed(own(list), counts))
            }
            Counts::Discover => Err(call.wrong(
                "counts cannot be discovered: every rank must know how the input is divided",
            )),
        },
        Kind::AllToAll { send, recv } => match (send, recv) {
            (Counts::Equal, Counts::Equal) => {
                call.input_if_any(shape.io)?;
                Ok(Extent::equal(call.share(shape.io, "buffer")?))
            }
            (Counts::Known(send), Counts::Known(recv)) => {
                let sent = call.counts("counts to send", send, world as usize)?;
                let received = call.counts("counts to receive", recv, world as usize)?;
                if own(send) != own(recv) {
                    return Err(call.wrong(format!(
                        "sends itself {} elements and expects {}",
                        own(send),
                        own(recv)
                    )));
                }
                call.out_of_place()?;
                call.input(sent)?;
                call.io(received)?;
                Ok(Extent::private(0, false))
            }
            (Counts::Known(send), Counts::Discover) => {
                let sent = call.counts("counts to send", send, world as usize)?;
                call.out_of_place()?;
                call.input(sent)?;
                call.discover()
            }
            _ => Err(call.wrong(
                "counts are equal both ways, known both ways, or known to send and discovered to receive",
            )),
        },
        Kind::Barrier => {
            let got = shape.io.max(shape.input.unwrap_or(0));
            if got != 0 {
                return Err(call.wrong(format!("takes no elements, got {got}")));
            }
            Ok(Extent::equal(0))
        }
        Kind::NeighbourGather { from, counts, .. } => {
            call.out_of_place()?;
            let part = shape.input.unwrap_or(0);
            match counts {
                Counts::Equal => {
                    let n = part.checked_mul(from.len() as u64);
                    call.io(n.ok_or_else(|| call.too_long())?)?;
                    Ok(Extent::equal(part))
                }
                Counts::Known(list) => {
                    let total = call.counts("counts", list, from.len())?;
                    call.io(total)?;
                    Ok(Extent::private(part, false))
                }
                Counts::Discover => call.discover(),
            }
        }
        Kind::Send { to, .. } => {
            call.partner(*to, me)?;
            if let Some(len) = shape.input {
                call.io(0)?;
                return Ok(Extent::equal(len));
            }
            Ok(Extent::equal(shape.io))
        }
        Kind::Recv { from, .. } => {
            call.partner(*from, me)?;
            call.input_if_any(0)?;
            Ok(Extent::equal(shape.io))
        }
        other => Err(call.wrong(format!("{other:?} is not known to this engine"))),
    }
}

/// What the checks speak of.
struct Call<'a> {
    name: &'static str,
    shape: &'a Shape,
    world: u32,
}

impl Call<'_> {
    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::invalid(self.name, what)
    }

    fn too_long(&self) -> Error {
        self.wrong("all ranks' elements cannot be counted in 64 bits")
    }

    /// A rank of the group.
    fn rank(&self, what: &str, rank: Rank) -> Result<(), Error> {
        if rank.0 < self.world {
            Ok(())
        } else {
            Err(self.wrong(format!(
                "{what}: {rank} of {}, which is not there: numbers begin at 0",
                self.world
            )))
        }
    }

    /// A rank of the group that is another one.
    fn partner(&self, rank: Rank, me: Rank) -> Result<(), Error> {
        self.rank("partner", rank)?;
        if rank == me {
            return Err(self.wrong(format!("{rank} with itself")));
        }
        Ok(())
    }

    /// `len` from or for every rank.
    fn times(&self, len: u64) -> Result<u64, Error> {
        len.checked_mul(u64::from(self.world))
            .ok_or_else(|| self.too_long())
    }

    /// A rank's part of `all`.
    fn share(&self, all: u64, what: &str) -> Result<u64, Error> {
        let world = u64::from(self.world);
        if all.is_multiple_of(world) {
            return Ok(all / world);
        }
        Err(self.wrong(format!(
            "{what} has {all} elements, which is no multiple of the {world} ranks"
        )))
    }

    /// A list of as many counts as wanted; their sum.
    fn counts(&self, what: &str, list: &[u64], want: usize) -> Result<u64, Error> {
        if list.len() != want {
            let got = list.len();
            return Err(self.wrong(format!("{got} {what} where {want} are expected")));
        }
        list.iter()
            .try_fold(0u64, |n, c| n.checked_add(*c))
            .ok_or_else(|| self.too_long())
    }

    fn io(&self, want: u64) -> Result<(), Error> {
        let got = self.shape.io;
        let what = if self.shape.input.is_some() {
            "an output"
        } else {
            "a buffer"
        };
        self.length(what, got, want)
    }

    fn input(&self, want: u64) -> Result<(), Error> {
        self.length("an input", self.shape.input.unwrap_or(0), want)
    }

    fn input_if_any(&self, want: u64) -> Result<(), Error> {
        match self.shape.input {
            Some(_) => self.input(want),
            None => Ok(()),
        }
    }

    fn length(&self, what: &str, got: u64, want: u64) -> Result<(), Error> {
        if got == want {
            return Ok(());
        }
        Err(self.wrong(format!(
            "{what} of {got} elements where {want} are expected"
        )))
    }

    fn out_of_place(&self) -> Result<(), Error> {
        match self.shape.input {
            Some(_) => Ok(()),
            None => Err(self.wrong("has no meaning in place: it takes an input and an output")),
        }
    }

    /// The output is made once the counts are known.
    fn discover(&self) -> Result<Extent, Error> {
        self.out_of_place()?;
        self.io(0)?;
        Ok(Extent::private(self.shape.input.unwrap_or(0), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::Reduce;

    fn shape(io: u64, input: Option<u64>) -> Shape {
        Shape {
            dtype: DType::F32,
            io,
            input,
        }
    }

    fn check(kind: &Kind, io: u64, input: Option<u64>, expected: Result<u64, &str>) {
        let got = measure(kind, &shape(io, input), Rank(1), 3);
        match (got, expected) {
            (Ok(e), Ok(len)) => assert_eq!(e.len, len, "{kind:?}"),
            (Err(e), Err(text)) => assert!(e.to_string().contains(text), "{kind:?}: {e}"),
            (got, expected) => panic!("{kind:?}: {got:?}, not {expected:?}"),
        }
    }

    #[test]
    fn wanted_and_got_are_said() {
        let sum = Reduce::Sum;
        let equal = || Counts::Equal;
        let known = || Counts::known(&[4, 5, 6]);
        check(&Kind::AllReduce(sum), 7, None, Ok(7));
        check(&Kind::AllReduce(sum), 7, Some(7), Ok(7));
        check(
            &Kind::AllReduce(sum),
            7,
            Some(6),
            Err("an input of 6 elements where 7 are expected"),
        );
        let reduce = |root| Kind::Reduce {
            reduce: sum,
            root: Rank(root),
        };
        check(&reduce(0), 0, Some(4), Ok(4));
        check(&reduce(0), 4, Some(4), Ok(4));
        check(&reduce(0), 3, Some(4), Err("an output of 3 elements"));
        check(
            &reduce(1),
            0,
            Some(4),
            Err("an output of 0 elements where 4"),
        );
        check(&reduce(3), 4, None, Err("root: rank 3 of 3"));
        let broadcast = |root| Kind::Broadcast { root: Rank(root) };
        check(&broadcast(0), 4, Some(0), Ok(4));
        check(&broadcast(1), 4, Some(0), Err("an input of 0 elements"));
        let gather = |root, counts| Kind::Gather {
            root: Rank(root),
            counts,
        };
        check(&gather(0, equal()), 0, Some(5), Ok(5));
        check(&gather(1, equal()), 15, Some(5), Ok(5));
        check(
            &gather(1, equal()),
            14,
            Some(5),
            Err("14 elements where 15 are expected"),
        );
        check(&gather(0, equal()), 1, Some(5), Err("an output of 1"));
        check(&gather(1, equal()), 15, None, Ok(5));
        check(&gather(1, equal()), 14, None, Err("no multiple"));
        check(&gather(0, equal()), 5, None, Ok(5));
        check(&gather(1, known()), 15, Some(5), Ok(5));
        check(&gather(1, known()), 15, Some(4), Err("an input of 4"));
        check(&gather(0, known()), 0, Some(5), Ok(5));
        check(&gather(0, known()), 5, None, Ok(5));
        check(
            &gather(0, Counts::known(&[1])),
            5,
            None,
            Err("1 counts where 3 are expected"),
        );
        check(
            &gather(0, Counts::known(&[u64::MAX, 1, 1])),
            1,
            None,
            Err("64 bits"),
        );
        check(&gather(0, Counts::Discover), 0, Some(9), Ok(9));
        check(
            &gather(0, Counts::Discover),
            9,
            None,
            Err("no meaning in place"),
        );
        check(
            &gather(0, Counts::Discover),
            9,
            Some(9),
            Err("an output of 9 elements where 0"),
        );
        let scatter = |root, counts| Kind::Scatter {
            root: Rank(root),
            counts,
        };
        check(&scatter(0, equal()), 5, Some(0), Ok(5));
        check(&scatter(1, equal()), 5, Some(15), Ok(5));
        check(&scatter(1, equal()), 5, Some(14), Err("an input of 14"));
        check(&scatter(1, known()), 5, Some(15), Ok(5));
        check(&scatter(0, known()), 4, None, Err("a buffer of 4"));
        check(
            &scatter(0, Counts::Discover),
            0,
            Some(0),
            Err("the root alone"),
        );
        check(&Kind::AllGather(equal()), 15, Some(5), Ok(5));
        check(
            &Kind::AllGather(equal()),
            16,
            Some(5),
            Err("16 elements where 15"),
        );
        check(&Kind::AllGather(known()), 15, Some(5), Ok(5));
        let scattered = |counts| Kind::ReduceScatter {
            reduce: sum,
            counts,
        };
        check(&scattered(equal()), 5, Some(15), Ok(5));
        check(&scattered(equal()), 5, Some(5), Err("5 elements where 15"));
        check(&scattered(known()), 5, Some(15), Ok(5));
        check(&scattered(known()), 15, None, Ok(5));
        check(&scattered(Counts::Discover), 0, Some(3), Err("discovered"));
        let exchange = |send, recv| Kind::AllToAll { send, recv };
        check(&exchange(equal(), equal()), 15, Some(15), Ok(5));
        check(&exchange(equal(), equal()), 15, None, Ok(5));
        check(
            &exchange(equal(), equal()),
            14,
            Some(14),
            Err("no multiple of the 3 ranks"),
        );
        check(&exchange(known(), known()), 15, Some(15), Ok(0));
        check(&exchange(known(), known()), 15, None, Err("in place"));
        check(
            &exchange(known(), Counts::known(&[1, 2, 3])),
            6,
            Some(15),
            Err("sends itself 5 elements and expects 2"),
        );
        check(&exchange(known(), Counts::Discover), 0, Some(15), Ok(15));
        check(
            &exchange(equal(), known()),
            15,
            Some(15),
            Err("equal both ways"),
        );
        check(&Kind::Barrier, 0, None, Ok(0));
        check(&Kind::Barrier, 0, Some(0), Ok(0));
        check(&Kind::Barrier, 0, Some(1), Err("takes no elements, got 1"));
        let neighbours = |counts| Kind::NeighbourGather {
            from: [Rank(0), Rank(2)].into(),
            to: [Rank(2)].into(),
            counts,
            t: 0,
        };
        check(&neighbours(equal()), 10, Some(5), Ok(5));
        check(
            &neighbours(equal()),
            5,
            Some(5),
            Err("5 elements where 10 are expected"),
        );
        check(&neighbours(Counts::known(&[1, 2])), 3, Some(5), Ok(5));
        check(
            &neighbours(known()),
            3,
            Some(5),
            Err("3 counts where 2 are expected"),
        );
        check(&neighbours(equal()), 10, None, Err("no meaning in place"));
        let send = |to| Kind::Send {
            to: Rank(to),
            tag: 0,
        };
        check(&send(0), 4, None, Ok(4));
        check(&send(0), 0, Some(4), Ok(4));
        check(&send(0), 4, Some(4), Err("4 elements where 0"));
        check(&send(1), 4, None, Err("rank 1 with itself"));
        check(&send(3), 4, None, Err("partner: rank 3 of 3"));
        let recv = Kind::Recv {
            from: Rank(0),
            tag: 0,
        };
        check(&recv, 4, None, Ok(4));
        check(&recv, 4, Some(1), Err("an input of 1 elements where 0"));
    }

    #[test]
    fn shapes_for_explanations_pass_the_checks() {
        let (root, equal, known) = (Rank(1), Counts::Equal, Counts::known(&[7, 7, 7]));
        for counts in [equal, known, Counts::Discover] {
            let kinds = [
                Kind::AllReduce(Reduce::Sum),
                Kind::Broadcast { root },
                Kind::Gather {
                    root,
                    counts: counts.clone(),
                },
                Kind::AllGather(counts.clone()),
                Kind::AllToAll {
                    send: Counts::known(&[7; 3]),
                    recv: Counts::known(&[7; 3]),
                },
                Kind::Barrier,
                Kind::Send {
                    to: Rank(2),
                    tag: 1,
                },
            ];
            for kind in kinds {
                for me in [0, 1] {
                    let shape = Shape::of_len(&kind, DType::F32, 7, Rank(me), 3).unwrap();
                    let extent = measure(&kind, &shape, Rank(me), 3);
                    assert!(extent.is_ok(), "{kind:?} {extent:?}");
                }
            }
        }
    }
}
