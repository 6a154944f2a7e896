//! The same of an async handler.
use flatout::App;

struct Report;

fn main() {
    App::new().get("/", async || Report);
}
