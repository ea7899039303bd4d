//! The transport's contract over UCX's active messages, and the engine on top.
//!
//! `cargo run -p gaggle-spikes --bin spike-ucx -- [TLS [deaths]]` needs `libucp.so.0` at run time (Debian: libucx0) and says so where it is absent; TLS is UCX's own list of transports: `tcp` (where deaths are noticed), or for example `posix,cma`; `deaths` asks others to notice them, too.

use gaggle_core::{Max, Mean, Rank, SystemClock, Transport};
use gaggle_engine::{Engine, EngineConfig};
use gaggle_spikes::ucx::{Context, world};
use gaggle_transport::{
    contract::{self, Tier},
    control,
};
use std::{process::ExitCode, sync::Arc, thread, time::Instant};

fn main() -> ExitCode {
    let tls = std::env::args().nth(1);
    let context = match Context::new(tls.as_deref()) {
        Ok(context) => context,
        Err(why) => {
            println!("SKIPPED: no UCX here: {why}");
            return ExitCode::SUCCESS;
        }
    };
    // Without sockets a dead peer looks like a silent one.
    let asked = std::env::args().nth(2).is_some_and(|a| a == "deaths");
    let sockets = tls.as_deref() == Some("tcp") || asked;
    match contract_and_engine(&context, sockets) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn contract_and_engine(context: &Arc<Context>, sockets: bool) -> Result<(), String> {
    println!("UCX {}", context.version());
    world(context, 2, sockets)?;
    let mut make = |n| -> Vec<Box<dyn Transport>> {
        match world(context, n, sockets) {
            Ok(all) => all
                .into_iter()
                .map(|t| Box::new(t) as Box<dyn Transport>)
                .collect(),
            Err(why) => panic!("no world of {n}: {why}"),
        }
    };
    let mut tier = Tier::TCP;
    tier.tagged = 0;
    tier.deaths = sockets;
    contract::run(&mut make, tier);
    println!("kept the contract; deaths: {sockets}");
    let ranks = world(context, 3, sockets)?
        .into_iter()
        .zip(control::inproc(3));
    thread::scope(|scope| {
        for (link, control) in ranks {
            scope.spawn(move || engine(Box::new(link), Box::new(control)));
        }
    });
    Ok(())
}

/// One rank of a world of three.
fn engine(link: Box<dyn Transport>, control: Box<dyn gaggle_core::Control>) {
    let clock = Arc::new(SystemClock::new());
    let engine = Engine::new(vec![link], control, clock, EngineConfig::default());
    let group = engine.map(|engine| (engine.group(), engine));
    let (group, _engine) = group.unwrap_or_else(|e| panic!("no engine: {e}"));
    let mut x = vec![group.rank().0 as f32; 1 << 20];
    #[allow(clippy::disallowed_methods, reason = "it measures")]
    let start = Instant::now();
    let sums = group.all_reduce(&mut x, Mean).and_then(|_| {
        let mut y = [group.rank().0 as i32; 5];
        group.all_reduce(&mut y, Max).map(|_| y)
    });
    let took = start.elapsed();
    match sums {
        Ok(y) => assert!(x.iter().all(|x| *x == 1.0) && y == [2; 5]),
        Err(e) => panic!("{e}"),
    }
    if group.rank() == Rank(0) {
        println!(
            "the engine over it: an all-reduce of 4 MiB and one of 20 bytes by 3 ranks in {took:?}"
        );
    }
}
