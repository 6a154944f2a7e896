use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, SERVER};
use hyper::{Request, Response, StatusCode};

use crate::{Database, HELLO, Outcome, PLAIN, bounded, current_thread};

pub fn run(address: SocketAddr) -> Outcome {
    current_thread(async move {
        let database = Arc::new(Database::connect().await?);
        let listener = tokio::net::TcpListener::bind(address).await?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let database = database.clone();
            let service = hyper::service::service_fn(move |request| answer(database.clone(), request));
            let io = hyper_util::rt::TokioIo::new(socket);
            tokio::task::spawn_local(
                hyper::server::conn::http1::Builder::new().pipeline_flush(true).serve_connection(io, service),
            );
        }
    })
}

type Answer = Result<Response<Full<Bytes>>, std::convert::Infallible>;

async fn answer(database: Arc<Database>, request: Request<Incoming>) -> Answer {
    let count = || bounded(request.uri().query().and_then(|query| query.split_once('=')).map(|(_, count)| count));
    Ok(match request.uri().path() {
        "/json" => json(Ok(HELLO)),
        "/plaintext" => of("text/plain", PLAIN.into()),
        "/db" => json(database.world().await),
        "/queries" => json(database.worlds(count()).await),
        "/updates" => json(database.updated(count()).await),
        "/cached-queries" => json(Ok(database.cached(count()))),
        "/fortunes" => match database.fortunes().await {
            Ok(html) => of("text/html; charset=utf-8", html.into()),
            Err(_) => status(StatusCode::INTERNAL_SERVER_ERROR),
        },
        _ => status(StatusCode::NOT_FOUND),
    })
}

fn json(value: Result<impl serde::Serialize, tokio_postgres::Error>) -> Response<Full<Bytes>> {
    match value.map(|value| serde_json::to_vec(&value)) {
        Ok(Ok(bytes)) => of("application/json", bytes.into()),
        _ => status(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn of(content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(SERVER, HeaderValue::from_static("hyper"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
