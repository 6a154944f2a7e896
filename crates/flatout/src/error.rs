//! The reason why an application did not start, or why it ended.

use std::fmt;
use std::io::ErrorKind;

use flatout_engine::Address;
use flatout_owner::{Here, Holders, Listening, described};

/// The result of running an application.
///
/// ```no_run
/// fn main() -> flatout::Result<()> {
///     flatout::App::new().get("/", || "hello").listen("0.0.0.0:8080").run()
/// }
/// ```
///
/// Another error may be named, so that the type can be imported under this name:
///
/// ```
/// use flatout::Result;
///
/// fn port(text: &str) -> Result<u16, std::num::ParseIntError> {
///     text.parse()
/// }
/// assert_eq!(port("80"), Ok(80));
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an application did not start, or why it ended.
///
/// When `main` returns it, it is printed and the exit status is 1. Use [`Error::exit_code`] for the convention of 2 for
/// wrong usage.
///
/// ```
/// use flatout::{App, Error};
///
/// let Err(error) = App::new().get("/", || "one").get("/", || "two").listen("127.0.0.1:0").start() else {
///     panic!("two handlers for one route")
/// };
/// assert!(matches!(error, Error::Route(_)));
/// assert_eq!(error.exit_code(), 2);
/// ```
pub enum Error {
    /// The command line was wrong.
    Usage(String),
    /// Conflicting or malformed routes.
    Route(String),
    /// Something that the application needs to start is missing.
    Start(String),
    /// The server's.
    Server(flatout_engine::Error),
}

impl Error {
    /// 2 for wrong usage or configuration, 1 for a failure at run time.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Route(_) | Error::Server(flatout_engine::Error::Plan(_)) => 2,
            Error::Start(_) | Error::Server(_) => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Route(message) | Error::Start(message) => f.write_str(message),
            Error::Server(error) => error.fmt(f),
        }
    }
}

/// `main` prints errors with `Debug`, so this output is readable too.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<flatout_engine::Error> for Error {
    fn from(error: flatout_engine::Error) -> Error {
        Error::Server(error)
    }
}

/// Prints the error, if any, and returns the exit status: 0, 1 for a failure at run time, 2 for wrong usage. If another process
/// holds the port, the message names it.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     flatout::exit(flatout::App::new().get("/", || "hello").listen("0.0.0.0:8080").arguments().run())
/// }
/// ```
pub fn exit(result: Result<()>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            let more = holder(&error).unwrap_or_default();
            flatout_engine::report(flatout_engine::Severity::Error, format_args!("{error}{more}"));
            error.exit_code().into()
        }
    }
}

/// Processes that are named.
const HOLDERS_MAX: usize = 3;

/// Who listens on the port that could not be bound, and what to do.
fn holder(error: &Error) -> Option<String> {
    let Error::Server(flatout_engine::Error::Listen(_, Address::Tcp(address), source)) = error else {
        return None;
    };
    if source.kind() != ErrorKind::AddrInUse {
        return None;
    }
    let port = address.port();
    let found = Listening::find(&Here, port).ok()?;
    Some(match found.holders(std::process::id()) {
        Holders::Own => "; this program listens there itself: two of its addresses are the same".to_owned(),
        Holders::Hidden => {
            format!("; a process that only root can see holds the port: sudo ss -ltnp 'sport = :{port}'")
        }
        Holders::Others(mut pids) => {
            pids.truncate(HOLDERS_MAX);
            let named: Vec<String> = pids.iter().map(|pid| described(&Here, *pid)).collect();
            let ids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!(
                "; the port is held by {}: stop it (kill {}), or use another port",
                named.join(", "),
                ids.join(" ")
            )
        }
    })
}
