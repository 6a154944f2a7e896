//! Errors that are not responses: a type of the application, any error, a number for a status.
use std::error::Error;

use flatout::App;

struct Failed;

fn own() -> Result<&'static str, Failed> {
    Err(Failed)
}

async fn any() -> Result<&'static str, Box<dyn Error>> {
    Ok("never")
}

fn main() {
    App::new().get("/own", own).get("/any", any).get("/pair", || (404_u16, String::new()));
}
