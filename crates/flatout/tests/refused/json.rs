//! JSON of a type that serde does not know.
use flatout::{App, Json};

struct Item;

fn main() {
    App::new().get("/", || Json(Item));
}
