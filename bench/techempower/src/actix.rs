use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use actix_web::error::ErrorInternalServerError as failed;
use actix_web::web::{Data, Query, get};
use actix_web::{App, Error, HttpResponse, HttpServer};

use crate::{Database, HELLO, Outcome, PLAIN, bounded};

type Counts = Query<HashMap<String, String>>;

pub fn run(address: SocketAddr) -> Outcome {
    actix_web::rt::System::new().block_on(async move {
        HttpServer::new(|| {
            App::new()
                .data_factory(async || Database::connect().await.map(Arc::new).map_err(|error| eprintln!("{error}")))
                .route("/json", get().to(async || served().json(HELLO)))
                .route("/plaintext", get().to(async || served().content_type("text/plain").body(PLAIN)))
                .route("/db", get().to(db))
                .route("/queries", get().to(queries))
                .route("/updates", get().to(updates))
                .route("/cached-queries", get().to(cached))
                .route("/fortunes", get().to(fortunes))
        })
        .workers(1)
        .bind(address)?
        .run()
        .await
    })?;
    Ok(())
}

fn served() -> actix_web::HttpResponseBuilder {
    let mut response = HttpResponse::Ok();
    response.insert_header(("Server", "actix"));
    response
}

fn count(counts: &Counts) -> usize {
    bounded(counts.get("queries").or(counts.get("count")).map(String::as_str))
}

async fn db(db: Data<Arc<Database>>) -> Result<HttpResponse, Error> {
    Ok(served().json(db.world().await.map_err(failed)?))
}

async fn queries(db: Data<Arc<Database>>, counts: Counts) -> Result<HttpResponse, Error> {
    Ok(served().json(db.worlds(count(&counts)).await.map_err(failed)?))
}

async fn updates(db: Data<Arc<Database>>, counts: Counts) -> Result<HttpResponse, Error> {
    Ok(served().json(db.updated(count(&counts)).await.map_err(failed)?))
}

async fn cached(db: Data<Arc<Database>>, counts: Counts) -> HttpResponse {
    served().json(db.cached(count(&counts)))
}

async fn fortunes(db: Data<Arc<Database>>) -> Result<HttpResponse, Error> {
    Ok(served().content_type("text/html; charset=utf-8").body(db.fortunes().await.map_err(failed)?))
}
