//! Signals that are commands of the operator.

use std::ffi::c_int;

pub(crate) use signal_hook::consts::{SIGHUP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::Failure;

/// Calls `act` at each of these signals, on its own thread. Without this, the signal would end the process.
pub(crate) fn on(signal: c_int, act: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let failure = |error| Failure::Run(format!("cannot catch signals: {error}"));
    let mut signals = Signals::new([signal]).map_err(failure)?;
    let thread = std::thread::Builder::new().name("flatout-signals".to_owned());
    thread.spawn(move || signals.forever().for_each(|_| act())).map_err(failure)?;
    Ok(())
}
