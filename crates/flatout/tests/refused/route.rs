//! Routes as axum has them.
use flatout::App;

fn main() {
    App::new().route("/", || "never");
}
