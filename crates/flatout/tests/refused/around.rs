//! Middleware without what is inside.
use flatout::{App, Status};

fn main() {
    App::new().around(async || Status::OK);
}
