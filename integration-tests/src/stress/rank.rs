//! What one process of an episode does: tasks until the conductor has seen enough, or something fails; then what it is told.

use super::task::{Graves, Task, Trouble};
use crate::{memory::Memory, work};
use gaggle::{Cause, Error, Group, Max, Rank};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

/// How long survivors wait for each other.
const MEET: Duration = Duration::from_secs(30);
/// How often a rank says how far it is.
const SAY: Duration = Duration::from_millis(200);

/// The conductor's words, by standard input.
struct Orders {
    /// Somebody has seen enough.
    end: Arc<AtomicBool>,
    /// One for each `rebuild`.
    rebuild: Receiver<()>,
}

impl Orders {
    /// Ends the process where the conductor is gone.
    fn listen() -> Orders {
        let end = Arc::new(AtomicBool::new(false));
        let (tell, rebuild) = mpsc::channel();
        let flag = Arc::clone(&end);
        thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                match line.as_deref() {
                    // Relaxed: a rank that sees it late ends late.
                    Ok("end") => flag.store(true, Ordering::Relaxed),
                    Ok("rebuild") if tell.send(()).is_ok() => {}
                    _ => break,
                }
            }
            std::process::exit(2);
        });
        Orders { end, rebuild }
    }
}

/// One line, at once.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Whoever listened is gone: the thread that listens to it ends this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Joins, works, and says what happens in lines that the conductor reads.
pub fn run(seed: u64, memory: Memory) -> ExitCode {
    // A rank that is stopped does not see its input end: it goes with the conductor all the same.
    let with_parent = rustix::process::Signal::KILL;
    if let Err(e) = rustix::process::set_parent_process_death_signal(Some(with_parent)) {
        say(&format!("WRONG cannot be tied to the conductor: {e}"));
        return ExitCode::FAILURE;
    }
    let orders = Orders::listen();
    match work(seed, memory, &orders) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            say(&format!("WRONG {what}"));
            ExitCode::FAILURE
        }
    }
}

fn work(seed: u64, memory: Memory, orders: &Orders) -> Result<(), String> {
    let job = gaggle::join().map_err(|e| format!("cannot join: {e}"))?;
    say("joined");
    let mut group: Group = job.group().clone();
    let mut graves = Graves::default();
    let mut count = 0;
    loop {
        let (error, began) = match tasks(&group, seed, memory, &mut graves, orders, &mut count) {
            Ok(()) => break,
            Err((Trouble::Wrong(what), _)) => return Err(what),
            Err((Trouble::Failed(error), began)) => (error, began),
        };
        if matches!(
            error.cause(),
            Cause::Internal { .. } | Cause::Invalid { .. }
        ) {
            return Err(error.to_string());
        }
        say(&format!(
            "error {} {} {error}",
            began.elapsed().as_millis(),
            accused(&group, &error)
        ));
        orders.rebuild.recv().map_err(|_| "the conductor is gone")?;
        match group.rebuild(MEET) {
            Ok(next) => group = next,
            Err(error) => {
                say(&format!("alone {error}"));
                return match error.cause() {
                    Cause::Rebuild { .. } => Ok(()),
                    _ => Err(format!("not rebuilt: {error}")),
                };
            }
        }
        let members: Vec<u32> = world_ranks(&group).iter().map(|r| r.0).collect();
        say(&format!("rebuilt {members:?}"));
    }
    graves.check().map_err(|e| format!("{e:?}"))?;
    say(&format!("done {count}"));
    Ok(())
}

fn world_ranks(group: &Group) -> Vec<Rank> {
    group.communicator().info().world_ranks.clone()
}

/// The kind of error, and whom it blames, as numbers in the job: `lost 1,2`.
fn accused(group: &Group, error: &Error) -> String {
    let members = world_ranks(group);
    let ranks = error.culprits().iter().filter_map(|r| members.get(r.idx()));
    let ranks: Vec<String> = ranks.map(|r| r.0.to_string()).collect();
    let kind = work::blame(error);
    let kind = kind.split(' ').next().unwrap_or_default();
    format!(
        "{kind} {}",
        if ranks.is_empty() {
            "-".into()
        } else {
            ranks.join(",")
        }
    )
}

/// Tasks until all have seen enough; or what has ended them, and when it had begun.
fn tasks(
    group: &Group,
    seed: u64,
    memory: Memory,
    graves: &mut Graves,
    orders: &Orders,
    count: &mut u64,
) -> Result<(), (Trouble, Instant)> {
    let members = world_ranks(group);
    let epoch = u64::from(group.communicator().info().epoch);
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (epoch << 48));
    let mut said = Instant::now();
    for k in 0.. {
        let began = Instant::now();
        let at = |e: Trouble| (e, began);
        if k % 8 == 0 {
            let mut enough = [u8::from(orders.end.load(Ordering::Relaxed))];
            group
                .all_reduce(&mut enough, Max)
                .map_err(|e| at(e.into()))?;
            graves.check().map_err(at)?;
            if enough[0] > 0 {
                return Ok(());
            }
        }
        let began = Instant::now();
        let task = Task::draw(&mut rng, members.len());
        let done = task.run(group, &members, memory, k, graves);
        done.map_err(|e| (e, began))?;
        *count += 1;
        if said.elapsed() > SAY {
            said = Instant::now();
            say(&format!("at {count}"));
        }
    }
    Ok(())
}
