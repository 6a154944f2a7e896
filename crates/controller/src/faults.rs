//! Reports what is wrong with objects, for whoever does not read their statuses.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use flatout_engine::{Severity, report};

use crate::condition::StatusUpdate;

/// Faults that are reported at once.
const FAULTS_MAX: usize = 20;

/// A writer of statuses that logs each fault once, until it is gone.
pub fn log_faults() -> impl FnMut(&[Arc<StatusUpdate>]) + Send {
    let mut known = BTreeSet::new();
    // Those of the last statuses, by address. The Arc is held so that its address is not used again.
    let mut read: HashMap<usize, (Arc<StatusUpdate>, Vec<String>)> = HashMap::new();
    move |statuses: &[Arc<StatusUpdate>]| {
        let mut former = std::mem::take(&mut read);
        let mut all = BTreeSet::new();
        for status in statuses {
            let place = Arc::as_ptr(status).addr();
            let entry = former.remove(&place).unwrap_or_else(|| (status.clone(), lines(status)));
            all.extend(entry.1.iter().cloned());
            read.insert(place, entry);
        }
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

fn lines(status: &StatusUpdate) -> Vec<String> {
    let line = |fault: String| format!("{} {}: {fault}", status.kind.name, status.key);
    status.faults().into_iter().map(line).collect()
}
