//! The access log and the metrics of the server that is simulated.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flatout_observe::log::{Format, Log, Plan};
use flatout_observe::metrics::Metrics;
use flatout_observe::observed::{Observers, Sites};

use crate::model::Model;
use crate::model::log::FORMAT;

/// The log is written when the server has ended: real time decides nothing.
const FLUSH: Duration = Duration::from_secs(3600);

pub(crate) struct Observer {
    path: PathBuf,
    pub(crate) observers: Observers,
    metrics: Metrics,
}

impl Observer {
    /// # Panics
    /// The log cannot be opened.
    pub(crate) fn new(folder: &Path) -> Observer {
        let path = folder.join("access.log");
        let format = Format::parse(FORMAT).expect("variables that there are");
        let log = Log::open(Plan { format, flush: FLUSH, ..Plan::new(&path) }).expect("a file");
        let metrics = Metrics::new(Sites::default());
        Observer { path, observers: Observers { logs: vec![log], metrics: Some(metrics.clone()) }, metrics }
    }

    /// Closes the log. Returns the number of requests in the metrics.
    pub(crate) fn end(&self) -> Result<u64, String> {
        self.observers.logs.iter().for_each(Log::close);
        let lost = self.observers.logs.iter().map(|log| log.tally().lost).sum::<u64>();
        if lost > 0 {
            return Err(format!("{lost} lines of the log are lost"));
        }
        Ok(self.metrics.totals().all().requests())
    }

    /// Compares the log and the number of requests with the model. All workers and the logs of all servers must have ended. `counted` is the sum
    /// over all servers.
    pub(crate) fn check(&self, counted: u64, model: &Model) -> Result<(), String> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| format!("the log: {error}"))?;
        model.check_log(&text, counted)
    }
}
