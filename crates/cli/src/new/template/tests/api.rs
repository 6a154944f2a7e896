use flatout::{Status, test::Client};
use @CRATE@::database::Database;
use serde_json::{Value, json};

fn client() -> Client {
    Client::over_socket(@CRATE@::app(Database::open(":memory:").unwrap())).unwrap()
}

#[test]
fn a_note_is_added_shown_and_removed() {
    let client = client();
    let added = client
        .post("/notes")
        .json(&json!({"text": "buy milk"}))
        .send();
    assert_eq!(added.status(), Status::CREATED);
    assert_eq!(added.json::<Value>(), json!({"id": 1, "text": "buy milk"}));
    assert_eq!(
        client.get("/notes/1").send().json::<Value>()["text"],
        "buy milk"
    );
    assert_eq!(
        client
            .get("/notes")
            .send()
            .json::<Value>()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        client.delete("/notes/1").send().status(),
        Status::NO_CONTENT
    );
    assert_eq!(client.get("/notes/1").send().status(), Status::NOT_FOUND);
    assert_eq!(client.delete("/notes/1").send().status(), Status::NOT_FOUND);
}

#[test]
fn wrong_requests_are_refused() {
    let client = client();
    let empty = client.post("/notes").json(&json!({"text": " "})).send();
    assert_eq!(empty.status(), Status::UNPROCESSABLE_CONTENT);
    assert_eq!(
        client.get("/notes/one").send().status(),
        Status::BAD_REQUEST
    );
    assert_eq!(
        client.put("/notes/1").send().status(),
        Status::METHOD_NOT_ALLOWED
    );
}
