//! JSON of a type that serde does not know, from an async handler.
use flatout::{App, Json, Problem};

struct Item;

async fn handler() -> Result<Json<Item>, Problem> {
    Ok(Json(Item))
}

fn main() {
    App::new().get("/", handler);
}
