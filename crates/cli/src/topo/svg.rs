//! A topology drawn: ranks on a circle, a picture for each round, arrows from sender to receiver.

use gaggle_core::{Rank, Topology};
use gaggle_topology::edges;
use std::f64::consts::TAU;
use svg::{
    Document,
    node::element::{Circle, Definitions, Group, Line, Marker, Path, Rectangle, Text, Title},
};

const SIZE: f64 = 300.0;
const HEAD: f64 = 26.0;
const PER_ROW: usize = 4;
/// More rounds are not drawn: the first ones show what there is.
const MOST_ROUNDS: u64 = 16;
/// More ranks or arrows are no drawing.
const MOST_RANKS: usize = 256;
const MOST_EDGES: usize = 8192;

/// The drawing as a file's text.
///
/// # Errors
/// There is too much to draw.
pub(super) fn draw(topology: &dyn Topology) -> Result<String, String> {
    let n = topology.world();
    if n > MOST_RANKS {
        return Err(format!(
            "{n} ranks are too many to draw, at most {MOST_RANKS}"
        ));
    }
    let rounds = topology.period().unwrap_or(MOST_ROUNDS).min(MOST_ROUNDS) as usize;
    let columns = rounds.min(PER_ROW);
    let (width, height) = (
        SIZE * columns as f64,
        HEAD + (SIZE + HEAD) * rounds.div_ceil(columns) as f64,
    );
    let mut document = Document::new()
        .set("viewBox", (0.0, 0.0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(arrow_head())
        .add(
            Rectangle::new()
                .set("width", "100%")
                .set("height", "100%")
                .set("fill", "white"),
        )
        .add(
            Text::new(format!("{}, {n} ranks", topology.name()))
                .set("x", 12)
                .set("y", 18)
                .set("font-weight", "bold"),
        );
    let mut drawn = 0;
    for t in 0..rounds {
        let (row, column) = (t / columns, t % columns);
        let (x, y) = (SIZE * column as f64, HEAD + (SIZE + HEAD) * row as f64);
        let all = edges(topology, t as u64);
        drawn += all.len();
        if drawn > MOST_EDGES {
            return Err(format!(
                "more than {MOST_EDGES} edges are no drawing; fewer ranks make one"
            ));
        }
        let picture = picture(n, &all, t).set("transform", format!("translate({x} {y})"));
        document = document.add(picture);
    }
    Ok(document.to_string())
}

fn picture(n: usize, all: &[(Rank, Rank, f64)], t: usize) -> Group {
    let radius = (0.5 * TAU * SIZE * 0.38 / n as f64 * 0.6).clamp(2.0, 13.0);
    let at = |rank: Rank| {
        let angle = TAU * rank.0 as f64 / n as f64 - TAU / 4.0;
        let far = match n {
            1 => 0.0,
            _ => SIZE * 0.38,
        };
        (
            SIZE / 2.0 + far * angle.cos(),
            HEAD + SIZE / 2.0 + far * angle.sin() - 8.0,
        )
    };
    let mut group = Group::new().add(
        Text::new(format!("round {t}"))
            .set("x", SIZE / 2.0)
            .set("y", 14)
            .set("text-anchor", "middle")
            .set("fill", "#555"),
    );
    for &(from, to, weight) in all {
        let (a, b) = (at(from), at(to));
        let long = (b.0 - a.0).hypot(b.1 - a.1).max(1.0);
        let (ux, uy) = ((b.0 - a.0) / long, (b.1 - a.1) / long);
        // A line ends at the rim of the rank, where its head is seen.
        let line = Line::new()
            .set("x1", a.0 + ux * radius)
            .set("y1", a.1 + uy * radius)
            .set("x2", b.0 - ux * (radius + 5.0))
            .set("y2", b.1 - uy * (radius + 5.0))
            .set("stroke", "#1b6ca8")
            .set("stroke-opacity", 0.35 + 0.65 * weight.clamp(0.0, 1.0))
            .set("stroke-width", 1.2)
            .set("marker-end", "url(#head)")
            .add(Title::new(format!("{} to {}: {weight:.4}", from.0, to.0)));
        group = group.add(line);
    }
    for rank in (0..n).map(|r| Rank(r as u32)) {
        let (x, y) = at(rank);
        group = group.add(
            Circle::new()
                .set("cx", x)
                .set("cy", y)
                .set("r", radius)
                .set("fill", "#f4f1ea")
                .set("stroke", "#444")
                .add(Title::new(format!("rank {}", rank.0))),
        );
        if radius >= 7.0 {
            group = group.add(
                Text::new(rank.0.to_string())
                    .set("x", x)
                    .set("y", y + 4.0)
                    .set("text-anchor", "middle")
                    .set("font-size", 11),
            );
        }
    }
    group
}

fn arrow_head() -> Definitions {
    let tip = Path::new()
        .set("d", "M0 0 L8 4 L0 8 z")
        .set("fill", "#1b6ca8");
    Definitions::new().add(
        Marker::new()
            .set("id", "head")
            .set("viewBox", "0 0 8 8")
            .set("refX", 2)
            .set("refY", 4)
            .set("markerWidth", 7)
            .set("markerHeight", 7)
            .set("orient", "auto")
            .add(tip),
    )
}
