//! Validated arguments.

use flatout::test::Client;
use flatout::{App, Form, Json, Query, Status, Validated};
use serde_json::{Value, json};

#[derive(serde::Deserialize, garde::Validate)]
struct Signup {
    #[garde(length(min = 2, max = 20))]
    name: String,
    #[garde(range(min = 18))]
    age: u8,
    #[garde(inner(length(max = 3)))]
    #[serde(default)]
    tags: Vec<String>,
}

#[test]
fn every_field_that_breaks_a_rule_is_named() {
    let app = App::new()
        .post("/json", |Validated(Json(signup)): Validated<Json<Signup>>| signup.name)
        .post("/form", async |Validated(Form(signup)): Validated<Form<Signup>>| signup.name)
        .get("/query", |Validated(Query(signup)): Validated<Query<Signup>>| signup.name);
    let client = Client::new(app).unwrap();
    let good = client.post("/json").json(&json!({"name": "ada", "age": 36})).send();
    assert_eq!((good.status(), good.text()), (Status::OK, "ada"));

    let bad = client.post("/json").json(&json!({"name": "a", "age": 7, "tags": ["a", "long"]})).send();
    assert_eq!(bad.header("content-type"), Some("application/problem+json"));
    let problem: Value = bad.json();
    assert_eq!(problem["status"], 422);
    let errors = problem["errors"].as_array().unwrap();
    let fields: Vec<&str> = errors.iter().map(|error| error["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["age", "name", "tags[1]"]);
    assert!(errors.iter().all(|error| !error["message"].as_str().unwrap().is_empty()));

    let form = client.post("/form").header("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(form.body("name=a&age=36").send().json::<Value>()["errors"][0]["field"], "name");
    assert_eq!(client.get("/query?name=ada&age=1").send().status(), Status::UNPROCESSABLE_CONTENT);
    // A refusal by the inner argument is unchanged.
    assert_eq!(client.post("/json").body("{}").send().status(), Status::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(client.get("/query?name=ada").send().status(), Status::BAD_REQUEST);
}
