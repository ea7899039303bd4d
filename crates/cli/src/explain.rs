//! `gaggle explain`: which plan carries an operation out, why, and what it does, without a job.
//!
//! It asks `gaggle-collectives` as an engine would; `text` prints, `svg` draws, this file reads the command line and puts the operation together.

mod svg;
mod text;

use crate::{args, failure::Failure, output::Output};
use clap::Args as ClapArgs;
use gaggle_collectives::{
    Call, Cost, Plan, Request, Timeline, check,
    select::{self, LinkClass, Overrides, Places, Question, Selection, Tables},
    timeline,
};
use gaggle_core::{Algorithm, Codec, Counts, DType, Mode, OpKind, Rank, Reduce, Round, Topology};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// Show how an operation is carried out: which algorithm and why, each rank's plan, what it costs
#[derive(ClapArgs, Debug)]
#[command(after_long_help = HELP, after_help = "`gaggle explain --help` has examples and the names of everything.")]
pub(crate) struct ExplainArgs {
    /// Which operation, as all-reduce
    #[arg(value_name = "OPERATION", value_parser = operation)]
    operation: OpKind,
    /// How many ranks take part
    #[arg(short = 'n', long, value_name = "N", value_parser = args::members)]
    ranks: u32,
    /// The vector: of all parts together, where each rank has one; with k, m or g
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = size)]
    bytes: u64,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// How contributions are combined
    #[arg(long, default_value = "sum")]
    reduce: Reduce,
    /// The algorithm, instead of the fastest one
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// The rank that gives or gets, in operations that have one
    #[arg(long, value_name = "RANK", default_value = "0")]
    root: u32,
    /// Which ranks share a host: 2x3 for 2 hosts of 3 ranks, or each rank's host, 0,0,1
    #[arg(long, value_name = "HOSTS", value_parser = hosts)]
    hosts: Option<Hosts>,
    /// Which ranks of one host share a memory node (NUMA), likewise: 2x8, or each rank's node
    #[arg(long, value_name = "NODES", value_parser = nodes)]
    nodes: Option<Hosts>,
    /// What the ranks' links are: threads, shared, loopback, 10gbit or 1gbit; of several hosts, those between them
    #[arg(long, value_name = "CLASS", value_parser = class)]
    links: Option<LinkClass>,
    /// A file that gaggle tune has written, as in GAGGLE_TABLES
    #[arg(long, value_name = "FILE", value_parser = tables_file, conflicts_with = "links")]
    tables: Option<Tables>,
    /// What may be on the wire: plain, bf16, f16 or int8
    #[arg(long, default_value = "plain")]
    codec: Codec,
    /// Use the codec even where it costs more time than it saves
    #[arg(long)]
    force_codec: bool,
    /// Keep what the codec loses, and add it the next time
    #[arg(long)]
    feedback: bool,
    /// What is promised about the bits: default, ordered or exact
    #[arg(long, default_value = "default", value_parser = mode)]
    mode: Mode,
    /// Algorithms to use whatever the cost model says, as in GAGGLE_ALGORITHMS: all_reduce:0-32k=ring,32k-=direct;broadcast:=pipelined
    #[arg(
        long,
        value_name = "RULES",
        default_value = "",
        hide_default_value = true
    )]
    overrides: Overrides,
    /// Input and output are different buffers
    #[arg(long)]
    out_of_place: bool,
    /// The ranks, all on one host, have each other's buffers mapped
    #[arg(long)]
    mapped: bool,
    /// A host has more ranks than processors
    #[arg(long)]
    crowded: bool,
    /// Longest message, with k, m or g
    #[arg(long, value_name = "SIZE", value_parser = size)]
    slice: Option<u64>,
    /// Of k-nomial trees: children per inner node, plus 1
    #[arg(long, value_name = "K", default_value = "4")]
    radix: u32,
    /// Who a rank's neighbours are, in neighbour operations: between machines, where --hosts says so
    #[arg(long, value_name = "NAME", default_value = "ring")]
    topology: String,
    /// Which round of the topology
    #[arg(long, value_name = "T", default_value = "0")]
    round: u64,
    /// Print this rank's plan only
    #[arg(long)]
    rank: Option<u32>,
    /// Print every step of every rank
    #[arg(long)]
    all: bool,
    /// Draw who does what when into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  gaggle explain all-reduce --ranks 6 --bytes 1M
  gaggle explain all-reduce --ranks 6 --hosts 2x3 --algorithm two_level_ring --svg plan.svg
  gaggle explain all-reduce --ranks 16 --nodes 2x8 --mapped --bytes 64m
  gaggle explain broadcast --ranks 9 --bytes 64k --root 4 --algorithm binomial
  gaggle explain all-reduce --ranks 4 --codec bf16 --links 1gbit --mode ordered
  gaggle explain neighbour-all-reduce --ranks 8 --topology one-peer-exp --round 1

Operations:
  all-reduce, reduce, broadcast, gather, scatter, all-gather, reduce-scatter, all-to-all, barrier,
  neighbour-all-reduce, neighbour-all-gather, hierarchical-neighbour-all-reduce, message

A step reads: number, what it does with which elements of which buffer (input, user, scratch), and
the steps that must be over before. Steps that do the same to slices of one span are one line.
Times are predictions from the links' table, not measurements.";

/// The names that people have for operations.
fn operation(text: &str) -> Result<OpKind, String> {
    let name = text.to_ascii_lowercase().replace(['_', ' '], "-");
    let usual = match name.as_str() {
        "allreduce" => "all-reduce",
        "allgather" => "all-gather",
        "alltoall" => "all-to-all",
        "neighbour-all-reduce" | "neighbor-all-reduce" | "neighbor-allreduce" | "gossip" => "mix",
        "neighbour-gather" | "neighbor-all-gather" | "neighbor-allgather" => "neighbour-all-gather",
        "hierarchical-neighbour-all-reduce"
        | "hierarchical-neighbor-allreduce"
        | "hierarchical" => "hierarchical-mix",
        "send" | "receive" | "recv" | "send-receive" => "message",
        other => other,
    };
    OpKind::from_name(usual).ok_or_else(|| {
        "no operation is called that; there are all-reduce, reduce, broadcast, gather, scatter, \
         all-gather, reduce-scatter, all-to-all, barrier, neighbour-all-reduce, \
         neighbour-all-gather, hierarchical-neighbour-all-reduce and message"
            .into()
    })
}

/// `4096`, `64k`, `1M`, `2g`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower
        .strip_suffix("ib")
        .or(lower.strip_suffix('b'))
        .unwrap_or(&lower);
    let (digits, shift) = match lower.char_indices().last() {
        Some((at, 'k')) => (&lower[..at], 10),
        Some((at, 'm')) => (&lower[..at], 20),
        Some((at, 'g')) => (&lower[..at], 30),
        _ => (lower, 0),
    };
    let number: Option<u64> = digits.trim().parse().ok();
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| "give a number of bytes, as 4096, 64k, 1m or 2g".into())
}

fn mode(text: &str) -> Result<Mode, String> {
    [Mode::Default, Mode::Ordered, Mode::Exact]
        .into_iter()
        .find(|m| m.to_string() == text)
        .ok_or_else(|| "there are default, ordered and exact".into())
}

fn tables_file(path: &str) -> Result<Tables, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    text.parse()
        .map_err(|e: select::ParseTablesError| e.to_string())
}

fn class(text: &str) -> Result<LinkClass, String> {
    let found = LinkClass::NAMED.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, class)| *class)
        .ok_or_else(|| "there are threads, shared, loopback, 10gbit and 1gbit".into())
}

/// Each rank's host, or memory node.
#[derive(Clone, Debug)]
struct Hosts(Numbers);

/// One for each rank.
type Numbers = Arc<[u32]>;

fn hosts(text: &str) -> Result<Hosts, String> {
    groups(text, "host")
}

fn nodes(text: &str) -> Result<Hosts, String> {
    groups(text, "node")
}

fn groups(text: &str, what: &str) -> Result<Hosts, String> {
    let wrong = || format!("give 2x3 for 2 {what}s of 3 ranks, or each rank's {what}, as 0,0,1");
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    if let Some((hosts, each)) = text.split_once('x') {
        let (hosts, each) = (number(hosts)?, number(each)?);
        let n = hosts.checked_mul(each).ok_or_else(wrong)?;
        args::members(&n.to_string())?;
        return Ok(Hosts((0..n).map(|r| r / each).collect()));
    }
    let all: Result<Arc<[u32]>, String> = text.split(',').map(number).collect();
    Ok(Hosts(all?))
}

/// All there is to say.
struct Explained {
    kind: OpKind,
    dtype: DType,
    /// Elements of the vector, of all parts together.
    len: u64,
    /// Whether the vector was made longer so that all parts are equal.
    rounded: bool,
    tables: Tables,
    hosts: Option<Numbers>,
    /// Of ranks of one host, where there are several.
    nodes: Option<Numbers>,
    /// What was taken because nothing was said of it, and what was said in vain; for a person.
    assumed: Vec<String>,
    selection: Selection,
    /// Whose plans follow: all ranks' where there is a `whole`, else those that are shown.
    ranks: Vec<u32>,
    plans: Vec<Plan>,
    costs: Vec<Cost>,
    whole: Option<Whole>,
}

/// What only the plans of all ranks together say.
struct Whole {
    rounds: u64,
    times: Timeline,
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<i32, Failure> {
    // Where it cannot be drawn to is a mistake in the command line, as all others here.
    let unwritten = |e: Failure| Failure::Explain(e.to_string());
    let drawing = args.svg.as_deref().map(Output::open).transpose();
    let drawing = drawing.map_err(unwritten)?;
    let explained = put_together(args).map_err(Failure::Explain)?;
    if let Some(mut file) = drawing {
        let drawn = svg::draw(&explained).map_err(Failure::Explain)?;
        file.write(&drawn).map_err(unwritten)?;
    }
    let printed = match args.json {
        true => text::json(&explained, args),
        false => text::plain(&explained, args),
    };
    crate::print(&printed);
    Ok(0)
}

/// More steps than these, of all ranks together, are no explanation.
const MOST_STEPS: u64 = 2_000_000;
/// Plans of all ranks that have more steps than these together take seconds to put beside each other: they are where they are asked for.
const FEW_STEPS: u64 = 200_000;
/// Ranks whose plans are shown unless all are asked for.
const SHOWN_RANKS: u32 = 8;

fn put_together(args: &ExplainArgs) -> Result<Explained, String> {
    let (kind, world, dtype) = (args.operation, args.ranks, args.dtype);
    check_args(args)?;
    let parts = has_parts(kind);
    let size = dtype.size() as u64;
    let unit = if parts {
        size.saturating_mul(world.into())
    } else {
        size
    };
    let asked = if kind == OpKind::Barrier {
        0
    } else {
        args.bytes
    };
    let bytes = asked
        .checked_next_multiple_of(unit)
        .ok_or("the vector is longer than can be counted")?;
    let len = bytes / size;
    let (hosts, nodes) = spread(args);
    let places = Places {
        hosts: hosts.as_deref(),
        nodes: nodes.as_deref(),
    };
    let groups = places.groups().map(Arc::<[u32]>::from);
    let machines = match kind {
        OpKind::HierarchicalMix => Some(machines(hosts.as_deref().unwrap_or_default())),
        _ => None,
    };
    let neighbours = Neighbours::of(args, machines.as_ref().map(|m| m.len()))?;
    let tables = tables(args, hosts.as_deref());
    let question = Question {
        reduce: if kind.reduces() {
            args.reduce
        } else {
            Reduce::Sum
        },
        hosts: places.hosts,
        nodes: places.nodes,
        mode: args.mode,
        codec: args.codec,
        codec_forced: args.force_codec,
        feedback: args.feedback,
        algorithm: args.algorithm,
        radix: args.radix,
        degree: neighbours.as_ref().map_or(1, Neighbours::degree),
        ..Question::new(kind, dtype, world, len)
    };
    let selection =
        select::choose(&tables, &args.overrides, &question).map_err(|e| e.to_string())?;
    let base = Request {
        len: if parts { len / u64::from(world) } else { len },
        slice: selection.slice,
        codec: selection.codec,
        widen: dtype.accumulator() != dtype,
        out_of_place: args.out_of_place || kind == OpKind::NeighbourGather,
        feedback: args.feedback && selection.codec != Codec::None,
        radix: args.radix,
        hosts: groups,
        ..Request::new(Call::Barrier, Rank(0), world, len)
    };
    let plan = |rank: u32| {
        let call = call(
            args,
            &selection,
            neighbours.as_ref(),
            machines.as_ref(),
            rank,
        );
        let request = Request {
            call,
            rank: Rank(rank),
            out_of_place: base.out_of_place && !(kind == OpKind::Message && rank == 1),
            ..base.clone()
        };
        gaggle_collectives::plan(&request).map_err(|e| e.to_string())
    };
    let slices = len / selection.slice.max(1);
    let n = messages(kind, selection.algorithm, world, slices);
    if n > MOST_STEPS {
        return Err(format!(
            "a rank has about {n} messages: {}",
            too_long(MOST_STEPS)
        ));
    }
    // In one pass over mapped memory each waits for all, which is worth a step for some of them.
    let weight = match selection.algorithm.planned() {
        Algorithm::Fused => u64::from(world / 16).max(1),
        _ => 1,
    };
    let (ranks, plans, all) = plans(args, plan, weight)?;
    let costs: Option<Vec<Cost>> = plans.iter().map(|p| Cost::of(p, dtype)).collect();
    let fault =
        |fault| format!("the plans do not fit together, which is a mistake of gaggle's: {fault}");
    let whole = match all {
        true => Some(Whole {
            rounds: check::depth(&plans).map_err(fault)?,
            times: timeline(&plans, dtype, &tables, places).map_err(fault)?,
        }),
        false => None,
    };
    Ok(Explained {
        kind,
        dtype,
        len,
        rounded: bytes != asked,
        assumed: assumed(args, hosts.as_deref()),
        costs: costs
            .ok_or_else(|| format!("the {} codec applies to f32, not to {dtype}", args.codec))?,
        tables,
        nodes: places.nodes_of_one_host().map(Arc::from),
        hosts,
        selection,
        ranks,
        plans,
        whole,
    })
}

/// At least so many messages are in the longest plan, of a vector of so many slices.
fn messages(kind: OpKind, algorithm: Algorithm, world: u32, slices: u64) -> u64 {
    let whole_to_all = match kind {
        OpKind::AllReduce => algorithm == Algorithm::Exchange,
        OpKind::Reduce | OpKind::Broadcast => algorithm == Algorithm::Direct,
        _ => false,
    };
    match whole_to_all {
        true => slices.saturating_mul(u64::from(world) - 1),
        false => slices,
    }
}

fn too_long(most: u64) -> String {
    format!(
        "the plans have more than {most} steps; fewer ranks, longer slices (--slice) or one rank (--rank) make an explanation"
    )
}

/// The plans of all ranks and `true`, where those are few steps or everything is asked for; else of the ranks that are shown.
fn plans(
    args: &ExplainArgs,
    plan: impl Fn(u32) -> Result<Plan, String>,
    weight: u64,
) -> Result<(Vec<u32>, Vec<Plan>, bool), String> {
    let world = args.ranks;
    let all_of_them = args.all && args.rank.is_none();
    let most = match (&args.svg, all_of_them) {
        (Some(_), _) => svg::MOST_STEPS,
        (None, true) => MOST_STEPS,
        (None, false) => FEW_STEPS,
    };
    let shown: Vec<u32> = match args.rank {
        Some(rank) => vec![rank],
        None => (0..world.min(SHOWN_RANKS)).collect(),
    };
    let some: Vec<Plan> = shown.iter().map(|r| plan(*r)).collect::<Result<_, _>>()?;
    let each = some.iter().map(Plan::n_steps).max().unwrap_or(0);
    // Others may have more; that is seen as they come.
    let steps = weight.saturating_mul(u64::from(each) * u64::from(world));
    let mut left = (steps <= most).then_some(most);
    let mut all = Vec::new();
    for rank in 0..world {
        let Some(steps) = left else { break };
        let plan = match shown.iter().position(|r| *r == rank) {
            Some(at) => some[at].clone(),
            None => plan(rank)?,
        };
        left = steps.checked_sub(plan.n_steps().into());
        all.push(plan);
    }
    match left {
        Some(_) => Ok(((0..world).collect(), all, true)),
        None if args.svg.is_some() => Err(format!(
            "more than {most} steps are too many to draw; fewer ranks, or longer slices (--slice), make a drawing"
        )),
        None if all_of_them => Err(too_long(most)),
        None => Ok((shown, some, false)),
    }
}

/// Which ranks share a host and a memory node. Where only nodes or mapped memory are spoken of, all are on one host.
fn spread(args: &ExplainArgs) -> (Option<Numbers>, Option<Numbers>) {
    let hosts = args.hosts.as_ref().map(|h| h.0.clone());
    let nodes = args.nodes.as_ref().map(|n| n.0.clone());
    let one_host = || {
        let implied = nodes.is_some() || args.mapped;
        implied.then(|| vec![0; args.ranks as usize].into())
    };
    (hosts.or_else(one_host), nodes)
}

/// What is not said on the command line and matters, and what was said in vain.
fn assumed(args: &ExplainArgs, hosts: Option<&[u32]>) -> Vec<String> {
    let mut all = Vec::new();
    let several = hosts.is_some_and(|h| h.iter().any(|host| *host != h[0]));
    match (hosts, &args.hosts) {
        (None, _) if args.ranks > 1 => {
            all.push(
                "each rank on a host of its own (--hosts, --nodes or --mapped says otherwise)"
                    .into(),
            );
        }
        (Some(_), None) => all.push("all ranks on one host (--hosts says otherwise)".into()),
        _ => {}
    }
    let said = args.links.is_some() || args.tables.is_some();
    if (hosts.is_none() || several) && args.ranks > 1 && !said {
        all.push("10 Gbit/s between hosts (--links or --tables says otherwise)".into());
    }
    if args.mapped && several {
        all.push("--mapped has no say where ranks are on several hosts".into());
    }
    all
}

/// Whether each rank has a part of the vector.
fn has_parts(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Gather
            | OpKind::Scatter
            | OpKind::AllGather
            | OpKind::ReduceScatter
            | OpKind::AllToAll
    )
}

fn check_args(args: &ExplainArgs) -> Result<(), String> {
    let (kind, world) = (args.operation, args.ranks);
    let in_group = |what: &str, rank: u32| match rank < world {
        true => Ok(()),
        false => Err(format!(
            "{what} is {rank}, but there are {world} ranks, 0 to {}",
            world - 1
        )),
    };
    in_group("--root", args.root)?;
    if let Some(rank) = args.rank {
        in_group("--rank", rank)?;
    }
    if args.radix < 2 {
        return Err("--radix is at least 2".into());
    }
    if args.slice == Some(0) {
        return Err("--slice is at least one element".into());
    }
    if kind.reduces() && !args.reduce.is_defined_on(args.dtype) {
        return Err(format!("{} is not defined on {}", args.reduce, args.dtype));
    }
    if matches!(kind, OpKind::Mix | OpKind::HierarchicalMix) && !args.dtype.is_float() {
        return Err(format!("averages need floats, not {}", args.dtype));
    }
    if kind == OpKind::Message && world != 2 {
        return Err("a message is between 2 ranks: say --ranks 2".into());
    }
    if let Some(Hosts(nodes)) = args.nodes.as_ref().filter(|n| n.0.len() != world as usize) {
        return Err(format!(
            "--nodes speaks of {} ranks, but there are {world}",
            nodes.len()
        ));
    }
    match &args.hosts {
        Some(Hosts(hosts)) if hosts.len() != world as usize => Err(format!(
            "--hosts speaks of {} ranks, but there are {world}",
            hosts.len()
        )),
        None if kind == OpKind::HierarchicalMix => {
            Err("say which ranks share a machine, as --hosts 2x3".into())
        }
        _ => Ok(()),
    }
}

fn tables(args: &ExplainArgs, hosts: Option<&[u32]>) -> Tables {
    let one_host = hosts.is_some_and(|h| h.iter().all(|host| *host == h[0]));
    let tables = match (args.links, one_host) {
        _ if args.tables.is_some() => args.tables.unwrap_or_default(),
        (Some(class), true) => Tables::of(class, class),
        (Some(class), false) => Tables::of(LinkClass::LOOPBACK, class),
        (None, true) if args.mapped => Tables::shared(),
        (None, true) => Tables::one_host(),
        (None, false) => Tables::network(),
    };
    Tables {
        slice_bytes: args.slice.unwrap_or(tables.slice_bytes),
        mapped: args.mapped || tables.mapped,
        crowded: args.crowded || tables.crowded,
        ..tables
    }
}

/// Members by machine.
type Machines = Arc<[Vec<Rank>]>;

/// The members of each machine.
fn machines(hosts: &[u32]) -> Machines {
    let mut by_host: BTreeMap<u32, Vec<Rank>> = BTreeMap::new();
    for (rank, host) in (0..).zip(hosts) {
        by_host.entry(*host).or_default().push(Rank(rank));
    }
    by_host.into_values().collect()
}

/// Who a rank's neighbours are, or a machine's.
struct Neighbours {
    topology: Box<dyn Topology>,
    t: u64,
}

impl Neighbours {
    /// `None` where the operation has none; `machines` is how many there are.
    fn of(args: &ExplainArgs, machines: Option<usize>) -> Result<Option<Neighbours>, String> {
        let n = match (args.operation, machines) {
            (OpKind::Mix | OpKind::NeighbourGather, _) => args.ranks as usize,
            (_, Some(machines)) => machines,
            _ => return Ok(None),
        };
        let topology =
            gaggle_topology::by_name(&args.topology, n).map_err(|e| format!("--topology: {e}"))?;
        let t = args.round;
        Ok(Some(Neighbours { topology, t }))
    }

    fn round(&self, of: u32) -> Round {
        let mut round = Round::default();
        self.topology.round(Rank(of), self.t, &mut round);
        round
    }

    /// Of whoever has the most.
    fn degree(&self) -> u32 {
        let mut round = Round::default();
        let degrees = (0..self.topology.world() as u32).map(|rank| {
            self.topology.round(Rank(rank), self.t, &mut round);
            round.from.len().max(round.to.len()) as u32
        });
        degrees.max().unwrap_or(1)
    }
}

fn call(
    args: &ExplainArgs,
    selection: &Selection,
    neighbours: Option<&Neighbours>,
    machines: Option<&Machines>,
    rank: u32,
) -> Call {
    let (reduce, root, algorithm) = (args.reduce, Rank(args.root), selection.algorithm.planned());
    let counts = Counts::Equal;
    let ranks = |side: &[(Rank, f64)]| side.iter().map(|(r, _)| *r).collect::<Vec<_>>();
    let numbers = |side: &[(Rank, f64)]| side.iter().map(|(r, _)| r.0).collect::<Vec<_>>();
    let round = |of| neighbours.map_or_else(Round::default, |all| all.round(of));
    let scaled = |round: &Round| round.to.iter().any(|(_, w)| *w != 1.0);
    match args.operation {
        OpKind::AllReduce => Call::AllReduce { reduce, algorithm },
        OpKind::Reduce => Call::Reduce {
            reduce,
            root,
            algorithm,
        },
        OpKind::Broadcast => Call::Broadcast { root, algorithm },
        OpKind::Gather => Call::Gather {
            root,
            counts,
            algorithm,
        },
        OpKind::Scatter => Call::Scatter {
            root,
            counts,
            algorithm,
        },
        OpKind::AllGather => Call::AllGather { counts, algorithm },
        OpKind::ReduceScatter => Call::ReduceScatter {
            reduce,
            counts,
            algorithm,
        },
        OpKind::AllToAll => Call::AllToAll {
            send: counts.clone(),
            recv: counts,
            algorithm,
        },
        OpKind::Barrier => Call::Barrier,
        OpKind::Mix => {
            let round = round(rank);
            Call::Mix {
                from: ranks(&round.from),
                to: ranks(&round.to),
                scaled: scaled(&round),
                form: round.form,
            }
        }
        OpKind::NeighbourGather => {
            let round = round(rank);
            Call::NeighbourGather {
                from: ranks(&round.from),
                to: ranks(&round.to),
                counts,
            }
        }
        OpKind::HierarchicalMix => {
            let machines = machines.cloned().unwrap_or_default();
            let mine = machines.iter().position(|m| m.contains(&Rank(rank)));
            let round = round(mine.unwrap_or(0) as u32);
            Call::HierarchicalMix {
                from: numbers(&round.from),
                to: numbers(&round.to),
                scaled: scaled(&round),
                form: round.form,
                machines,
            }
        }
        OpKind::Message if rank == 0 => Call::Send { to: Rank(1) },
        OpKind::Message => Call::Recv { from: Rank(0) },
    }
}
