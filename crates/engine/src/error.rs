//! Why a server did not start, or ended.

use std::fmt;
use std::io;

use crate::Address;

/// Why a server did not start, or ended.
#[derive(Debug)]
pub enum Error {
    /// The plan is invalid: wrong usage or configuration.
    Plan(String),
    /// A system error: what was tried, and the error.
    System(String, io::Error),
    /// An address cannot be bound: its URL, the address, and the error.
    Listen(String, Address, io::Error),
    /// A worker's thread panicked outside a handler.
    Worker(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plan(message) => f.write_str(message),
            Error::System(what, source) => write!(f, "{what}: {source}"),
            Error::Listen(url, _, source) => write!(f, "cannot listen on {url}: {source}"),
            Error::Worker(index) => {
                write!(f, "worker {index} panicked; this is a bug, please report it")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System(_, source) | Error::Listen(_, _, source) => Some(source),
            _ => None,
        }
    }
}
