//! Where a run has panicked, for its report instead of the terminal.

#![allow(clippy::print_stderr, reason = "the process is about to be aborted")]

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Prints no panics from now on: that of a run is the message of its failure.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|cause| {
        let before = LAST.with(|last| last.borrow_mut().replace(cause.to_string()));
        // What is dropped while it unwinds panics too: that ends the process, without a report.
        if let Some(before) = before {
            eprintln!("{before}\n{cause}");
        }
    }));
}

/// What the panic of this thread says, and where, if that was kept.
pub(crate) fn text(cause: &(dyn Any + Send)) -> String {
    if let Some(text) = LAST.with(RefCell::take) {
        return format!(": {}", text.replace('\n', " "));
    }
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or(cause.downcast_ref().copied()).map_or_else(String::new, |text| format!(": {text}"))
}
