//! The description of an application, checked by a public validator.

use std::io::Write;
use std::path::{self, PathBuf};
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
    // The page loads nothing from elsewhere.
    assert!(page.text().contains("openapi.json") && !page.text().contains("://"));
    assert_eq!(client.get("/api/items/7").send().json::<Value>()["id"], 7);
}

/// The Python environment in which `./x test` puts the validator. Its scripts contain the path at which they were installed, which
/// may be that of a copy of the sources; its interpreter does not.
fn python() -> PathBuf {
    let installed =
        path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/openapi/bin/python3");
    assert!(installed.exists(), "openapi-spec-validator is missing; `./x test` installs it");
    installed
}

/// Whether the validator accepts a document, and what it says.
fn validate(document: &[u8]) -> (bool, String) {
    let mut validator = Command::new(python())
        .args(["-m", "openapi_spec_validator", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    validator.stdin.take().unwrap().write_all(document).unwrap();
    let output = validator.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_public_validator_accepts_it() {
    let client = Client::new(app()).unwrap();
    let document = client.get("/docs/openapi.json").send();
    let (is_accepted, said) = validate(document.bytes());
    assert!(is_accepted, "{said}");
    // It looks at what it is given.
    let mut broken: Value = document.json();
    broken["paths"]["/api/items"]["post"]["responses"] = "none".into();
    let (is_accepted, said) = validate(broken.to_string().as_bytes());
    assert!(!is_accepted, "{said}");
}

#[test]
fn an_operation_without_a_route_is_found_at_the_start() {
    let app = App::new().get("/api/items/{id}", show).openapi("/docs", Description::openapi());
    let Err(error) = Client::new(app) else { panic!("it has started") };
    assert!(error.to_string().contains("POST /api/items"), "{error}");
}
