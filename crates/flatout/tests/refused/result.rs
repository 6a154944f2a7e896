//! A result that is not a response.
use flatout::App;

struct Report;

fn main() {
    App::new().get("/", || Report);
}
