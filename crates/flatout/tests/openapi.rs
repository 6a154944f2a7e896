//! The description of an application, checked by a public validator where that is installed.

use std::io::Write;
use std::process::{Command, Stdio};

use flatout::test::Client;
use flatout::{App, Json, Path, Query, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(Serialize, Deserialize, ToSchema)]
struct Item {
    id: u32,
    name: Option<String>,
    tags: Vec<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Page {
    #[allow(dead_code, reason = "only described")]
    limit: Option<u32>,
}

#[utoipa::path(get, path = "/api/items/{id}", params(("id" = u32, Path), Page), responses((status = 200, body = Item), (status = 404)))]
fn show(Path(id): Path<u32>, _: Query<Page>) -> Json<Item> {
    Json(Item { id, name: None, tags: Vec::new() })
}

#[utoipa::path(post, path = "/api/items", request_body = Item, responses((status = 201, body = Item)))]
async fn add(Json(item): Json<Item>) -> (Status, Json<Item>) {
    (Status::CREATED, Json(item))
}

#[derive(OpenApi)]
#[openapi(paths(show, add), info(title = "Items", version = "1.0.0"))]
struct Description;

fn app() -> App {
    let api = App::new().get("/items/{number}", show).post("/items", add);
    App::new().nest("/api", api).openapi("/docs/", Description::openapi())
}

#[test]
fn the_document_and_its_page_are_served() {
    let client = Client::new(app()).unwrap();
    let answer = client.get("/docs/openapi.json").send();
    assert_eq!(answer.header("Content-Type"), Some("application/json"));
    let document: Value = answer.json();
    assert_eq!(document["info"]["title"], "Items");
    assert!(document["components"]["schemas"]["Item"]["properties"]["tags"].is_object());
    let page = client.get("/docs").send();
    assert_eq!(page.header("Content-Type"), Some("text/html; charset=utf-8"));
    // Nothing of it comes from elsewhere.
    assert!(page.text().contains("openapi.json") && !page.text().contains("://"));
    assert_eq!(client.get("/api/items/7").send().json::<Value>()["id"], 7);
}

#[test]
fn a_public_validator_accepts_it() {
    let has = |arguments: &[&str]| {
        let command =
            Command::new("python3").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        command.is_ok_and(|status| status.success())
    };
    if !has(&["-c", "import openapi_spec_validator"]) {
        return;
    }
    let client = Client::new(app()).unwrap();
    let document = client.get("/docs/openapi.json").send();
    let mut validator = Command::new("python3")
        .args(["-m", "openapi_spec_validator", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    validator.stdin.take().unwrap().write_all(document.bytes()).unwrap();
    assert!(validator.wait().unwrap().success());
}

#[test]
fn an_operation_without_a_route_is_found_at_the_start() {
    let app = App::new().get("/api/items/{id}", show).openapi("/docs", Description::openapi());
    let Err(error) = Client::new(app) else { panic!("it has started") };
    assert!(error.to_string().contains("POST /api/items"), "{error}");
}
