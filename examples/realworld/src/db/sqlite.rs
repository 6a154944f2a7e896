//! SQLite on separate threads: one writes, since SQLite allows one writer at a time, and the others read.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use flatout::engine::BoxError;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql};
use tokio::sync::oneshot;

use super::schema::CHANGES;
use super::{Fault, Row, Statement, Value};

/// Threads that read.
const READERS: usize = 4;

/// Maximum number of statements that wait for a thread; further requests get 503.
const WAITING_MAX: usize = 256;

/// How long a statement waits for another process that writes.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);

/// Statements that a connection keeps prepared.
const PREPARED_MAX: usize = 64;

/// The threads. Clones share them; they end with the last clone.
#[derive(Clone)]
pub struct Threads {
    writer: SyncSender<Job>,
    readers: Arc<[SyncSender<Job>]>,
    next: Arc<std::sync::atomic::AtomicUsize>,
}

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

impl Threads {
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn start(path: Option<&Path>) -> Result<Threads, BoxError> {
        let (writer, jobs) = sync_channel(WAITING_MAX);
        spawn("sqlite-writer", open(path)?, jobs)?;
        let mut readers = Vec::new();
        // An in-memory database has one connection, because each connection would open a separate database.
        for number in 0..if path.is_some() { READERS } else { 0 } {
            let (reader, jobs) = sync_channel(WAITING_MAX / READERS);
            spawn(&format!("sqlite-reader-{number}"), open(path)?, jobs)?;
            readers.push(reader);
        }
        Ok(Threads { writer, readers: readers.into(), next: Arc::default() })
    }

    /// Creates the tables that do not exist.
    pub(super) async fn migrate(&self) -> Result<(), Fault> {
        ask(&self.writer, |connection| {
            let version: usize = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            for (number, change) in CHANGES.iter().enumerate().skip(version) {
                let transaction = connection.transaction()?;
                transaction.execute_batch(change.sqlite)?;
                transaction.pragma_update(None, "user_version", number + 1)?;
                transaction.commit()?;
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn rows(&self, statement: Statement) -> Result<Vec<Row>, Fault> {
        let is_read = statement.0.trim_start().starts_with("SELECT");
        let turn = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let thread = match self.readers.get(turn % self.readers.len().max(1)) {
            Some(reader) if is_read => reader,
            _ => &self.writer,
        };
        ask(thread, move |connection| run(connection, &statement)).await
    }

    pub(super) async fn all(&self, statements: Vec<Statement>) -> Result<(), Fault> {
        ask(&self.writer, move |connection| {
            let transaction = connection.transaction()?;
            for statement in &statements {
                run(&transaction, statement)?;
            }
            transaction.commit()
        })
        .await
    }
}

/// Runs a job on a thread; it is completed even if the caller stops waiting.
async fn ask<T: Send + 'static>(
    thread: &SyncSender<Job>,
    work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    let (sender, receiver) = oneshot::channel();
    let job = Box::new(move |connection: &mut Connection| drop(sender.send(work(connection))));
    thread.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => Fault::Unavailable("too many statements wait".to_owned()),
        TrySendError::Disconnected(_) => Fault::Unavailable("its thread has ended".to_owned()),
    })?;
    let gone = |_| Fault::Unavailable("its thread has ended".to_owned());
    receiver.await.map_err(gone)?.map_err(|error| fault(&error))
}

fn spawn(name: &str, mut connection: Connection, jobs: Receiver<Job>) -> std::io::Result<()> {
    let run = move || jobs.into_iter().for_each(|job| job(&mut connection));
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

fn open(path: Option<&Path>) -> rusqlite::Result<Connection> {
    let connection = match path {
        Some(path) => Connection::open_with_flags(path, OpenFlags::default())?,
        None => Connection::open_in_memory()?,
    };
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_MAX);
    // Readers do not wait for the writer (WAL). A crash of the machine can lose the last transactions, but
    // never part of one.
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
    Ok(connection)
}

fn run(connection: &Connection, (sql, parameters): &Statement) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(sql)?;
    for (index, value) in parameters.iter().enumerate() {
        // `$2` is a name to SQLite, whose place is where it was first used.
        if let Some(place) = statement.parameter_index(&format!("${}", index + 1))? {
            statement.raw_bind_parameter(place, value)?;
        }
    }
    let columns = statement.column_count();
    let mut found = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let values = (0..columns).map(|index| {
            Ok(match row.get_ref(index)? {
                ValueRef::Integer(number) => Value::Int(number),
                ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
                ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => Value::Null,
            })
        });
        rows.push(Row(values.collect::<rusqlite::Result<_>>()?));
    }
    Ok(rows)
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Int(number) => ValueRef::Integer(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

fn fault(error: &rusqlite::Error) -> Fault {
    let code = error.sqlite_error_code();
    match code {
        // `UNIQUE constraint failed: users.email`
        Some(ErrorCode::ConstraintViolation) => {
            let text = error.to_string();
            match text.split_once("UNIQUE constraint failed: ").and_then(|(_, column)| column.split_once('.'))
            {
                Some((_, column)) => Fault::Taken(column.to_owned()),
                None => Fault::Other(text),
            }
        }
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure,
        ) => Fault::Unavailable(error.to_string()),
        _ => Fault::Other(error.to_string()),
    }
}
