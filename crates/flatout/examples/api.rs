//! A small API with what real ones have: shared state, errors, middleware, a stream that ends with the server.
//!
//! `api --listen 127.0.0.1:8080`, then `curl -d '{"text":"hello"}' -H 'Content-Type: application/json' :8080/notes`.

use std::collections::BTreeMap;
use std::io::Write;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatout::engine::{Body, BoxError};
use flatout::{App, Json, Path, Problem, Shutdown, State, Status};
use http_body::Frame;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    text: String,
}

#[derive(Default)]
struct Notes(Mutex<BTreeMap<u32, Note>>);

fn add(State(notes): State<Notes>, Json(note): Json<Note>) -> Result<(Status, Json<u32>), Problem> {
    if note.text.is_empty() {
        return Err(
            Problem::new(Status::UNPROCESSABLE_CONTENT).detail("text: got nothing, need at least one letter")
        );
    }
    let mut notes = notes.0.lock().map_err(|_| Problem::new(Status::INTERNAL_SERVER_ERROR))?;
    let id = notes.keys().next_back().map_or(1, |last| last + 1);
    notes.insert(id, note);
    Ok((Status::CREATED, Json(id)))
}

fn read(State(notes): State<Notes>, Path(id): Path<u32>) -> Option<Json<Note>> {
    notes.0.lock().ok()?.get(&id).cloned().map(Json)
}

/// A line a second, until the client or the server has had enough.
fn ticks(shutdown: Shutdown) -> Body {
    Body::Stream(Box::pin(Ticks { interval: tokio::time::interval(Duration::from_secs(1)), shutdown }))
}

struct Ticks {
    interval: tokio::time::Interval,
    shutdown: Shutdown,
}

impl http_body::Body for Ticks {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.shutdown.has_begun() {
            return Poll::Ready(None);
        }
        self.interval.poll_tick(context).map(|_| Some(Ok(Frame::data(Bytes::from_static(b"tick\n")))))
    }
}

fn main() -> std::process::ExitCode {
    let notes = App::new().post("/", add).get("/{id}", read).body_limit(16 << 10);
    let app = App::new()
        .state(Notes::default())
        .nest("/notes", notes)
        .get("/ticks", ticks)
        .after(|answered, response| {
            let (status, method) = (response.status().code(), answered.method.name());
            // Not `eprintln!`, which panics if stderr is closed.
            let _ = writeln!(std::io::stderr(), "{status} {method} {}", answered.path);
        })
        .listen("127.0.0.1:8080")
        .arguments();
    flatout::exit(app.run())
}
