//! The notes in SQLite.

use std::sync::{Mutex, MutexGuard, PoisonError};

use flatout::{Problem, Status};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::Serialize;

/// The most notes in one list.
const LIST_MAX: u32 = 100;

#[derive(Serialize)]
pub struct Note {
    pub id: i64,
    pub text: String,
}

/// One connection, used by one thread at a time.
pub struct Database(Mutex<Connection>);

/// What failed is for the log, not for clients.
pub struct Failed(rusqlite::Error);

impl Database {
    /// Opens a file and creates its tables; `:memory:` is a new database without a file.
    pub fn open(path: &str) -> rusqlite::Result<Database> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL);",
        )?;
        Ok(Database(Mutex::new(connection)))
    }

    /// The newest notes.
    pub fn all(&self) -> Result<Vec<Note>, Failed> {
        let connection = self.connection();
        let mut query =
            connection.prepare_cached("SELECT id, text FROM notes ORDER BY id DESC LIMIT ?1")?;
        let notes = query
            .query_map([LIST_MAX], note)?
            .collect::<Result<_, _>>()?;
        Ok(notes)
    }

    pub fn find(&self, id: i64) -> Result<Option<Note>, Failed> {
        let connection = self.connection();
        let mut query = connection.prepare_cached("SELECT id, text FROM notes WHERE id = ?1")?;
        Ok(query.query_row([id], note).optional()?)
    }

    pub fn add(&self, text: String) -> Result<Note, Failed> {
        let connection = self.connection();
        connection
            .prepare_cached("INSERT INTO notes (text) VALUES (?1)")?
            .execute([&text])?;
        Ok(Note {
            id: connection.last_insert_rowid(),
            text,
        })
    }

    /// Returns whether there was such a note.
    pub fn remove(&self, id: i64) -> Result<bool, Failed> {
        let connection = self.connection();
        Ok(connection
            .prepare_cached("DELETE FROM notes WHERE id = ?1")?
            .execute([id])?
            > 0)
    }

    /// A panic of another request leaves no statement half done.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn note(row: &Row<'_>) -> rusqlite::Result<Note> {
    Ok(Note {
        id: row.get(0)?,
        text: row.get(1)?,
    })
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Failed {
        Failed(error)
    }
}

impl From<Failed> for Problem {
    fn from(Failed(error): Failed) -> Problem {
        eprintln!("database: {error}");
        Problem::new(Status::SERVICE_UNAVAILABLE)
    }
}
