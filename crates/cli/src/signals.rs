//! Signals that end a program.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) use signal_hook::consts::{SIGHUP, SIGUSR1, SIGUSR2};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::Failure;

/// A flag that the first SIGINT or SIGTERM sets; the second one ends the process.
pub(crate) fn stop_or_end() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .map_err(|error| Failure::Run(format!("cannot catch signals: {error}")))?;
    }
    Ok(stop)
}

/// Calls `act` at each of these signals, on its own thread. Without this, the signal would end the process.
pub(crate) fn on(signal: c_int, act: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let failure = |error| Failure::Run(format!("cannot catch signals: {error}"));
    let mut signals = Signals::new([signal]).map_err(failure)?;
    let thread = std::thread::Builder::new().name("flatout-signals".to_owned());
    thread.spawn(move || signals.forever().for_each(|_| act())).map_err(failure)?;
    Ok(())
}
