//! The RealWorld backend: users, profiles, articles, comments, favourites, tags, by the public specification
//! (`specs/api/openapi.yml` of realworld-apps/realworld). `docs/realworld.md` walks through this code.

pub mod articles;
pub mod auth;
pub mod clock;
pub mod comments;
pub mod db;
pub mod errors;
pub mod password;
pub mod profiles;
pub mod token;
pub mod users;

use std::sync::Arc;
use std::time::Duration;

use flatout::middleware::{Cors, RequestIds, Timeout};
use flatout::{App, Json, Status};
use serde::{Deserialize, Deserializer};

use db::Source;
use token::Key;

/// The largest request body: an article of a few hundred pages.
const BODY_BYTES_MAX: u64 = 1 << 20;

/// The time limit of a request; then it gets 503.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(15);

/// The application on this database, with tokens of this key.
pub fn app(source: Arc<Source>, key: Key) -> App {
    let (opened, kept) = (source.clone(), source.clone());
    App::new()
        .with(RequestIds::new())
        .with(Cors::new().any_origin())
        .with(Timeout::new(REQUEST_TIME_MAX))
        .state(key)
        .local(move || source.for_worker())
        .on_start(async move || opened.open().await)
        .background(async move |shutdown| kept.keep_ready(shutdown).await)
        .nest("/api", api())
        .get("/healthz", || "ok")
}

fn api() -> App {
    App::new()
        .after(errors::as_json)
        .body_limit(BODY_BYTES_MAX)
        .post("/users", users::register)
        .post("/users/login", users::login)
        .get("/user", users::current)
        .put("/user", users::update)
        .get("/profiles/{username}", profiles::show)
        .post("/profiles/{username}/follow", profiles::follow)
        .delete("/profiles/{username}/follow", profiles::unfollow)
        .get("/articles", articles::list)
        .post("/articles", articles::create)
        .get("/articles/feed", articles::feed)
        .get("/articles/{slug}", articles::show)
        .put("/articles/{slug}", articles::update)
        .delete("/articles/{slug}", articles::remove)
        .post("/articles/{slug}/favorite", articles::favorite)
        .delete("/articles/{slug}/favorite", articles::unfavorite)
        .get("/articles/{slug}/comments", comments::list)
        .post("/articles/{slug}/comments", comments::create)
        .delete("/articles/{slug}/comments/{id}", comments::remove)
        .get("/tags", articles::tags)
        .fallback(|| errors::of(Status::NOT_FOUND, "path", "not found"))
}

/// One member of a response, as the specification wraps everything: `{"user": …}`.
fn wrapped<T: serde::Serialize>(
    name: &'static str,
    value: T,
) -> Json<std::collections::BTreeMap<&'static str, T>> {
    Json(std::collections::BTreeMap::from([(name, value)]))
}

/// A present member, possibly `null`; the outer `None` means that it is absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
