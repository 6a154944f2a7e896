//! A worker that the simulator runs step by step, on its own thread and by its own clock.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::slab::Cursor;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use super::run::Main;
use super::{Setup, WorkerLoop};
use crate::exchange::Worker as Place;
use crate::h1;
use crate::service::Service;

/// A worker that never waits: each step is one turn.
pub struct SteppedWorker {
    // Dropped in this order: the worker has tasks, and tasks need the runtime.
    main: Option<Main>,
    local: LocalSet,
    runtime: Runtime,
    /// Its tasks can go on, or the clock has moved.
    woken: Arc<Woken>,
    /// Memory of the request bodies that its server collects.
    bodies_bytes: Arc<AtomicU64>,
    /// How much the clock of its tasks is behind. It is moved before the next turn, or at once if a task waits for a time that has come.
    behind: Duration,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl SteppedWorker {
    pub(crate) fn new(
        setup: Setup,
        make: impl FnOnce(Place) -> Box<dyn Service>,
    ) -> io::Result<SteppedWorker> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .start_paused(true)
            .build()?;
        let local = LocalSet::new();
        let main = runtime.block_on(async {
            let _entered = local.enter();
            Main::new(setup, make)
        })?;
        let bodies_bytes = main.worker().serving.bodies_bytes.clone();
        let (woken, behind) = (Arc::default(), Duration::ZERO);
        Ok(SteppedWorker { main: Some(main), local, runtime, woken, bodies_bytes, behind })
    }

    /// One turn, and one step of each task that can go on, if the worker has been woken. Returns whether it had anything to do.
    ///
    /// The runtime itself does nothing: its timers move with [`SteppedWorker::advance`], and it has no sockets.
    ///
    /// `may_have_events`: what [`SteppedWorker::events`] says. Without any, no system call is made to look for them.
    ///
    /// # Errors
    /// As a worker on a thread of its own.
    pub fn step(&mut self, may_have_events: bool) -> io::Result<bool> {
        let SteppedWorker { main, local, runtime, woken, behind, .. } = self;
        let Some(worker) = main else { return Ok(false) };
        let is_due = woken.0.swap(false, Ordering::Relaxed);
        let had_work = worker.look(may_have_events)?;
        if !had_work && !is_due {
            return Ok(false);
        }
        let waker = Waker::from(woken.clone());
        let entered = (runtime.enter(), local.enter());
        if !behind.is_zero() {
            // This moves the clock and nothing else: no time that a task waits for has come.
            let moved = pin!(tokio::time::advance(std::mem::take(behind)));
            let _ = moved.poll(&mut Context::from_waker(Waker::noop()));
        }
        let after = worker.step(local, &mut Context::from_waker(&waker));
        drop(entered);
        if after.has_ended {
            *main = None;
            // Its tasks end with it, as with its thread.
            let _entered = runtime.enter();
            *local = LocalSet::new();
        }
        Ok(had_work || after.has_more || is_due || self.woken.0.load(Ordering::Relaxed))
    }

    /// Moves the clock of its tasks forward; the thread's own clock must have been set before.
    pub fn advance(&mut self, time: Duration) {
        // What its next turn does by a time limit counts.
        if self.main.as_ref().is_some_and(Main::has_deadlines) {
            self.woken.0.store(true, Ordering::Relaxed);
        }
        self.behind += time;
        if clock::simulated::next_deadline_ns().is_some_and(|at_ns| at_ns <= clock::nanoseconds()) {
            self.runtime.block_on(tokio::time::advance(std::mem::take(&mut self.behind)));
        }
    }

    /// Readable while there are events for it, of sockets and of other workers; `None` when it has ended.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.main.as_ref().map(|main| main.set().as_fd())
    }

    /// Checks what must be true of a worker that has nothing to do.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_at_rest(&self) -> Result<(), String> {
        self.main.as_ref().map_or(Ok(()), |main| main.worker().check_at_rest())
    }

    /// Memory of the request bodies that all workers of its server collect, also when it has ended.
    pub fn bodies_bytes(&self) -> u64 {
        self.bodies_bytes.load(Ordering::Relaxed)
    }

    /// Whether it has drained or was stopped.
    pub fn has_ended(&self) -> bool {
        self.main.is_none()
    }
}

impl WorkerLoop {
    /// Messages that were taken are handled, and bytes that a request needs are read.
    fn check_at_rest(&self) -> Result<(), String> {
        if !self.mail.is_empty() {
            return Err(format!("{} messages that were taken are not handled", self.mail.len()));
        }
        let mut cursor = Cursor::default();
        while let Some((_, connection)) = cursor.next(&self.connections) {
            if connection.readable && !connection.is_scheduled && h1::wants_input(&self.serving, connection) {
                return Err(format!(
                    "a connection that wants {:?} may have bytes, and is not read",
                    connection.machine.wants()
                ));
            }
        }
        Ok(())
    }
}
