//! Hosts with rate-limited and delayed links: all-reduce against what the wire allows, bf16 against f32, two levels, and other systems where a millisecond lies between hosts.
//!
//! The hosts are network namespaces of this machine (see [`gaggle_benches::net`]); each rank is a `gaggle perf` process in one of them.
//! That the network was used is checked for every run: what the hosts' interfaces have sent is at least what the operations had to send.
//!
//! - `rates`: 4 and 8 hosts at 200 Mbit/s and 1 Gbit/s, 16 and 64 MiB: at most 1.07 times 2(n−1)/n · S/R. Packet headers alone cost 1.05.
//! - `bf16`: 2 and 4 hosts at 1 Gbit/s: with bf16 on the wire at most 0.55 of the time without.
//! - `levels`: 2 hosts of 2 ranks each send no more over the wire than 2 hosts of 1 rank.
//! - `delay`: 1 ms each way, 4 hosts at 1 Gbit/s: at most 0.65 of the best other system's time.
//!
//! Needs Linux, root, and the programs `ip` and `tc` (Debian: iproute2), `unshare` and `nsenter` (util-linux); says so and ends with exit code 77 where it cannot run.
//! Whatever it starts and builds goes with it, however it ends.

#![forbid(unsafe_code)]

mod contender;
mod others;

use anyhow::{Context, Result, bail};
use clap::Parser;
use contender::Contender;
use gaggle_benches::{
    jobs,
    net::{self, Net, Wire},
    options::{self, ROUNDS},
    perf::{self, Call, Measured},
    verdict::{Figure, Line, Report, Table, machine, median, paired, size, time},
};
use indicatif::{ProgressBar, ProgressStyle};
use others::Other;
use serde_json::json;
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

/// The machine does not allow it.
const CANNOT: u8 = 77;
const MIB: u64 = 1 << 20;
/// So many rounds more, where some run of a round has failed.
const EXTRA: usize = 2;

#[derive(Parser)]
#[command(about = "All-reduce between hosts with limited rates and with delay", long_about = None)]
struct Args {
    /// A moment only, to see that it works
    #[arg(long)]
    smoke: bool,
    /// Where the figures go
    #[arg(long, value_name = "FILE", value_parser = options::file)]
    out: Option<PathBuf>,
    /// Where the tables go; target/bench/hosts without it
    #[arg(long, value_name = "DIR", value_parser = options::folder)]
    report: Option<PathBuf>,
    /// Only the experiments whose name begins with one of these: rates-4x200, rates-8, bf16, levels, delay
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// How often each is measured; compared in pairs; fewer than 7 judge nothing
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = options::at_least_one)]
    rounds: usize,
    /// One round, which judges nothing
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// TCP's congestion control on the hosts; the machine's without it
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Measure this `gaggle` instead of building one
    #[arg(long, value_name = "FILE", value_parser = options::program)]
    gaggle: Option<PathBuf>,
    /// Where `cargo xtask bench peers` has installed the other systems; target/peers without it
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Say what experiments there are
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for experiment in experiments() {
            println!("{:14} {}", experiment.id, experiment.wire().name());
        }
        return ExitCode::SUCCESS;
    }
    if let Some(what) = (!net::is_inside()).then(net::missing).flatten() {
        println!("hosts: cannot run: {what}");
        return ExitCode::from(CANNOT);
    }
    let done = prepare(&args).and_then(|()| {
        net::enter(|| match orchestrate(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hosts: {error:#}");
                ExitCode::FAILURE
            }
        })
    });
    done.unwrap_or_else(|error| {
        eprintln!("hosts: {error:#}");
        ExitCode::FAILURE
    })
}

/// Outside, where cargo works as usual.
fn prepare(args: &Args) -> Result<()> {
    if !net::is_inside() && args.gaggle.is_none() && !args.smoke {
        perf::build()?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Rates,
    Bf16,
    Levels,
    Delay,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Experiment {
    id: String,
    sort: Sort,
    hosts: usize,
    mbit: u32,
    sizes: Vec<u64>,
}

impl Experiment {
    fn wire(&self) -> Wire {
        Wire {
            hosts: self.hosts,
            mbit: self.mbit,
            delay: (self.sort == Sort::Delay).then_some(Duration::from_millis(1)),
        }
    }
}

fn experiments() -> Vec<Experiment> {
    let make = |id: String, sort, hosts, mbit, sizes: &[u64]| Experiment {
        id,
        sort,
        hosts,
        mbit,
        sizes: sizes.to_vec(),
    };
    let large = [16 * MIB, 64 * MIB];
    let mut all = Vec::new();
    for hosts in [4, 8] {
        for mbit in [200, 1000] {
            let id = format!("rates-{hosts}x{mbit}");
            all.push(make(id, Sort::Rates, hosts, mbit, &large));
        }
    }
    for hosts in [2, 4] {
        let id = format!("bf16-{hosts}x1000");
        all.push(make(id, Sort::Bf16, hosts, 1000, &large));
    }
    let one = [16 * MIB];
    all.push(make("levels-2x1000".into(), Sort::Levels, 2, 1000, &one));
    let small = [4, 64 << 10, MIB];
    all.push(make("delay-4x1000".into(), Sort::Delay, 4, 1000, &small));
    all
}

fn chosen(names: &[String]) -> Result<Vec<Experiment>> {
    let all = experiments();
    if let Some(unknown) = names
        .iter()
        .find(|n| !all.iter().any(|e| e.id.starts_with(*n)))
    {
        let ids: Vec<&str> = all.iter().map(|e| &*e.id).collect();
        bail!(
            "no experiment's name begins with `{unknown}`; there are {}",
            ids.join(", ")
        );
    }
    let wanted = |e: &Experiment| names.is_empty() || names.iter().any(|n| e.id.starts_with(n));
    Ok(all.into_iter().filter(wanted).collect())
}

/// What stays the same for all experiments.
struct Bench {
    gaggle: PathBuf,
    peers: PathBuf,
    congestion: Option<String>,
    rounds: usize,
    calls: u32,
    report: Report,
    bar: ProgressBar,
}

fn orchestrate(args: &Args) -> Result<()> {
    let beside = perf::beside()?;
    let target = beside
        .parent()
        .context("this program lies in no target directory")?;
    let mut experiments = chosen(&args.only)?;
    let mut rounds = if args.quick { 1 } else { args.rounds };
    if args.smoke {
        rounds = 1;
        experiments.retain(|e| e.hosts <= 4 && e.mbit == 1000 && e.sort != Sort::Bf16);
        for e in &mut experiments {
            e.hosts = 2;
            e.sizes = vec![64 << 10];
        }
    }
    let mut bench = Bench {
        gaggle: args.gaggle.clone().unwrap_or_else(|| beside.join("gaggle")),
        peers: match &args.peers {
            Some(peers) => peers.clone(),
            // Nobody else takes part in a trial.
            None if args.smoke => PathBuf::new(),
            None => target.join("peers"),
        },
        congestion: args.congestion.clone(),
        rounds,
        calls: if args.smoke { 1 } else { 3 },
        report: Report::default(),
        bar: ProgressBar::new((experiments.len() * rounds) as u64),
    };
    bench.bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {msg}",
    )?);
    let congestion = match &bench.congestion {
        Some(name) => name.clone(),
        None => std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?
            .trim()
            .to_owned(),
    };
    bench.report.judge_by(rounds);
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let typed = typed.join(" ");
    let typed = typed.split("--out ").next().unwrap_or_default();
    bench.report.head = vec![
        format!("command: cargo xtask bench hosts {typed}")
            .trim_end()
            .to_owned(),
        format!("machine: {}", machine()),
        format!("{rounds} rounds; congestion control {congestion}"),
    ];
    let dir = args.report.clone();
    let dir = dir.unwrap_or_else(|| target.join("bench/hosts"));
    for experiment in &experiments {
        bench.experiment(experiment)?;
        if !args.smoke {
            // What there is stays, should the next one fail.
            bench.report.write(&dir, "hosts")?;
        }
    }
    bench.bar.finish_and_clear();
    println!("{}", bench.report.markdown());
    if args.smoke {
        println!("it works; so short, the figures mean nothing");
    } else {
        println!(
            "{}; the tables are in {}",
            bench.report.verdict(),
            dir.display()
        );
    }
    bench.report.write_figures(args.out.as_deref())
}

/// Bytes that each of `n` ranks must send for an all-reduce, whatever the plan.
fn least(n: usize, bytes: u64) -> f64 {
    2.0 * (n as f64 - 1.0) / n as f64 * bytes as f64
}

/// What each host's interface has sent.
fn passed(net: &Net) -> Result<Vec<u64>> {
    let hosts = 0..net.wire().hosts;
    hosts.map(|h| Ok(net.passed(h)?.sent)).collect()
}

/// What the host has sent that has sent most since then.
///
/// # Errors
/// One has sent less than it had to.
fn used(net: &Net, before: &[u64], must: f64) -> Result<f64> {
    let mut most = 0f64;
    for (host, (before, after)) in before.iter().zip(passed(net)?).enumerate() {
        let sent = after.saturating_sub(*before) as f64;
        if sent < must {
            bail!(
                "host {host} has sent {sent:.0} bytes by {}, and had to send {must:.0}: something went another way",
                net::INTERFACE
            );
        }
        most = most.max(sent);
    }
    Ok(most)
}

impl Bench {
    fn experiment(&mut self, e: &Experiment) -> Result<()> {
        let net = Net::lay(e.wire(), self.congestion.as_deref())
            .with_context(|| format!("{}: the network cannot be built", e.id))?;
        match e.sort {
            Sort::Rates => self.rates(e, &net),
            Sort::Bf16 => self.bf16(e, &net),
            Sort::Levels => self.levels(e, &net),
            Sort::Delay => self.delay(e, &net),
        }
        .with_context(|| e.id.clone())
    }

    fn turn(&self, e: &Experiment, round: usize) {
        self.bar
            .set_message(format!("{}, round {} of {}", e.id, round + 1, self.rounds));
    }

    /// One run of `gaggle perf` with so many ranks on each host; and the most bytes per call that a host's interface has sent.
    ///
    /// # Errors
    /// A rank fails, or less has passed the network than had to.
    fn run(&self, net: &Net, per_host: usize, what: &Call) -> Result<(Vec<Measured>, f64)> {
        let hosts = net.wire().hosts;
        let world = hosts * per_host;
        let ranks = perf::on_hosts(net, &self.gaggle, per_host, &what.arguments());
        let before = passed(net)?;
        let wire = net.wire();
        let seconds: f64 = what
            .sizes
            .iter()
            .map(|s| what.rounds() as f64 * (0.1 + 4.0 * least(world, *s) / wire.bytes_per_s()))
            .sum();
        let said = jobs::run(ranks, Duration::from_secs_f64(30.0 + seconds))?;
        let measured = perf::read(&said[0])?;
        // What a host must send, if the ranks on it do all between themselves that they can.
        let part = match what.codec {
            Some(_) => 0.5,
            None => 1.0,
        };
        let must: f64 = what.sizes.iter().map(|s| least(hosts, *s)).sum();
        let must = part * must * what.rounds() as f64;
        let most = used(net, &before, must)?;
        Ok((measured, most / what.rounds() as f64))
    }

    fn figure(
        &mut self,
        e: &Experiment,
        name: String,
        bytes: u64,
        unit: &'static str,
        samples: &[f64],
    ) {
        let wire = e.wire();
        self.report.figures.push(Figure {
            name: format!("{}/{name}", e.id),
            parameters: json!({
                "hosts": wire.hosts,
                "mbit_per_s": wire.mbit,
                "delay_us": wire.delay.map_or(0, |d| d.as_micros() as u64),
            }),
            unit,
            samples: samples.to_vec(),
            bytes: Some(bytes),
        });
    }

    fn rates(&mut self, e: &Experiment, net: &Net) -> Result<()> {
        let title = format!("All-reduce, {}", e.wire().name());
        let columns = [
            "size",
            "algorithm",
            "time",
            "2(n−1)/n · S/R",
            "sent per call",
        ];
        let mut table = Table::new(title, &columns);
        for bytes in &e.sizes {
            let (mut seconds, mut by, mut sent) = (Vec::new(), String::new(), 0.0);
            for round in 0..self.rounds {
                self.turn(e, round);
                let what = Call {
                    check: round == 0,
                    ..Call::of(&[*bytes], self.calls)
                };
                let (measured, passed) = self.run(net, 1, &what)?;
                let one = measured.first().context("nothing was measured")?;
                seconds.extend(&one.seconds);
                (by, sent) = (one.algorithm.clone(), passed);
            }
            let limit = least(e.hosts, *bytes) / e.wire().bytes_per_s();
            let got = median(&seconds);
            table.lines.push(Line {
                cells: vec![
                    size(*bytes),
                    by,
                    time(got),
                    time(limit),
                    format!("{:.1} MB", sent / 1e6),
                ],
                held: Some((got / limit, 1.07)),
            });
            self.figure(e, size(*bytes), *bytes, "s", &seconds);
        }
        self.bar.inc(self.rounds as u64);
        self.report.tables.push(table);
        Ok(())
    }

    fn bf16(&mut self, e: &Experiment, net: &Net) -> Result<()> {
        let title = format!("bf16 on the wire against f32, {}", e.wire().name());
        let mut table = Table::new(title, &["size", "f32", "bf16"]);
        for bytes in &e.sizes {
            let mut seconds: [Vec<f64>; 2] = Default::default();
            for round in 0..self.rounds {
                self.turn(e, round);
                for at in [round % 2, 1 - round % 2] {
                    let what = Call {
                        check: round == 0,
                        codec: (at == 1).then_some("bf16"),
                        ..Call::of(&[*bytes], self.calls)
                    };
                    let (measured, _) = self.run(net, 1, &what)?;
                    let one = measured.first().context("nothing was measured")?;
                    seconds[at].push(median(&one.seconds));
                }
            }
            let [plain, coded] = &seconds;
            table.lines.push(Line {
                cells: vec![size(*bytes), time(median(plain)), time(median(coded))],
                held: Some((paired(coded, plain), 0.55)),
            });
            self.figure(e, format!("{} f32", size(*bytes)), *bytes, "s", plain);
            self.figure(e, format!("{} bf16", size(*bytes)), *bytes, "s", coded);
        }
        self.bar.inc(self.rounds as u64);
        self.report.tables.push(table);
        Ok(())
    }

    fn levels(&mut self, e: &Experiment, net: &Net) -> Result<()> {
        let title = format!("Two ranks on each host against one, {}", e.wire().name());
        let columns = [
            "size",
            "algorithm",
            "time, 1 each",
            "time, 2 each",
            "sent per call, 1 each",
            "2 each",
        ];
        let mut table = Table::new(title, &columns);
        for bytes in &e.sizes {
            let mut sent: [f64; 2] = [0.0; 2];
            let mut seconds: [Vec<f64>; 2] = Default::default();
            let mut by = String::new();
            for round in 0..self.rounds {
                self.turn(e, round);
                for (at, per_host) in [1, 2].into_iter().enumerate() {
                    let what = Call {
                        check: round == 0,
                        ..Call::of(&[*bytes], self.calls)
                    };
                    let (measured, passed) = self.run(net, per_host, &what)?;
                    let one = measured.first().context("nothing was measured")?;
                    seconds[at].extend(&one.seconds);
                    sent[at] = passed;
                    by.clone_from(&one.algorithm);
                }
            }
            table.lines.push(Line {
                cells: vec![
                    size(*bytes),
                    by,
                    time(median(&seconds[0])),
                    time(median(&seconds[1])),
                    format!("{:.2} MB", sent[0] / 1e6),
                    format!("{:.2} MB", sent[1] / 1e6),
                ],
                // Acknowledgements and meetings vary by some packets.
                held: Some((sent[1] / sent[0], 1.01)),
            });
            self.figure(
                e,
                format!("{} 1 each", size(*bytes)),
                *bytes,
                "s",
                &seconds[0],
            );
            self.figure(
                e,
                format!("{} 2 each", size(*bytes)),
                *bytes,
                "s",
                &seconds[1],
            );
        }
        self.bar.inc(self.rounds as u64);
        self.report.tables.push(table);
        Ok(())
    }

    fn delay(&mut self, e: &Experiment, net: &Net) -> Result<()> {
        let title = format!("All-reduce beside other systems, {}", e.wire().name());
        let mut ours = Contender::new("gaggle");
        let mut by: BTreeMap<u64, String> = BTreeMap::new();
        let mut theirs: Vec<(Other, Contender)> = Vec::new();
        for other in Other::ALL {
            match other.program(&self.peers) {
                Ok(_) => theirs.push((other, Contender::new(other.name()))),
                Err(why) => self.missing(other.name(), &format!("{why:#}")),
            }
        }
        // A round in which somebody failed is made up for, within limits.
        let mut round = 0;
        while round < self.rounds || round < self.rounds + EXTRA && self.lacks(&ours, &theirs) {
            self.turn(e, round.min(self.rounds - 1));
            let what = Call {
                check: round == 0,
                ..Call::of(&e.sizes, 20 * self.calls)
            };
            let found = self.run(net, 1, &what).map(|(measured, _)| {
                let times = measured.iter().map(|m| (m.bytes, median(&m.seconds)));
                let times = times.collect();
                by.extend(measured.into_iter().map(|m| (m.bytes, m.algorithm)));
                times
            });
            ours.add(round, found);
            for (other, contender) in &mut theirs {
                if contender.has_given_up() {
                    continue;
                }
                let (budget, limit) = (0.4, Duration::from_secs(40));
                let before = passed(net);
                let found = other.measure(net, &self.peers, &e.sizes, budget, limit);
                // Each size once: how often they call it is theirs to know.
                let must: f64 = e.sizes.iter().map(|s| least(e.hosts, *s)).sum();
                let found = found.and_then(|found| {
                    used(net, &before?, must)?;
                    Ok(found)
                });
                contender.add(round, found);
            }
            if round < self.rounds {
                self.bar.inc(1);
            }
            round += 1;
        }
        let all = std::iter::once(&ours).chain(theirs.iter().map(|(_, c)| c));
        for (name, why) in all
            .filter_map(|c| Some((c.name, c.failed()?)))
            .collect::<Vec<_>>()
        {
            self.missing(name, &why);
        }
        theirs.retain(|(_, c)| !c.times.is_empty());
        let mut columns = vec!["size", "algorithm", "gaggle"];
        columns.extend(theirs.iter().map(|(other, _)| other.name()));
        columns.push("floor");
        let mut table = Table::new(title, &columns);
        for bytes in &e.sizes {
            let best = theirs.iter().map(|(_, c)| c);
            let best = best.min_by(|a, b| a.median(*bytes).total_cmp(&b.median(*bytes)));
            let ratios = best.map(|best| ours.paired(best, *bytes));
            let held = ratios.filter(|r| r.len() >= self.rounds);
            if let (None, Some(best)) = (&held, best) {
                self.missing(
                    &format!("{} beside {}", size(*bytes), best.name),
                    &format!("fewer than {} rounds have both: not judged", self.rounds),
                );
            }
            let mut cells = vec![
                size(*bytes),
                by.get(bytes).cloned().unwrap_or_default(),
                time(ours.median(*bytes)),
            ];
            cells.extend(theirs.iter().map(|(_, c)| time(c.median(*bytes))));
            cells.push(time(floor(e, *bytes)));
            table.lines.push(Line {
                cells,
                held: held.map(|ratios| (median(&ratios), 0.65)),
            });
            for contender in std::iter::once(&ours).chain(theirs.iter().map(|(_, c)| c)) {
                let name = format!("{} {}", size(*bytes), contender.name);
                self.figure(e, name, *bytes, "s", &contender.of(*bytes));
            }
        }
        self.report.tables.push(table);
        Ok(())
    }

    fn lacks(&self, ours: &Contender, theirs: &[(Other, Contender)]) -> bool {
        let others = theirs.iter().map(|(_, c)| c).filter(|c| !c.has_given_up());
        std::iter::once(ours)
            .chain(others)
            .any(|c| c.times.len() < self.rounds)
    }

    fn missing(&mut self, name: &str, why: &str) {
        self.report
            .missing
            .push(format!("{name} with delay: {why}"));
    }
}

/// The shortest time there is: one delay and everybody's vector, or two and the wire's share, whichever is less.
fn floor(e: &Experiment, bytes: u64) -> f64 {
    let delay = e.wire().delay.unwrap_or_default().as_secs_f64();
    let rate = e.wire().bytes_per_s();
    let once = delay + (e.hosts as f64 - 1.0) * bytes as f64 / rate;
    once.min(2.0 * delay + least(e.hosts, bytes) / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_chosen_by_the_beginning_of_their_names() {
        let ids = |names: &[&str]| -> Vec<String> {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            let all = chosen(&names).expect("there are such").into_iter();
            all.map(|e| e.id).collect()
        };
        assert_eq!(
            ids(&["rates-8x200", "delay"]),
            ["rates-8x200", "delay-4x1000"]
        );
        assert_eq!(ids(&[]).len(), 8);
        let error = chosen(&["ratse".into()]).expect_err("none").to_string();
        assert!(error.contains("rates-4x200"), "{error}");
    }

    #[test]
    fn floors_are_the_delays_and_the_wire() {
        let all = experiments();
        let delayed = all.iter().find(|e| e.sort == Sort::Delay).expect("one");
        assert!((floor(delayed, 4) - 1e-3).abs() < 1e-6);
        assert!((floor(delayed, MIB) - 14.58e-3).abs() < 1e-4);
        assert_eq!(least(4, 100), 150.0);
    }
}
