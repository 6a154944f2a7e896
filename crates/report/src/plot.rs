//! Lines over two axes, as SVG. Coordinates are in pixels of a fixed frame that scales with the page.

use std::borrow::Cow;

use crate::page::escape;

/// A plot: all lines share both axes.
pub(crate) struct Plot {
    pub(crate) lines: Vec<Line>,
    /// Points with a text.
    pub(crate) labels: Vec<Label>,
    pub(crate) x_ticks: Vec<Tick>,
    pub(crate) y_scale: Scale,
    /// Formats a value of the vertical axis.
    pub(crate) y_text: fn(f64) -> String,
}

/// The scale of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear, from 0.
    Even,
    /// Logarithmic: doubling is the same distance everywhere. A value of 0 is at the lower end.
    Log,
}

/// One line, in the order of its x values.
pub(crate) struct Line {
    /// Empty to keep it out of the legend.
    pub(crate) name: Cow<'static, str>,
    /// The CSS class, for its colour.
    pub(crate) class: &'static str,
    pub(crate) kind: Kind,
    pub(crate) points: Vec<(f64, f64)>,
}

/// How the points of a line are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Connected.
    Line,
    /// Connected by dashes.
    Dashes,
    /// Each as a dot.
    Dots,
    /// Each as a cross.
    Crosses,
}

/// A text at a point.
pub(crate) struct Label {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) text: String,
}

/// A mark on the horizontal axis.
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) text: String,
}

/// The widths of the frame: for a desk, and for a phone, whose page shows the other picture.
const WIDE: f64 = 900.0;
const NARROW: f64 = 400.0;

/// The height of the frame, and the margins around the lines.
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 30.0;

/// Approximate number of grid lines above the axis: their distance is a round number.
const GRID_LINES: f64 = 4.0;

/// Marks of a logarithmic axis within a power of ten; only the first if there are more than [`LOG_MARKS_MAX`].
const LOG_MARKS: [f64; 3] = [1.0, 2.0, 5.0];
const LOG_MARKS_MAX: usize = 8;

/// Width reserved for the text of a mark; overlapping ones are omitted.
const TICK_WIDTH: f64 = 76.0;

/// Width of a line's name.
const LEGEND_WIDTH: f64 = 150.0;

/// Lines with fewer points show each of them.
const DOTS_MAX: usize = 20;

impl Plot {
    pub(crate) fn svg(&self) -> String {
        format!("<div class=plot>{}{}</div>", self.picture("wide", WIDE), self.picture("narrow", NARROW))
    }

    /// The picture in a frame of this width.
    fn picture(&self, class: &str, width: f64) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_max = points().map(|point| point.0).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let x_min = points().map(|point| point.0).fold(x_max, f64::min);
        let marks = self.y_scale.marks(points().map(|point| point.1));
        let (y_min, y_max) = (marks[0], marks[marks.len() - 1]);
        let x = |value: f64| {
            LEFT + (value - x_min) / (x_max - x_min).max(f64::MIN_POSITIVE) * (width - LEFT - RIGHT)
        };
        let y =
            |value: f64| HEIGHT - BOTTOM - self.y_scale.share(value, y_min, y_max) * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!("<svg class={class} viewBox=\"0 0 {width} {HEIGHT}\" role=img>\n");
        for value in marks {
            let text = if value == 0.0 { "0".to_owned() } else { escape(&(self.y_text)(value)) };
            let at = y(value);
            svg.push_str(&format!(
                "<line class=grid x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{}\" y=\"{:.1}\" \
                 text-anchor=end>{text}</text>\n",
                width - RIGHT,
                LEFT - 8.0,
                at + 4.0
            ));
        }
        let mut free_from = f64::MIN;
        for tick in self.x_ticks.iter().filter(|tick| (x_min..=x_max).contains(&tick.at)) {
            // A mark at the right end stays inside the frame.
            let (at, text) = (x(tick.at).min(width - TICK_WIDTH / 2.0), escape(&tick.text));
            if at < free_from {
                continue;
            }
            free_from = at + TICK_WIDTH;
            svg.push_str(&format!(
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=middle>{text}</text>\n",
                HEIGHT - 8.0
            ));
        }
        let mut legend_at = LEFT;
        for line in &self.lines {
            let points: Vec<(f64, f64)> = line.points.iter().map(|point| (x(point.0), y(point.1))).collect();
            svg.push_str(&line.picture(&points));
            if !line.name.is_empty() {
                svg.push_str(&line.legend(legend_at));
                legend_at += LEGEND_WIDTH.min((width - LEFT) / self.lines.len() as f64);
            }
        }
        for label in &self.labels {
            let (x, y) = (x(label.x), y(label.y));
            // On the side with more room.
            let (anchor, x_text) = if x > width / 2.0 { ("end", x - 10.0) } else { ("start", x + 10.0) };
            svg.push_str(&format!(
                "<circle class=ring cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\"/><text class=label x=\"{x_text:.1}\" y=\"{:.1}\" \
                 text-anchor={anchor}>{}</text>\n",
                y - 8.0,
                escape(&label.text)
            ));
        }
        svg.push_str("</svg>");
        svg
    }
}

impl Line {
    /// The points, given in pixels.
    fn picture(&self, points: &[(f64, f64)]) -> String {
        let class = self.class;
        let mut svg = String::new();
        if matches!(self.kind, Kind::Line | Kind::Dashes) {
            let dashes = if self.kind == Kind::Dashes { " dashes" } else { "" };
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            svg.push_str(&format!(
                "<polyline class=\"line {class}{dashes}\" points=\"{}\"/>\n",
                path.join(" ")
            ));
        }
        let has_marks = match self.kind {
            Kind::Line => points.len() < DOTS_MAX && !self.name.is_empty(),
            Kind::Dashes => false,
            Kind::Dots | Kind::Crosses => true,
        };
        for (x, y) in points.iter().filter(|_| has_marks) {
            svg.push_str(&self.mark(*x, *y, 3.0));
        }
        svg
    }

    /// One mark of this line.
    fn mark(&self, x: f64, y: f64, size: f64) -> String {
        let class = self.class;
        match self.kind {
            Kind::Crosses => format!(
                "<path class=\"line {class}\" d=\"M{:.1} {:.1}l{d:.1} {d:.1}m0 -{d:.1}l-{d:.1} {d:.1}\"/>\n",
                x - size,
                y - size,
                d = 2.0 * size
            ),
            Kind::Dashes => format!(
                "<path class=\"line {class} dashes\" d=\"M{:.1} {y:.1}h{:.1}\"/>\n",
                x - 2.0 * size,
                4.0 * size
            ),
            Kind::Line | Kind::Dots => {
                format!("<circle class={class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\"/>\n")
            }
        }
    }

    /// The line's mark and its name above the plot.
    fn legend(&self, at: f64) -> String {
        format!(
            "{}<text x=\"{}\" y=\"16\">{}</text>\n",
            self.mark(at, 12.0, 4.0),
            at + 12.0,
            escape(&self.name)
        )
    }
}

impl Scale {
    /// At least two round values that enclose all `values`.
    fn marks(self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let known: Vec<f64> = values.filter(|value| *value > 0.0 && value.is_finite()).collect();
        let max = known.iter().copied().fold(0.0, f64::max);
        match self {
            Scale::Even => {
                let step = round_step(max / GRID_LINES);
                (0..=(max / step).ceil().max(1.0) as u32).map(|index| step * f64::from(index)).collect()
            }
            Scale::Log => {
                let min = known.iter().copied().fold(max, f64::min);
                let within = |factors: &[f64]| -> Vec<f64> {
                    let powers =
                        (min.max(1.0).log10().floor() as i32)..=(max.max(1.0).log10().floor() as i32 + 1);
                    let all: Vec<f64> = powers
                        .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
                        .collect();
                    let first = all.iter().rposition(|mark| *mark <= min).unwrap_or(0);
                    let last = all.iter().position(|mark| *mark >= max).unwrap_or(all.len() - 1);
                    all[first..=last.max(first + 1).min(all.len() - 1)].to_vec()
                };
                let fine = within(&LOG_MARKS);
                if fine.len() > LOG_MARKS_MAX { within(&LOG_MARKS[..1]) } else { fine }
            }
        }
    }

    /// The position of a value between two others.
    fn share(self, value: f64, min: f64, max: f64) -> f64 {
        match self {
            Scale::Even => (value - min) / (max - min),
            Scale::Log => (value.max(min) / min).ln() / (max / min).ln(),
        }
    }
}

/// The next larger of 1, 2, 2.5 or 5 times a power of ten.
pub(crate) fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(f64::MIN_POSITIVE).log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= step);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_is_round_and_holds_its_values() {
        for (values, marks) in [
            (&[1.2e6, 4e6][..], &[1e6, 2e6, 5e6][..]),
            (&[150.0, 9e7], &[1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8]),
            (&[2e5, 2e5], &[2e5, 5e5]),
            (&[0.0, 30.0], &[20.0, 50.0]),
            (&[], &[1.0, 2.0]),
        ] {
            let found = Scale::Log.marks(values.iter().copied());
            let is_same = found.len() == marks.len()
                && found.iter().zip(marks).all(|(one, other)| (one / other - 1.0).abs() < 1e-9);
            assert!(is_same, "{values:?}: {found:?}");
        }
        assert!((Scale::Log.share(1e3, 1e2, 1e4) - 0.5).abs() < 1e-9);
        assert_eq!(Scale::Log.share(0.0, 1e2, 1e4), 0.0);
    }

    #[test]
    fn the_grid_is_round() {
        for (step, round) in
            [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (230.0, 250.0), (21_639.0, 25_000.0), (6e8, 1e9)]
        {
            assert!((round_step(step) - round).abs() < round * 1e-9, "{step}: {}", round_step(step));
        }
        assert!(round_step(0.0) > 0.0);
    }
}
