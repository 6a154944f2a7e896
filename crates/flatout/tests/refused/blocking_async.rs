//! A blocking handler that is async.
use flatout::{App, blocking};

fn main() {
    App::new().get("/", blocking(async || "never"));
}
