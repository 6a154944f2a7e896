//! Figures of a controller: how soon changes of objects have an effect, and for how long watches have failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use flatout_observe::metrics::{Family, Histogram, Kind, Source, Value};

/// What a controller counts.
#[derive(Default)]
pub(crate) struct ControllerFigures {
    effects: Histogram,
    /// The watches that fail, by the names of their kinds, and since when.
    failing: Mutex<BTreeMap<&'static str, Instant>>,
    is_refused: AtomicBool,
}

impl ControllerFigures {
    /// Changes of objects are served now, or published for data planes. `since` is when the first of them arrived.
    pub(crate) fn took_effect(&self, since: Option<Instant>) {
        since.into_iter().for_each(|since| self.effects.record(since.elapsed()));
    }

    /// The objects as a whole can be served or published, or cannot.
    pub(crate) fn set_refused(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// A watch has failed, or works again.
    #[cfg_attr(
        not(any(feature = "cluster", test)),
        expect(dead_code, reason = "folders are not watched in this way")
    )]
    pub(crate) fn set_failing(&self, kind: &'static str, is_failing: bool) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match is_failing {
            true => drop(failing.entry(kind).or_insert_with(Instant::now)),
            false => drop(failing.remove(kind)),
        }
    }
}

impl Source for ControllerFigures {
    fn collect(&self, into: &mut Vec<Family>) {
        let help =
            "Time from a change of an object until the plan with it is served, or published for data planes";
        let effects = Value::Latency(Box::new(self.effects.latency()));
        into.push(Family::new("flatout_controller_effect_seconds", Kind::Histogram, help).with(&[], effects));
        let help =
            "Time since the watch of a kind of objects began to fail: changes since then are not known";
        let mut lag = Family::new("flatout_controller_watch_lag_seconds", Kind::Gauge, help);
        for (kind, since) in self.failing.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            lag.add(&[("kind", kind)], Value::Number(since.elapsed().as_secs_f64()));
        }
        into.push(lag);
        let help =
            "1 if the objects of now cannot be served as a whole, so that the plan before stays in use";
        let refused = u64::from(self.is_refused.load(Ordering::Relaxed));
        into.push(Family::gauge("flatout_controller_plan_refused", help, refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_watches_and_effects_are_shown() {
        let figures = ControllerFigures::default();
        figures.took_effect(None);
        figures.took_effect(Some(Instant::now()));
        figures.set_failing("services", true);
        figures.set_failing("secrets", true);
        figures.set_failing("secrets", false);
        let mut families = Vec::new();
        figures.collect(&mut families);
        assert_eq!(figures.effects.latency().count(), 1);
        let samples: Vec<_> = families[1].samples.iter().map(|it| it.labels.clone()).collect();
        assert_eq!(samples, [vec![("kind", "services".to_owned())]]);
        assert!(matches!(families[2].samples[0].value, Value::Count(0)));
        figures.set_refused(true);
        families.clear();
        figures.collect(&mut families);
        assert!(matches!(families[2].samples[0].value, Value::Count(1)));
    }
}
