//! One interface to two databases. The SQL is the same for both; what differs is the schema and how statements get there.
//!
//! ```text
//! handler ── Database (each worker's own) ──┬─ SQLite: a bounded queue ──> threads, one connection each
//!                                           └─ PostgreSQL: this worker's connections, statements pipelined
//! ```

mod postgres;
mod schema;
mod sqlite;

use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flatout::engine::{BoxError, say};
use flatout::{Problem, Shutdown, Status};
use serde_json::json;

/// The default time limit of a statement, enforced by PostgreSQL.
pub const STATEMENT_TIME_MAX: Duration = Duration::from_secs(5);

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file, made if it is not there.
    File(PathBuf),
    /// In memory, gone with the process.
    Memory,
    /// `postgres://…`
    Postgres(String),
}

/// A database for all workers.
pub enum Source {
    /// Its threads.
    Sqlite(sqlite::Threads),
    /// Its address.
    Postgres(Arc<postgres::Server>),
}

/// A worker's way to the database.
pub struct Database(Way);

enum Way {
    Sqlite(sqlite::Threads),
    Postgres(Rc<postgres::Connections>),
}

/// A statement and its parameters, `$1` first. The text is always a constant of the program: values from
/// clients are parameters.
pub type Statement = (&'static str, Vec<Value>);

/// A value of either database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// A whole number, or a truth as 0 and 1.
    Int(i64),
    /// Text.
    Text(String),
}

/// A row of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

/// Why a statement failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The database cannot be reached, or is too slow; it may be there again later.
    Unavailable(String),
    /// A value that must be unique exists already; the name of the constraint or column, if the database
    /// reports it.
    Taken(String),
    /// A defect of ours.
    Other(String),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            ":memory:" => Ok(Place::Memory),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Place::Postgres(url.to_owned()))
            }
            url if url.contains("://") => {
                Err(format!("database: got `{url}`, wanted `postgres://…`, a file, or `:memory:`"))
            }
            path => Ok(Place::File(path.into())),
        }
    }
}

/// Without the password that an address may have.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Memory => f.write_str("memory"),
            Place::Postgres(url) => match url.rsplit_once('@') {
                Some((_, server)) => write!(f, "PostgreSQL at {server}"),
                None => f.write_str("PostgreSQL"),
            },
        }
    }
}

impl Source {
    /// Creates a source for a database, without sending anything yet.
    ///
    /// # Errors
    /// The address is invalid; for SQLite, the file cannot be opened.
    pub fn new(place: &Place) -> Result<Source, BoxError> {
        Source::with_limit(place, STATEMENT_TIME_MAX)
    }

    /// The same, with this time limit for statements of PostgreSQL.
    ///
    /// # Errors
    /// The address is invalid; for SQLite, the file cannot be opened.
    pub fn with_limit(place: &Place, statement_time_max: Duration) -> Result<Source, BoxError> {
        Ok(match place {
            Place::File(path) => Source::Sqlite(sqlite::Threads::start(Some(path))?),
            Place::Memory => Source::Sqlite(sqlite::Threads::start(None)?),
            Place::Postgres(url) => {
                Source::Postgres(Arc::new(postgres::Server::new(url, statement_time_max)?))
            }
        })
    }

    /// Makes the tables of SQLite. PostgreSQL may be down when the application starts.
    ///
    /// # Errors
    /// The file cannot be written, or is not a database.
    pub async fn open(&self) -> Result<(), BoxError> {
        match self {
            Source::Sqlite(threads) => threads.migrate().await.map_err(|fault| fault.to_string().into()),
            Source::Postgres(_) => Ok(()),
        }
    }

    /// Creates the tables of PostgreSQL once it can be reached. Until then requests get 503.
    pub async fn keep_ready(&self, shutdown: Shutdown) {
        if let Source::Postgres(server) = self {
            server.migrate(shutdown).await;
        }
    }

    /// One worker's way.
    pub fn for_worker(&self) -> Database {
        Database(match self {
            Source::Sqlite(threads) => Way::Sqlite(threads.clone()),
            Source::Postgres(server) => Way::Postgres(Rc::new(postgres::Connections::new(server.clone()))),
        })
    }
}

impl Database {
    /// The rows of one statement.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn rows(&self, sql: &'static str, parameters: Vec<Value>) -> Result<Vec<Row>, Fault> {
        match &self.0 {
            Way::Sqlite(threads) => threads.rows((sql, parameters)).await,
            Way::Postgres(connections) => connections.rows((sql, parameters)).await,
        }
    }

    /// The first row of one statement.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn row(&self, sql: &'static str, parameters: Vec<Value>) -> Result<Option<Row>, Fault> {
        Ok(self.rows(sql, parameters).await?.into_iter().next())
    }

    /// Executes all of these statements or none, even if the client disconnects.
    ///
    /// # Errors
    /// Why none of them was done.
    pub async fn all(&self, statements: Vec<Statement>) -> Result<(), Fault> {
        match &self.0 {
            Way::Sqlite(threads) => threads.all(statements).await,
            Way::Postgres(connections) => connections.clone().all(statements).await,
        }
    }
}

impl Row {
    /// A text; empty for anything else.
    pub fn text(&self, index: usize) -> String {
        self.maybe(index).unwrap_or_default()
    }

    /// A text, or `None` for NULL.
    pub fn maybe(&self, index: usize) -> Option<String> {
        match self.0.get(index) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// A number; 0 for anything else.
    pub fn int(&self, index: usize) -> i64 {
        match self.0.get(index) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        }
    }

    /// A truth.
    pub fn flag(&self, index: usize) -> bool {
        self.int(index) != 0
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unavailable(why) => write!(f, "the database is not available: {why}"),
            Fault::Taken(what) => write!(f, "{what} has already been taken"),
            Fault::Other(why) => write!(f, "the database refused a statement: {why}"),
        }
    }
}

/// The client's response never contains messages of the database.
impl From<Fault> for Problem {
    fn from(fault: Fault) -> Problem {
        let errors = |what: &str, message: &str| json!({ what: [message] });
        match &fault {
            Fault::Unavailable(_) => Problem::new(Status::SERVICE_UNAVAILABLE)
                .header("Retry-After", "1")
                .member("errors", errors("database", "is not available")),
            Fault::Taken(what) => {
                Problem::new(Status::CONFLICT).member("errors", errors(what, "has already been taken"))
            }
            Fault::Other(_) => {
                say(format_args!("{fault}"));
                Problem::new(Status::INTERNAL_SERVER_ERROR).member("errors", errors("server", "has failed"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_distinguished() {
        let parse = |text: &str| text.parse::<Place>();
        assert_eq!(parse(":memory:"), Ok(Place::Memory));
        assert_eq!(parse("data/conduit.db"), Ok(Place::File("data/conduit.db".into())));
        assert_eq!(parse("postgres://me@[::1]/x"), Ok(Place::Postgres("postgres://me@[::1]/x".to_owned())));
        assert!(parse("mysql://x").is_err());
        assert_eq!(parse("postgres://me:secret@db/x").unwrap().to_string(), "PostgreSQL at db/x");
        assert_eq!(parse("conduit.db").unwrap().to_string(), "conduit.db");
    }
}
