//! The JSON and plaintext tests of TechEmpower, and the JSON one by an async handler: `hello-json --listen 127.0.0.1:8080 --workers 1`.

use flatout::{App, Json};

#[derive(serde::Serialize)]
struct Hello {
    message: &'static str,
}

fn main() -> std::process::ExitCode {
    let app = App::new()
        .get("/json", || Json(Hello { message: "Hello, World!" }))
        // To measure the cost of an async handler that is ready at once.
        .get("/json-async", async || Json(Hello { message: "Hello, World!" }))
        .get("/plaintext", || "Hello, World!")
        .listen("127.0.0.1:8080")
        .arguments();
    flatout::exit(app.run())
}
