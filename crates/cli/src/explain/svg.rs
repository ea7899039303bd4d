//! The plans drawn: a lane for each rank, time to the right, messages as arrows, work as boxes.

use super::{Explained, Whole};
use gaggle_collectives::{Action, Timeline};
use gaggle_core::Rank;
use std::time::Duration;
use svg::{
    Document, Node,
    node::element::{Definitions, Group, Line, Marker, Path, Rectangle, Text, Title},
};

const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const LANE: f64 = 52.0;
const WIDTH: f64 = 1240.0;
/// Half the height of a box on a lane.
const HALF: f64 = 9.0;
/// More than these are no drawing.
pub(super) const MOST_STEPS: u64 = 20_000;

/// A colour for each sender; they repeat.
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#c8553d", "#2e8b57", "#8e5ea2", "#b8860b", "#17888f", "#a83279", "#5c6b73",
];

/// The drawing as a file's text.
///
/// # Errors
/// There are not the plans of all ranks.
pub(super) fn draw(explained: &Explained) -> Result<String, String> {
    let whole = explained.whole.as_ref();
    let whole = whole.ok_or("a drawing needs the plans of all ranks")?;
    let n = explained.plans.len();
    let height = TOP + LANE * n as f64 + 40.0;
    let mut document = Document::new()
        .set("viewBox", (0.0, 0.0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(arrow_heads())
        .add(
            Rectangle::new()
                .set("width", "100%")
                .set("height", "100%")
                .set("fill", "white"),
        );
    let scale = Scale {
        per_ns: (WIDTH - LEFT - RIGHT) / whole.times.nanoseconds.max(1) as f64,
    };
    document.append(heading(explained, whole));
    document.append(axis(whole.times.nanoseconds, &scale, height));
    let mut arrows = Group::new();
    let mut boxes = Group::new();
    for rank in 0..n {
        document.append(lane(rank));
        draw_rank(
            explained,
            (rank, &whole.times),
            &scale,
            &mut arrows,
            &mut boxes,
        );
    }
    document.append(boxes);
    document.append(arrows);
    Ok(document.to_string())
}

/// Where things are.
struct Scale {
    per_ns: f64,
}

impl Scale {
    fn x(&self, ns: u64) -> f64 {
        LEFT + ns as f64 * self.per_ns
    }
}

fn y(rank: usize) -> f64 {
    TOP + LANE * (rank as f64 + 0.5)
}

fn colour(rank: usize) -> &'static str {
    COLOURS[rank % COLOURS.len()]
}

fn arrow_heads() -> Definitions {
    let mut all = Definitions::new();
    for (i, colour) in COLOURS.iter().enumerate() {
        all.append(
            Marker::new()
                .set("id", format!("head{i}"))
                .set("viewBox", "0 0 8 8")
                .set("refX", 7)
                .set("refY", 4)
                .set("markerWidth", 7)
                .set("markerHeight", 7)
                .set("orient", "auto")
                .add(Path::new().set("d", "M0 0L8 4L0 8z").set("fill", *colour)),
        );
    }
    all
}

fn heading(explained: &Explained, whole: &Whole) -> Text {
    let selection = &explained.selection;
    let text = format!(
        "{} of {} {} by {} among {} ranks: {} rounds, {:.1?} predicted",
        explained.kind.name(),
        explained.len,
        explained.dtype,
        selection.algorithm,
        explained.plans.len(),
        whole.rounds,
        Duration::from_nanos(whole.times.nanoseconds)
    );
    Text::new(text)
        .set("x", LEFT)
        .set("y", 24)
        .set("font-size", 16)
}

/// Ten marks or so, at round times.
fn axis(nanoseconds: u64, scale: &Scale, height: f64) -> Group {
    let mut group = Group::new().set("stroke", "#d8dde2").set("stroke-width", 1);
    let mut step = 1u64;
    while nanoseconds / step > 12 {
        let up = match step.to_string().as_bytes()[0] {
            b'2' => step / 2 * 5,
            _ => step.saturating_mul(2),
        };
        step = up;
    }
    let mut labels = Group::new()
        .set("fill", "#5c6b73")
        .set("text-anchor", "middle");
    for at in (0..=nanoseconds).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let x = scale.x(at);
        group.append(
            Line::new()
                .set("x1", x)
                .set("x2", x)
                .set("y1", TOP)
                .set("y2", height - 30.0),
        );
        let label = format!("{:?}", Duration::from_nanos(at));
        labels.append(
            Text::new(label)
                .set("x", x)
                .set("y", TOP - 10.0)
                .set("stroke", "none"),
        );
    }
    group.append(labels);
    group
}

fn lane(rank: usize) -> Group {
    Group::new()
        .add(
            Line::new()
                .set("x1", LEFT)
                .set("x2", WIDTH - RIGHT)
                .set("y1", y(rank))
                .set("y2", y(rank))
                .set("stroke", "#9aa5ad"),
        )
        .add(
            Text::new(Rank(rank as u32).to_string())
                .set("x", 10)
                .set("y", y(rank) + 4.0)
                .set("fill", colour(rank)),
        )
}

fn draw_rank(
    explained: &Explained,
    (rank, times): (usize, &Timeline),
    scale: &Scale,
    arrows: &mut Group,
    boxes: &mut Group,
) {
    for (idx, step) in explained.plans[rank].iter().enumerate() {
        let when = times.steps[rank][idx];
        let title = Title::new(format!("{} step {idx}: {}", Rank(rank as u32), step.action));
        match step.action {
            Action::Recv { .. } => {
                let Some((from, send)) = times.senders[rank][idx] else {
                    continue;
                };
                let sent = times.steps[from.idx()][send as usize];
                let line = Line::new()
                    .set("x1", scale.x(sent.begins))
                    .set("y1", y(from.idx()))
                    .set("x2", scale.x(when.ends))
                    .set("y2", y(rank))
                    .set("stroke", colour(from.idx()))
                    .set("stroke-width", 1.2)
                    .set(
                        "marker-end",
                        format!("url(#head{})", from.idx() % COLOURS.len()),
                    )
                    .add(title);
                arrows.append(line);
            }
            Action::Send { .. } => {}
            _ => {
                let x = scale.x(when.begins);
                let dark = matches!(step.action, Action::Arrive { .. } | Action::AwaitAll { .. });
                let rectangle = Rectangle::new()
                    .set("x", x)
                    .set("y", y(rank) - HALF)
                    .set("width", (scale.x(when.ends) - x).max(1.5))
                    .set("height", 2.0 * HALF)
                    .set("fill", if dark { "#5c6b73" } else { "#f2c14e" })
                    .set("fill-opacity", 0.85)
                    .set("stroke", "#7a6220")
                    .set("stroke-width", 0.5)
                    .add(title);
                boxes.append(rectangle);
            }
        }
    }
}
