//! TechEmpower's tests: JSON, plaintext, single and multiple queries, fortunes, updates, cached queries, by their rules
//! (<https://github.com/TechEmpower/FrameworkBenchmarks/wiki/Project-Information-Framework-Tests-Overview>).

pub mod database;
pub mod pg;

use std::io;

use askama::Template;
use flatout::{App, Html, Json, Local, Problem, Query, Status};
use serde::{Deserialize, Serialize};

use database::{Database, Settings};

/// Rows of the table `world`.
pub const WORLDS: i32 = 10_000;

/// How many of them one request may ask for.
pub const QUERIES_MAX: usize = 500;

/// The fortune added to those of the table.
const ADDED: &str = "Additional fortune added at request time.";

#[derive(Serialize)]
struct Hello {
    message: &'static str,
}

/// A row of the table `world`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct World {
    /// From 1 on.
    pub id: i32,
    /// From 1 to 10 000.
    pub random_number: i32,
}

/// A row of the table `fortune`.
pub struct Fortune<'r> {
    /// From 1; 0 is the added one.
    pub id: i32,
    /// The text; it may contain HTML, which must be escaped.
    pub message: &'r str,
}

#[derive(Template)]
#[template(path = "fortunes.html")]
struct Fortunes<'r> {
    fortunes: Vec<Fortune<'r>>,
}

/// The number as sent; anything that is not a number counts as 1.
#[derive(Deserialize)]
struct Count {
    #[serde(alias = "queries")]
    count: Option<String>,
}

/// All rows of `world`, kept since the start.
pub struct Cache(Vec<World>);

/// All seven tests. Without a database, those that need none.
pub fn app(settings: Option<Settings>) -> App {
    let app = App::new()
        .get("/json", || Json(Hello { message: "Hello, World!" }))
        .get("/plaintext", || ([("Content-Type", "text/plain")], "Hello, World!"));
    let Some(settings) = settings else { return app };
    let cached = settings.clone();
    app.local(move || Database::new(settings.clone()))
        .local(move || Filled(cached.clone(), tokio::sync::OnceCell::new()))
        .get("/db", db)
        .get("/queries", queries)
        .get("/fortunes", fortunes)
        .get("/updates", updates)
        .get("/cached-queries", cached_queries)
}

/// The cache of a worker, filled by its first request.
struct Filled(Settings, tokio::sync::OnceCell<Cache>);

fn bounded(count: Result<Query<Count>, Problem>) -> usize {
    let count = count.ok().and_then(|Query(count)| count.count).and_then(|count| count.parse::<i64>().ok());
    usize::try_from(count.unwrap_or(1).max(1)).unwrap_or(1).min(QUERIES_MAX)
}

fn failed(error: io::Error) -> Problem {
    flatout::engine::say(format_args!("the database: {error}"));
    Problem::new(Status::SERVICE_UNAVAILABLE)
}

async fn db(Local(database): Local<Database>) -> Result<Json<World>, Problem> {
    database.world().await.map(Json).map_err(failed)
}

async fn queries(
    Local(database): Local<Database>,
    count: Result<Query<Count>, Problem>,
) -> Result<Json<Vec<World>>, Problem> {
    database.worlds(bounded(count)).await.map(Json).map_err(failed)
}

async fn fortunes(Local(database): Local<Database>) -> Result<Html<String>, Problem> {
    let page = database.fortunes(|fortunes| Fortunes { fortunes }.render()).await.map_err(failed)?;
    page.map(Html).map_err(|_| Problem::new(Status::INTERNAL_SERVER_ERROR))
}

async fn updates(
    Local(database): Local<Database>,
    count: Result<Query<Count>, Problem>,
) -> Result<Json<Vec<World>>, Problem> {
    database.updated(bounded(count)).await.map(Json).map_err(failed)
}

async fn cached_queries(
    Local(database): Local<Database>,
    Local(filled): Local<Filled>,
    count: Result<Query<Count>, Problem>,
) -> Result<Json<Vec<World>>, Problem> {
    let fill = async || Database::new(filled.0.clone()).all_worlds().await.map(Cache);
    let Cache(worlds) = filled.1.get_or_try_init(fill).await.map_err(failed)?;
    let picked = (0..bounded(count)).filter_map(|_| worlds.get(database.random_index(worlds.len())).copied());
    Ok(Json(picked.collect()))
}
