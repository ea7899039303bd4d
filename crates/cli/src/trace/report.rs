//! What a person is told.

use gaggle_core::{Rank, name_ranks};
use gaggle_trace::{Basis, Blamed, ClockFit, Job, Operation, Phase, WaitsFor};
use std::fmt::{self, Display, Formatter};

/// Lines of a list; the rest is counted.
const MOST: usize = 16;
/// Slowest operations that are told.
const SLOWEST: usize = 8;

/// The whole report.
pub(crate) fn report(job: &Job) -> impl Display {
    Report(job)
}

struct Report<'a>(&'a Job);

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let job = self.0;
        writeln!(f, "{}", job.title())?;
        list(
            f,
            "ranks",
            job.ranks.iter().map(|r| {
                let h = &r.recording.header;
                let mut line = format!(
                    "{}  {}, process {} on {}, {} operations",
                    h.rank,
                    r.fate(),
                    h.pid,
                    h.host,
                    h.started
                );
                if r.recording.forgotten() > 0 {
                    line += &format!(", the last {} kept", r.recording.operations.len());
                }
                if r.recording.torn > 0 {
                    line += &format!(", {} torn", r.recording.torn);
                }
                line
            }),
        )?;
        if job.clocks.len() > 1 {
            list(
                f,
                "clocks",
                job.clocks.iter().map(|c| clock(c, &job.clocks[0])),
            )?;
        }
        list(f, "who waited for whom", job.blamed().iter().map(blamed))?;
        list(
            f,
            "in flight at the end",
            job.in_flight().iter().map(|flight| {
                let op = operation(job, flight.at);
                let mut line = format!(
                    "{}  {} ({}), for {}",
                    flight.rank,
                    name(job, flight.at),
                    op.descriptor,
                    time(flight.since)
                );
                line += &match (flight.waits_for.as_slice(), op.last_from) {
                    ([], None) => ", all have called it as far as is known".to_owned(),
                    ([], Some(from)) => format!(
                        ", all have called it as far as is known; the last message came from {from}"
                    ),
                    (waits, _) => format!(", waits for {}", waits_for(waits)),
                };
                line
            }),
        )?;
        list(f, "failed", failed(job))?;
        list(
            f,
            "slowest operations",
            job.slowest(SLOWEST).iter().map(|slow| {
                let mut line = format!("{}  {} {}", time(slow.took), slow.rank, name(job, slow.at));
                let op = operation(job, slow.at);
                if op.phase == Phase::Done && !op.awaited.is_empty() {
                    line += &format!(", without {}", name_ranks(&op.awaited));
                }
                if let Some((rank, waited)) = slow.late {
                    line += &format!(", {} of it until {rank} called it", time(waited));
                } else if let Some(from) = op.last_from {
                    line += &format!(", the last message came from {from}");
                }
                line
            }),
        )?;
        list(
            f,
            "late ranks",
            job.late().iter().map(|late| {
                format!(
                    "{}  others waited {} for it to call {} {} they had called",
                    late.rank,
                    time(late.waited),
                    late.operations,
                    if late.operations == 1 {
                        "operation that"
                    } else {
                        "operations that"
                    }
                )
            }),
        )
    }
}

fn list(
    f: &mut Formatter<'_>,
    title: &str,
    lines: impl IntoIterator<Item = String>,
) -> fmt::Result {
    let lines: Vec<String> = lines.into_iter().collect();
    if lines.is_empty() {
        return writeln!(f, "\n{title}: none");
    }
    writeln!(f, "\n{title}:")?;
    for line in lines.iter().take(MOST) {
        writeln!(f, "  {line}")?;
    }
    if lines.len() > MOST {
        writeln!(f, "  and {} more", lines.len() - MOST)?;
    }
    Ok(())
}

fn clock(clock: &ClockFit, reference: &ClockFit) -> String {
    let sign = if clock.offset > 0 {
        "behind"
    } else {
        "ahead of"
    };
    let apart = time(clock.offset.unsigned_abs());
    let by = format!("{}  {apart} {sign} {}'s", clock.host, reference.host);
    match (clock.basis, clock.uncertainty) {
        (Basis::Reference, _) => format!("{}  what the others are compared with", clock.host),
        (Basis::Bounds, Some(u)) => format!("{by}, ± {}", time(u)),
        (Basis::Contradiction, Some(u)) => format!(
            "{by}, but the operations contradict each other by {}: the clocks run at different speeds, or one was set",
            time(u)
        ),
        _ => format!("{by} by the wall clocks: no operations bound it in both directions"),
    }
}

/// One line about a rank that others name or wait for.
fn blamed(b: &Blamed) -> String {
    let mut parts = vec![];
    if b.ended_without_leaving {
        parts.push("ended without leaving".to_owned());
    }
    if let Some(first) = b.named_by.first() {
        let by: Vec<Rank> = b.named_by.iter().map(|n| n.by).collect();
        let mut part = format!("named by {}: {}", name_ranks(&by), first.kind.name());
        if !first.text.is_empty() {
            part += &format!(" ({})", first.text);
        }
        parts.push(part);
    }
    if !b.awaited_by.is_empty() {
        parts.push(format!("awaited by {}", name_ranks(&b.awaited_by)));
    }
    if !b.waits_for.is_empty() {
        parts.push(format!("waits itself for {}", name_ranks(&b.waits_for)));
    }
    format!("{}  {}", b.rank, parts.join("; "))
}

/// The first failure of each rank that is still there.
fn failed(job: &Job) -> Vec<String> {
    let mut lines = vec![];
    for (r, rank) in job.ranks.iter().enumerate() {
        let ops = rank.recording.operations.iter().enumerate();
        let all: Vec<_> = ops.filter(|(_, op)| op.failure.is_some()).collect();
        let Some((o, op)) = all.first() else { continue };
        let Some(failure) = &op.failure else { continue };
        let mut line = format!(
            "{}  {}: {}",
            rank.rank(),
            name(job, (r, *o)),
            failure.kind.name()
        );
        if let Some(culprit) = failure.culprit {
            line += &format!(" {culprit}");
        }
        if !failure.text.is_empty() {
            line += &format!(" ({})", failure.text);
        }
        line += &format!(", after {}", time(op.took().unwrap_or(0)));
        if all.len() > 1 {
            line += &format!("; and {} later ones", all.len() - 1);
        }
        lines.push(line);
    }
    lines
}

fn waits_for(waits: &[WaitsFor]) -> String {
    let mut reasons: Vec<_> = waits.iter().map(|w| w.why).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let part = |why| {
        let ranks: Vec<Rank> = waits
            .iter()
            .filter(|w| w.why == why)
            .map(|w| w.rank)
            .collect();
        format!("{} ({})", name_ranks(&ranks), gaggle_trace::Why::text(why))
    };
    reasons.into_iter().map(part).collect::<Vec<_>>().join(", ")
}

pub(crate) fn operation(job: &Job, at: (usize, usize)) -> &Operation {
    &job.ranks[at.0].recording.operations[at.1]
}

/// `all_reduce #4, lane 2 of ranks 0 and 3`.
pub(crate) fn name(job: &Job, at: (usize, usize)) -> String {
    let op = operation(job, at);
    let plain = format!("{} {}", op.descriptor.kind.name(), op.descriptor.id);
    if op.group_size < job.world {
        format!("{plain}, {}", job.stream(at))
    } else {
        plain
    }
}

/// `1.23 ms`.
pub(crate) fn time(nanos: u64) -> String {
    let t = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} µs", t / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", t / 1e6),
        _ => format!("{:.2} s", t / 1e9),
    }
}
