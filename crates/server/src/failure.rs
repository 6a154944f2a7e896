use std::fmt;
use std::io::ErrorKind;

use flatout_engine::{Address, Error};

/// Why a server does not start, or does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The plan is wrong, or this machine lacks what it names.
    Usage(String),
    /// A failure at run time.
    Run(String),
    /// An address cannot be bound: the message, the address, and the kind of the error.
    Listen(String, Address, ErrorKind),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::Run(message) | Failure::Listen(message, ..) => {
                f.write_str(message)
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let message = error.to_string();
        match error {
            Error::Plan(message) => Failure::Usage(message),
            Error::Listen(_, address, source) => Failure::Listen(message, address, source.kind()),
            _ => Failure::Run(message),
        }
    }
}

impl std::error::Error for Failure {}
