//! Lines over two axes, as SVG. Coordinates are in pixels of a fixed frame that scales with the page.

use crate::html::escape;

/// A plot: all lines share both axes; the vertical one begins at 0.
pub(crate) struct Plot {
    pub(crate) lines: Vec<Line>,
    pub(crate) x_ticks: Vec<Tick>,
    /// How a value of the vertical axis is written.
    pub(crate) y_text: fn(f64) -> String,
}

/// One line, in the order of its x values.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// The class that gives it its colour.
    pub(crate) class: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A mark on the horizontal axis.
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) text: String,
}

/// The frame and the room around the lines in it.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 30.0;

/// Horizontal lines of the grid above the axis.
const GRID_LINES: u32 = 4;

impl Plot {
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_max = points().map(|point| point.0).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let x_min = points().map(|point| point.0).fold(x_max, f64::min);
        let y_max = points().map(|point| point.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.05;
        let x = |value: f64| {
            LEFT + (value - x_min) / (x_max - x_min).max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT)
        };
        let y = |value: f64| HEIGHT - BOTTOM - value / y_max * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img>\n");
        for step in 0..=GRID_LINES {
            let value = y_max * f64::from(step) / f64::from(GRID_LINES);
            let (at, text) = (y(value), escape(&(self.y_text)(value)));
            svg.push_str(&format!(
                "<line class=grid x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{}\" y=\"{:.1}\" \
                 text-anchor=end>{text}</text>\n",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0
            ));
        }
        for tick in self.x_ticks.iter().filter(|tick| (x_min..=x_max).contains(&tick.at)) {
            let (at, text) = (x(tick.at), escape(&tick.text));
            svg.push_str(&format!(
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=middle>{text}</text>\n",
                HEIGHT - 8.0
            ));
        }
        for (index, line) in self.lines.iter().enumerate() {
            let path: Vec<String> =
                line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
            let (class, name, at) = (line.class, escape(line.name), LEFT + 220.0 * index as f64);
            svg.push_str(&format!("<polyline class=\"line {class}\" points=\"{}\"/>\n", path.join(" ")));
            svg.push_str(&format!(
                "<circle class={class} cx=\"{at}\" cy=\"12\" r=\"4\"/><text x=\"{}\" y=\"16\">{name}</text>\n",
                at + 10.0
            ));
        }
        svg.push_str("</svg>");
        svg
    }
}
