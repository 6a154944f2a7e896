//! SIGTERM and SIGINT end a server.

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;

/// The signals that end a server, caught, and the runtime that they arrive in.
pub(super) struct Termination {
    pub(super) runtime: Runtime,
    pub(super) signals: Signals,
}

impl Termination {
    pub(super) fn catch() -> Result<Termination, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|error| Error::System("the control plane".to_owned(), error))?;
        let entered = runtime.enter();
        let watch_for = |kind| signal(kind).map_err(|error| Error::System("signals".to_owned(), error));
        let signals = Signals {
            terminate: watch_for(SignalKind::terminate())?,
            interrupt: watch_for(SignalKind::interrupt())?,
        };
        drop(entered);
        Ok(Termination { runtime, signals })
    }
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// The name of the next one.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
