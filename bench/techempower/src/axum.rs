use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::SERVER;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};

use crate::{Database, HELLO, Outcome, PLAIN, bounded, current_thread};

type Counts = Query<HashMap<String, String>>;

pub fn run(address: SocketAddr) -> Outcome {
    current_thread(async move {
        let router = Router::new()
            .route("/json", get(async || served(Json(HELLO))))
            .route("/plaintext", get(async || served(PLAIN)))
            .route("/db", get(async |State(db): State<Arc<Database>>| Ok::<_, StatusCode>(served(Json(db.world().await.map_err(failed)?)))))
            .route("/queries", get(async |State(db): State<Arc<Database>>, counts: Counts| Ok::<_, StatusCode>(served(Json(db.worlds(count(&counts)).await.map_err(failed)?)))))
            .route("/updates", get(async |State(db): State<Arc<Database>>, counts: Counts| Ok::<_, StatusCode>(served(Json(db.updated(count(&counts)).await.map_err(failed)?)))))
            .route("/cached-queries", get(async |State(db): State<Arc<Database>>, counts: Counts| served(Json(db.cached(count(&counts))))))
            .route("/fortunes", get(async |State(db): State<Arc<Database>>| Ok::<_, StatusCode>(served(Html(db.fortunes().await.map_err(failed)?)))))
            .with_state(Arc::new(Database::connect().await?));
        let listener = tokio::net::TcpListener::bind(address).await?;
        let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
        Ok(axum::serve(listener, router).await?)
    })
}

fn served(body: impl IntoResponse) -> impl IntoResponse {
    ([(SERVER, "axum")], body)
}

fn count(Query(counts): &Counts) -> usize {
    bounded(counts.get("queries").or(counts.get("count")).map(String::as_str))
}

fn failed(_: tokio_postgres::Error) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}
