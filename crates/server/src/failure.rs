use std::fmt;

/// Why a server does not start, or does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The plan is wrong, or this machine lacks what it names.
    Usage(String),
    /// A failure at run time.
    Run(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::Run(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Failure {}
