//! The same of an async handler.
use flatout::App;

struct Session;

fn main() {
    App::new().get("/", async |_: Session| "never");
}
