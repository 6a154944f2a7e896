use std::net::SocketAddr;

use crate::{HELLO, Outcome, PLAIN};

pub fn run(address: SocketAddr) -> Outcome {
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
    ::may::config().set_workers(1);
    HttpServer(Tests).start(address)?.join().map_err(|_| "may_minihttp panicked")?;
    Ok(())
}
