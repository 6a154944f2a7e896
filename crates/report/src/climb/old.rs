//! An earlier climb, read back from its JSON, and what has become of it since.

use std::fmt::Write;

use flatout_climb::{Figures, Objective};
use serde_json::Value;

use super::Climb;

/// What is compared of an earlier climb.
#[derive(Debug, Clone, PartialEq)]
pub struct Old {
    objective: String,
    noise_floor: f64,
    before: Value,
    kernel: String,
    processor: String,
    gains: Vec<(String, f64)>,
}

impl Old {
    /// Reads what [`json`](super::json::json) wrote.
    ///
    /// # Errors
    /// It is no JSON, or not that of a climb.
    pub fn parse(text: &str) -> Result<Old, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
        let string = |at: &str| value.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        let missing = |name: &str| format!("it has no `{name}`; need what `flatout climb --json` wrote");
        let rungs = value.get("rungs").and_then(Value::as_array).ok_or_else(|| missing("rungs"))?;
        let gain = |rung: &Value| Some((rung.get("name")?.as_str()?.to_owned(), rung.get("gain")?.as_f64()?));
        Ok(Old {
            objective: string("/objective"),
            noise_floor: value
                .get("noise_floor")
                .and_then(Value::as_f64)
                .ok_or_else(|| missing("noise_floor"))?,
            before: value
                .get("before")
                .filter(|before| before.is_object())
                .ok_or_else(|| missing("before"))?
                .clone(),
            kernel: string("/machine/kernel"),
            processor: string("/machine/processor"),
            gains: rungs.iter().filter_map(gain).collect(),
        })
    }

    /// Whether this machine or version got slower since, in lines.
    pub(super) fn compared(&self, climb: &Climb) -> String {
        let mut out = String::new();
        for (name, was, is) in [
            ("processor", &self.processor, &climb.machine.processor),
            ("kernel", &self.kernel, &climb.machine.kernel),
        ] {
            if was != is {
                let _ = writeln!(out, "  since the earlier climb: {name} was {was}, is {is}");
            }
        }
        // An effect within the noise of either climb is none.
        let floor = (1.0 + self.noise_floor) * (1.0 + climb.outcome.noise_floor.unwrap_or(0.0)) - 1.0;
        if let Some(figures) = &climb.outcome.before {
            for objective in Objective::ALL {
                let Some(ratio) = self.ratio(figures, objective) else { continue };
                let word = match ratio {
                    ratio if ratio > 1.0 + floor => "better",
                    ratio if ratio < 1.0 / (1.0 + floor) => "worse",
                    _ => "the same within the noise of both",
                };
                let (name, percent) = (objective.name(), (ratio - 1.0) * 100.0);
                let _ = writeln!(
                    out,
                    "  since the earlier climb: {name} before any rung {percent:+.1} %, {word}"
                );
            }
        }
        self.rungs(climb, floor, &mut out);
        out
    }

    fn rungs(&self, climb: &Climb, floor: f64, out: &mut String) {
        if self.objective != climb.objective.name() {
            return;
        }
        for rung in &climb.outcome.rungs {
            let is = rung.found.forward.as_ref().and_then(|effect| effect.on(climb.objective));
            let was = self.gains.iter().find(|(name, _)| *name == rung.name);
            if let (Some(is), Some((_, was))) = (is, was)
                && !(is.low - floor..=is.high + floor).contains(was)
            {
                let (name, was, is) = (&rung.name, was * 100.0, is.gain * 100.0);
                let _ = writeln!(out, "  since the earlier climb: {name} gave {was:+.1} %, gives {is:+.1} %");
            }
        }
    }

    /// How many times as good this is as it was.
    fn ratio(&self, figures: &Figures, objective: Objective) -> Option<f64> {
        let was = |name: &str| self.before.get(name).and_then(Value::as_f64);
        let (better, worse) = match objective {
            Objective::Throughput => (Some(figures.requests_per_s), was("requests_per_s")),
            Objective::P99 => (was("p99_ns"), figures.p99_ns),
            Objective::Cpu => (was("cpu_us_per_request"), figures.cpu_us_per_request),
        };
        let ratio = better? / worse?;
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_climb_is_told() {
        for (text, expected) in [
            ("", "no JSON"),
            ("{}", "no `rungs`"),
            ("{\"rungs\":[]}", "no `noise_floor`"),
            ("{\"rungs\":[],\"noise_floor\":0.1,\"before\":null}", "no `before`"),
        ] {
            let message = Old::parse(text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
