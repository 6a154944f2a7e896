//! The waterfall as a separate picture, for a README or a slide. It follows the reader's light or dark mode, and
//! needs no network.

use flatout_climb::{Estimate, Objective};

use super::Climb;
use super::axis::Axis;
use super::fall::{Fall, Step};
use super::text::{gained, shortened};
use crate::page::escape;

/// The frame, in pixels: names, bars, figures.
const WIDTH: f64 = 900.0;
const BARS_LEFT: f64 = 260.0;
const BARS_WIDTH: f64 = 380.0;
const FIGURES_LEFT: f64 = 660.0;
const MARGIN: f64 = 20.0;

/// Rows, their bars, and the room above and below them.
const ROW_HEIGHT: f64 = 38.0;
const BAR_HEIGHT: f64 = 20.0;
const HEAD_HEIGHT: f64 = 64.0;
const FOOT_HEIGHT: f64 = 44.0;

/// Letters of a name that fit beside the bars.
const NAME_LETTERS: usize = 30;

const STYLE: &str = "text{font:14px system-ui,sans-serif;fill:#1b1f24}.dim{fill:#57606a;font-size:12px}.b{font-weight:600}\
.ground{fill:#fff}.grid{stroke:#d5d9de}.zero{stroke:#57606a}.whisker{stroke:#1b1f24;stroke-width:1.5;fill:none}.step{stroke:#57606a;stroke-dasharray:3 2}\
.kept{fill:#3fa557}.none{fill:#8b949e}.worse{fill:#c01c28}.skipped{fill:#8a6300}.not-measurable{fill:#7a3fb5}.all{fill:#4a90e2}\
@media(prefers-color-scheme:dark){text{fill:#e6e9ed}.dim{fill:#9aa4af}.ground{fill:#14171a}.grid{stroke:#383f47}\
.zero,.step{stroke:#9aa4af}.whisker{stroke:#e6e9ed}.kept{fill:#3fa557}.none{fill:#6e7681}.worse{fill:#ff7b72}.skipped{fill:#dcb23c}\
.not-measurable{fill:#c69bff}.all{fill:#6cb0ff}}";

/// A standalone SVG.
pub fn svg(climb: &Climb) -> String {
    let fall = Fall::of(climb);
    let intervals: Vec<Estimate> = fall.steps.iter().filter_map(Step::bar).chain(fall.total).collect();
    let axis = Axis::of_intervals(&intervals);
    let rows = fall.steps.len() + 1 + usize::from(fall.total.is_some());
    let bottom = HEAD_HEIGHT + rows as f64 * ROW_HEIGHT;
    let mut picture = Picture { axis, out: String::new(), top: HEAD_HEIGHT, bottom };
    picture.grid();
    picture.row("before", None, &format!("{} {}", fall.figure_at(1.0), unit(climb.objective)), "");
    for step in &fall.steps {
        let status = step.rung.found.status;
        let ended = match step.is_kept() {
            true => format!("→ {}", fall.figure_at(step.ended)),
            false => format!("· {}", status.name().replace('-', " ")),
        };
        let (figure, says) = match step.gain {
            Some(gain) => (percent(gain.gain), format!("{} {ended}", range(&gain))),
            None => (status.name().replace('-', " "), String::new()),
        };
        let drawn = step.bar().map(|bar| (status.name(), step.begun - 1.0, bar));
        picture.row(&step.rung.name, drawn, &figure, &says);
    }
    if let Some(total) = fall.total {
        let says = format!("{} → {}", range(&total), fall.figure_at(1.0 + total.gain));
        picture.row("everything kept", Some(("all", 0.0, total)), &percent(total.gain), &says);
    }
    let height = bottom + FOOT_HEIGHT;
    let machine = &climb.machine;
    let about = format!("{}, {} CPUs, Linux {}", machine.processor, machine.cpus, machine.kernel);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"waterfall of a \
         climb\"><style>{STYLE}</style><rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\
         <text x=\"{MARGIN}\" y=\"28\" class=\"b\">flatout climb: {}</text><text x=\"{MARGIN}\" y=\"48\" class=\"dim\">{}</text>\
         {}</svg>\n",
        escape(gained(climb.objective)),
        escape(&about),
        picture.out
    )
}

/// The unit of an objective's figures, if no text says it.
fn unit(objective: Objective) -> &'static str {
    match objective {
        Objective::Throughput => "",
        Objective::P99 => "p99",
        Objective::Cpu => "CPU per request",
    }
}

fn percent(gain: f64) -> String {
    format!("{:+.1} %", gain * 100.0)
}

fn range(estimate: &Estimate) -> String {
    format!("{:+.1} to {:+.1}", estimate.low * 100.0, estimate.high * 100.0)
}

/// The drawing so far, and the position of the next row.
struct Picture {
    axis: Axis,
    out: String,
    top: f64,
    bottom: f64,
}

impl Picture {
    fn x(&self, gain: f64) -> f64 {
        BARS_LEFT + self.axis.share(gain).clamp(0.0, 1.0) * BARS_WIDTH
    }

    fn grid(&mut self) {
        for (gain, text) in self.axis.labels() {
            let x = self.x(gain);
            let class = if gain == 0.0 { "zero" } else { "grid" };
            self.out.push_str(&format!(
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEAD_HEIGHT}\" y2=\"{}\"/><text class=\"dim\" \
                 text-anchor=\"middle\" x=\"{x:.1}\" y=\"{}\">{text}</text>",
                self.bottom,
                self.bottom + 20.0
            ));
        }
    }

    /// A row: the class of its bar, where it starts, and the interval at its end.
    fn row(&mut self, name: &str, bar: Option<(&str, f64, Estimate)>, figure: &str, says: &str) {
        let middle = self.top + ROW_HEIGHT / 2.0;
        let shown = shortened(name, NAME_LETTERS);
        self.out.push_str(&format!(
            "<text x=\"{MARGIN}\" y=\"{:.1}\">{}</text>",
            middle + 5.0,
            escape(&shown)
        ));
        if let Some((class, from, to)) = bar {
            let (left, right) = (self.x(from.min(to.gain)), self.x(from.max(to.gain)));
            let (low, high) = (self.x(to.low), self.x(to.high));
            self.out.push_str(&format!(
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>\
                 <path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8\"/>",
                middle - BAR_HEIGHT / 2.0,
                (right - left).max(1.5),
                middle - 4.0,
                middle - 4.0
            ));
        }
        let figure_y = if says.is_empty() { middle + 5.0 } else { middle - 3.0 };
        self.out.push_str(&format!(
            "<text class=\"b\" x=\"{FIGURES_LEFT}\" y=\"{figure_y:.1}\">{}</text><text class=\"dim\" x=\"{FIGURES_LEFT}\" \
             y=\"{:.1}\">{}</text>",
            escape(figure),
            middle + 13.0,
            escape(says)
        ));
        self.top += ROW_HEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::climb::scripted;

    #[test]
    fn every_rung_has_a_row_and_nothing_becomes_markup() {
        let climb = scripted::climb();
        let svg = svg(&climb);
        for rung in &climb.outcome.rungs {
            assert!(svg.contains(&escape(&rung.name)), "{}", rung.name);
        }
        assert!(svg.contains("gro&lt;b&gt;") && !svg.contains("<b>") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("+97.0 to +107.0 → 204,492/s"));
        assert_eq!(svg.matches("class=\"kept\"").count(), 2);
        assert!(super::svg(&scripted::bare()).contains("before"));
    }
}
