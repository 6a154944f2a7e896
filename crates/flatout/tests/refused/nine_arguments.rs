//! More arguments than a handler may have.
use flatout::{App, Method};

fn handler(
    _: Method,
    _: Method,
    _: Method,
    _: Method,
    _: Method,
    _: Method,
    _: Method,
    _: Method,
    _: Method,
) -> &'static str {
    "never"
}

fn main() {
    App::new().get("/", handler);
}
