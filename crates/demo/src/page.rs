//! The page: one HTML file that needs nothing else, with the runs as numbers and as pictures.

use crate::{
    charts::{Bar, BarChart, ChartError, Line, LineChart, Part, Scale, css_colour},
    data::CLASSES,
    picture::Picture,
    summary::{Run, Story, distance, percent, thousands},
};
use std::fmt::{self, Write};

/// The story as a page. `pictures` are the topologies that its decentralised runs used.
///
/// # Errors
/// A chart that cannot be drawn.
pub fn page(story: &Story, pictures: &[Picture]) -> Result<String, ChartError> {
    let mut html = String::from(HEAD);
    let mut write = |part: String| html.push_str(&part);
    write(intro(story));
    write(card("wide", "Results", &results(story)));
    write(format!(
        "<section class=\"card\">{}<p>Mean over ranks, smoothed over steps.</p></section>",
        loss(story).svg()?
    ));
    write(format!(
        "<section class=\"card\">{}<p>Solid: the mean of all ranks' parameters. Dashed: each rank's own parameters, mean over ranks. The axis does not begin at 0.</p></section>",
        accuracy(story).svg()?
    ));
    write(format!(
        "<section class=\"card\">{}<p>Root mean square distance of the ranks' parameters from their mean. {}</p></section>",
        consensus(story).svg()?,
        agreeing(story)
    ));
    write(format!(
        "<section class=\"card\">{}<p>Counted at the link, in training alone, without headers.</p>{}<p>Dark: computing. Light: sending, receiving and waiting.</p></section>",
        bytes(story).svg()?,
        times(story).svg()?,
    ));
    write(card("wide", "Who learns from what", &shares(story)));
    for picture in pictures {
        let drawings: String = picture
            .svgs()
            .iter()
            .enumerate()
            .map(|(t, svg)| format!("<figure>{svg}<figcaption>round {t}</figcaption></figure>"))
            .collect();
        write(card(
            "wide",
            &format!("Who talks to whom: {}", escape(&picture.name)),
            &format!(
                "<p>{}</p><div class=\"rounds\">{drawings}</div>",
                escape(&picture.caption())
            ),
        ));
    }
    write("</main></body></html>\n".into());
    Ok(html)
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>gaggle demo</title>
<style>
:root { color-scheme: light; --ink: #28323c; --soft: #5d6b78; --line: #dfe5ea; }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f5f7f9; }
header { max-width: 1200px; margin: 0 auto; padding: 28px 20px 4px; }
h1 { margin: 0 0 6px; font-size: 26px; } h2 { margin: 0 0 10px; font-size: 17px; }
header p { margin: 0 0 8px; max-width: 78ch; }
main { max-width: 1200px; margin: 0 auto; padding: 12px 20px 40px; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 16px; overflow-x: auto; }
.wide { grid-column: 1 / -1; }
.card p { margin: 6px 0 10px; color: var(--soft); font-size: 13.5px; }
.chart { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: normal; vertical-align: bottom; } th:first-child, td:first-child, th:nth-child(2), .results td:nth-child(2) { text-align: left; }
.shares th, .shares td { text-align: center; min-width: 52px; border: 1px solid #fff; }
.dot { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 8px; }
.rounds { display: flex; flex-wrap: wrap; gap: 12px; } figure { margin: 0; text-align: center; } figcaption { color: var(--soft); font-size: 13px; }
.facts { color: var(--soft); font-size: 13.5px; }
</style></head><body>
"#;

fn intro(story: &Story) -> String {
    let s = &story.setting;
    format!(
        "<header><h1>gaggle demo</h1><p>{} learnt to read handwritten digits: {} images to learn from, {} to be judged by, a network of {} parameters. Each algorithm started from the same parameters and saw the same images.</p><p class=\"facts\">{}</p></header><main>",
        match s.ranks {
            1 => "One rank".to_string(),
            n => format!("{n} ranks together"),
        },
        thousands(s.train_images as f64),
        thousands(s.test_images as f64),
        thousands(s.parameters as f64),
        escape(&format!(
            "{} · {} epochs · {} images per rank and step · step size {} · images split {} · wire {} · seed {}",
            s.ranks_are, s.epochs, s.batch, s.lr, s.partition, s.wire, s.seed
        ))
    )
}

fn card(class: &str, title: &str, body: &str) -> String {
    format!("<section class=\"card {class}\"><h2>{title}</h2>{body}</section>")
}

fn results(story: &Story) -> String {
    let mut rows = String::new();
    for (idx, run) in story.runs.iter().enumerate() {
        let hidden = if run.seconds.communicate > 0.0 {
            percent(run.hidden_fraction)
        } else {
            "–".into()
        };
        let cells = [
            percent(run.accuracy_mean_model),
            percent(run.accuracy_local_mean),
            percent(run.accuracy_local_min),
            distance(run.consensus_distance),
            thousands(run.bytes_per_rank_step),
            format!("{:.1} s", run.seconds.compute),
            format!("{:.1} s", run.seconds.communicate),
            format!("{:.1} s", run.seconds.wait),
            hidden,
        ]
        .map(|cell| format!("<td>{cell}</td>"))
        .concat();
        append(
            &mut rows,
            format_args!(
                "<tr><td><span class=\"dot\" style=\"background:{}\"></span>{}</td><td>{}</td>{cells}</tr>",
                css_colour(idx),
                escape(&run.algorithm),
                escape(&run.topology),
            ),
        );
    }
    format!(
        "<table class=\"results\"><tr><th>algorithm</th><th>topology</th><th>accuracy of the averaged model</th><th>of the local models</th><th>of the worst</th><th>consensus distance</th><th>bytes per rank and step</th><th>compute</th><th>communicate</th><th>wait</th><th>hidden</th></tr>{rows}</table><p>Accuracy on the test images. Times are of training alone, mean over ranks; <em>communicate</em> is how long a message was under way, <em>wait</em> how long the rank could not compute because of it, <em>hidden</em> the share in which it went on computing.</p>"
    )
}

/// Training loss, each point the mean of a stretch of steps.
fn loss(story: &Story) -> LineChart {
    const POINTS: usize = 150;
    let lines: Vec<Line> = story
        .runs
        .iter()
        .enumerate()
        .map(|(colour, run)| {
            let steps = run.history.loss.len();
            let epoch = story.setting.epochs as f64 / steps.max(1) as f64;
            let stretch = steps.div_ceil(POINTS).max(1);
            let points = run
                .history
                .loss
                .chunks(stretch)
                .enumerate()
                .map(|(i, part)| {
                    let middle = (i * stretch) as f64 + part.len() as f64 / 2.0;
                    let mean = part.iter().map(|l| f64::from(*l)).sum::<f64>() / part.len() as f64;
                    (middle * epoch, mean)
                })
                .collect();
            line(run, colour, points)
        })
        .collect();
    let highest = highest(&lines);
    LineChart {
        title: "Training loss".into(),
        lines,
        scale: Scale::Linear(0.0, highest * 1.05),
        percent: false,
    }
}

fn accuracy(story: &Story) -> LineChart {
    let mut lines = vec![];
    for (colour, run) in story.runs.iter().enumerate() {
        let series = |value: fn(&crate::summary::Point) -> f64| {
            run.history
                .points
                .iter()
                .map(|p| (p.epoch, value(p)))
                .collect::<Vec<_>>()
        };
        let mut averaged = line(run, colour, series(|p| p.accuracy_mean_model));
        averaged.label = format!("{} averaged", run.algorithm);
        let mut local = line(run, colour, series(|p| p.accuracy_local_mean));
        local.label = format!("{} local", run.algorithm);
        local.dashed = true;
        lines.extend([averaged, local]);
    }
    let low = settled(&lines);
    for line in &mut lines {
        line.points.retain(|p| p.1 >= low);
    }
    LineChart {
        title: "Test accuracy".into(),
        lines,
        scale: Scale::Linear(low, 1.0),
        percent: true,
    }
}

/// What all lines are above once the first epoch is over, down to the next tenth: the steep beginning would flatten everything that can be compared.
fn settled(lines: &[Line]) -> f64 {
    let later = lines.iter().flat_map(|l| {
        let from = l.points.iter().position(|p| p.0 >= 1.0);
        &l.points[from.unwrap_or(0)..]
    });
    let least = later.map(|p| p.1).fold(1.0, f64::min);
    ((least * 10.0).floor() / 10.0).clamp(0.0, 0.9)
}

fn consensus(story: &Story) -> LineChart {
    let lines = story
        .runs
        .iter()
        .enumerate()
        .filter(|(_, run)| !always_agrees(run))
        .map(|(colour, run)| {
            let points = run
                .history
                .points
                .iter()
                .map(|p| (p.epoch, p.consensus_distance))
                .collect();
            line(run, colour, points)
        })
        .collect();
    LineChart {
        title: "Consensus distance".into(),
        lines,
        scale: Scale::Log,
        percent: false,
    }
}

fn always_agrees(run: &Run) -> bool {
    run.history
        .points
        .iter()
        .all(|p| p.consensus_distance == 0.0)
}

fn agreeing(story: &Story) -> String {
    let names: Vec<String> = story
        .runs
        .iter()
        .filter(|r| always_agrees(r))
        .map(|r| escape(&r.algorithm))
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("Exactly 0 all the time: {}.", names.join(", "))
    }
}

fn bytes(story: &Story) -> BarChart {
    bars(story, "Bytes that a rank sends per step", |run| {
        vec![Part {
            value: run.bytes_per_rank_step,
            text: thousands(run.bytes_per_rank_step),
            shade: 1.0,
        }]
    })
}

fn times(story: &Story) -> BarChart {
    bars(story, "Seconds of training", |run| {
        vec![
            Part {
                value: run.seconds.compute,
                text: format!("{:.1}", run.seconds.compute),
                shade: 1.0,
            },
            Part {
                value: run.seconds.wait,
                text: format!("{:.1} s", run.seconds.wait),
                shade: 0.4,
            },
        ]
    })
}

fn bars(story: &Story, title: &str, parts: impl Fn(&Run) -> Vec<Part>) -> BarChart {
    BarChart {
        title: title.into(),
        bars: story
            .runs
            .iter()
            .enumerate()
            .map(|(colour, run)| Bar {
                label: run.algorithm.clone(),
                colour,
                parts: parts(run),
            })
            .collect(),
    }
}

fn line(run: &Run, colour: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        label: run.algorithm.clone(),
        colour,
        dashed: false,
        points,
    }
}

fn highest(lines: &[Line]) -> f64 {
    lines
        .iter()
        .flat_map(|l| l.points.iter().map(|p| p.1))
        .filter(|y| y.is_finite())
        .fold(1e-6, f64::max)
}

/// Ranks by digits, the darker the more.
fn shares(story: &Story) -> String {
    let most = story
        .label_histograms
        .iter()
        .flatten()
        .copied()
        .max()
        .unwrap_or(0)
        .max(1);
    let heads: String = (0..CLASSES).map(|c| format!("<th>{c}</th>")).collect();
    let mut rows = String::new();
    for (rank, counts) in story.label_histograms.iter().enumerate() {
        append(&mut rows, format_args!("<tr><th>rank {rank}</th>"));
        for &n in counts {
            let depth = (n as f64 / most as f64).sqrt();
            let ink = if depth > 0.6 { "#fff" } else { "#28323c" };
            append(
                &mut rows,
                format_args!(
                    "<td style=\"background:rgba(0,114,178,{depth:.2});color:{ink}\">{n}</td>"
                ),
            );
        }
        let total: usize = counts.iter().sum();
        append(
            &mut rows,
            format_args!("<td>{}</td></tr>", thousands(total as f64)),
        );
    }
    format!(
        "<p>Training images per rank and digit, split {}.</p><table class=\"shares\"><tr><th></th>{heads}<th>all</th></tr>{rows}</table>",
        escape(&story.setting.partition)
    )
}

fn append(text: &mut String, what: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(what);
}

/// As text inside HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        picture::Links,
        summary::{History, Point, Seconds, Setting},
    };

    fn story() -> Story {
        let run = |name: &str, apart: f64| Run {
            algorithm: name.into(),
            topology: "one-peer-exp".into(),
            ranks: 4,
            accuracy_mean_model: 0.944,
            accuracy_local_mean: 0.912,
            accuracy_local_min: 0.87,
            consensus_distance: apart,
            bytes_per_rank_step: 437_544.0,
            seconds: Seconds {
                compute: 5.2,
                communicate: 3.1,
                wait: 2.4,
                train: 7.6,
            },
            hidden_fraction: 0.23,
            history: History {
                loss: (0..700).map(|i| 2.3 / (1.0 + i as f32 / 40.0)).collect(),
                points: (0..20)
                    .map(|i| {
                        let epoch = f64::from(i) / 2.0;
                        Point {
                            step: i as u64 * 35,
                            epoch,
                            accuracy_mean_model: 0.95 - 0.85 * (-epoch).exp(),
                            accuracy_local_mean: 0.9 - 0.8 * (-epoch).exp(),
                            accuracy_local_min: 0.8 - 0.7 * (-epoch).exp(),
                            consensus_distance: apart * (1.0 + (epoch * 2.0).sin() / 2.0),
                        }
                    })
                    .collect(),
            },
            ..Run::default()
        };
        Story {
            runs: vec![
                run("allreduce", 0.0),
                run("dmsgd", 0.9),
                run("qg-dmsgd", 0.05),
            ],
            setting: Setting {
                ranks: 4,
                ranks_are: "processes over <tcp>".into(),
                epochs: 10,
                batch: 32,
                lr: 0.05,
                momentum: 0.9,
                options: vec![],
                seed: 1,
                partition: "dirichlet(0.1)".into(),
                wire: "plain".into(),
                parameters: 109_386,
                train_images: 9000,
                test_images: 1000,
            },
            label_histograms: (0..4)
                .map(|r| std::array::from_fn(|c| if c % 4 == r { 800 } else { c }))
                .collect(),
        }
    }

    fn picture() -> Picture {
        Picture {
            name: "one-peer-exp".into(),
            world: 4,
            period: Some(2),
            rounds: (1..=2)
                .map(|hop| Links {
                    links: (0..4).map(|r| (r, (r + hop) % 4)).collect(),
                })
                .collect(),
        }
    }

    #[test]
    fn the_page_holds_every_series_and_needs_nothing_else() {
        let html = page(&story(), &[picture()]).unwrap();
        for text in [
            "Training loss",
            "Test accuracy",
            "Consensus distance",
            "Bytes that a rank sends per step",
            "Seconds of training",
            "Who learns from what",
            "Who talks to whom: one-peer-exp",
            "Exactly 0 all the time: allreduce.",
            "437,544",
            "94.4 %",
        ] {
            assert!(html.contains(text), "{text}");
        }
        for run in ["allreduce", "dmsgd", "qg-dmsgd"] {
            assert!(html.contains(&format!("{run} averaged")), "{run}");
            assert!(html.contains(&format!("{run} local")), "{run}");
        }
        // Five charts and two rounds; nothing is fetched from anywhere.
        assert_eq!(html.matches("<svg").count(), 7);
        assert!(!html.contains("src=") && !html.contains("@import") && !html.contains("href="));
        let addresses = html.matches("http").count();
        assert_eq!(addresses, html.matches("http://www.w3.org/").count());
        assert!(html.contains("processes over &lt;tcp&gt;"));
        if let Some(path) = std::env::var_os("GAGGLE_DEMO_TEST_PAGE") {
            std::fs::write(path, html).unwrap();
        }
    }

    #[test]
    fn a_demo_without_runs_still_has_a_page() {
        let html = page(&Story::default(), &[]).unwrap();
        assert!(html.ends_with("</html>\n"));
    }
}
