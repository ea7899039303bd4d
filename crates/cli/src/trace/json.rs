//! The report for programs.

use super::report::operation;
use gaggle_core::Rank;
use gaggle_trace::{Basis, Job};
use serde_json::{Value, json};

/// Everything that the text says, times in nanoseconds.
pub(crate) fn report(job: &Job) -> Value {
    let op = |at: (usize, usize)| {
        let op = operation(job, at);
        json!({
            "operation": op.descriptor.name(),
            "description": op.descriptor.to_string(),
            "stream": job.stream(at),
            "phase": op.phase.name(),
            "bytes_sent": op.bytes_sent,
            "bytes_received": op.bytes_received,
            "last_from": op.last_from.map(|r| r.0),
        })
    };
    let ranks = job.ranks.iter().map(|r| {
        let h = &r.recording.header;
        json!({
            "rank": h.rank.0, "process": h.pid, "host": h.host, "program": h.program,
            "file": r.path.display().to_string(), "alive": r.alive, "fate": r.fate(),
            "started": h.started, "kept": r.recording.operations.len(), "torn": r.recording.torn,
        })
    });
    let clocks = job.clocks.iter().map(|c| {
        json!({
            "host": c.host, "offset_ns": c.offset, "uncertainty_ns": c.uncertainty,
            "basis": match c.basis {
                Basis::Reference => "reference",
                Basis::Bounds => "operations",
                Basis::Contradiction => "operations that contradict each other",
                _ => "wall clocks",
            },
        })
    });
    let blamed = job.blamed().into_iter().map(|b| {
        let named = b
            .named_by
            .iter()
            .map(|n| json!({ "by": n.by.0, "kind": n.kind.name(), "text": n.text }));
        json!({
            "rank": b.rank.0,
            "ended_without_leaving": b.ended_without_leaving,
            "named_by": named.collect::<Vec<_>>(),
            "awaited_by": numbers(&b.awaited_by),
            "waits_for": numbers(&b.waits_for),
        })
    });
    let in_flight = job.in_flight().into_iter().map(|flight| {
        let waits = flight.waits_for.iter();
        let waits = waits.map(|w| json!({ "rank": w.rank.0, "why": w.why.text() }));
        json!({
            "rank": flight.rank.0, "operation": op(flight.at), "since_ns": flight.since,
            "waits_for": waits.collect::<Vec<_>>(),
        })
    });
    let failed = job.ranks.iter().enumerate().flat_map(|(r, rank)| {
        let ops = rank.recording.operations.iter().enumerate();
        ops.filter_map(move |(o, op)| Some(((r, o), rank.rank(), op.failure.as_ref()?)))
    });
    let failed = failed.map(|(at, rank, failure)| {
        json!({
            "rank": rank.0, "operation": op(at), "kind": failure.kind.name(),
            "culprit": failure.culprit.map(|r| r.0), "text": failure.text,
        })
    });
    let slowest = job.slowest(32).into_iter().map(|slow| {
        json!({
            "rank": slow.rank.0, "operation": op(slow.at), "took_ns": slow.took,
            "late_rank": slow.late.map(|(rank, _)| rank.0),
            "late_ns": slow.late.map(|(_, waited)| waited),
        })
    });
    let late = job.late().into_iter().map(|late| {
        json!({ "rank": late.rank.0, "waited_ns": late.waited, "operations": late.operations })
    });
    json!({
        "job": job.name,
        "run": format!("{:016x}", job.run),
        "epoch": job.epoch,
        "world": job.world,
        "absent": numbers(&job.absent()),
        "ranks": ranks.collect::<Vec<_>>(),
        "clocks": clocks.collect::<Vec<_>>(),
        "blamed": blamed.collect::<Vec<_>>(),
        "in_flight": in_flight.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
        "slowest": slowest.collect::<Vec<_>>(),
        "late": late.collect::<Vec<_>>(),
    })
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|r| r.0).collect()
}
