//! Several sockets per peer, against one: two processes exchange the same bytes both ways at once over 1, 2 and 4 connections that pull their next slice whenever they have room, over loopback and over a link of 1 Gbit/s.
//!
//! Each end has one thread, as a rank has: what would be won is what the system does better for several connections, not another thread's work. What the TCP transport does was chosen by it.
//!
//! The link needs Linux, root, and what [`gaggle_benches::net`] says; without it only loopback is measured.

#![forbid(unsafe_code)]

mod exchange;

use anyhow::{Context, Result, bail};
use clap::Parser;
use exchange::Ends;
use gaggle_benches::{
    net::{self, Net, Wire},
    verdict::{Figure, Report, machine, median, paired, time},
};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

/// How many connections, the first being what the others are compared with.
const SOCKETS: [usize; 3] = [1, 2, 4];

#[derive(Parser)]
#[command(about = "Several sockets per peer, against one", long_about = None)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// MiB each way
    #[arg(long, value_name = "N", default_value_t = 64)]
    mib: usize,
    /// How often each is measured; compared in pairs
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// One end of it: it listens at this address and prints the port
    #[arg(long, hide = true, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The other end
    #[arg(long, hide = true, value_name = "ADDRESS")]
    connect: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (&args.listen, &args.connect) {
        (None, None) => measure(&args),
        ends => end(&args, ends).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("sockets: {error:#}");
        ExitCode::FAILURE
    })
}

fn measure(args: &Args) -> Result<ExitCode> {
    let missing = match args.smoke {
        true => Some("a moment only".to_owned()),
        false if net::is_inside() => None,
        false => net::missing(),
    };
    if let Some(what) = missing {
        println!("SKIPPED 1 Gbit/s: {what}");
        all(args, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    net::enter(|| match limited(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sockets: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn limited(args: &Args) -> Result<()> {
    let wire = Wire {
        hosts: 2,
        mbit: 1000,
        delay: None,
    };
    all(args, Some(&Net::lay(wire, None)?))
}

/// Loopback, and the link where there is one.
fn all(args: &Args, net: Option<&Net>) -> Result<()> {
    println!("{}", machine());
    let this = std::env::current_exe()?;
    let here = |_: usize| Command::new(&this);
    let mut figures = measured(args, "loopback", "127.0.0.1", &here)?;
    if let Some(net) = net {
        let on = |host: usize| net.on(host, &this);
        figures.extend(measured(args, &net.wire().name(), &net::address(0), &on)?);
    }
    if let Some(out) = &args.out {
        let report = Report {
            figures,
            ..Report::default()
        };
        fs::write(out, report.figures().to_string())?;
    }
    Ok(())
}

/// Starts both ends and prints what they have measured.
fn measured(
    args: &Args,
    place: &str,
    address: &str,
    on: &dyn Fn(usize) -> Command,
) -> Result<Vec<Figure>> {
    let words = |command: &mut Command| {
        command.args(["--mib", &args.mib.to_string()]);
        command.args(["--rounds", &args.rounds.to_string()]);
        if args.smoke {
            command.arg("--smoke");
        }
    };
    let mut first = on(0);
    words(first.args(["--listen", address]).stdout(Stdio::piped()));
    let mut first = first.spawn().context("cannot start an end")?;
    let out = first.stdout.take().context("its output is a pipe")?;
    let mut lines = BufReader::new(out).lines();
    let port = lines.next().context("an end does not listen")??;
    let mut second = on(1);
    words(second.args(["--connect", &format!("{address}:{port}")]));
    let second = second.status()?;
    let rows: Vec<Vec<f64>> = lines
        .map(|line| Ok(line?.split(' ').map(str::parse).collect::<Result<_, _>>()?))
        .collect::<Result<_>>()?;
    if !second.success() || !first.wait()?.success() || rows.len() != SOCKETS.len() {
        bail!("an exchange over {place} has failed");
    }
    let bytes = bytes(args) as f64;
    for (n, samples) in SOCKETS.iter().zip(&rows) {
        println!(
            "{place}: {n} sockets, {} MiB each way: {}, {:.2} GB/s each way, {:.3} of the time of one",
            bytes / f64::from(1 << 20),
            time(median(samples)),
            bytes / median(samples) / 1e9,
            paired(samples, &rows[0]),
        );
    }
    let figure = |(n, samples): (&usize, Vec<f64>)| Figure {
        name: format!("sockets/{place}/{n}"),
        parameters: json!({"place": place, "sockets": n}),
        unit: "s",
        samples,
        bytes: Some(bytes as u64),
    };
    Ok(SOCKETS.iter().zip(rows).map(figure).collect())
}

fn bytes(args: &Args) -> usize {
    if args.smoke { 1 << 20 } else { args.mib << 20 }
}

/// One end: every round measures each number of connections once; the listening end prints the times, a line for each number.
fn end(args: &Args, ends: (&Option<String>, &Option<String>)) -> Result<()> {
    let most = SOCKETS[SOCKETS.len() - 1];
    let (mut ends, leads) = match ends {
        (Some(at), _) => (Ends::listen(at, most)?, true),
        (_, Some(at)) => (Ends::connect(at, most)?, false),
        _ => bail!("an end listens or connects"),
    };
    let out: Vec<u8> = (0..bytes(args)).map(|i| (i % 251) as u8).collect();
    let mut back = vec![0; out.len()];
    let mut times = SOCKETS.map(|_| Vec::new());
    let rounds = if args.smoke { 1 } else { args.rounds };
    for round in 0..=rounds {
        for (n, times) in SOCKETS.iter().zip(&mut times) {
            let took = ends.exchange(*n, &out, &mut back)?;
            // The first round warms up.
            if round > 0 {
                times.push(took.as_secs_f64());
            }
            if back != out {
                bail!("not what was sent has come over {n} sockets");
            }
            back.fill(0);
        }
    }
    if leads {
        for times in times {
            let times: Vec<String> = times.iter().map(f64::to_string).collect();
            println!("{}", times.join(" "));
        }
    }
    Ok(())
}
