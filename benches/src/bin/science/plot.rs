//! Plots as SVG: a line for each row, a dot for each seed, a bar at their mean.

use crate::judge::Spread;
use plotters::prelude::*;

/// Colours that people with any colour vision can tell apart (Okabe and Ito 2008).
const DOT: RGBColor = RGBColor(0, 114, 178);
const MEAN: RGBColor = RGBColor(213, 94, 0);
const INK: RGBColor = RGBColor(40, 50, 60);
const FAINT: RGBColor = RGBColor(225, 230, 235);
const FONT: &str = "sans-serif";

type Plotters = DrawingAreaErrorKind<std::io::Error>;

/// A label and a value per seed.
pub(crate) type Line = (String, Vec<f64>);

/// The plot of lines that have values; `None` where there are none.
///
/// # Errors
/// What plotters says.
pub(crate) fn strips(title: &str, x: &str, lines: &[Line]) -> anyhow::Result<Option<String>> {
    let lines: Vec<&Line> = lines.iter().filter(|(_, v)| !v.is_empty()).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    draw(&mut svg, title, x, &lines).map_err(|e| anyhow::anyhow!("{title}: {e}"))?;
    // Readers' pages may be narrower.
    Ok(Some(svg.replacen(
        "<svg ",
        "<svg style=\"max-width:100%\" ",
        1,
    )))
}

fn draw(svg: &mut String, title: &str, x: &str, lines: &[&Line]) -> Result<(), Plotters> {
    let all = || lines.iter().flat_map(|(_, v)| v.iter().copied());
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(f64::NEG_INFINITY, f64::max);
    let room = (0.05 * (high - low)).max(1e-3);
    let height = 90 + 26 * lines.len() as u32;
    let root = SVGBackend::with_string(svg, (760, height)).into_drawing_area();
    root.fill(&WHITE)?;
    // The first line is the uppermost.
    let place = |at: usize| SegmentValue::CenterOf((lines.len() - 1 - at) as i32);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 17, &INK))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(220)
        .build_cartesian_2d(
            low - room..high + room,
            (0..lines.len() as i32 - 1).into_segmented(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style((FONT, 12, &INK))
        .x_desc(x)
        .y_labels(lines.len())
        .y_label_formatter(&|v| match v {
            SegmentValue::CenterOf(i) | SegmentValue::Exact(i) => {
                let at = lines.len().saturating_sub(1 + *i as usize);
                lines
                    .get(at)
                    .map_or(String::new(), |(label, _)| label.clone())
            }
            SegmentValue::Last => String::new(),
        })
        .draw()?;
    for (at, (_, values)) in lines.iter().enumerate() {
        let dots = values
            .iter()
            .map(|v| Circle::new((*v, place(at)), 3, DOT.mix(0.45).filled()));
        chart.draw_series(dots)?;
        let mean = Spread::of(values).mean;
        let bar = EmptyElement::at((mean, place(at)))
            + PathElement::new(vec![(0, -8), (0, 8)], MEAN.stroke_width(3));
        chart.draw_series([bar])?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_names_its_lines_and_nothing_is_no_plot() {
        let lines = [
            ("ring".to_owned(), vec![93.0, 94.5, 92.0]),
            ("nobody".to_owned(), vec![]),
            ("base:4".to_owned(), vec![97.0]),
        ];
        let plot = strips("accuracy", "per cent", &lines)
            .expect("drawn")
            .expect("a plot");
        assert!(plot.starts_with("<svg ") && plot.trim_end().ends_with("</svg>"));
        assert!(plot.contains("ring") && plot.contains("base:4") && !plot.contains("nobody"));
        assert_eq!(
            strips("none", "", &lines[1..2]).expect("nothing to draw"),
            None
        );
        let one = strips("one", "", &[("a".into(), vec![1.0])]);
        assert!(one.is_ok_and(|p| p.is_some()));
    }
}
