//! Reports what is wrong with objects, for whoever does not read their statuses.

use std::collections::BTreeSet;

use flatout_engine::{Severity, report};

use crate::condition::StatusUpdate;

/// Faults that are reported at once.
const FAULTS_MAX: usize = 20;

/// A writer of statuses that logs each fault once, until it is gone.
pub fn log_faults() -> impl FnMut(&[StatusUpdate]) + Send {
    let mut known = BTreeSet::new();
    move |statuses: &[StatusUpdate]| {
        let line = |it: &StatusUpdate, fault: String| format!("{} {}: {fault}", it.kind.name, it.key);
        let all: BTreeSet<String> =
            statuses.iter().flat_map(|it| it.faults().into_iter().map(|fault| line(it, fault))).collect();
        let fresh: Vec<&String> = all.difference(&known).collect();
        for line in fresh.iter().take(FAULTS_MAX) {
            report(Severity::Warning, format_args!("{line}"));
        }
        if let Some(more) = fresh.len().checked_sub(FAULTS_MAX).filter(|more| *more > 0) {
            report(Severity::Warning, format_args!("{more} further faults of objects"));
        }
        known = all;
    }
}
