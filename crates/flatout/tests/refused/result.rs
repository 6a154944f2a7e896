//! A result that is no response.
use flatout::App;

struct Report;

fn main() {
    App::new().get("/", || Report);
}
