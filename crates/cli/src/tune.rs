//! `gaggle tune`: measures what links can do, and writes the table that the cost model reads.
//!
//! Two ranks of one host, and two of different hosts where there are several, exchange messages through the public API while the others wait. [`gaggle_collectives::select::Tables`] says what the numbers mean, and reads them.

use crate::{args, failure::Failure, output::Output, run::launch};
use clap::Args as ClapArgs;
use gaggle::Group;
use gaggle_collectives::select::{LinkClass, Tables};
use gaggle_core::{Algorithm, Codec, Error, Kind, Op, Rank, Reduce, descriptor::stable_hash};
use gaggle_launch::{Job, Voice};
use gaggle_transport::processors::NodeSetting;
use std::{env, ffi::OsString, path::PathBuf, time::Instant};

/// Measure what the links between ranks can do, and write the table that plans are chosen by
#[derive(ClapArgs, Debug)]
#[command(after_help = HELP)]
pub(crate) struct TuneArgs {
    /// Start so many ranks on this machine, unless this process is a rank of a job already
    #[arg(long, value_name = "N", default_value = "2", value_parser = args::ranks)]
    ranks: u32,
    /// Where to write the table
    #[arg(short, long, value_name = "FILE", default_value = "gaggle-tables.txt")]
    output: PathBuf,
    /// Times that each exchange is measured
    #[arg(long, value_name = "N", default_value = "15", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
}

const HELP: &str = "\
Examples:
  gaggle tune
  gaggle tune -o tables.txt && GAGGLE_TABLES=tables.txt gaggle perf all-reduce
  torchrun --nnodes 2 --nproc-per-node 2 --no-python gaggle tune    on every host: between hosts, too

Measured are latency (half a ping-pong), the cost of a message (a burst of small ones), bandwidth
(both ways at once), the fold rate (an all-reduce less its exchange) and the codecs' rate (an
all-reduce with bf16 less one without, and less the bytes that it saves); where ranks have mapped
each other's memory also a look at it (a barrier) and its rate (an all-reduce); medians. `inside` is
between processes of one host (and of one memory node, where they are bound to some), `across` is
between nodes of a host, all ranks of two nodes at once, `between` is between hosts; what is not
there stays as it is usually, and so does a rate that is too fast to be told from the rest of its
operation become a bound; the file says so.
All ranks of a job need the same file in GAGGLE_TABLES; operations of ranks that differ fail.";

pub(crate) fn tune(args: &TuneArgs) -> Result<i32, Failure> {
    let set = |name: &str| env::var_os(name).is_some_and(|v| !v.is_empty());
    if set("RANK") && set("WORLD_SIZE") {
        let writes = env::var("RANK").is_ok_and(|rank| rank.trim() == "0");
        // Opened before anything is measured.
        let output = writes.then(|| Output::open(&args.output)).transpose()?;
        let job = gaggle::join()?;
        if job.size() < 2 {
            return Err(too_few());
        }
        return member(&job, args, output);
    }
    if args.ranks < 2 {
        return Err(too_few());
    }
    // Rank 0 opens it again.
    drop(Output::open(&args.output)?);
    let me = env::current_exe().map_err(|why| Failure::Write {
        path: "the path of this program".into(),
        why,
    })?;
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let job = Job::new(args.ranks, me)
        .args(arguments)
        .voice(Voice::Lead)
        // What is measured must not depend on what was measured before.
        .env("GAGGLE_TABLES", "");
    launch(job, args.ranks)
}

fn too_few() -> Failure {
    Failure::TuneUsage("a link has two ends: give at least 2 ranks".into())
}

/// One rank's part; rank 0, which is an end of every link that is measured, writes.
fn member(group: &Group, args: &TuneArgs, output: Option<Output>) -> Result<i32, Failure> {
    let hosts = group.all_gather(&[host()])?;
    let nodes = group.all_gather(&[node()?])?;
    let (here, at) = (hosts[0], nodes[0]);
    let beside =
        |rank: usize| hosts[rank] == here && (nodes[rank] == at || nodes[rank] == 0 || at == 0);
    let find = |fits: &dyn Fn(usize) -> bool| {
        let found = (1..hosts.len()).find(|rank| fits(*rank));
        found.map(|rank| Rank(rank as u32))
    };
    let mut tables = Tables::default();
    let mut remarks = String::new();
    for (name, peer, class) in [
        ("inside", find(&beside), &mut tables.inside),
        (
            "between",
            find(&|rank| hosts[rank] != here),
            &mut tables.between,
        ),
    ] {
        match peer {
            Some(peer) => {
                remarks += &format!("# {name}: measured between rank 0 and {peer}\n");
                if group.rank() == Rank(0) || group.rank() == peer {
                    let pair = group.subgroup(&[Rank(0), peer], name)?;
                    let found = measure(&pair, args.repeat)?;
                    *class = found.class;
                    tables.mapped |= found.mapped;
                    remarks += &found.remarks(name);
                }
            }
            None => remarks += &format!("# {name}: not there, as it is usually\n"),
        }
        group.barrier()?;
    }
    let local: Vec<u64> = (0..hosts.len())
        .map(|rank| if hosts[rank] == here { nodes[rank] } else { 0 })
        .collect();
    let pairs = pairs_across(&local);
    tables.across = tables.inside.across_nodes();
    match pairs.len() {
        0 => remarks += "# across: not there, as it is assumed by inside\n",
        n => {
            remarks += &format!("# across: measured between {n} pairs of ranks at once\n");
            // All at once: what a rank gets while its whole node reaches across.
            let own = pairs.iter().find(|pair| pair.contains(&group.rank()));
            if let Some(pair) = own {
                let pair = group.subgroup(pair, "across")?;
                let found = measure(&pair, args.repeat)?;
                tables.across = found.class;
                remarks += &found.remarks("across");
            }
        }
    }
    group.barrier()?;
    if let Some(mut file) = output {
        let text = format!(
            "# What links can do, as gaggle {} has measured it.\n{remarks}{tables}",
            env!("CARGO_PKG_VERSION")
        );
        file.write(&text)?;
        crate::print(&text);
    }
    Ok(0)
}

/// This rank's memory node, from 1 on; 0 where it is not known.
fn node() -> Result<u64, Failure> {
    let said = env::var("GAGGLE_NODE").unwrap_or_default();
    let setting: NodeSetting = said
        .parse()
        .map_err(|e| Failure::TuneUsage(format!("GAGGLE_NODE is {said:?}, wanted {e}")))?;
    Ok(setting.node().map_or(0, |node| u64::from(node) + 1))
}

/// Each rank of rank 0's node with one of the next node; `nodes` are those of rank 0's host, 0 where a rank is on another or does not know.
fn pairs_across(nodes: &[u64]) -> Vec<[Rank; 2]> {
    let on = |node: u64| {
        let ranks = (0..)
            .zip(nodes)
            .filter(move |(_, n)| **n == node && node != 0);
        ranks.map(|(rank, _)| Rank(rank))
    };
    let first = nodes.first().copied().unwrap_or(0);
    let other = nodes.iter().copied().find(|n| *n != 0 && *n != first);
    let other = other.filter(|_| first != 0).unwrap_or(0);
    on(first).zip(on(other)).map(|(a, b)| [a, b]).collect()
}

/// The same for ranks of one boot and network namespace, and no other's: as ranks that join find out who shares a host.
fn host() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let boot = read("/proc/sys/kernel/random/boot_id");
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let net = net.to_string_lossy();
    // Without namespaces the name tells machines apart.
    let name = match net.is_empty() {
        true => read("/proc/sys/kernel/hostname"),
        false => String::new(),
    };
    stable_hash(&[b"host", boot.as_bytes(), net.as_bytes(), name.as_bytes()])
}

/// Elements of an exchange that takes long, and of one that does not.
const MANY: usize = 2 << 20;
const BURST: usize = 64;
const TAG: u32 = 1;

/// What was measured of a link.
struct Found {
    class: LinkClass,
    /// Whether both ends have mapped each other's memory.
    mapped: bool,
    /// Rates that are more than can be told apart.
    bounds: Vec<&'static str>,
}

impl Found {
    /// Which numbers of the class called `name` were not measured.
    fn remarks(&self, name: &str) -> String {
        let mut text = String::new();
        for number in &self.bounds {
            text += &format!(
                "# {name}.{number}: a bound; what it is measured by took no longer than without it\n"
            );
        }
        if !self.mapped {
            text += &format!(
                "# {name}.look_ns, {name}.mapped_bytes_per_us: no memory is mapped, as they are usually\n"
            );
        }
        text
    }
}

/// What a link between two ranks can do.
fn measure(pair: &Group, repeat: u32) -> Result<Found, Error> {
    let bytes = (4 * MANY) as f64;
    let (me, peer) = (pair.rank(), Rank(1 - pair.rank().0));
    let mut one = [0f32];
    let ping = median(pair, repeat.saturating_mul(20), || {
        if me == Rank(0) {
            pair.send(&one, peer, TAG)?;
            pair.recv(&mut one, peer, TAG)?;
        } else {
            pair.recv(&mut one, peer, TAG)?;
            pair.send(&one, peer, TAG)?;
        }
        Ok(())
    })?;
    let burst = median(pair, repeat, || {
        let sends: Vec<_> = (0..BURST)
            .map(|_| pair.start_send(vec![0f32], peer, TAG))
            .collect();
        let receives: Vec<_> = (0..BURST)
            .map(|_| pair.start_recv(vec![0f32], peer, TAG))
            .collect();
        for work in sends.into_iter().chain(receives) {
            work.wait().map_err(|f| f.error)?;
        }
        Ok(())
    })?;
    let (mut out, mut back) = (Some(vec![1f32; MANY]), Some(vec![1f32; MANY]));
    let exchange = median(pair, repeat, || {
        let send = pair.start_send(out.take().unwrap_or_default(), peer, TAG);
        let receive = pair.start_recv(back.take().unwrap_or_default(), peer, TAG);
        out = Some(send.wait().map_err(|f| f.error)?);
        back = Some(receive.wait().map_err(|f| f.error)?);
        Ok(())
    })?;
    let mut x = vec![0f32; MANY];
    let reduce = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::RecursiveDoubling);
    let reduced = median(pair, repeat, || pair.run(&reduce, &mut x).map(drop))?;
    let direct = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Direct);
    let coded = direct.clone().coded_always(Codec::Bf16);
    let plain = median(pair, repeat, || pair.run(&direct, &mut x).map(drop))?;
    let coded = median(pair, repeat, || pair.run(&coded, &mut x).map(drop))?;
    let ready = median(pair, repeat.saturating_mul(20), || pair.barrier())?;
    let mut mapped = pair.buffer::<f32>(MANY);
    let fused = Op::new(Kind::AllReduce(Reduce::Sum)).by(Algorithm::Fused);
    // Where ranks have not mapped each other's memory this is refused, on both alike.
    let fused = match mapped.is_registered() && pair.run(&fused, &mut mapped).is_ok() {
        true => Some(median(pair, repeat, || {
            pair.run(&fused, &mut mapped).map(drop)
        })?),
        false => None,
    };
    let times = Times {
        ready,
        fused,
        ping,
        burst,
        exchange,
        reduced,
        plain,
        coded,
    };
    Ok(times.class(bytes))
}

/// In nanoseconds, of operations on so many bytes where they have some.
struct Times {
    /// A barrier.
    ready: f64,
    /// In place, over memory that both have mapped, where there is such.
    fused: Option<f64>,
    ping: f64,
    /// Of small messages each way.
    burst: f64,
    /// Both ways at once.
    exchange: f64,
    /// By recursive doubling.
    reduced: f64,
    /// By direct, and the same with half of the bytes on the wire.
    plain: f64,
    coded: f64,
}

impl Times {
    fn class(&self, bytes: f64) -> Found {
        /// More than memory gives: what is overlapped by the exchange costs nothing, and a rate needs a number.
        const FASTEST: f64 = 100_000.0;
        let usual = LinkClass::SHARED;
        let whole = |x: f64| x.round().max(1.0) as u64;
        let mut bounds = Vec::new();
        let mut rate = |name: &'static str, bytes: f64, ns: f64| {
            let rate = bytes * 1e3 / ns.max(1.0);
            if rate > FASTEST {
                bounds.push(name);
            }
            whole(rate.min(FASTEST))
        };
        let class = LinkClass {
            latency_ns: whole(self.ping / 2.0),
            // A rank sends and receives each of them.
            message_ns: whole(self.burst / (2.0 * BURST as f64)),
            bytes_per_us: rate("bytes_per_us", bytes, self.exchange),
            fold_bytes_per_us: rate("fold_bytes_per_us", bytes, self.reduced - self.exchange),
            // Of two ranks each sends and receives as many bytes as the vector has, and encodes or decodes both.
            codec_bytes_per_us: rate(
                "codec_bytes_per_us",
                2.0 * bytes,
                self.coded - (self.plain - self.exchange / 2.0),
            ),
            // Each reads as many bytes as the vector has, and writes them.
            mapped_bytes_per_us: self.fused.map_or(usual.mapped_bytes_per_us, |ns| {
                rate("mapped_bytes_per_us", 2.0 * bytes, ns - self.ready)
            }),
            look_ns: self.fused.map_or(usual.look_ns, |_| whole(self.ready)),
        };
        Found {
            class,
            mapped: self.fused.is_some(),
            bounds,
        }
    }
}

/// Of so many runs after a first one, each begun together, in nanoseconds.
fn median(
    pair: &Group,
    repeat: u32,
    mut run: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    run()?;
    let mut times = Vec::with_capacity(repeat as usize);
    for _ in 0..repeat.max(1) {
        pair.barrier()?;
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_the_times_say() {
        let times = Times {
            ready: 400.0,
            fused: Some(800_400.0),
            ping: 20_000.0,
            burst: 256_000.0,
            exchange: 2e6,
            reduced: 3e6,
            plain: 3e6,
            coded: 4e6,
        };
        let found = times.class(8e6);
        assert!(found.mapped && found.bounds.is_empty());
        assert_eq!(found.remarks("inside"), "");
        let c = found.class;
        assert_eq!((c.latency_ns, c.message_ns), (10_000, 2_000));
        assert_eq!((c.bytes_per_us, c.fold_bytes_per_us), (4_000, 8_000));
        // 2 ms are left when half of the exchange is saved; 4 ms is what it takes.
        assert_eq!(c.codec_bytes_per_us, 8_000);
        assert_eq!((c.look_ns, c.mapped_bytes_per_us), (400, 20_000));
        // An all-reduce that is no slower than its exchange, and times of nothing.
        let found = Times {
            fused: None,
            ping: 0.0,
            burst: 0.0,
            reduced: 1e6,
            ..times
        }
        .class(8e6);
        let c = found.class;
        assert_eq!((c.latency_ns, c.message_ns), (1, 1));
        // A bound is not written as if it had been measured.
        assert_eq!(c.fold_bytes_per_us, 100_000);
        assert_eq!(found.bounds, ["fold_bytes_per_us"]);
        let remarks = found.remarks("inside");
        assert!(
            remarks.contains("# inside.fold_bytes_per_us: a bound"),
            "{remarks}"
        );
        assert!(
            !found.mapped && remarks.contains("no memory is mapped"),
            "{remarks}"
        );
        let usual = LinkClass::SHARED;
        assert_eq!(
            (c.look_ns, c.mapped_bytes_per_us),
            (usual.look_ns, usual.mapped_bytes_per_us)
        );
    }

    #[test]
    fn each_rank_of_a_node_has_one_of_the_next_to_reach_across_to() {
        let of = |nodes: &[u64]| -> Vec<[u32; 2]> {
            let pairs = pairs_across(nodes).into_iter();
            pairs.map(|pair| pair.map(|rank| rank.0)).collect()
        };
        assert_eq!(of(&[1, 1, 2, 2]), [[0, 2], [1, 3]]);
        assert_eq!(of(&[2, 1, 2, 3, 1]), [[0, 1], [2, 4]]);
        assert_eq!(of(&[1, 2, 2]), [[0, 1]]);
        for none in [&[][..], &[1], &[1, 1], &[0, 0], &[1, 0], &[0, 1, 2]] {
            assert!(pairs_across(none).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn a_pair_of_threads_has_a_class_that_can_be_read_back() {
        let classes = gaggle::local(2, |group| measure(&group, 1)).unwrap();
        let mut tables = Tables::threads();
        for found in classes {
            tables.inside = found.unwrap().class;
            assert_eq!(tables.to_string().parse(), Ok(tables));
        }
    }
}
