//! Those that have the tests without a database so far.

use std::net::SocketAddr;

use crate::{HELLO, Hello, Outcome, PLAIN};

pub fn xitca(address: SocketAddr) -> Outcome {
    use xitca_web::handler::{handler_service, json::Json};
    use xitca_web::{App, route::get};
    async fn json() -> Json<Hello> {
        Json(HELLO)
    }
    async fn plain() -> &'static str {
        PLAIN
    }
    let app = App::new().at("/json", get(handler_service(json))).at("/plaintext", get(handler_service(plain)));
    Ok(app.serve().worker_threads(1).bind(address)?.run().wait()?)
}

pub fn may(address: SocketAddr) -> Outcome {
    use may_minihttp::{HttpServer, HttpService, Request, Response};
    #[derive(Clone)]
    struct Tests;
    impl HttpService for Tests {
        fn call(&mut self, request: Request, response: &mut Response) -> std::io::Result<()> {
            match request.path() {
                "/json" => {
                    response.header("Content-Type: application/json");
                    response.body_mut().extend_from_slice(&serde_json::to_vec(&HELLO)?);
                }
                "/plaintext" => {
                    response.header("Content-Type: text/plain");
                    response.body(PLAIN);
                }
                _ => {
                    response.status_code(404, "Not Found");
                }
            }
            Ok(())
        }
    }
    may::config().set_workers(1);
    HttpServer(Tests).start(address)?.join().map_err(|_| "may_minihttp panicked")?;
    Ok(())
}
