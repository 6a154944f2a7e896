//! A format prepared for workers. Values from a request's head are written at its start, in runs with the text around
//! them; the other values at its end.
//!
//! ```text
//! $remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer"
//! └────────── run ───────────┘   at end    └── run ──┘  at end    at end       └──── run ────┘
//! ```

use std::sync::Arc;

use flatout_engine::Begun;

use super::escape::Escape;
use super::template::Format;
use super::text::Text;
use super::variable::{Early, Late, Variable};

/// The parts of a line, by the time of writing.
pub(super) struct Steps {
    /// Written at the start of a request.
    pub(super) runs: Vec<Run>,
    /// Written at the end.
    pub(super) late: Vec<Step>,
}

/// A contiguous part of a line that is known when the request starts.
#[derive(Default)]
pub(super) struct Run {
    values: Vec<(Text, Early)>,
    behind: Text,
}

/// A step of writing a line at the end.
pub(super) enum Step {
    /// The next run.
    Run,
    Text(Text),
    Value(Late),
    /// A variable of the service.
    Named(Arc<str>),
}

impl Steps {
    pub(super) fn of(format: &Format) -> Steps {
        let mut steps = Steps { runs: Vec::new(), late: Vec::new() };
        let mut run = Run::default();
        for part in &format.parts {
            match &part.value {
                Some(Variable::Early(early)) => run.values.push((part.text.clone(), early.clone())),
                value => {
                    run.behind = part.text.clone();
                    steps.end_run(std::mem::take(&mut run));
                    match value {
                        Some(Variable::Late(late)) => steps.late.push(Step::Value(*late)),
                        Some(Variable::Named(name)) => steps.late.push(Step::Named(name.clone())),
                        Some(Variable::Early(_)) | None => {}
                    }
                }
            }
        }
        steps
    }

    fn end_run(&mut self, run: Run) {
        match run.values.is_empty() {
            false => {
                self.runs.push(run);
                self.late.push(Step::Run);
            }
            true if !run.behind.is_empty() => self.late.push(Step::Text(run.behind)),
            true => {}
        }
    }
}

impl Run {
    #[inline]
    pub(super) fn write(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        for (before, value) in &self.values {
            before.write(out);
            value.write(begun, escape, out);
        }
        self.behind.write(out);
    }
}
