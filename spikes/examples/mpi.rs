//! The transport's contract over MPI's point-to-point messages, within a process and between processes, and the engine on top.
//!
//! `cargo build -p gaggle-spikes`, then
//! - `spike-mpi contract`, alone or under `mpirun -n 1`: all ranks are this process;
//! - `mpirun -n 2 spike-mpi exchange`: one rank per process (as root in a container also `--allow-run-as-root --oversubscribe`).
//!
//! It needs Open MPI's `libmpi.so.40` at run time (Debian: libopenmpi3) and says so where it is absent.

use gaggle_core::{
    Class, Dir, Down, Inlet, Mean, MsgKey, OpId, Outlet, Rank, Sink, SystemClock, Transfer,
    Transport, TransportError, Verdict, XferId,
};
use gaggle_engine::{Engine, EngineConfig};
use gaggle_spikes::mpi::{Mpi, between, within};
use gaggle_transport::{
    contract::{self, Tier},
    control,
};
use std::{
    collections::HashMap,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

fn main() -> ExitCode {
    let mpi = match Mpi::get() {
        Ok(mpi) => mpi,
        Err(why) => {
            println!("SKIPPED: no MPI here: {why}");
            return ExitCode::SUCCESS;
        }
    };
    let exchange_too = std::env::args().nth(1).is_some_and(|a| a == "exchange");
    let done = if exchange_too {
        exchange(mpi)
    } else {
        contract_and_engine(mpi)
    };
    match done.and_then(|()| mpi.finalize()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn contract_and_engine(mpi: &'static Mpi) -> Result<(), String> {
    println!("{}", mpi.version());
    within(mpi, 2)?;
    let mut make = |n| -> Vec<Box<dyn Transport>> {
        match within(mpi, n) {
            Ok(all) => all
                .into_iter()
                .map(|t| Box::new(t) as Box<dyn Transport>)
                .collect(),
            Err(why) => panic!("no world of {n}: {why}"),
        }
    };
    let mut tier = Tier::TCP;
    tier.tagged = 0;
    // A rank that dies takes the MPI job with it: nobody is told.
    tier.deaths = false;
    contract::run(&mut make, tier);
    println!("kept the contract; deaths: false");
    let ranks = within(mpi, 2)?.into_iter().zip(control::inproc(2));
    thread::scope(|scope| {
        for (link, control) in ranks {
            scope.spawn(move || {
                let clock = Arc::new(SystemClock::new());
                let links: Vec<Box<dyn Transport>> = vec![Box::new(link)];
                let engine = Engine::new(links, Box::new(control), clock, EngineConfig::default());
                let engine = engine.unwrap_or_else(|e| panic!("no engine: {e}"));
                let group = engine.group();
                let mut x = vec![group.rank().0 as f32; 1 << 18];
                let result = group.all_reduce(&mut x, Mean);
                assert!(result.is_ok() && x.iter().all(|x| *x == 0.5), "{result:?}");
            });
        }
    });
    println!("the engine over it: an all-reduce of 1 MiB by 2 ranks");
    Ok(())
}

/// Lengths of the messages that all ranks send to all.
const LENGTHS: [usize; 8] = [0, 1, 7, 4099, 70_001, 300_001, 1 << 20, (3 << 20) + 5];

fn contents(from: Rank, to: Rank, n: usize) -> Vec<u8> {
    let at = |i: usize| (i * 31 + from.idx() * 7 + to.idx() * 13 + n) as u8;
    (0..n).map(at).collect()
}

/// Knows what leaves and what must come.
#[derive(Default)]
struct Books {
    open: HashMap<XferId, (Vec<u8>, usize)>,
    faults: Vec<String>,
}

impl Books {
    fn fault(&mut self, what: String) {
        self.faults.push(what);
    }
}

impl Sink for Books {
    fn outgoing(&mut self, id: XferId, at: u64, out: &mut dyn Outlet) {
        if let Some((bytes, _)) = self.open.get(&id) {
            let room = out.room();
            let n = room.len();
            room.copy_from_slice(&bytes[at as usize..at as usize + n]);
            out.commit(n);
        }
    }
    fn opened(&mut self, _id: XferId, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn incoming(&mut self, id: XferId, at: u64, part: &mut dyn Inlet) {
        let (n, mut wrong) = (part.peek().len(), true);
        if let Some((bytes, got)) = self.open.get_mut(&id) {
            wrong = bytes.get(at as usize..at as usize + n) != Some(part.peek());
            *got += n;
        }
        part.consume(n);
        if wrong {
            self.fault(format!("{id:?}: other bytes at {at}"));
        }
    }
    fn unexpected(&mut self, _from: Rank, _key: MsgKey, _head: &[u8]) -> Verdict {
        Verdict::Take
    }
    fn done(&mut self, id: XferId, result: Result<(), TransportError>) {
        self.open.remove(&id);
        if let Err(e) = result {
            self.fault(e.to_string());
        }
    }
    fn down(&mut self, peer: Rank, how: Down) {
        if how != Down::Left {
            self.fault(format!("{peer}: {how:?}"));
        }
    }
}

/// Every rank sends every other messages of many lengths, twice.
#[allow(clippy::disallowed_methods, reason = "it measures, and gives up")]
fn exchange(mpi: &'static Mpi) -> Result<(), String> {
    let (link, me, n) = between(mpi)?;
    let mut books = Books::default();
    let start = Instant::now();
    for seq in 0..2 {
        for peer in (0..n).map(Rank).filter(|p| *p != me) {
            for (tag, len) in (0..).zip(LENGTHS) {
                for (dir, from, to) in [(Dir::Recv, peer, me), (Dir::Send, me, peer)] {
                    let op = OpId {
                        group: 1,
                        lane: 0,
                        class: Class::Collective,
                        seq,
                    };
                    let t = Transfer {
                        dir,
                        peer,
                        key: MsgKey { op, tag },
                        bytes: len as u64,
                        unit: 1,
                        priority: 0,
                        head: if dir == Dir::Send { b"head" } else { b"" },
                        loan: None,
                    };
                    let id = link.post(t).map_err(|e| e.to_string())?;
                    books.open.insert(id, (contents(from, to, len), 0));
                }
            }
        }
        while !books.open.is_empty() && books.faults.is_empty() {
            if link.progress(&mut books, 1 << 20) == 0 {
                thread::yield_now();
            }
            if start.elapsed() > Duration::from_secs(50) {
                return Err(format!("{me}: {} transfers are not over", books.open.len()));
            }
        }
    }
    link.leave(Duration::from_secs(10));
    if let Some(fault) = books.faults.first() {
        return Err(format!("{me}: {fault}"));
    }
    println!(
        "{me} of {n}: exchanged {:?} in {:?}",
        link.stats(),
        start.elapsed()
    );
    Ok(())
}
