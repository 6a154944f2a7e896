//! Why something could not be done, or is not known.

use std::fmt;
use std::io;

/// Why a change was not made, or not undone.
#[derive(Debug)]
pub enum Error {
    /// An impossible request, or missing consent: wrong usage.
    Usage(String),
    /// It does not apply on this machine; nothing was changed.
    Refused(String),
    /// Another run holds the journal; try again later.
    Locked(String),
    /// The journal cannot be read or written; without it nothing is changed.
    Journal(String, io::Error),
    /// The system refused a change; the changes made before it were undone.
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

/// Why a probe has no result: a kernel without the feature, a missing program, missing rights. This is not a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown(pub String);

impl Unknown {
    /// The meaning of an error at a path.
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
