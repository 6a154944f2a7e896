//! Metrics of a log.

use super::{Family, Kind, Source, Value};
use crate::log::Log;

impl Source for Log {
    fn collect(&self, into: &mut Vec<Family>) {
        let tally = self.tally();
        let path = self.path().to_string_lossy();
        let family = |name, help, count| {
            Family::new(name, Kind::Counter, help).with(&[("log", &path)], Value::Count(count))
        };
        into.extend([
            family("flatout_log_lines", "Lines written to the log file", tally.lines),
            family("flatout_log_written_bytes", "Bytes written to the log file", tally.bytes),
            family("flatout_log_lines_lost", "Lines lost because of a full or slow disk", tally.lost),
        ]);
    }
}
