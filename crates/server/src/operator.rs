//! Changes of a running server by code of its own process, such as a controller.

use std::sync::Arc;

use flatout_proxy::{Server, ServerChanges};

use crate::Failure;
use crate::control::Control;

/// Changes a running server. Clones change the same one.
#[derive(Clone)]
pub struct Operator(Arc<Control>);

impl Operator {
    pub(crate) fn of(control: &Arc<Control>) -> Operator {
        Operator(control.clone())
    }

    /// Gets a plan from the server's source and applies it. Returns what has changed. Waits for seconds for a start or an upgrade to end.
    ///
    /// # Errors
    /// Why the plan before stays in use: it is wrong, the machine refuses, or another process is taking over.
    pub fn reload(&self) -> Result<String, Failure> {
        self.0.reload_in_turn()
    }

    /// The servers of an upstream are these from now on. That is no reload, and touches no connection to the others. It is possible while
    /// another process takes over, for the time that this one still serves; the other one may not get it and has to find out itself.
    ///
    /// # Errors
    /// There is no such upstream, or the list does not fit its settings.
    pub fn set_servers(&self, upstream: &str, servers: &[Server]) -> Result<ServerChanges, String> {
        self.0.set_servers(upstream, servers)
    }

    /// Waits until another process has taken over, which may be never. From then on, this one only completes what it has begun, and takes
    /// no changes.
    pub fn wait_for_successor(&self) {
        self.0.wait_for_successor();
    }
}
