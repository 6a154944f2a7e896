//! An argument that is made of no request.
use flatout::App;

struct Session;

fn handler(_: String, _: Session) -> &'static str {
    "never"
}

fn main() {
    App::new().get("/", handler);
}
