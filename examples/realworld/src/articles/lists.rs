//! Pages of articles, and the list of all tags.

use flatout::{Json, Local, Problem, Query, Status};
use serde::{Deserialize, Serialize};

use super::{Article, select};
use crate::auth::{Auth, Viewer};
use crate::db::{Database, Statement, Value};
use crate::{errors, wrapped};

/// Articles of one response.
const LIMIT_MAX: i64 = 100;
const LIMIT_DEFAULT: i64 = 20;

/// Tags of the list of all tags.
const TAGS_LISTED_MAX: i64 = 1000;

/// Which articles.
#[derive(Deserialize)]
pub struct Filter {
    tag: Option<String>,
    author: Option<String>,
    favorited: Option<String>,
    limit: Option<i64>,
    offset: Option<i64>,
}

/// A page of articles, and how many there are.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    articles: Vec<Article>,
    articles_count: i64,
}

/// An empty text does not filter.
macro_rules! filtered {
    ($select:expr, $tag:literal, $author:literal, $favorited:literal, $rest:literal) => {
        concat!(
            $select,
            " WHERE (",
            $tag,
            " = '' OR EXISTS (SELECT 1 FROM article_tags t WHERE t.article_id = a.id AND t.tag = ",
            $tag,
            "))
            AND (",
            $author,
            " = '' OR u.username = ",
            $author,
            ")
            AND (",
            $favorited,
            " = '' OR EXISTS (SELECT 1 FROM favorites f JOIN users v ON v.id = f.user_id
                WHERE f.article_id = a.id AND v.username = ",
            $favorited,
            ")) ",
            $rest
        )
    };
}

fn page(limit: Option<i64>, offset: Option<i64>) -> Result<[Value; 2], Problem> {
    let (limit, offset) = (limit.unwrap_or(LIMIT_DEFAULT), offset.unwrap_or(0));
    if limit < 1 {
        return Err(errors::of(Status::UNPROCESSABLE_CONTENT, "limit", "must be at least 1"));
    }
    if offset < 0 {
        return Err(errors::of(Status::UNPROCESSABLE_CONTENT, "offset", "must be at least 0"));
    }
    Ok([limit.min(LIMIT_MAX).into(), offset.into()])
}

fn query(filter: Result<Query<Filter>, Problem>) -> Result<Filter, Problem> {
    match filter {
        Ok(Query(filter)) => Ok(filter),
        Err(_) => Err(errors::of(Status::UNPROCESSABLE_CONTENT, "query", "is malformed")),
    }
}

async fn list_of(
    database: &Database,
    sql: &'static str,
    parameters: Vec<Value>,
    count: Statement,
) -> Result<Json<Page>, Problem> {
    // Both are on their way at once.
    let (rows, count) = tokio::join!(database.rows(sql, parameters), database.row(count.0, count.1));
    let articles = rows?.iter().map(Article::listed).collect();
    Ok(Json(Page { articles, articles_count: count?.map_or(0, |row| row.int(0)) }))
}

/// `GET /api/articles`
///
/// # Errors
/// 422 for an invalid page.
pub async fn list(
    Viewer(viewer): Viewer,
    Local(database): Local<Database>,
    filter: Result<Query<Filter>, Problem>,
) -> Result<Json<Page>, Problem> {
    let Filter { tag, author, favorited, limit, offset } = query(filter)?;
    let page = page(limit, offset)?;
    let mut wanted = Vec::new();
    for value in [tag, author, favorited] {
        wanted.push(Value::from(errors::text(value.unwrap_or_default(), "query")?));
    }
    let sql = filtered!(select!(""), "$2", "$3", "$4", "ORDER BY a.id DESC LIMIT $5 OFFSET $6");
    let count =
        filtered!("SELECT count(*) FROM articles a JOIN users u ON u.id = a.author_id", "$1", "$2", "$3", "");
    let parameters = [vec![viewer.into()], wanted.clone(), page.to_vec()].concat();
    list_of(&database, sql, parameters, (count, wanted)).await
}

/// `GET /api/articles/feed`
///
/// # Errors
/// 422 for an invalid page.
pub async fn feed(
    Auth(user): Auth,
    Local(database): Local<Database>,
    filter: Result<Query<Filter>, Problem>,
) -> Result<Json<Page>, Problem> {
    let Filter { limit, offset, .. } = query(filter)?;
    let page = page(limit, offset)?;
    let sql = select!(
        "WHERE a.author_id IN (SELECT followed_id FROM follows WHERE follower_id = $1) ORDER BY a.id DESC LIMIT $2 OFFSET $3"
    );
    let count = "SELECT count(*) FROM articles WHERE author_id IN (SELECT followed_id FROM follows WHERE follower_id = $1)";
    let parameters = [vec![user.into()], page.to_vec()].concat();
    list_of(&database, sql, parameters, (count, vec![user.into()])).await
}

/// `GET /api/tags`
///
/// # Errors
/// The database's.
pub async fn tags(Local(database): Local<Database>) -> Result<Json<impl Serialize>, Problem> {
    let sql = "SELECT tag FROM article_tags GROUP BY tag ORDER BY count(*) DESC, tag LIMIT $1";
    let rows = database.rows(sql, vec![TAGS_LISTED_MAX.into()]).await?;
    Ok(wrapped("tags", rows.iter().map(|row| row.text(0)).collect::<Vec<_>>()))
}
