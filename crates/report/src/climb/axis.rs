//! Draws gains as bars and intervals over one axis. Drawings fill their place and contain no text: text next to them
//! keeps its size on a phone.

use flatout_climb::Estimate;

use crate::plot::round_step;

/// The width and the height of a drawing in its own units; both stretch.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 40.0;

/// The top and the height of a bar, and half the height of an interval's ends.
const BAR_TOP: f64 = 9.0;
const BAR_HEIGHT: f64 = 22.0;
const CAP: f64 = 5.0;

/// The smallest range of an axis, so that pure noise looks small.
const SPAN_MIN: f64 = 0.02;

/// Room at both ends, as a share of the range.
const MARGIN: f64 = 0.07;

/// Approximate number of intervals between marks.
const TICKS: f64 = 4.0;

/// A range of gains that includes 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    min: f64,
    max: f64,
}

impl Axis {
    /// Includes all gains. The ends of intervals are included up to the same distance again.
    pub(super) fn of(gains: &[f64], intervals: &[Estimate]) -> Axis {
        let min = gains.iter().fold(0.0, |min: f64, gain| min.min(*gain));
        let max = gains.iter().fold(0.0, |max: f64, gain| max.max(*gain));
        let span = (max - min).max(SPAN_MIN);
        let low = intervals.iter().fold(min, |low, interval| low.min(interval.low));
        let high = intervals.iter().fold(max, |high, interval| high.max(interval.high));
        let (low, high) = (low.max(min - span), high.min(max + span).max(low + SPAN_MIN));
        let room = (high - low) * MARGIN;
        Axis { min: low - room, max: high + room }
    }

    /// An axis for these intervals.
    pub(super) fn of_intervals(intervals: &[Estimate]) -> Axis {
        let gains: Vec<f64> = intervals.iter().map(|interval| interval.gain).collect();
        Axis::of(&gains, intervals)
    }

    /// The position of a gain, as a share of the width.
    pub(super) fn share(self, gain: f64) -> f64 {
        (gain - self.min) / (self.max - self.min)
    }

    fn x(self, gain: f64) -> f64 {
        self.share(gain).clamp(-1.0, 2.0) * WIDTH
    }

    fn ticks(self) -> (f64, Vec<f64>) {
        let step = round_step((self.max - self.min) / TICKS);
        let first = (self.min / step).ceil() as i64;
        let last = (self.max / step).floor() as i64;
        (step, (first..=last).map(|at| at as f64 * step).collect())
    }

    /// Round gains, and their text.
    pub(super) fn labels(self) -> Vec<(f64, String)> {
        let (step, ticks) = self.ticks();
        let digits = if step < 0.01 { 1 } else { 0 };
        let label = |gain: f64| {
            let sign = if gain > step / 2.0 { "+" } else { "" };
            // Not −0.
            let gain = if gain.abs() < step / 2.0 { 0.0 } else { gain };
            (gain, format!("{sign}{:.digits$} %", gain * 100.0))
        };
        ticks.into_iter().map(label).collect()
    }

    /// The labels below the drawings.
    pub(super) fn marks(self) -> String {
        let mark = |(gain, text): (f64, String)| {
            format!("<span style=\"left:{:.2}%\">{text}</span>", self.share(gain) * 100.0)
        };
        self.labels().into_iter().map(mark).collect()
    }
}

/// One drawing, started with the grid of its axis.
pub(super) struct Drawing {
    axis: Axis,
    svg: String,
}

impl Drawing {
    pub(super) fn new(axis: Axis) -> Drawing {
        let mut drawing = Drawing { axis, svg: String::new() };
        for gain in axis.ticks().1 {
            drawing.vertical("grid", gain, 0.0, HEIGHT);
        }
        drawing.vertical("zero", 0.0, 0.0, HEIGHT);
        drawing
    }

    /// A shaded band over the whole height.
    pub(super) fn band(&mut self, low: f64, high: f64) {
        self.rectangle("noise", low, high, 0.0, HEIGHT);
    }

    /// Connecting lines: from the row above, and to the row below.
    pub(super) fn steps(&mut self, from: f64, to: f64) {
        self.vertical("step", from, 0.0, BAR_TOP);
        self.vertical("step", to, BAR_TOP + BAR_HEIGHT, HEIGHT);
    }

    /// A connecting line without a bar.
    pub(super) fn passes(&mut self, at: f64) {
        self.vertical("step", at, 0.0, HEIGHT);
    }

    pub(super) fn bar(&mut self, class: &str, from: f64, to: f64) {
        self.rectangle(&format!("bar {class}"), from, to, BAR_TOP, BAR_HEIGHT);
    }

    /// An interval with its ends.
    pub(super) fn interval(&mut self, low: f64, high: f64) {
        let middle = HEIGHT / 2.0;
        let (left, right) = (self.axis.x(low), self.axis.x(high));
        self.svg.push_str(&format!(
            "<line class=whisker x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>"
        ));
        self.vertical("whisker", low, middle - CAP, middle + CAP);
        self.vertical("whisker", high, middle - CAP, middle + CAP);
    }

    /// An interval and its most likely value.
    pub(super) fn estimate(&mut self, class: &str, estimate: &Estimate) {
        self.interval(estimate.low, estimate.high);
        self.vertical(&format!("point {class}"), estimate.gain, BAR_TOP, BAR_TOP + BAR_HEIGHT);
    }

    pub(super) fn svg(self) -> String {
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=none aria-hidden=true>{}</svg>",
            self.svg
        )
    }

    fn rectangle(&mut self, class: &str, from: f64, to: f64, top: f64, height: f64) {
        let (left, right) = (self.axis.x(from.min(to)), self.axis.x(from.max(to)));
        let width = (right - left).max(1.5);
        self.svg.push_str(&format!(
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\"/>"
        ));
    }

    fn vertical(&mut self, class: &str, gain: f64, top: f64, bottom: f64) {
        let x = self.axis.x(gain);
        self.svg.push_str(&format!(
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_covers_all_values() {
        let wide = Estimate { gain: 0.1, low: -0.9, high: 90.0 };
        let axis = Axis::of(&[0.1, -0.1], &[wide]);
        assert!(axis.share(-0.1) > 0.0 && axis.share(0.1) < 1.0);
        assert!(axis.max < 0.5, "an interval without end does not press everything flat: {axis:?}");
        let nothing = Axis::of(&[], &[]);
        assert!(nothing.share(0.0) > 0.0 && nothing.share(0.02) < 1.0, "{nothing:?}");
    }

    #[test]
    fn marks_are_round() {
        let marks = Axis::of(&[1.0], &[]).marks();
        assert!(
            marks.contains(">0 %<") && marks.contains(">+50 %<") && marks.contains(">+100 %<"),
            "{marks}"
        );
        let marks = Axis::of(&[-0.01], &[]).marks();
        assert!(marks.contains(">-1 %<") && marks.contains(">0 %<"), "{marks}");
    }
}
