//! A worker that the simulator runs step by step, on its own thread and by its own clock.

use std::future::poll_fn;
use std::io;
use std::task::Poll as TaskPoll;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use super::Setup;
use super::run::Main;
use crate::exchange::Worker as Place;
use crate::service::Service;

/// A worker that never waits: each step is one turn.
pub struct SteppedWorker {
    // Dropped in this order: the worker has tasks, and tasks need the runtime.
    main: Option<Main>,
    local: LocalSet,
    runtime: Runtime,
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
        Ok(SteppedWorker { main: Some(main), local, runtime })
    }

    /// One turn, and one step of each task that can go on. Returns whether it had anything to do.
    ///
    /// # Errors
    /// As a worker on a thread of its own.
    pub fn step(&mut self) -> io::Result<bool> {
        let SteppedWorker { main, local, runtime } = self;
        let Some(worker) = main else { return Ok(false) };
        let (had_work, ended) = runtime.block_on(async {
            let stepped = poll_fn(|context| {
                let _entered = local.enter();
                TaskPoll::Ready(worker.step(local, context))
            });
            let stepped = stepped.await;
            // The runtime looks after its timers and sockets.
            tokio::task::yield_now().await;
            stepped
        })?;
        if ended {
            self.main = None;
        }
        Ok(had_work)
    }

    /// Moves the clock of its tasks forward; the thread's own clock must have been set before.
    pub fn advance(&mut self, time: Duration) {
        self.runtime.block_on(tokio::time::advance(time));
    }

    /// Whether it has drained or was stopped.
    pub fn has_ended(&self) -> bool {
        self.main.is_none()
    }
}
