//! An API for notes. `cargo test` tests it, `cargo run` serves it on 127.0.0.1:8080.

pub mod database;

use database::{Database, Note};
use flatout::{App, Json, Path, Problem, State, Status, blocking};
use serde::Deserialize;

/// What a client sends.
#[derive(Deserialize)]
struct NewNote {
    text: String,
}

/// The routes. SQLite blocks, so its handlers run on other threads than the connections.
pub fn app(database: Database) -> App {
    App::new()
        .state(database)
        .get("/health", || "ok")
        .get("/notes", blocking(list))
        .post("/notes", blocking(add))
        .get("/notes/{id}", blocking(show))
        .delete("/notes/{id}", blocking(remove))
        .body_limit(64 << 10)
}

fn list(State(database): State<Database>) -> Result<Json<Vec<Note>>, Problem> {
    Ok(Json(database.all()?))
}

fn add(
    State(database): State<Database>,
    Json(note): Json<NewNote>,
) -> Result<(Status, Json<Note>), Problem> {
    if note.text.trim().is_empty() {
        let detail = "`text` is empty: a note needs at least one character";
        return Err(Problem::new(Status::UNPROCESSABLE_CONTENT).detail(detail));
    }
    Ok((Status::CREATED, Json(database.add(note.text)?)))
}

fn show(State(database): State<Database>, Path(id): Path<i64>) -> Result<Json<Note>, Problem> {
    database
        .find(id)?
        .map(Json)
        .ok_or(Problem::new(Status::NOT_FOUND))
}

fn remove(State(database): State<Database>, Path(id): Path<i64>) -> Result<(), Problem> {
    if database.remove(id)? {
        Ok(())
    } else {
        Err(Problem::new(Status::NOT_FOUND))
    }
}
