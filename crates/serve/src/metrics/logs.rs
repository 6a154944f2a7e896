//! Figures of a log as metrics.

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
            family("flatout_log_lines", "Lines that the log's file has taken", tally.lines),
            family("flatout_log_written_bytes", "Bytes that the log's file has taken", tally.bytes),
            family("flatout_log_lines_lost", "Lines that were lost to a full or slow disk", tally.lost),
        ]);
    }
}
