//! A blocking handler that is an async function.
use flatout::{App, blocking};

async fn handler() -> &'static str {
    "never"
}

fn main() {
    App::new().get("/", blocking(handler));
}
