//! One worker's lines: begun with what the head says, ended with what came of it, and left in the worker's buffers.

use std::cell::RefCell;
use std::sync::Arc;

use flatout_engine::{Begun, Ended, Outcome};

use super::template::{Part, Piece};
use super::variable::About;
use super::writer::{Buffer, Shared};
use super::{Log, Plan};
use crate::observed::Upstream;

/// Requests of one worker that are under way and whose lines are begun; those over it have lines without what their heads
/// said.
const OPEN_MAX: usize = 64 << 10;

/// Capacity of an open line that is kept for the next.
const OPEN_BYTES_KEPT: usize = 4 << 10;

/// Bytes of a line besides what was begun: numbers and times.
const LATE_BYTES: usize = 256;

/// One worker's lines, of all logs.
pub(crate) struct Lines {
    logs: Vec<OneLog>,
    state: RefCell<State>,
}

struct OneLog {
    shared: Arc<Shared>,
    buffer: Arc<Buffer>,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    free: Vec<u32>,
    /// What lines are made of whose requests nobody has seen begin.
    unseen: Open,
    clock: Clock,
    /// Requests that were not logged since the last that was, for sampling, by log.
    skipped: Vec<u32>,
}

/// What is known of a request that is under way.
#[derive(Default)]
struct Open {
    /// All early parts, one after another.
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<u32>,
    /// The mark of the service that is observed.
    inner: u64,
}

impl Lines {
    pub(crate) fn new(logs: &[Log]) -> Lines {
        let one = |log: &Log| OneLog { shared: log.shared.clone(), buffer: log.shared.buffer() };
        let logs: Vec<OneLog> = logs.iter().map(one).collect();
        let mut state = State { skipped: vec![0; logs.len()], ..State::default() };
        write_early(&logs, &Begun { head: None, refused: b"", peer: None }, &mut state.unseen);
        Lines { logs, state: RefCell::new(state) }
    }

    /// Begins the lines of a request. Returns the mark by which they are ended.
    pub(crate) fn begun(&self, begun: &Begun<'_>, inner: u64) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.open.len() >= OPEN_MAX => return 0,
            None => {
                state.open.push(Open::default());
                (state.open.len() - 1) as u32
            }
        };
        let Some(open) = state.open.get_mut(slot as usize) else { return 0 };
        open.bytes.clear();
        open.ends.clear();
        open.inner = inner;
        write_early(&self.logs, begun, open);
        u64::from(slot) + 1
    }

    /// Ends the lines of a request: those that are wanted go into the buffers. Returns the mark of the service that is
    /// observed.
    pub(crate) fn ended(&self, ended: &Ended, site: u16, upstream: Option<&Upstream>) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let State { open, free, unseen, clock, skipped } = state;
        clock.follow(ended.unix_ns / 1_000_000_000);
        let slot = ended.mark.wrapping_sub(1) as usize;
        let open = match open.get_mut(slot) {
            Some(open) => {
                free.push(slot as u32);
                open
            }
            None => unseen,
        };
        let about = About { ended, upstream, local: &clock.local, iso: &clock.iso };
        let mut ends = open.ends.iter();
        let mut at = 0;
        for (log, skipped) in self.logs.iter().zip(skipped) {
            let plan = &log.shared.plan;
            match is_wanted(plan, ended, site, skipped) {
                true => log.buffer.write(&log.shared, open.bytes.len() + LATE_BYTES, |out| {
                    for part in &plan.format.parts {
                        match part {
                            Part::Text(text) => out.extend_from_slice(text),
                            Part::Late(late) => late.write(&about, plan.format.escape, out),
                            Part::Early(_) => {
                                let end = ends.next().map_or(at, |end| *end as usize);
                                out.extend_from_slice(open.bytes.get(at..end).unwrap_or_default());
                                at = end;
                            }
                        }
                    }
                }),
                false => {
                    for _ in plan.format.parts.iter().filter(|part| matches!(part, Part::Early(_))) {
                        at = ends.next().map_or(at, |end| *end as usize);
                    }
                }
            }
        }
        if open.bytes.capacity() > OPEN_BYTES_KEPT && ended.mark != 0 {
            *open = Open { inner: open.inner, ..Open::default() };
        }
        open.inner
    }
}

/// Writes what is known when a request begins.
#[inline]
fn write_early(logs: &[OneLog], begun: &Begun<'_>, open: &mut Open) {
    for log in logs {
        let format = &log.shared.plan.format;
        for part in &format.parts {
            let Part::Early(pieces) = part else { continue };
            for piece in pieces {
                match piece {
                    Piece::Text(text) => open.bytes.extend_from_slice(text),
                    Piece::Value(value) => value.write(begun, format.escape, &mut open.bytes),
                }
            }
            open.ends.push(open.bytes.len() as u32);
        }
    }
}

/// Whether a log wants this request. Of what is sampled, errors are logged always.
#[inline]
fn is_wanted(plan: &Plan, ended: &Ended, site: u16, skipped: &mut u32) -> bool {
    if plan.sample == 1 && plan.only.is_empty() && plan.site.is_none() {
        return true;
    }
    let status = ended.status.map_or(0, |status| status.code());
    let time_ns = ended.ended_ns.saturating_sub(ended.began_ns);
    if plan.site.is_some_and(|wanted| wanted != site)
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

/// The time as text, made anew once a second. UTC.
#[derive(Default)]
struct Clock {
    unix_seconds: u64,
    /// `21/Nov/2026:17:34:07 +0000`
    local: Vec<u8>,
    /// `2026-11-21T17:34:07+00:00`
    iso: Vec<u8>,
}

impl Clock {
    #[inline]
    fn follow(&mut self, unix_seconds: u64) {
        if unix_seconds != self.unix_seconds || self.local.is_empty() {
            self.set(unix_seconds);
        }
    }

    #[cold]
    fn set(&mut self, unix_seconds: u64) {
        // `Sun, 06 Nov 1994 08:49:37 GMT` has all that both need.
        let date = flatout_wire::date::format(unix_seconds);
        let text = String::from_utf8_lossy(&date);
        let mut words = text.split_ascii_whitespace().skip(1);
        let mut word = || words.next().unwrap_or_default();
        let (day, month, year, time) = (word(), word(), word(), word());
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let number = 1 + MONTHS.iter().position(|name| *name == month).unwrap_or_default();
        self.unix_seconds = unix_seconds;
        self.local = format!("{day}/{month}/{year}:{time} +0000").into_bytes();
        self.iso = format!("{year}-{number:02}-{day}T{time}+00:00").into_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_nginx_writes_them() {
        let mut clock = Clock::default();
        clock.follow(784_111_777);
        assert_eq!(clock.local, b"06/Nov/1994:08:49:37 +0000");
        assert_eq!(clock.iso, b"1994-11-06T08:49:37+00:00");
    }
}
