//! Charts as SVG text, by plotters: lines over epochs, and bars.

use plotters::{
    coord::ranged1d::ValueFormatter,
    prelude::*,
    series::{DashedLineSeries, LineSeries},
    style::text_anchor::{HPos, Pos, VPos},
};

/// Colours that people with any colour vision can tell apart (Okabe and Ito 2008), in the order in which runs get them.
const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 20),
];

/// What its SVG backend reports.
type Plotters = DrawingAreaErrorKind<std::io::Error>;

const INK: RGBColor = RGBColor(40, 50, 60);
const FAINT: RGBColor = RGBColor(225, 230, 235);
const SIZE: (u32, u32) = (560, 330);
const FONT: &str = "sans-serif";

/// Why a chart could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("chart {chart:?}: {what}")]
pub struct ChartError {
    /// Its title.
    pub chart: String,
    /// What plotters says.
    pub what: String,
}

/// The colour of the `idx`-th run, as CSS.
pub fn css_colour(idx: usize) -> String {
    let RGBColor(r, g, b) = PALETTE[idx % PALETTE.len()];
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the legend calls it.
    pub label: String,
    /// Which run's colour.
    pub colour: usize,
    /// Drawn in dashes.
    pub dashed: bool,
    /// x and y, x ascending.
    pub points: Vec<(f64, f64)>,
}

/// How the y axis runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From the first to the second value.
    Linear(f64, f64),
    /// By powers of ten, around what there is above 0.
    Log,
}

/// Lines over epochs.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Also the y axis' meaning.
    pub title: String,
    /// The lines.
    pub lines: Vec<Line>,
    /// The y axis.
    pub scale: Scale,
    /// Whether y is a share that is shown in per cent.
    pub percent: bool,
}

impl LineChart {
    /// As SVG. Points that are not finite, or not above 0 on a logarithmic axis, are left out.
    ///
    /// # Errors
    /// What plotters reports.
    pub fn svg(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|e| ChartError {
            chart: self.title.clone(),
            what: e.to_string(),
        })?;
        Ok(responsive(svg))
    }

    fn draw(&self, svg: &mut String) -> Result<(), Plotters> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let x_end = self
            .lines
            .iter()
            .flat_map(|l| l.points.iter().map(|p| p.0))
            .fold(1e-9, f64::max);
        let mut builder = ChartBuilder::on(&root);
        builder
            .caption(&self.title, (FONT, 16, &INK))
            .margin(8)
            .margin_right(16)
            .x_label_area_size(36)
            .y_label_area_size(56);
        match self.scale {
            Scale::Linear(low, high) => {
                self.plot(builder.build_cartesian_2d(0.0..x_end, low..high)?)?;
            }
            Scale::Log => {
                let positive = || {
                    self.lines
                        .iter()
                        .flat_map(|l| l.points.iter().map(|p| p.1))
                        .filter(|y| y.is_finite() && *y > 0.0)
                };
                let high = positive().fold(f64::MIN_POSITIVE, f64::max);
                let low = positive().fold(high, f64::min);
                let (low, high) = if positive().next().is_some() {
                    (low / 1.5, high * 1.5)
                } else {
                    (0.1, 1.0)
                };
                self.plot(builder.build_cartesian_2d(0.0..x_end, (low..high).log_scale())?)?;
            }
        }
        root.present()?;
        Ok(())
    }

    fn plot<'a, Y>(
        &self,
        mut chart: ChartContext<
            'a,
            SVGBackend<'a>,
            Cartesian2d<plotters::coord::types::RangedCoordf64, Y>,
        >,
    ) -> Result<(), Plotters>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let percent = self.percent;
        let log = self.scale == Scale::Log;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style((FONT, 12, &INK))
            .x_desc("epochs")
            .y_labels(if log { 5 } else { 10 })
            .y_label_formatter(&move |y| {
                if percent {
                    format!("{:.0} %", 100.0 * y)
                } else {
                    short(*y)
                }
            })
            .x_label_formatter(&|x| short(*x))
            .draw()?;
        for line in &self.lines {
            let colour = PALETTE[line.colour % PALETTE.len()];
            let points = line
                .points
                .iter()
                .copied()
                .filter(|p| p.1.is_finite() && !(log && p.1 <= 0.0));
            let drawn = if line.dashed {
                chart.draw_series(DashedLineSeries::new(points, 5, 4, colour.stroke_width(2)))?
            } else {
                chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            };
            let dashed = line.dashed;
            drawn.label(&line.label).legend(move |(x, y)| {
                let ends = if dashed {
                    vec![(x, y), (x + 8, y)]
                } else {
                    vec![(x, y), (x + 20, y)]
                };
                PathElement::new(ends, colour.stroke_width(2))
            });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(FAINT)
            .label_font((FONT, 12, &INK))
            .position(if self.percent {
                SeriesLabelPosition::LowerRight
            } else {
                SeriesLabelPosition::UpperRight
            })
            .draw()?;
        Ok(())
    }
}

/// One part of a bar.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its length.
    pub value: f64,
    /// What stands in it or beside it.
    pub text: String,
    /// Drawn lighter: less of the run's own colour.
    pub shade: f64,
}

/// A bar of parts.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is.
    pub label: String,
    /// Which run's colour.
    pub colour: usize,
    /// One after the other.
    pub parts: Vec<Part>,
}

/// Lying bars, one below the other.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Also the meaning of a bar's length.
    pub title: String,
    /// The bars, from above.
    pub bars: Vec<Bar>,
}

impl BarChart {
    /// As SVG.
    ///
    /// # Errors
    /// What plotters reports.
    pub fn svg(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|e| ChartError {
            chart: self.title.clone(),
            what: e.to_string(),
        })?;
        Ok(responsive(svg))
    }

    fn draw(&self, svg: &mut String) -> Result<(), Plotters> {
        const ROW: i32 = 46;
        const LEFT: i32 = 110;
        let height = 40 + ROW * self.bars.len() as i32 + 10;
        let root = SVGBackend::with_string(svg, (SIZE.0, height as u32)).into_drawing_area();
        let text = |size: i32| (FONT, size).into_font().color(&INK);
        let centred = text(16).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(
            self.title.clone(),
            (SIZE.0 as i32 / 2, 10),
            centred,
        ))?;
        let longest = self
            .bars
            .iter()
            .map(|b| b.parts.iter().map(|p| p.value).sum::<f64>())
            .fold(f64::MIN_POSITIVE, f64::max);
        let room = f64::from(SIZE.0 as i32 - LEFT - 110);
        for (row, bar) in (0..).zip(&self.bars) {
            let (top, bottom) = (40 + row * ROW + 8, 40 + row * ROW + 36);
            let middle = (top + bottom) / 2;
            root.draw(&Text::new(
                bar.label.clone(),
                (LEFT - 8, middle),
                text(13).pos(Pos::new(HPos::Right, VPos::Center)),
            ))?;
            let colour = PALETTE[bar.colour % PALETTE.len()];
            let mut from = f64::from(LEFT);
            let mut texts = vec![];
            for part in &bar.parts {
                let to = from + room * (part.value / longest).max(0.0);
                root.draw(&Rectangle::new(
                    [(from as i32, top), (to as i32, bottom)],
                    colour.mix(part.shade).filled(),
                ))?;
                texts.push(part.text.as_str());
                from = to;
            }
            root.draw(&Text::new(
                texts.join(" + "),
                (from as i32 + 6, middle),
                text(12).pos(Pos::new(HPos::Left, VPos::Center)),
            ))?;
        }
        root.present()?;
        Ok(())
    }
}

/// Without trailing zeros: `0.5`, `20`, `0.001`.
fn short(v: f64) -> String {
    let text = format!("{v:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || (text == "0" && v != 0.0) {
        format!("{v:.0e}")
    } else {
        text.to_string()
    }
}

/// Lets the page scale it.
fn responsive(svg: String) -> String {
    svg.replacen("<svg ", r#"<svg class="chart" "#, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, dashed: bool, points: Vec<(f64, f64)>) -> Line {
        Line {
            label: label.into(),
            colour: 0,
            dashed,
            points,
        }
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        for scale in [Scale::Linear(0.0, 1.0), Scale::Log] {
            let chart = LineChart {
                title: "how far".into(),
                lines: vec![
                    line("first", false, vec![(0.0, 0.5), (1.0, 0.25)]),
                    line(
                        "second",
                        true,
                        vec![(0.0, 0.3), (1.0, f64::NAN), (2.0, 0.1)],
                    ),
                ],
                scale,
                percent: false,
            };
            let svg = chart.svg().unwrap();
            for text in ["how far", "first", "second", "epochs"] {
                assert!(svg.contains(text), "{text}");
            }
            assert!(!svg.contains("NaN"));
        }
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        for scale in [Scale::Linear(0.0, 1.0), Scale::Log] {
            let chart = LineChart {
                title: "empty".into(),
                lines: vec![
                    line("zeros", false, vec![(0.0, 0.0)]),
                    line("no", true, vec![]),
                ],
                scale,
                percent: true,
            };
            assert!(chart.svg().unwrap().contains("empty"));
        }
        let bars = BarChart {
            title: "no bars".into(),
            bars: vec![],
        };
        assert!(bars.svg().unwrap().contains("no bars"));
    }

    #[test]
    fn bars_carry_their_texts() {
        let chart = BarChart {
            title: "bytes".into(),
            bars: vec![Bar {
                label: "dmsgd".into(),
                colour: 1,
                parts: vec![
                    Part {
                        value: 3.0,
                        text: "3 here".into(),
                        shade: 1.0,
                    },
                    Part {
                        value: 0.0,
                        text: "none there".into(),
                        shade: 0.4,
                    },
                ],
            }],
        };
        let svg = chart.svg().unwrap();
        for text in ["bytes", "dmsgd", "3 here + none there"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<rect").count(), 2);
    }

    #[test]
    fn axis_numbers_are_short() {
        assert_eq!(short(0.5), "0.5");
        assert_eq!(short(20.0), "20");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.000_01), "1e-5");
    }
}
