//! An earlier climb, read from its JSON, and what has changed since.

use flatout_climb::{Estimate, Figures, Mean, Objective, Outcome};

use super::text::{figure, interval, level, name};
use super::{Climb, from_json};
use crate::Machine;
use crate::unit::count;

/// The parts of an earlier climb that are compared.
#[derive(Debug, Clone)]
pub struct Old {
    objective: Objective,
    url: String,
    noise_floor: f64,
    before: Figures,
    machine: Machine,
    gains: Vec<(String, Estimate)>,
}

impl Old {
    /// Parses the output of [`json`](super::json::json).
    ///
    /// # Errors
    /// It is not a climb's JSON, or the climb ended before there was anything to compare.
    pub fn parse(text: &str) -> Result<Old, String> {
        let climb = from_json(text)?;
        let outcome = climb.outcome;
        let noise_floor = noise_floor(&outcome);
        let (Some(before), Some(noise_floor)) = (outcome.before, noise_floor) else {
            return Err("that climb ended before the noise was measured, so it cannot be compared".to_owned());
        };
        let gains = outcome.rungs.into_iter().filter_map(|rung| {
            let forward = rung.found.forward?.on(climb.objective)?;
            Some((rung.name, forward))
        });
        Ok(Old {
            objective: climb.objective,
            url: climb.url,
            noise_floor,
            before,
            machine: climb.machine,
            gains: gains.collect(),
        })
    }

    /// Whether this machine or version got slower since, as sentences.
    pub(super) fn compared(&self, climb: &Climb) -> Vec<String> {
        let mut told = self.figures(climb);
        told.extend(self.rungs(climb));
        told.extend(self.surroundings(climb));
        told
    }

    /// Each figure of the unchanged server, then and now.
    fn figures(&self, climb: &Climb) -> Vec<String> {
        let Some(now) = &climb.outcome.before else {
            return vec!["this climb ended before anything could be compared".to_owned()];
        };
        let sentence = |objective: Objective| {
            let (then, now) = self.means(climb, now, objective)?;
            let change = match objective {
                Objective::Throughput => ratio(then, now),
                // For these, less is better.
                Objective::P99 | Objective::Cpu => ratio(now, then),
            };
            let has_floor = objective == climb.objective && objective == self.objective;
            let is_none = has_floor && is_within(&change, self.floor(climb));
            let word = match change {
                change if change.low > 0.0 && !is_none => "better",
                change if change.high < 0.0 && !is_none => "worse",
                _ => "no significant difference",
            };
            Some(format!(
                "{} without changes: {word}, {} then, {} now, {}",
                name(objective),
                level(then.mean, 1.0, objective),
                level(now.mean, 1.0, objective),
                interval(&change)
            ))
        };
        Objective::ALL.into_iter().filter_map(sentence).collect()
    }

    /// Rungs whose gain has changed.
    fn rungs(&self, climb: &Climb) -> Vec<String> {
        if self.objective != climb.objective {
            let (then, now) = (self.objective.name(), climb.objective.name());
            return vec![format!("gains are not compared: they were for {then}, they are for {now}")];
        }
        let as_mean =
            |gain: &Estimate| Mean { mean: 1.0 + gain.gain, low: 1.0 + gain.low, high: 1.0 + gain.high };
        let changed = climb.outcome.rungs.iter().filter_map(|rung| {
            let now = rung.found.forward.as_ref()?.on(climb.objective)?;
            let (name, then) = self.gains.iter().find(|(name, _)| *name == rung.name)?;
            let change = ratio(as_mean(then), as_mean(&now));
            let is_told = change.low > 0.0 || change.high < 0.0;
            (is_told && !is_within(&change, self.floor(climb)))
                .then(|| format!("{name} gained {} then, gains {} now", interval(then), interval(&now)))
        });
        changed.collect()
    }

    /// Other differences.
    fn surroundings(&self, climb: &Climb) -> Vec<String> {
        let cpus = |machine: &Machine| count(machine.cpus as u64);
        let path = |url: &str| {
            url.split_once("://")
                .map_or(url, |(_, rest)| rest)
                .split_once('/')
                .map_or(String::new(), |(_, path)| path.to_owned())
        };
        let (then, now) = (&self.machine, &climb.machine);
        let all = [
            ("processor", then.processor.clone(), now.processor.clone()),
            ("number of CPUs", cpus(then), cpus(now)),
            ("kernel", then.kernel.clone(), now.kernel.clone()),
            ("URL's path", format!("/{}", path(&self.url)), format!("/{}", path(&climb.url))),
        ];
        let changed = all.into_iter().filter(|(_, then, now)| then != now);
        let mut told: Vec<String> =
            changed.map(|(what, then, now)| format!("the {what} was {then}, is {now}")).collect();
        if self.before.means.on(self.objective).is_none() {
            told.push("the earlier file has no intervals: its noise floor is used instead".to_owned());
        }
        told.push(
            "the climbs ran at different times: other load on the machine looks like a slower server"
                .to_owned(),
        );
        told
    }

    /// An effect within the noise of either climb does not count.
    fn floor(&self, climb: &Climb) -> f64 {
        (1.0 + self.noise_floor) * (1.0 + noise_floor(&climb.outcome).unwrap_or(0.0)) - 1.0
    }

    /// A figure then and now.
    fn means(&self, climb: &Climb, now: &Figures, objective: Objective) -> Option<(Mean, Mean)> {
        let spread = 1.0 + self.floor(climb);
        let wide = |figures: &Figures| {
            let mean = figure(figures, objective).filter(|figure| *figure > 0.0)?;
            Some(Mean { mean, low: mean / spread, high: mean * spread })
        };
        let means = self.before.means.on(objective).zip(now.means.on(objective));
        means.or_else(|| wide(&self.before).zip(wide(now)))
    }
}

/// The ratio of two means, minus 1. The means are independent: the squares of their errors add up.
fn ratio(one: Mean, other: Mean) -> Estimate {
    let half = |mean: Mean| (mean.high / mean.mean).ln().max((mean.mean / mean.low).ln());
    let (middle, half) = ((other.mean / one.mean).ln(), half(one).hypot(half(other)));
    Estimate { gain: middle.exp() - 1.0, low: (middle - half).exp() - 1.0, high: (middle + half).exp() - 1.0 }
}

/// Whether a change is no larger than this share.
fn is_within(change: &Estimate, share: f64) -> bool {
    (1.0 + change.gain).ln().abs() <= (1.0 + share).ln()
}

fn noise_floor(outcome: &Outcome) -> Option<f64> {
    outcome.noise.as_ref()?.floor
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::climb::json::json;
    use crate::climb::scripted;

    /// The scripted climb as an earlier one in which `at` had this `value`.
    fn comparison_with(at: &str, value: Value) -> String {
        let mut file: Value = serde_json::from_str(&json(&scripted::climb())).unwrap();
        *file.pointer_mut(at).unwrap() = value;
        Old::parse(&file.to_string()).unwrap().compared(&scripted::climb()).join("\n")
    }

    fn mean(mean: f64, half: f64) -> Value {
        serde_json::json!({ "mean": mean, "low": mean / half, "high": mean * half })
    }

    #[test]
    fn changes_beyond_interval_and_noise_are_reported() {
        let at = "/before/means/throughput";
        for (then, word) in [
            (mean(101_234.0, 1.01), "no significant difference"),
            (mean(120_000.0, 1.01), "worse"),
            (mean(80_000.0, 1.01), "better"),
            // The same difference, but with this variance it may be chance.
            (mean(120_000.0, 1.3), "no significant difference"),
            // Without variance, but within the noise floor.
            (mean(103_500.0, 1.0001), "no significant difference"),
        ] {
            let text = comparison_with(at, then.clone());
            assert!(text.contains(&format!("requests/s without changes: {word}, ")), "{then}: {text}");
        }
        // (101 234 / 120 000 − 1), and ±1 % of both together are ±1.41 %.
        let text = comparison_with(at, mean(120_000.0, 1.01));
        assert!(text.contains("120,000/s then, 101,234/s now, -15.6 % (-16.8 to -14.4)"), "{text}");
        let text = comparison_with("/before/cpu_us_per_request", 5.0.into());
        assert!(
            text.contains("CPU per request without changes: worse, 5.00µs then, 9.88µs now, -49.4 %"),
            "{text}"
        );
    }

    #[test]
    fn changed_rungs_and_surroundings_are_reported() {
        let rung = serde_json::json!({ "name": "workers", "status": "kept", "gain": 0.1, "low": 0.08, "high": 0.12 });
        let text = comparison_with("/rungs/0", rung);
        let expected = "workers gained +10.0 % (+8.0 to +12.0) then, gains +82.0 % (+76.0 to +88.0) now";
        assert!(text.contains(expected) && !text.contains("conntrack"), "{text}");
        assert!(comparison_with("/machine/cpus", 4.into()).contains("the number of CPUs was 4, is 2"));
        let text = comparison_with("/url", "http://127.0.0.1:99/other".into());
        assert!(text.contains("the URL's path was /other, is /?a=<b>&c"), "{text}");
        assert!(
            !comparison_with("/url", "http://127.0.0.1:99/?a=<b>&c".into()).contains("URL"),
            "another port is nothing"
        );
        assert!(
            comparison_with("/objective", "p99".into())
                .contains("they were for p99, they are for throughput")
        );
    }

    #[test]
    fn a_file_without_means_is_compared_by_noise_floors() {
        let mut file: Value = serde_json::from_str(&json(&scripted::climb())).unwrap();
        file["before"].as_object_mut().unwrap().remove("means");
        let compared =
            |file: &Value| Old::parse(&file.to_string()).unwrap().compared(&scripted::climb()).join("\n");
        let text = compared(&file);
        assert!(
            text.contains("the earlier file has no intervals") && text.contains("no significant difference"),
            "{text}"
        );
        file["before"]["requests_per_s"] = 300_000.0.into();
        assert!(compared(&file).contains("worse, 300,000/s then"));
    }

    #[test]
    fn files_other_than_climbs_are_reported() {
        let bare = json(&scripted::bare());
        for (text, expected) in [
            ("", "not a climb: EOF"),
            ("{}", "need what `flatout climb --json` wrote"),
            (&bare, "ended before the noise was measured"),
            (&bare[..bare.len() / 2], "not a climb: EOF"),
        ] {
            let message = Old::parse(text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
