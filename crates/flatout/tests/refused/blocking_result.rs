//! A blocking handler whose result is not a response.
use flatout::{App, blocking};

struct Report;

fn main() {
    App::new().get("/", blocking(|| Report));
}
