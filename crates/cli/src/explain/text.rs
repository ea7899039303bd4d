//! The explanation in words, and as JSON.

use super::{ExplainArgs, Explained, SHOWN_RANKS};
use gaggle_collectives::{Action, Cost, Plan, explain::lines};
use gaggle_core::{Codec, Rank};
use serde_json::json;
use std::{fmt::Write, time::Duration};

/// Lines of a plan that are printed unless everything is asked for.
const MOST_LINES: usize = 40;

/// For a person.
pub(super) fn plain(explained: &Explained, args: &ExplainArgs) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_plain(&mut text, explained, args);
    text
}

fn write_plain(text: &mut String, explained: &Explained, args: &ExplainArgs) -> std::fmt::Result {
    let selection = &explained.selection;
    let bytes = explained.len.saturating_mul(explained.dtype.size() as u64);
    writeln!(
        text,
        "{} of {} {} ({}) among {} ranks",
        explained.kind.name(),
        explained.len,
        explained.dtype,
        size(bytes),
        args.ranks
    )?;
    if explained.rounded {
        writeln!(
            text,
            "  (made longer, so that it is whole elements and equal parts)"
        )?;
    }
    writeln!(text)?;
    for assumed in &explained.assumed {
        writeln!(text, "assumed    {assumed}")?;
    }
    writeln!(text, "choice     {selection}")?;
    match &explained.whole {
        Some(whole) => writeln!(
            text,
            "predicted  {:.1?} step by step; {} rounds; messages of at most {} elements",
            Duration::from_nanos(whole.times.nanoseconds),
            whole.rounds,
            selection.slice
        )?,
        None => writeln!(
            text,
            "predicted  {:.1?} by the cost model; messages of at most {} elements; so many plans are not put together step by step, unless --all asks for it",
            selection.time(),
            selection.slice
        )?,
    }
    let class = |c: &gaggle_collectives::select::LinkClass| {
        format!(
            "{:.0?} and {} MB/s",
            Duration::from_nanos(c.latency_ns),
            c.bytes_per_us
        )
    };
    match (&explained.nodes, &explained.hosts) {
        (Some(_), _) => writeln!(
            text,
            "links      inside a node {}; between nodes {}; in mapped memory {} and {} MB/s, looks {} and {} ns",
            class(&explained.tables.inside),
            class(&explained.tables.across),
            explained.tables.inside.mapped_bytes_per_us,
            explained.tables.across.mapped_bytes_per_us,
            explained.tables.inside.look_ns,
            explained.tables.across.look_ns
        )?,
        (None, Some(_)) => writeln!(
            text,
            "links      inside a host {}; between hosts {}",
            class(&explained.tables.inside),
            class(&explained.tables.between)
        )?,
        (None, None) => writeln!(text, "links      {}", class(&explained.tables.between))?,
    }
    if explained.whole.is_some() {
        if let Some(nodes) = &explained.nodes {
            writeln!(text, "crossing   {}", size(crossing(explained, nodes)))?;
        }
        let sent: u64 = explained.costs.iter().map(|c| c.bytes_sent).sum();
        let most = explained.costs.iter().map(|c| c.bytes_sent).max();
        writeln!(
            text,
            "bytes      {} on all links together; {} from the rank that sends most",
            size(sent),
            size(most.unwrap_or(0))
        )?;
    }
    let shown = shown(explained, args);
    for &at in &shown {
        writeln!(text)?;
        write_rank(text, explained, at, args.all)?;
    }
    let left = args.ranks as usize - shown.len();
    if args.rank.is_none() && left > 0 {
        writeln!(
            text,
            "\n… and {left} more ranks: --rank R prints one, --all prints all"
        )?;
    }
    Ok(())
}

/// Where among the plans those are that are shown.
fn shown(explained: &Explained, args: &ExplainArgs) -> Vec<usize> {
    let ranks = (0..).zip(&explained.ranks);
    let wanted = |rank: u32| match args.rank {
        Some(one) => rank == one,
        None => args.all || rank < SHOWN_RANKS,
    };
    let wanted = ranks.filter(|(_, rank)| wanted(**rank));
    wanted.map(|(at, _)| at).collect()
}

/// Bytes of messages, and bytes read and written where other ranks have them, that go from one memory node to another.
fn crossing(explained: &Explained, nodes: &[u32]) -> u64 {
    let size = explained.dtype.size() as u64;
    let of = |(rank, (plan, cost)): (usize, (&Plan, &Cost))| -> u64 {
        let away = |other: usize| nodes[other] != nodes[rank];
        let others = (0..nodes.len()).filter(|other| away(*other)).count() as u64;
        let links = cost.links.iter().filter(|(peer, _)| away(peer.idx()));
        let messages = links.fold(0u64, |sum, (_, link)| sum.saturating_add(link.bytes_sent));
        let touched = plan.iter().map(|step| match step.action {
            // Everybody's elements are read, and everybody's written.
            Action::GroupFold { len, .. } => (2 * others).saturating_mul(len),
            Action::GroupCopy { from, dst, .. } if away(from.idx()) => dst.len,
            _ => 0,
        });
        let touched = touched.fold(0, u64::saturating_add);
        messages.saturating_add(size.saturating_mul(touched))
    };
    let all = explained.plans.iter().zip(&explained.costs);
    all.enumerate().map(of).fold(0, u64::saturating_add)
}

fn write_rank(text: &mut String, explained: &Explained, at: usize, all: bool) -> std::fmt::Result {
    let (plan, cost) = (&explained.plans[at], &explained.costs[at]);
    writeln!(
        text,
        "{}: {} steps; sends {} messages, {}; receives {}, {}",
        Rank(explained.ranks[at]),
        plan.n_steps(),
        cost.messages_sent,
        size(cost.bytes_sent),
        cost.messages_received,
        size(cost.bytes_received)
    )?;
    for link in links(cost) {
        writeln!(text, "  {link}")?;
    }
    if all {
        for (idx, step) in (0..).zip(plan.iter()) {
            let idx: u32 = idx;
            writeln!(text, "{idx:>9}  {step}")?;
        }
        return Ok(());
    }
    let lines = lines(plan);
    let (head, tail) = match lines.len() > MOST_LINES {
        true => (MOST_LINES - 8, lines.len() - 4),
        false => (lines.len(), lines.len()),
    };
    for line in &lines[..head] {
        writeln!(text, "{line}")?;
    }
    if head < tail {
        writeln!(
            text,
            "           … {} more lines: --all prints every step …",
            tail - head
        )?;
    }
    for line in &lines[tail..] {
        writeln!(text, "{line}")?;
    }
    Ok(())
}

/// `to and from ranks 1, 2 and 3: 1.00 MiB out, 1.00 MiB in each`, peers with the same bytes together.
fn links(cost: &Cost) -> Vec<String> {
    let mut groups: Vec<((u64, u64), Vec<Rank>)> = Vec::new();
    for (peer, link) in &cost.links {
        let bytes = (link.bytes_sent, link.bytes_received);
        match groups.iter_mut().find(|(b, _)| *b == bytes) {
            Some((_, peers)) => peers.push(*peer),
            None => groups.push((bytes, vec![*peer])),
        }
    }
    let line = |((sent, received), peers): ((u64, u64), Vec<Rank>)| {
        let each = if peers.len() > 1 { ", each" } else { "" };
        format!(
            "link with {}: {} out, {} in{each}",
            gaggle_core::name_ranks(&peers),
            size(sent),
            size(received)
        )
    };
    groups.into_iter().map(line).collect()
}

/// `1.50 MiB (1572864 bytes)`.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => {
            format!("{} {unit}", bytes >> shift)
        }
        Some((shift, unit)) => format!(
            "{:.2} {unit} ({bytes} bytes)",
            bytes as f64 / (1u64 << shift) as f64
        ),
        None => format!("{bytes} bytes"),
    }
}

/// For a program.
pub(super) fn json(explained: &Explained, args: &ExplainArgs) -> String {
    let selection = &explained.selection;
    let whole = explained.whole.as_ref();
    let rank = |at: usize| {
        let (plan, cost) = (&explained.plans[at], &explained.costs[at]);
        let links: Vec<_> = cost
            .links
            .iter()
            .map(|(peer, link)| {
                json!({
                    "peer": peer.0,
                    "bytes_sent": link.bytes_sent,
                    "bytes_received": link.bytes_received,
                })
            })
            .collect();
        let times = whole.map(|whole| &whole.times.steps[at]);
        let steps: Vec<_> = (0..)
            .zip(plan.iter())
            .map(|(idx, step): (usize, _)| {
                let when = times.map(|times| times[idx]);
                json!({
                    "action": step.action.to_string(),
                    "after": step.after.to_vec(),
                    "begins_ns": when.map(|w| w.begins),
                    "ends_ns": when.map(|w| w.ends),
                })
            })
            .collect();
        json!({
            "rank": explained.ranks[at],
            "messages_sent": cost.messages_sent,
            "messages_received": cost.messages_received,
            "bytes_sent": cost.bytes_sent,
            "bytes_received": cost.bytes_received,
            "links": links,
            "steps": steps,
        })
    };
    // As far as they are there: whoever reads JSON has room.
    let at = (0..explained.plans.len())
        .filter(|at| args.rank.is_none_or(|one| explained.ranks[*at] == one));
    let ranks: Vec<_> = at.map(rank).collect();
    let candidates: Vec<_> = selection
        .candidates
        .iter()
        .map(|c| json!({"algorithm": c.algorithm.name(), "predicted_ns": c.nanoseconds}))
        .collect();
    let whole = json!({
        "operation": explained.kind.name(),
        "ranks": args.ranks,
        "assumed": explained.assumed,
        "elements": explained.len,
        "dtype": explained.dtype.to_string(),
        "algorithm": selection.algorithm.name(),
        "codec": selection.codec.to_string(),
        "codec_declined": selection.declined.map(|(codec, _): (Codec, u64)| codec.to_string()),
        "slice": selection.slice,
        "reason": selection.to_string(),
        "predicted_ns": selection.nanoseconds,
        "candidates": candidates,
        "step_by_step_ns": whole.map(|w| w.times.nanoseconds),
        "rounds": whole.map(|w| w.rounds),
        "plans": ranks,
    });
    format!("{whole:#}\n")
}
