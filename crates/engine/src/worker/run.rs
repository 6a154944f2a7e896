//! The worker's loop: the only place that waits.
//!
//! Without tasks, the runtime has nothing to do, and the worker waits in the lane's own set: one system call. Waiting
//! in the runtime costs two more, its timers and its clock. With tasks, the runtime watches the lane's set.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll as TaskPoll};
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::poll::Poll;
use flatout_lane::slab::Slab;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::task::LocalSet;
use tokio::time::{Instant, Sleep, sleep_until};

use super::turn::TURN_NS_MAX;
use super::{Setup, WorkerLoop};
use crate::exchange::{Lane, Worker as Place};
use crate::service::Service;
use crate::serving::{STAGE_SOCKETS, Serving};

/// The longest wait of a worker without connections.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Runs a worker on this thread until it has drained or was stopped.
pub(crate) fn run(setup: Setup, make: impl FnOnce(Place) -> Box<dyn Service>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = LocalSet::new();
    // The worker limits tasks by its own rule, once per turn: the runtime's rule would interrupt a turn.
    runtime.block_on(tokio::task::coop::unconstrained(async move {
        let entered = local.enter();
        let mut main = Main::new(setup, make)?;
        drop(entered);
        let mut local = local;
        poll_fn(|context| main.poll(&mut local, context)).await
    }))
}

/// A worker and its means of waiting.
pub(super) struct Main {
    worker: WorkerLoop,
    watched: AsyncFd<OwnedFd>,
    sleep: Pin<Box<Sleep>>,
    metrics: RuntimeMetrics,
}

/// After a turn.
#[cfg(feature = "simulation")]
pub(super) struct StepOutcome {
    /// There is more to do.
    pub(super) has_more: bool,
    pub(super) has_ended: bool,
}

impl Main {
    /// In its runtime.
    pub(super) fn new(setup: Setup, make: impl FnOnce(Place) -> Box<dyn Service>) -> io::Result<Main> {
        let worker = WorkerLoop::new(setup, make)?;
        let watched = worker.poll.watched()?;
        let sleep = Box::pin(sleep_until(Instant::now()));
        Ok(Main { worker, watched, sleep, metrics: Handle::current().metrics() })
    }

    /// Takes the events that are there, if there may be any. Returns whether there is anything to do.
    #[cfg(feature = "simulation")]
    pub(super) fn look(&mut self, may_have_events: bool) -> io::Result<bool> {
        let has_events = may_have_events && self.worker.take_events(Duration::ZERO)? > 0;
        Ok(has_events || self.worker.has_more())
    }

    /// The set that has its events.
    #[cfg(feature = "simulation")]
    pub(super) fn set(&self) -> &flatout_lane::poll::Set {
        self.worker.poll.set()
    }

    #[cfg(feature = "simulation")]
    pub(super) fn worker(&self) -> &WorkerLoop {
        &self.worker
    }

    /// One turn, of a worker that has something to do or is due: one that nobody has woken waits, as it would on its thread.
    #[cfg(feature = "simulation")]
    pub(super) fn step(&mut self, local: &mut LocalSet, context: &mut Context<'_>) -> StepOutcome {
        let requests = self.worker.serving.requests_count;
        self.turn(local, context);
        let has_more = self.worker.has_more() || self.worker.serving.requests_count != requests;
        if self.worker.ended {
            self.worker.end();
        }
        StepOutcome { has_more, has_ended: self.worker.ended }
    }

    /// Whether time limits may have something to do.
    #[cfg(feature = "simulation")]
    pub(super) fn has_deadlines(&self) -> bool {
        self.worker.wait_max() < WAIT_MAX
    }

    fn poll(&mut self, local: &mut LocalSet, context: &mut Context<'_>) -> TaskPoll<io::Result<()>> {
        let returns_ns = clock::nanoseconds() + TURN_NS_MAX;
        // The service's tasks are spawned here.
        let _entered = local.enter();
        loop {
            let has_tasks = self.turn(local, context);
            if self.worker.ended {
                self.worker.end();
                return TaskPoll::Ready(Ok(()));
            }
            match self.wait(has_tasks, returns_ns, context)? {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(()) => return TaskPoll::Pending,
            }
        }
    }

    /// One turn, and then the tasks. Returns whether there are any.
    #[inline]
    fn turn(&mut self, local: &mut LocalSet, context: &mut Context<'_>) -> bool {
        self.worker.turn();
        let has_tasks =
            Pin::new(&mut *local).poll(context).is_pending() || self.metrics.num_alive_tasks() > 0;
        // Handling exchanges may have spawned tasks.
        let has_tasks = self.worker.attend() || has_tasks;
        self.worker.settle_permits();
        self.worker.note_stats();
        has_tasks
    }

    /// Takes the next events, and waits for them if the runtime has nothing to do; otherwise `Break` makes the
    /// runtime wait.
    fn wait(
        &mut self,
        has_tasks: bool,
        returns_ns: u64,
        context: &mut Context<'_>,
    ) -> io::Result<ControlFlow<()>> {
        if !has_tasks {
            let time = if self.worker.has_more() { Duration::ZERO } else { self.worker.wait_max() };
            self.worker.take_events(time)?;
            return Ok(ControlFlow::Continue(()));
        }
        let is_late = clock::nanoseconds() > returns_ns;
        if self.worker.take_events(Duration::ZERO)? > 0 || self.worker.has_more() {
            if is_late {
                // Gives the runtime's timers and sockets their turn.
                context.waker().wake_by_ref();
                return Ok(ControlFlow::Break(()));
            }
            return Ok(ControlFlow::Continue(()));
        }
        while let TaskPoll::Ready(guard) = self.watched.poll_read_ready(context) {
            let mut guard = guard?;
            if self.worker.take_events(Duration::ZERO)? > 0 {
                return Ok(ControlFlow::Continue(()));
            }
            guard.clear_ready();
        }
        self.sleep.as_mut().reset(Instant::now() + self.worker.wait_max());
        match self.sleep.as_mut().poll(context) {
            TaskPoll::Ready(()) => Ok(ControlFlow::Continue(())),
            TaskPoll::Pending => Ok(ControlFlow::Break(())),
        }
    }
}

impl WorkerLoop {
    fn new(setup: Setup, make: impl FnOnce(Place) -> Box<dyn Service>) -> io::Result<WorkerLoop> {
        let poll = Poll::new()?;
        if let Some(time) = setup.busy_poll {
            poll.set_busy_poll(time)?;
        }
        setup.mailbox.watch(poll.set())?;
        let lane = Lane::new(poll.set().clone(), setup.workers.clone());
        let Setup { index, count, draining, .. } = setup;
        let mailbox = setup.mailbox.clone();
        let service = make(Place { index, count, draining, lane: lane.clone(), mailbox });
        let mut worker = WorkerLoop {
            poll,
            events: 0..0,
            listeners: setup.listeners,
            acceptor: setup.acceptor,
            paused: true,
            accept_again: false,
            has_mail: false,
            mail: VecDeque::new(),
            connections: Slab::new(),
            serving: Serving::new(
                service,
                setup.limits,
                setup.server_name.as_deref(),
                lane,
                setup.mailbox.clone(),
                &setup.shared,
            ),
            again: Vec::new(),
            received: Vec::with_capacity(STAGE_SOCKETS),
            single: Vec::new(),
            mailbox: setup.mailbox,
            shared: setup.shared,
            stats: setup.stats,
            drain_deadline: None,
            tunnel_deadline: clock::Ticks::MAX,
            drain_cursor: None,
            draining_guests: Vec::new(),
            sweep_slice: 0,
            census: None,
            accepted_count: 0,
            next_sweep: 0,
            ended: false,
        };
        worker.start_accepting()?;
        Ok(worker)
    }

    /// Takes events that are available or arrive within `time`. Returns how many.
    fn take_events(&mut self, time: Duration) -> io::Result<usize> {
        if self.events.is_empty() {
            self.events = 0..self.poll.wait(time)?;
        }
        Ok(self.events.len())
    }

    /// Whether there is work without an event.
    fn has_more(&self) -> bool {
        self.has_more_than_events() || self.serving.lane.has_listed()
    }

    /// How long it may wait for events: until the next sweep, if there is anything to sweep.
    fn wait_max(&self) -> Duration {
        let has_deadlines = !self.connections.is_empty()
            || self.serving.lane.guests_count() > 0
            || self.paused
            || self.is_closing_listeners()
            || self.drain_deadline.is_some();
        if !has_deadlines {
            return WAIT_MAX;
        }
        // By this turn's clock: a sweep may be late by the length of a turn.
        clock::TICK * self.next_sweep.saturating_sub(self.serving.now.ticks).min(1)
    }
}
