//! `peers NAME ADDRESS`: one server of the field, one worker, `GET /json` as TechEmpower defines it.

use std::net::SocketAddr;

#[derive(serde::Serialize)]
struct Hello {
    message: &'static str,
}

const HELLO: Hello = Hello { message: "Hello, World!" };

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let (name, address) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let address: SocketAddr = address.parse()?;
    match name.as_str() {
        #[cfg(feature = "hyper")]
        "hyper" => hyper_1(address),
        #[cfg(feature = "hyper")]
        "hyper-h2" => hyper_h2(address),
        #[cfg(feature = "axum")]
        "axum" => axum_08(address),
        #[cfg(feature = "actix")]
        "actix-web" => actix(address),
        #[cfg(feature = "ntex")]
        "ntex" => ntex_2(address),
        #[cfg(feature = "xitca")]
        "xitca-web" => xitca(address),
        #[cfg(feature = "may")]
        "may_minihttp" => may_minihttp_01(address),
        _ => Err(format!("no peer `{name}` in this build").into()),
    }
}

#[cfg(any(feature = "hyper", feature = "axum"))]
fn current_thread(future: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Serves the connections by hyper, each by the future that `serve` makes of its socket.
#[cfg(feature = "hyper")]
fn hyper_by<F: Future + 'static>(address: SocketAddr, serve: impl Fn(tokio::net::TcpStream) -> F) -> Outcome {
    let local = tokio::task::LocalSet::new();
    current_thread(local.run_until(async move {
        let listener = tokio::net::TcpListener::bind(address).await?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let connection = serve(socket);
            tokio::task::spawn_local(async move { drop(connection.await) });
        }
    }))
}

#[cfg(feature = "hyper")]
async fn hyper_json(
    _: hyper::Request<hyper::body::Incoming>,
) -> Result<hyper::Response<http_body_util::Full<hyper::body::Bytes>>, std::convert::Infallible> {
    use hyper::header::{CONTENT_TYPE, HeaderValue, SERVER};
    let body = http_body_util::Full::new(serde_json::to_vec(&HELLO).unwrap().into());
    let mut response = hyper::Response::new(body);
    response.headers_mut().insert(SERVER, HeaderValue::from_static("hyper"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

#[cfg(feature = "hyper")]
fn hyper_1(address: SocketAddr) -> Outcome {
    use hyper::{server::conn::http1::Builder, service::service_fn};
    hyper_by(address, |socket| {
        let io = hyper_util::rt::TokioIo::new(socket);
        Builder::new().pipeline_flush(true).serve_connection(io, service_fn(hyper_json))
    })
}

/// HTTP/2 in cleartext, by the crate h2.
#[cfg(feature = "hyper")]
fn hyper_h2(address: SocketAddr) -> Outcome {
    use hyper::{server::conn::http2::Builder, service::service_fn};
    #[derive(Clone)]
    struct Local;
    impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
        fn execute(&self, future: F) {
            tokio::task::spawn_local(async move { drop(future.await) });
        }
    }
    hyper_by(address, |socket| {
        let io = hyper_util::rt::TokioIo::new(socket);
        Builder::new(Local).max_concurrent_streams(256).serve_connection(io, service_fn(hyper_json))
    })
}

#[cfg(feature = "axum")]
fn axum_08(address: SocketAddr) -> Outcome {
    use axum::serve::ListenerExt;
    current_thread(async move {
        let router = axum::Router::new().route(
            "/json",
            axum::routing::get(async || ([(axum::http::header::SERVER, "axum")], axum::Json(HELLO))),
        );
        let listener = tokio::net::TcpListener::bind(address).await?;
        let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
        Ok(axum::serve(listener, router).await?)
    })
}

#[cfg(feature = "actix")]
fn actix(address: SocketAddr) -> Outcome {
    use actix_web::{App, HttpResponse, HttpServer, web};
    actix_web::rt::System::new().block_on(async move {
        let app = || {
            App::new().route(
                "/json",
                web::get().to(async || HttpResponse::Ok().insert_header(("Server", "actix")).json(HELLO)),
            )
        };
        HttpServer::new(app).workers(1).bind(address)?.run().await
    })?;
    Ok(())
}

#[cfg(feature = "ntex")]
fn ntex_2(address: SocketAddr) -> Outcome {
    use ntex::web::{App, HttpResponse, HttpServer, get};
    #[get("/json")]
    async fn json() -> HttpResponse {
        HttpResponse::Ok().header("Server", "ntex").json(&HELLO)
    }
    ntex::rt::System::new("ntex").block_on(async move {
        HttpServer::new(|| App::new().service(json)).workers(1).bind(address)?.run().await
    })?;
    Ok(())
}

#[cfg(feature = "xitca")]
fn xitca(address: SocketAddr) -> Outcome {
    use xitca_web::handler::{handler_service, json::Json};
    use xitca_web::{App, route::get};
    async fn json() -> Json<Hello> {
        Json(HELLO)
    }
    let app = App::new().at("/json", get(handler_service(json)));
    Ok(app.serve().worker_threads(1).bind(address)?.run().wait()?)
}

#[cfg(feature = "may")]
fn may_minihttp_01(address: SocketAddr) -> Outcome {
    use may_minihttp::{HttpServer, HttpService, Request, Response};
    #[derive(Clone)]
    struct Json;
    impl HttpService for Json {
        fn call(&mut self, _: Request, response: &mut Response) -> std::io::Result<()> {
            response.header("Content-Type: application/json");
            response.body_mut().extend_from_slice(&serde_json::to_vec(&HELLO)?);
            Ok(())
        }
    }
    may::config().set_workers(1);
    HttpServer(Json).start(address)?.join().map_err(|_| "may_minihttp panicked")?;
    Ok(())
}
