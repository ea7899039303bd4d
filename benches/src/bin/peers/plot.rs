//! Plots as SVG: times over sizes, and gaggle's time divided by the best other's, both on logarithmic axes.

use plotters::{prelude::*, series::LineSeries};

/// Colours that people with any colour vision can tell apart (Okabe and Ito 2008).
const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 20),
    RGBColor(90, 90, 90),
    RGBColor(0, 0, 0),
];
const INK: RGBColor = RGBColor(40, 50, 60);
const FAINT: RGBColor = RGBColor(225, 230, 235);
const FONT: &str = "sans-serif";

/// One line: a label, and (bytes, value), ascending.
pub(crate) type Line = (String, Vec<(f64, f64)>);

type Plotters = DrawingAreaErrorKind<std::io::Error>;

/// A plot of what is above 0 and finite; `None` where that is nothing.
///
/// # Errors
/// What plotters says.
pub(crate) fn svg(title: &str, y: &str, lines: &[Line]) -> Result<Option<String>, String> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, title, y, lines).map_err(|e| format!("{title}: {e}"))?;
    Ok(drawn.then_some(svg))
}

fn draw(svg: &mut String, title: &str, y: &str, lines: &[Line]) -> Result<bool, Plotters> {
    let fits = |p: &(f64, f64)| p.0 > 0.0 && p.1 > 0.0 && p.0.is_finite() && p.1.is_finite();
    let points: Vec<(f64, f64)> = lines
        .iter()
        .flat_map(|l| l.1.iter().copied())
        .filter(fits)
        .collect();
    let Some(first) = points.first() else {
        return Ok(false);
    };
    let (mut low, mut high) = (*first, *first);
    for p in &points {
        low = (low.0.min(p.0), low.1.min(p.1));
        high = (high.0.max(p.0), high.1.max(p.1));
    }
    let root = SVGBackend::with_string(svg, (760, 460)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 18, &INK))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (low.0 / 1.3..high.0 * 1.3).log_scale().base(4.0),
            (low.1 / 1.5..high.1 * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style((FONT, 12, &INK))
        .x_desc("size in bytes")
        .y_desc(y)
        .x_label_formatter(&|bytes| crate::table::size(bytes.round() as u64))
        .y_label_formatter(&|v| match *v {
            v if v >= 1000.0 => format!("{v:.0}"),
            v => format!("{}", (v * 1000.0).round() / 1000.0),
        })
        .draw()?;
    for (at, (label, points)) in lines.iter().enumerate() {
        let points: Vec<(f64, f64)> = points.iter().copied().filter(fits).collect();
        if points.is_empty() {
            continue;
        }
        let style = PALETTE[at % PALETTE.len()].stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(FAINT)
        .label_font((FONT, 12, &INK))
        .draw()?;
    root.present()?;
    drop(chart);
    drop(root);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_names_its_lines_and_nothing_is_no_plot() {
        let lines = [
            (
                "gaggle".to_owned(),
                vec![(4.0, 0.5), (1024.0, 3.0), (4096.0, f64::NAN)],
            ),
            ("another".to_owned(), vec![(4.0, 1.0), (1024.0, 2.0)]),
            ("absent".to_owned(), vec![]),
        ];
        let plot = svg("times", "µs", &lines).expect("drawn").expect("a plot");
        assert!(plot.starts_with("<svg") && plot.trim_end().ends_with("</svg>"));
        assert!(plot.contains("another") && plot.contains("1 KiB"));
        assert!(!plot.contains("absent") && !plot.contains("NaN"));
        let none = svg("none", "µs", &[("x".into(), vec![(0.0, 1.0)])]);
        assert_eq!(none, Ok(None));
        let point = svg("point", "µs", &[("x".into(), vec![(4.0, 1.0)])]);
        assert!(point.is_ok_and(|p| p.is_some()));
    }
}
