//! Figures of a data plane.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatout_observe::metrics::{Family, Source};

/// What a data plane counts.
#[derive(Default)]
pub(super) struct PlanFigures {
    pub(super) is_connected: AtomicBool,
    pub(super) number: AtomicU64,
    pub(super) applied: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Source for PlanFigures {
    fn collect(&self, into: &mut Vec<Family>) {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        into.extend([
            Family::gauge(
                "flatout_plan_controller_connected",
                "1 if a controller is connected, 0 while the last plan is served without one",
                u64::from(self.is_connected.load(Ordering::Relaxed)),
            ),
            Family::gauge("flatout_plan_number", "The number of the plan that is served", load(&self.number)),
            Family::counter(
                "flatout_plans_applied",
                "Plans of a controller that were applied",
                load(&self.applied),
            ),
            Family::counter(
                "flatout_plans_refused",
                "Plans of a controller that were not applied",
                load(&self.refused),
            ),
        ]);
    }
}
