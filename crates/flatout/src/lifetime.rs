//! Functions that run beside the workers: before, while and after they serve.
//!
//! ```text
//! bind ──> on_start ──> workers serve ──> drain begins ──> workers have ended ──> on_stop
//!                       background tasks ── hear of it ──> have ended, or are dropped at the drain's deadline
//! ```
//!
//! They all run on one thread with its own runtime. An application without such functions does not start this thread.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use flatout_engine::{BoxError, say};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Error, Result, Shutdown};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;
pub(crate) type OnStart = Box<dyn FnOnce() -> BoxFuture<std::result::Result<(), BoxError>> + Send>;
pub(crate) type OnStop = Box<dyn FnOnce() -> BoxFuture<()> + Send>;
pub(crate) type Background = Box<dyn FnOnce(Shutdown) -> BoxFuture<()> + Send>;
/// Opens the files that are served, after the process has switched its user.
pub(crate) type Opener = Box<dyn FnOnce() -> Result<()> + Send>;

/// All of one application and of those nested in it.
#[derive(Default)]
pub(crate) struct Lifetime {
    pub(crate) openers: Vec<Opener>,
    pub(crate) starts: Vec<OnStart>,
    pub(crate) stops: Vec<OnStop>,
    pub(crate) background: Vec<Background>,
}

/// The thread. It learns that all workers have ended when `alive` ends.
pub(crate) struct LifetimeThread {
    pub(crate) thread: JoinHandle<()>,
    pub(crate) alive: oneshot::Sender<Infallible>,
    pub(crate) draining: watch::Sender<Option<watch::Receiver<bool>>>,
}

impl Lifetime {
    pub(crate) fn nest(&mut self, inner: Lifetime) {
        self.openers.extend(inner.openers);
        self.starts.extend(inner.starts);
        self.stops.extend(inner.stops);
        self.background.extend(inner.background);
    }

    pub(crate) fn open(&mut self) -> Result<()> {
        std::mem::take(&mut self.openers).into_iter().try_for_each(|open| open())
    }

    /// Runs the `on_start` functions, in the order of registration.
    pub(crate) async fn start(starts: Vec<OnStart>) -> Result<()> {
        for start in starts {
            start().await.map_err(|error| Error::Start(format!("startup failed: {error}")))?;
        }
        Ok(())
    }

    /// Starts the thread if it is needed, and waits for the `on_start` functions.
    ///
    /// # Errors
    /// An `on_start` function failed.
    pub(crate) fn keep(self, drain_time_max: Duration) -> Result<Option<LifetimeThread>> {
        if self.starts.is_empty() && self.stops.is_empty() && self.background.is_empty() {
            return Ok(None);
        }
        let (alive, ended) = oneshot::channel();
        let (draining, serving) = watch::channel(None);
        let (started, outcome) = mpsc::channel();
        let failed = |error| Error::Start(format!("cannot start a thread beside the workers: {error}"));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    LocalSet::new().block_on(&runtime, self.run(started, serving, ended, drain_time_max))
                }
                Err(error) => drop(started.send(Err(failed(error)))),
            }
        };
        let thread =
            std::thread::Builder::new().name("flatout-beside".to_owned()).spawn(run).map_err(failed)?;
        let panicked = || Err(Error::Start("an on_start function panicked".to_owned()));
        outcome.recv().unwrap_or_else(|_| panicked())?;
        Ok(Some(LifetimeThread { thread, alive, draining }))
    }

    async fn run(
        self,
        started: mpsc::Sender<Result<()>>,
        mut serving: watch::Receiver<Option<watch::Receiver<bool>>>,
        ended: oneshot::Receiver<Infallible>,
        drain_time_max: Duration,
    ) {
        let outcome = Lifetime::start(self.starts).await;
        let failed = outcome.is_err();
        let _ = started.send(outcome);
        if failed {
            return;
        }
        // If the workers fail to start, there is nothing to drain.
        let Ok(draining) = serving.wait_for(Option::is_some).await.map(|draining| draining.clone()) else {
            return;
        };
        let Some(draining) = draining else { return };
        let mut shutdown = Shutdown::from(draining);
        let spawn = |task: Background| tokio::task::spawn_local(task(shutdown.clone()));
        let tasks: Vec<_> = self.background.into_iter().map(spawn).collect();
        shutdown.begun().await;
        let deadline = Instant::now() + drain_time_max;
        let _ = ended.await;
        for task in tasks {
            let abort = task.abort_handle();
            match timeout_at(deadline, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => say(format_args!("a background task failed: {error}")),
                Err(_) => {
                    abort.abort();
                    say(format_args!(
                        "a background task did not end before the drain's deadline, and was dropped"
                    ));
                }
            }
        }
        for stop in self.stops {
            if timeout(drain_time_max, stop()).await.is_err() {
                say(format_args!("an on_stop function took more than {drain_time_max:?}, and was dropped"));
            }
        }
    }
}
