//! The thread that writes a log, and the buffers between workers and this thread.
//!
//! A worker locks its buffer for each line. The only other user of the lock is this thread, every few seconds, for
//! the time it takes to swap two pointers.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::sink::Target;
use super::{Plan, Tally};

/// Full buffers of one worker that wait for the disk; beyond that lines are lost.
const FULL_MAX: usize = 8;

/// How long the shutdown waits for the disk.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// The shortest interval between reports of lost lines.
const COMPLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// An open log.
pub(super) struct Shared {
    pub(super) plan: Plan,
    buffers: Mutex<Vec<Arc<Buffer>>>,
    writer: OnceLock<Thread>,
    is_reopening: AtomicBool,
    is_closing: AtomicBool,
    ended: Mutex<Option<Receiver<()>>>,
    lines: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

/// One worker's buffer.
#[derive(Default)]
pub(super) struct Buffer(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// The buffer that the worker writes to.
    filling: Page,
    /// Buffers that wait for the disk.
    full: VecDeque<Page>,
    /// An empty buffer for the next swap.
    spare: Option<Page>,
}

/// Lines and their number.
#[derive(Default)]
struct Page {
    text: Vec<u8>,
    /// The end of the last complete line.
    bytes: usize,
    lines: u64,
}

impl Buffer {
    /// Adds the line that `write` writes. It is lost if the disk has not kept up.
    #[inline]
    pub(super) fn add(&self, shared: &Shared, write: impl FnOnce(&mut Vec<u8>)) {
        let mut pages = self.lock();
        if pages.filling.bytes >= shared.plan.buffer_bytes && !pages.turn(shared) {
            shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let page = &mut pages.filling;
        // Remove a partial line, left by a panic during writing.
        page.text.truncate(page.bytes);
        write(&mut page.text);
        page.bytes = page.text.len();
        page.lines += 1;
    }

    /// Takes the full buffers, and with `all` also the one being filled.
    fn take(&self, all: bool, into: &mut Vec<Page>) {
        let mut pages = self.lock();
        into.extend(pages.full.drain(..));
        if all && pages.filling.lines > 0 {
            let spare = pages.spare.take().unwrap_or_default();
            into.push(std::mem::replace(&mut pages.filling, spare));
        }
    }

    /// Returns an empty buffer.
    fn give_back(&self, mut page: Page) {
        page.text.clear();
        (page.bytes, page.lines) = (0, 0);
        self.lock().spare.get_or_insert(page);
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        // A panic leaves complete lines.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// Queues a full buffer. `false` if too many are queued.
    #[cold]
    fn turn(&mut self, shared: &Shared) -> bool {
        if self.full.len() >= FULL_MAX {
            return false;
        }
        let spare = self.spare.take().unwrap_or_default();
        self.full.push_back(std::mem::replace(&mut self.filling, spare));
        shared.wake();
        true
    }
}

/// Opens a log and starts its thread.
pub(super) fn open(plan: Plan) -> io::Result<Arc<Shared>> {
    plan.check().map_err(|message| io::Error::new(io::ErrorKind::InvalidInput, message))?;
    let sink = Target::open(&plan.path)?;
    let (tell, ended) = channel();
    let shared = Arc::new(Shared {
        plan,
        buffers: Mutex::default(),
        writer: OnceLock::new(),
        is_reopening: AtomicBool::new(false),
        is_closing: AtomicBool::new(false),
        ended: Mutex::new(Some(ended)),
        lines: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    });
    let thread = std::thread::Builder::new().name("flatout-log".to_owned());
    let handle = shared.clone();
    let thread = thread.spawn(move || Writer::new(handle, sink, tell).run())?;
    let _ = shared.writer.set(thread.thread().clone());
    Ok(shared)
}

impl Shared {
    /// A buffer for another worker.
    pub(super) fn buffer(&self) -> Arc<Buffer> {
        let buffer: Arc<Buffer> = Arc::default();
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer.clone());
        buffer
    }

    pub(super) fn reopen(&self) {
        self.is_reopening.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.wake();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended
            && ended.recv_timeout(CLOSE_TIME_MAX).is_err()
        {
            let path = self.plan.path.display();
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("access log {path}: the disk is too slow; the last lines are lost"),
            );
        }
    }

    pub(super) fn tally(&self) -> Tally {
        Tally {
            lines: self.lines.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    sink: Target,
    /// Reports its end, also by being dropped.
    tell: Sender<()>,
    /// The number of lost lines at the last report, and its time.
    reported: (u64, Option<Instant>),
    /// The reason for the last loss.
    reason: Option<io::Error>,
}

impl Writer {
    fn new(shared: Arc<Shared>, sink: Target, tell: Sender<()>) -> Writer {
        Writer { shared, sink, tell, reported: (0, None), reason: None }
    }

    fn run(mut self) {
        let mut flush_at = Instant::now() + self.shared.plan.flush;
        loop {
            let is_closing = self.shared.is_closing.load(Ordering::Acquire);
            let is_reopening = self.shared.is_reopening.swap(false, Ordering::AcqRel);
            let now = Instant::now();
            let is_due = now >= flush_at;
            if is_due {
                flush_at = now + self.shared.plan.flush;
            }
            self.write_out(is_closing || is_reopening || is_due);
            if is_reopening {
                self.reopen();
            }
            self.complain(is_closing);
            if is_closing {
                let _ = self.tell.send(());
                return;
            }
            std::thread::park_timeout(flush_at.saturating_duration_since(Instant::now()));
        }
    }

    /// Writes all workers' buffers, each worker's in order.
    fn write_out(&mut self, all: bool) {
        let buffers = self.shared.buffers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut pages = Vec::new();
        for buffer in buffers {
            buffer.take(all, &mut pages);
            for page in pages.drain(..) {
                self.write(&page);
                buffer.give_back(page);
            }
        }
    }

    fn write(&mut self, page: &Page) {
        let written = self.sink.write(page.text.get(..page.bytes).unwrap_or_default(), page.lines);
        self.shared.lines.fetch_add(written.lines, Ordering::Relaxed);
        self.shared.bytes.fetch_add(written.bytes, Ordering::Relaxed);
        self.shared.lost.fetch_add(written.lost, Ordering::Relaxed);
        if let Some(error) = written.error {
            self.reason = Some(error);
        }
    }

    fn reopen(&mut self) {
        match Target::open(&self.shared.plan.path) {
            Ok(sink) => self.sink = sink,
            Err(error) => {
                let path = self.shared.plan.path.display();
                flatout_engine::report(
                    flatout_engine::Severity::Warning,
                    format_args!("access log {path}: cannot be reopened: {error}; the old file stays in use"),
                );
            }
        }
    }

    /// Reports lines lost since the last report, at most once per interval.
    fn complain(&mut self, is_last: bool) {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        let (before, at) = self.reported;
        if lost == before || (!is_last && at.is_some_and(|at| at.elapsed() < COMPLAIN_INTERVAL)) {
            return;
        }
        self.reported = (lost, Some(Instant::now()));
        let (path, count) = (self.shared.plan.path.display(), lost - before);
        match self.reason.take() {
            Some(error) => flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("access log {path}: {count} lines lost: {error}"),
            ),
            None => flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("access log {path}: {count} lines lost: the disk is too slow"),
            ),
        }
    }
}
