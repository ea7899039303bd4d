//! What is found, as text for people and as JSON for programs.

use super::Compared;
use gaggle_core::{Rank, Round, Topology};
use gaggle_topology::{CATALOGUE, Report};
use indicatif::{BinaryBytes, HumanCount};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The names, what may follow them, and what each is for.
pub(super) fn list() -> String {
    let typed = |e: &gaggle_topology::Entry| match e.parameters {
        "" => e.name.to_owned(),
        parameters => format!("{}:{parameters}", e.name),
    };
    let width = CATALOGUE.iter().map(|e| typed(e).len()).max().unwrap_or(0);
    let mut out = String::new();
    for entry in &CATALOGUE {
        let _ = writeln!(out, "{:width$}  {}", typed(entry), entry.about);
    }
    out.push_str("\nlazy-NAME halves every step of another; what follows a colon may be left out, but for LOCAL and NAME.\n");
    out
}

fn stochastic(report: &Report) -> &'static str {
    match (report.facts.row_stochastic, report.facts.column_stochastic) {
        (true, true) => "doubly",
        (true, false) => "row",
        (false, true) => "column",
        (false, false) => "no",
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// A whole number as such, others with two places.
fn plainly(x: f64) -> String {
    match x.fract() == 0.0 {
        true => format!("{x:.0}"),
        false => format!("{x:.2}"),
    }
}

fn bytes(x: f64) -> String {
    // A float's way to an integer saturates.
    BinaryBytes(x.round() as u64).to_string()
}

/// One topology.
pub(super) fn plain(report: &Report, vector: u64) -> String {
    let facts = &report.facts;
    let mut out = String::new();
    let mut line = |what: &str, text: String| {
        let _ = writeln!(out, "{what:<12} {text}");
    };
    line(
        "topology",
        format!(
            "{} of {} ranks",
            report.name,
            HumanCount(facts.world as u64)
        ),
    );
    line("stochastic", stochastic(report).into());
    line("symmetric", yes(facts.symmetric).into());
    line("connected", yes(facts.connected).into());
    line(
        "period",
        match report.repeats {
            true => plural(facts.period, "round"),
            false => format!("never repeats; {} rounds looked at", facts.period),
        },
    );
    line(
        "contraction",
        format!(
            "{:.6} per period, {:.6} per round",
            if report.exact_after.is_some() {
                0.0
            } else {
                facts.contraction
            },
            report.contraction_per_round()
        ),
    );
    if report.rounds.len() > 1 {
        let each: Vec<String> = report.rounds.iter().map(|r| format!("{r:.6}")).collect();
        let more = match (report.rounds.len() as u64) < facts.period {
            true => ", …",
            false => "",
        };
        line("by round", format!("{}{more}", each.join(", ")));
    }
    if let Some(low) = facts.lambda_min {
        line("λ_min", format!("{low:.6}"));
    }
    line(
        "exact after",
        match report.exact_after {
            Some(rounds) => plural(rounds, "round"),
            None => "never within a period".into(),
        },
    );
    line(
        "sends",
        format!(
            "{} messages per rank and round, at most {}: {} of vectors of {}",
            plainly(report.messages),
            report.most_messages,
            bytes(report.bytes_per_round(vector)),
            bytes(vector as f64)
        ),
    );
    for warning in report.warnings() {
        line("warning", warning);
    }
    out
}

fn plural(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// As [`plain`].
pub(super) fn json(report: &Report, vector: u64) -> String {
    format!("{:#}\n", value(report, vector))
}

fn value(report: &Report, vector: u64) -> Value {
    let facts = &report.facts;
    json!({
        "topology": report.name,
        "ranks": facts.world,
        "period": report.repeats.then_some(facts.period),
        "rounds_looked_at": facts.period,
        "row_stochastic": facts.row_stochastic,
        "column_stochastic": facts.column_stochastic,
        "symmetric": facts.symmetric,
        "connected": facts.connected,
        "contraction_per_period": facts.contraction,
        "contraction_per_round": report.contraction_per_round(),
        "contraction_by_round": report.rounds,
        "lambda_min": facts.lambda_min,
        "exact_after_rounds": report.exact_after,
        "messages_per_rank_and_round": report.messages,
        "most_messages": report.most_messages,
        "bytes_per_rank_and_round": report.bytes_per_round(vector),
        "warnings": report.warnings(),
    })
}

/// All topologies, best first.
pub(super) fn compared(all: &[Compared], ranks: u32, left: f64, vector: u64) -> String {
    let mut out = format!(
        "{ranks} ranks, vectors of {}, until {left} of the worst disagreement is left:\n\n",
        bytes(vector as f64)
    );
    let width = all.iter().map(|c| c.name.len()).max().unwrap_or(0).max(8);
    let _ = writeln!(
        out,
        "{:width$}  {:>12}  {:>8}  {:>8}  {:>6}  {:>10}  {:>9}  notes",
        "topology", "a rank sends", "messages", "a round", "most", "ρ a round", "exact in"
    );
    for c in all {
        let sends = match c.messages.is_finite() {
            true => bytes(c.messages * vector as f64),
            false => "no consensus".into(),
        };
        let messages = match c.messages.is_finite() {
            true => plainly(c.messages),
            false => "–".into(),
        };
        let exact = c.report.exact_after.map_or("–".into(), |r| r.to_string());
        let notes = match (c.report.is_doubly_stochastic(), c.report.facts.symmetric) {
            (false, _) => "biased",
            (true, true) => "symmetric",
            (true, false) => "",
        };
        let line = format!(
            "{:width$}  {sends:>12}  {messages:>8}  {:>8}  {:>6}  {:>10.6}  {exact:>9}  {notes}",
            c.name,
            plainly(c.report.messages),
            c.report.most_messages,
            c.report.contraction_per_round(),
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// As [`compared`].
pub(super) fn compared_json(all: &[Compared], ranks: u32, left: f64, vector: u64) -> String {
    let each = |c: &Compared| {
        let mut v = value(&c.report, vector);
        v["topology"] = json!(c.name);
        // No number stands for infinity.
        v["messages_until"] = json!(c.messages.is_finite().then_some(c.messages));
        v
    };
    let all: Vec<Value> = all.iter().map(each).collect();
    format!(
        "{:#}\n",
        json!({"ranks": ranks, "left": left, "bytes": vector, "topologies": all})
    )
}

/// The weights of one round.
pub(super) fn round(topology: &dyn Topology, t: u64) -> String {
    let mut out = format!("\nround {t}: rank: own weight; from whom with which weight; to whom\n");
    let mut round = Round::default();
    for rank in 0..topology.world() {
        topology.round(Rank(rank as u32), t, &mut round);
        let from: Vec<String> = round
            .from
            .iter()
            .map(|(j, w)| format!("{}·{w:.6}", j.0))
            .collect();
        let to: Vec<String> = round.to.iter().map(|(j, _)| j.0.to_string()).collect();
        let _ = writeln!(
            out,
            "{rank}: {:.6}; {}; {}",
            round.keep,
            from.join(" "),
            to.join(" ")
        );
    }
    out
}
