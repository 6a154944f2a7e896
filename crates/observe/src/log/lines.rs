//! One worker's log lines. The parts known at the start of a request are kept until its end; then the lines go to the
//! worker's buffers.

use std::cell::RefCell;
use std::sync::Arc;

use flatout_engine::{Begun, Ended, Outcome};

use super::clock::Clock;
use super::escape::Escape;
use super::steps::{Step, Steps};
use super::variable::About;
use super::writer::{Buffer, Shared};
use super::{Log, Plan, Scope};
use crate::notes::{LoggedTexts, Notes, RequestLogs};
use crate::observed::Upstream;

/// Requests in progress on one worker whose data is kept; lines of further ones lack the values from their heads.
const OPEN_MAX: usize = 64 << 10;

/// Memory of a request's data that is kept for reuse.
const OPEN_BYTES_KEPT: usize = 4 << 10;

/// One worker's lines, of all logs.
pub(crate) struct Lines {
    logs: Vec<OneLog>,
    state: RefCell<State>,
}

struct OneLog {
    shared: Arc<Shared>,
    buffer: Arc<Buffer>,
    steps: Steps,
    escape: Escape,
    /// It takes every request that is not left to other logs.
    takes_all: bool,
}

struct State {
    open: Vec<Open>,
    free: Vec<u32>,
    /// The data of lines for requests whose beginning was not seen.
    unseen: Open,
    clock: Clock,
    /// For sampling, by log: requests since the last one that was logged.
    skipped: Vec<u32>,
}

/// The data kept of a request in progress.
struct Open {
    /// The runs of all logs, one after another.
    text: Vec<u8>,
    /// Where each of them ends.
    ends: Box<[usize]>,
    /// The mark of the wrapped service.
    inner: u64,
}

impl Lines {
    pub(crate) fn new(logs: &[Log]) -> Lines {
        let one = |log: &Log| OneLog {
            shared: log.shared.clone(),
            buffer: log.shared.buffer(),
            steps: Steps::of(&log.shared.plan.line_format()),
            escape: log.shared.plan.format.escape,
            takes_all: takes_all(&log.shared.plan),
        };
        let logs: Vec<OneLog> = logs.iter().map(one).collect();
        let mut unseen = Open::new(&logs);
        let nothing = Begun { head: None, refused: b"", peer: None, tls: None, listener: 0, number: 0 };
        unseen.begin(&logs, &nothing, 0);
        let state = State {
            open: Vec::new(),
            free: Vec::new(),
            unseen,
            clock: Clock::new(),
            skipped: vec![0; logs.len()],
        };
        Lines { logs, state: RefCell::new(state) }
    }

    /// Keeps the data that the logs need of a request. Returns the mark under which it is found when the request
    /// ends.
    #[inline]
    pub(crate) fn begun(&self, begun: &Begun<'_>, inner: u64) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let Some(slot) = state.free.pop().or_else(|| state.add(&self.logs)) else { return 0 };
        let Some(open) = state.open.get_mut(slot as usize) else { return 0 };
        open.begin(&self.logs, begun, inner);
        u64::from(slot) + 1
    }

    /// Writes a request's lines into the buffers of the logs that want it. Returns the mark of the wrapped service.
    #[inline]
    pub(crate) fn ended(
        &self,
        ended: &Ended,
        site: u16,
        (upstream, texts): (Option<&Upstream>, Option<&LoggedTexts>),
    ) -> u64 {
        let State { open, free, unseen, clock, skipped } = &mut *self.state.borrow_mut();
        clock.follow(ended.unix_ns / 1_000_000_000);
        let slot = ended.mark.wrapping_sub(1) as usize;
        let open = match open.get_mut(slot) {
            Some(open) => {
                free.push(slot as u32);
                open
            }
            None => unseen,
        };
        let about = About { ended, upstream, texts, clock };
        let mut ends = &*open.ends;
        let mut at = 0;
        let logs = Notes::logs(ended.note);
        for (log, skipped) in self.logs.iter().zip(skipped) {
            let (of_log, others) = ends.split_at_checked(log.steps.runs.len()).unwrap_or_default();
            let takes_it = log.takes_all && logs == RequestLogs::Usual;
            if takes_it || is_wanted(&log.shared.plan, ended, (site, logs), skipped) {
                log.buffer.add(&log.shared, |out| log.write(&open.text, at, of_log, &about, out));
            }
            at = of_log.last().copied().unwrap_or(at);
            ends = others;
        }
        if open.text.capacity() > OPEN_BYTES_KEPT && ended.mark != 0 {
            open.text = Vec::new();
        }
        open.inner
    }
}

impl State {
    /// Adds room for another request in progress.
    #[cold]
    fn add(&mut self, logs: &[OneLog]) -> Option<u32> {
        let slot = u32::try_from(self.open.len()).ok().filter(|slot| (*slot as usize) < OPEN_MAX)?;
        self.open.push(Open::new(logs));
        Some(slot)
    }
}

impl OneLog {
    /// Writes a line. Its runs are in `kept`, starting at `at`, each up to one of `ends`.
    #[inline]
    fn write(&self, kept: &[u8], mut at: usize, ends: &[usize], about: &About<'_>, out: &mut Vec<u8>) {
        let mut ends = ends.iter();
        for step in &self.steps.late {
            match step {
                Step::Run => {
                    let end = ends.next().copied().unwrap_or(at);
                    out.extend_from_slice(kept.get(at..end).unwrap_or_default());
                    at = end;
                }
                Step::Value(late) => late.write(about, self.escape, out),
                Step::Named(name) => about.write_named(name, self.escape, out),
                Step::Text(text) => text.write(out),
            }
        }
    }
}

impl Open {
    fn new(logs: &[OneLog]) -> Open {
        let runs = logs.iter().map(|log| log.steps.runs.len()).sum();
        Open { text: Vec::new(), ends: vec![0; runs].into(), inner: 0 }
    }

    #[inline]
    fn begin(&mut self, logs: &[OneLog], begun: &Begun<'_>, inner: u64) {
        self.inner = inner;
        self.text.clear();
        let mut ends = self.ends.iter_mut();
        for log in logs {
            for (run, end) in log.steps.runs.iter().zip(&mut ends) {
                run.write(begun, log.escape, &mut self.text);
                *end = self.text.len();
            }
        }
    }
}

fn takes_all(plan: &Plan) -> bool {
    plan.sample == 1 && plan.only.is_empty() && plan.scope == Scope::Server && plan.skip.is_none()
}

/// Whether a log wants this request. Sampling never drops errors.
fn is_wanted(plan: &Plan, ended: &Ended, (site, logs): (u16, RequestLogs), skipped: &mut u32) -> bool {
    let status = ended.status.map_or(0, |status| status.code());
    let time_ns = ended.ended_ns.saturating_sub(ended.began_ns);
    let is_left_out =
        plan.skip.is_some_and(|bit| Notes::skips(ended.note) & 1u8.wrapping_shl(bit.into()) != 0);
    if is_left_out
        || !plan.scope.has(site, logs)
        || !plan.only.iter().all(|condition| condition.holds(status, time_ns))
    {
        return false;
    }
    if !(100..400).contains(&status) || !matches!(ended.outcome, Outcome::Sent | Outcome::Taken) {
        return true;
    }
    *skipped += 1;
    if *skipped < plan.sample {
        return false;
    }
    *skipped = 0;
    true
}
