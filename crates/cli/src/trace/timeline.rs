//! The time line, as Chrome's trace events, which Perfetto reads: a process is a rank, a thread is a stream of operations, a slice is an operation, an arrow goes from the rank whose message came last.
//!
//! Source: the Trace Event Format (Google, 2016). Times there are microseconds, fractions allowed.

use super::report::name;
use gaggle_trace::{Job, OpKey, Phase};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The whole file.
pub(crate) fn timeline(job: &Job) -> Value {
    let mut events = vec![];
    let rows: Vec<Vec<usize>> = (0..job.ranks.len())
        .map(|r| rows(job, r, &mut events))
        .collect();
    let end = job.end();
    let mut calls: BTreeMap<(usize, OpKey), usize> = BTreeMap::new();
    for (r, rank) in job.ranks.iter().enumerate() {
        for (o, op) in rank.recording.operations.iter().enumerate() {
            calls.insert((r, OpKey::of(op)), o);
            events.push(slice(job, (r, o), rows[r][o], end));
        }
    }
    let mut arrows = 0;
    for (r, rank) in job.ranks.iter().enumerate() {
        for (o, op) in rank.recording.operations.iter().enumerate() {
            let from = op.last_from.and_then(|q| job.find(q)).filter(|q| *q != r);
            let there = from.and_then(|q| Some((q, *calls.get(&(q, OpKey::of(op)))?)));
            let (Some((q, other)), Some(arrival)) = (there, op.last_arrival) else {
                continue;
            };
            arrows += 1;
            let begun = job.ranks[q].recording.operations[other].started;
            let arrow = |ph: &str, who: (usize, usize), at: i64| {
                json!({
                    "ph": ph, "id": arrows, "name": "last message", "cat": "wait",
                    "pid": pid(job, who.0), "tid": rows[who.0][who.1], "ts": micros(at),
                })
            };
            events.push(arrow("s", (q, other), job.time(q, begun)));
            let mut head = arrow("f", (r, o), job.time(r, arrival));
            head["bp"] = "e".into();
            events.push(head);
        }
    }
    json!({
        "displayTimeUnit": "ms",
        "otherData": { "job": job.name, "run": format!("{:016x}", job.run), "world": job.world },
        "traceEvents": events,
    })
}

fn pid(job: &Job, r: usize) -> u32 {
    job.ranks[r].rank().0
}

fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1e3
}

/// The row of each operation of a rank. Operations of one stream that overlap in time get rows of their own: slices of one row must not.
fn rows(job: &Job, r: usize, events: &mut Vec<Value>) -> Vec<usize> {
    let rank = &job.ranks[r];
    let h = &rank.recording.header;
    let mut meta = |name: &str, tid: usize, args: Value| {
        events.push(json!({
            "ph": "M", "name": name, "pid": pid(job, r), "tid": tid, "args": args,
        }));
    };
    let title = format!("{} ({}, process {})", h.rank, h.host, h.pid);
    meta("process_name", 0, json!({ "name": title }));
    meta("process_sort_index", 0, json!({ "sort_index": h.rank.0 }));
    let ops = &rank.recording.operations;
    let mut order: Vec<usize> = (0..ops.len()).collect();
    order.sort_by_key(|o| (ops[*o].started, *o));
    // Of each stream: its rows, each with the end of its last operation.
    let mut streams: BTreeMap<_, Vec<(usize, u64)>> = BTreeMap::new();
    let mut next = 1;
    let mut row_of = vec![0; ops.len()];
    for o in order {
        let op = &ops[o];
        let id = op.descriptor.id;
        let stream = (id.group, id.lane, id.class, op.descriptor.incarnation);
        let rows = streams.entry(stream).or_default();
        let ends = op.finished.unwrap_or(u64::MAX);
        let row = match rows.iter_mut().find(|(_, end)| *end <= op.started) {
            Some(free) => {
                free.1 = ends;
                free.0
            }
            None => {
                let mut title = job.stream((r, o));
                if !rows.is_empty() {
                    title += &format!(" ({})", rows.len() + 1);
                }
                meta("thread_name", next, json!({ "name": title }));
                rows.push((next, ends));
                next += 1;
                next - 1
            }
        };
        row_of[o] = row;
    }
    row_of
}

fn slice(job: &Job, at: (usize, usize), row: usize, end: i64) -> Value {
    let (r, o) = at;
    let op = &job.ranks[r].recording.operations[o];
    let start = job.time(r, op.started);
    let finished = op.finished.map_or(end, |t| job.time(r, t));
    let title = if op.phase.in_flight() {
        format!("{} (in flight)", name(job, at))
    } else {
        name(job, at)
    };
    let mut args = json!({
        "operation": op.descriptor.to_string(),
        "phase": op.phase.name(),
        "number": op.serial,
        "bytes received": op.bytes_received,
        "members": op.group_size,
    });
    if !op.phase.in_flight() {
        args["bytes sent"] = op.bytes_sent.into();
    }
    if let Some(first) = op.first_arrival {
        args["first message after"] = super::report::time(first.saturating_sub(op.started)).into();
    }
    if let Some(from) = op.last_from {
        args["last message from"] = from.to_string().into();
    }
    if !op.awaited.is_empty() {
        let key = if op.phase == Phase::Done {
            "did without"
        } else {
            "awaited"
        };
        args[key] = gaggle_core::name_ranks(&op.awaited).into();
    }
    if let Some(failure) = &op.failure {
        args["failure"] = failure.kind.name().into();
        args["cause"] = failure.text.clone().into();
        if let Some(culprit) = failure.culprit {
            args["culprit"] = culprit.to_string().into();
        }
    }
    if op.torn {
        args["torn"] = true.into();
    }
    let mut event = json!({
        "ph": "X", "name": title, "cat": op.phase.name(), "pid": pid(job, r), "tid": row,
        "ts": micros(start), "dur": micros(finished.saturating_sub(start).max(0)), "args": args,
    });
    if op.failure.is_some() {
        event["cname"] = "terrible".into();
    } else if op.phase.in_flight() {
        event["cname"] = "bad".into();
    }
    event
}
