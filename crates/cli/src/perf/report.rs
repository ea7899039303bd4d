//! What is printed: the table of nccl-tests with percentiles, lines of CSV, and the JSON form of all benchmarks.

use super::{
    machine,
    measure::{Measured, Row},
    operation::{Operation, Place},
    stats::{Summary, bandwidth, measured_quantiles},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What all rows have in common.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) operation: Operation,
    pub(super) topology: Option<String>,
    pub(super) ranks: u32,
    /// `threads`, or what the environment of the processes says, or `auto`.
    pub(super) transport: String,
    pub(super) bus_factor: f64,
    pub(super) places: Vec<Place>,
    /// Whether rows differ in element type, reduction or root.
    pub(super) several: bool,
    /// As typed.
    pub(super) command: String,
}

/// The head of the table.
pub(super) fn head(about: &About) -> String {
    let mut text = format!(
        "# gaggle {}: {}{}, {} ranks, {}\n",
        env!("CARGO_PKG_VERSION"),
        about.operation.name(),
        about
            .topology
            .as_ref()
            .map(|t| format!(" on {t}"))
            .unwrap_or_default(),
        about.ranks,
        about.transport,
    );
    text += match about.operation.is_one_sided() {
        true => {
            "# one call at a time; of each, the slowest rank's time; GB/s of bytes / mean time\n"
        }
        false => {
            "# calls back to back; of each, the mean over the ranks; GB/s of bytes / mean time\n"
        }
    };
    let (mut first, mut second, mut third) = (
        format!("#{:>11} {:>12} {:>6} {:>6} {:>5}", "", "", "", "", ""),
        format!(
            "#{:>11} {:>12} {:>6} {:>6} {:>5}",
            "size", "count", "type", "redop", "root"
        ),
        format!(
            "#{:>11} {:>12} {:>6} {:>6} {:>5}",
            "(B)", "(elements)", "", "", ""
        ),
    );
    for place in &about.places {
        // Writing to a string cannot fail.
        let _ = write!(first, " | {:^69}", place.name());
        let _ = write!(
            second,
            " | {:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>13}",
            "time", "algbw", "busbw", "p50", "p95", "p99", "#wrong"
        );
        let _ = write!(
            third,
            " | {:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>13}",
            "(us)", "(GB/s)", "(GB/s)", "(us)", "(us)", "(us)", ""
        );
    }
    let _ = write!(
        second,
        " | {:>12} {:>10} {:<20}",
        "wire", "predicted", "algorithm"
    );
    let _ = write!(third, " | {:>12} {:>10}", "(B/rank)", "(us)");
    for line in [first, second, third] {
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// One line of the table.
pub(super) fn line(about: &About, row: &Row) -> String {
    let reduce = match about.operation.reduces() {
        true => row.reduce.to_string(),
        false => "none".into(),
    };
    let root = match about.operation.is_rooted() {
        true => row.root.to_string(),
        false => "-1".into(),
    };
    let mut text = format!(
        "{:>12} {:>12} {:>6} {:>6} {:>5}",
        row.bytes,
        row.elements,
        row.dtype.to_string(),
        reduce,
        root
    );
    for (_, measured) in &row.measured {
        let s = Summary::of(&measured.samples);
        let (alg, bus) = speeds(about, row, &s);
        let wrong = measured
            .wrong
            .map_or_else(|| "N/A".into(), |n| n.to_string());
        let _ = write!(
            text,
            " | {:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>13}",
            us(s.mean),
            gbs(alg),
            gbs(bus),
            us(s.p50),
            us(s.p95),
            us(s.p99),
            wrong
        );
    }
    if let Some((_, last)) = row.measured.last() {
        let predicted = last
            .predicted
            .map_or_else(|| "-".into(), |t| us(t.as_nanos() as f64));
        let codec = match last.codec {
            gaggle_core::Codec::None => String::new(),
            codec => format!(" {codec}"),
        };
        let _ = write!(
            text,
            " | {:>12.0} {predicted:>10} {}{codec}",
            last.wire, last.algorithm
        );
    }
    text.push('\n');
    text
}

/// What nccl-tests says last.
pub(super) fn foot(about: &About, rows: &[Row]) -> String {
    let wrong = wrong(rows);
    let verdict = match wrong {
        None => "# Out of bounds values : not looked at (--check 0)\n".into(),
        Some(0) => "# Out of bounds values : 0 OK\n".into(),
        Some(n) => format!("# Out of bounds values : {n} FAILED\n"),
    };
    format!(
        "{verdict}# Avg bus bandwidth    : {:.4} GB/s\n",
        mean_bus_bandwidth(about, rows)
    )
}

/// Of all sizes and places.
fn mean_bus_bandwidth(about: &About, rows: &[Row]) -> f64 {
    let all: Vec<f64> = rows
        .iter()
        .flat_map(|row| row.measured.iter().map(move |(_, m)| (row, m)))
        .map(|(row, m)| speeds(about, row, &Summary::of(&m.samples)).1)
        .collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Elements that were not right, all together; `None` where nothing was checked.
pub(super) fn wrong(rows: &[Row]) -> Option<u64> {
    rows.iter()
        .flat_map(|row| &row.measured)
        .filter_map(|(_, m)| m.wrong)
        .fold(None, |sum, n| Some(sum.unwrap_or(0) + n))
}

/// By algorithm and by bus, GB/s.
fn speeds(about: &About, row: &Row, s: &Summary) -> (f64, f64) {
    let alg = bandwidth(row.bytes, s.mean);
    (alg, alg * about.bus_factor)
}

/// The columns that programs which are compared share.
pub(super) const CSV_HEAD: &str = "size_bytes,median_us,p95_us,mean_us,iters\n";

/// One line per place; there is one place where others are compared with.
pub(super) fn csv(asked: u64, row: &Row) -> String {
    let mut text = String::new();
    for (_, measured) in &row.measured {
        let (median, p95) = measured_quantiles(&measured.samples);
        let mean = Summary::of(&measured.samples).mean;
        let _ = writeln!(
            text,
            "{asked},{:.2},{:.2},{:.2},{}",
            median / 1e3,
            p95 / 1e3,
            mean / 1e3,
            measured.samples.len()
        );
    }
    text
}

/// The form in which `cargo xtask bench` keeps figures, with what only this program knows beside it. `began` is what was known of the machine at the start.
pub(super) fn json(about: &About, began: Value, rows: &[Row]) -> Value {
    let results: Vec<Value> = rows
        .iter()
        .flat_map(|row| row.measured.iter().map(move |(place, m)| (row, *place, m)))
        .map(|(row, place, m)| figure(about, row, place, m))
        .collect();
    json!({
        "schema": 1,
        "bench": "perf",
        "command": about.command,
        "date": machine::now(),
        "commit": Value::Null,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": began,
        "mean_bus_bandwidth_gbs": mean_bus_bandwidth(about, rows),
        "wrong": wrong(rows),
        "results": results,
    })
}

fn figure(about: &About, row: &Row, place: Place, m: &Measured) -> Value {
    let s = Summary::of(&m.samples);
    let (alg, bus) = speeds(about, row, &s);
    let mut name = format!("{}/{}/{}", about.operation.name(), place.name(), row.bytes);
    if about.several {
        // Writing to a string cannot fail.
        let _ = write!(name, "/{}/{}/{}", row.dtype, row.reduce, row.root);
    }
    json!({
        "name": name,
        "parameters": {
            "operation": about.operation.name(),
            "topology": about.topology,
            "place": place.name(),
            "ranks": about.ranks,
            "transport": about.transport,
            "dtype": row.dtype.to_string(),
            "reduce": about.operation.reduces().then(|| row.reduce.to_string()),
            "root": about.operation.is_rooted().then_some(row.root),
            "elements": row.elements,
            "algorithm": m.algorithm.to_string(),
            "codec": m.codec.to_string(),
        },
        "unit": "ns",
        "samples": m.samples,
        "median": s.p50,
        "p5": s.p5,
        "p95": s.p95,
        "p99": s.p99,
        "mad": s.mad,
        "mean": s.mean,
        "bytes": row.bytes,
        "bytes_per_s": bandwidth(row.bytes, s.p50) * 1e9,
        "algbw_gbs": alg,
        "busbw_gbs": bus,
        "wrong": m.wrong,
        "wire_bytes_per_rank": m.wire,
        "predicted_ns": m.predicted.map(|t| t.as_nanos() as u64),
    })
}

/// Microseconds with as many digits as there is room for.
fn us(nanoseconds: f64) -> String {
    let us = nanoseconds / 1e3;
    match us {
        x if x < 1e3 => format!("{x:.2}"),
        x if x < 1e5 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

fn gbs(x: f64) -> String {
    match x {
        x if x < 100.0 => format!("{x:.2}"),
        x => format!("{x:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle_core::{Algorithm, Codec, DType, Reduce};

    fn about() -> About {
        About {
            operation: Operation::AllReduce,
            topology: None,
            ranks: 4,
            transport: "tcp".into(),
            bus_factor: 1.5,
            places: vec![Place::Out, Place::In],
            several: false,
            command: "gaggle perf".into(),
        }
    }

    fn row(wrong: Option<u64>) -> Row {
        let measured = Measured {
            samples: vec![1000.0, 2000.0, 3000.0],
            wrong,
            wire: 6000.0,
            predicted: Some(std::time::Duration::from_micros(7)),
            algorithm: Algorithm::Ring,
            codec: Codec::None,
        };
        Row {
            bytes: 4000,
            elements: 1000,
            dtype: DType::F32,
            reduce: Reduce::Sum,
            root: 0,
            measured: vec![(Place::Out, measured.clone()), (Place::In, measured)],
        }
    }

    #[test]
    fn a_line_has_the_columns_of_the_head() {
        let words = |text: &str| -> Vec<String> {
            let parts = text.split('|').map(|s| s.split_whitespace().count());
            parts.map(|n| n.to_string()).collect()
        };
        let head = head(&about());
        let names = head.lines().rev().nth(1).unwrap().trim_start_matches('#');
        assert_eq!(words(&line(&about(), &row(Some(0)))), words(names));
        let text = line(&about(), &row(None));
        // 4000 bytes in 2 µs are 2 GB/s, and 3 on the bus.
        for word in ["2.00", "3.00", "N/A", "6000", "7.00", "ring"] {
            assert!(text.split_whitespace().any(|w| w == word), "{word}: {text}");
        }
    }

    #[test]
    fn the_foot_counts_what_is_wrong() {
        let foot = |wrong| foot(&about(), &[row(wrong), row(wrong)]);
        assert!(foot(Some(0)).contains("0 OK"));
        assert!(foot(Some(3)).contains("12 FAILED"));
        assert!(foot(None).contains("not looked at"));
        assert!(foot(None).contains("3.0000 GB/s"));
        assert!(super::foot(&about(), &[]).contains("0.0000 GB/s"));
    }

    #[test]
    fn a_figure_has_every_field_of_the_form() {
        let value = json(&about(), machine::facts(), &[row(Some(0))]);
        for key in ["schema", "bench", "command", "date", "machine", "results"] {
            assert!(!value[key].is_null(), "{key}");
        }
        let figure = &value["results"][0];
        for key in [
            "name",
            "parameters",
            "unit",
            "samples",
            "median",
            "p5",
            "p95",
            "mad",
            "bytes",
            "bytes_per_s",
        ] {
            assert!(!figure[key].is_null(), "{key}");
        }
        assert_eq!(figure["median"], json!(2000.0));
        assert_eq!(figure["bytes_per_s"], json!(2e9));
        assert_ne!(figure["name"], value["results"][1]["name"]);
    }

    #[test]
    fn csv_lines_begin_with_the_size_that_was_asked_for() {
        let one = Row {
            measured: row(None).measured[..1].to_vec(),
            ..row(None)
        };
        assert_eq!(csv(4003, &one), "4003,2.00,3.00,2.00,3\n");
    }
}
