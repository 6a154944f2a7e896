//! Why something could not be done, and why something is not known.

use std::fmt;
use std::io;

/// Why a change was not made, or not undone.
#[derive(Debug)]
pub enum Error {
    /// Asked for what cannot be, or without the consent that it needs: wrong usage.
    Usage(String),
    /// It does not apply on this machine; nothing was changed.
    Refused(String),
    /// Another run holds the journal; try again when it has ended.
    Locked(String),
    /// The journal cannot be read or written; nothing is changed without it.
    Journal(String, io::Error),
    /// The system refused a change; what was done of it has been undone.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message)
            | Error::Refused(message)
            | Error::Locked(message)
            | Error::Failed(message) => f.write_str(message),
            Error::Journal(what, source) => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Journal(_, source) => Some(source),
            _ => None,
        }
    }
}

/// Why a probe cannot tell: a kernel without the feature, a missing program, missing rights. An answer, not a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown(pub String);

impl Unknown {
    /// What an error at a path means to whoever reads it.
    pub(crate) fn at(path: &str, error: &io::Error) -> Unknown {
        Unknown(match error.kind() {
            io::ErrorKind::NotFound => format!("there is no {path} here"),
            io::ErrorKind::PermissionDenied => format!("no permission to read {path}: run as root"),
            _ => format!("{path}: {error}"),
        })
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
