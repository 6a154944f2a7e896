//! Articles, favourites, tags.

use std::time::{SystemTime, UNIX_EPOCH};

use flatout::{Json, Local, Path, Problem, Query, Status};
use serde::{Deserialize, Serialize};

use crate::auth::{Auth, Viewer};
use crate::db::{Database, Row, Statement, Value};
use crate::profiles::Profile;
use crate::{errors, wrapped};

/// Articles of one response.
const LIMIT_MAX: i64 = 100;
const LIMIT_DEFAULT: i64 = 20;

/// Tags of an article.
const TAGS_MAX: usize = 50;

/// Tags of the list of all tags.
const TAGS_LISTED_MAX: i64 = 1000;

/// `{"article": …}`
#[derive(Deserialize)]
pub struct Asked {
    article: Input,
}

/// What a client says of an article.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Input {
    title: Option<String>,
    description: Option<String>,
    body: Option<String>,
    tag_list: Option<Vec<String>>,
}

/// Which articles.
#[derive(Deserialize)]
pub struct Filter {
    tag: Option<String>,
    author: Option<String>,
    favorited: Option<String>,
    limit: Option<i64>,
    offset: Option<i64>,
}

/// An article as clients read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Article {
    slug: String,
    title: String,
    description: String,
    /// Lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    tag_list: Vec<String>,
    created_at: String,
    updated_at: String,
    favorited: bool,
    favorites_count: i64,
    author: Profile,
}

/// A page of articles, and how many there are.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    articles: Vec<Article>,
    articles_count: i64,
}

/// What an article is read from; `$1` is who looks.
macro_rules! select {
    ($where:literal) => {
        concat!(
            "SELECT a.slug, a.title, a.description, a.body, a.tags, a.created_ms, a.updated_ms,
                EXISTS (SELECT 1 FROM favorites f WHERE f.article_id = a.id AND f.user_id = $1),
                (SELECT count(*) FROM favorites f WHERE f.article_id = a.id),
                u.username, u.bio, u.image,
                EXISTS (SELECT 1 FROM follows w WHERE w.follower_id = $1 AND w.followed_id = u.id),
                a.author_id, a.id
            FROM articles a JOIN users u ON u.id = a.author_id ",
            $where
        )
    };
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

impl Article {
    fn of(row: &Row) -> Article {
        Article {
            slug: row.text(0),
            title: row.text(1),
            description: row.text(2),
            body: Some(row.text(3)),
            tag_list: serde_json::from_str(&row.text(4)).unwrap_or_default(),
            created_at: timestamp(row.int(5)),
            updated_at: timestamp(row.int(6)),
            favorited: row.flag(7),
            favorites_count: row.int(8),
            author: Profile::of(row, 9),
        }
    }

    fn listed(row: &Row) -> Article {
        Article { body: None, ..Article::of(row) }
    }
}

/// Milliseconds since 1970 as RFC 3339.
pub fn timestamp(ms: i64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    let time = time.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (date, month) = (time.date(), u8::from(time.month()));
    let (hour, minute, second, millisecond) = time.time().as_hms_milli();
    format!(
        "{:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z",
        date.year(),
        date.day()
    )
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A title as it stands in a path: its letters and digits, and one `-` for whatever is between them.
fn slug(title: &str) -> String {
    let words = title.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.map(str::to_lowercase).collect::<Vec<_>>().join("-");
    // A title of other signs has the time for a name.
    if slug.is_empty() || slug == "feed" { format!("{slug}{:x}", now_ms()) } else { slug }
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

/// An article, with its author's number and its own.
pub async fn find(database: &Database, viewer: i64, slug: &str) -> Result<(Article, i64, i64), Problem> {
    let found = match slug.contains('\0') {
        true => None,
        false => database.row(select!("WHERE a.slug = $2"), vec![viewer.into(), slug.into()]).await?,
    };
    let row = found.ok_or_else(|| errors::not_found("article"))?;
    Ok((Article::of(&row), row.int(13), row.int(14)))
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
/// 422 for a page that is none.
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
/// 422 for a page that is none.
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

/// `GET /api/articles/{slug}`
///
/// # Errors
/// 404 for none.
pub async fn show(
    Viewer(viewer): Viewer,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    Ok(wrapped("article", find(&database, viewer, &slug).await?.0))
}

fn checked_tags(tags: Vec<String>) -> Result<Vec<String>, Problem> {
    if tags.len() > TAGS_MAX {
        return Err(errors::of(Status::UNPROCESSABLE_CONTENT, "tagList", "has more than 50 tags"));
    }
    let mut checked: Vec<String> = Vec::new();
    for tag in tags {
        let tag = errors::short(errors::required(Some(tag), "tagList")?, "tagList")?;
        if !checked.contains(&tag) {
            checked.push(tag);
        }
    }
    Ok(checked)
}

fn json(tags: &[String]) -> String {
    serde_json::to_string(tags).unwrap_or_default()
}

/// The tags of an article by its slug, instead of those that it has.
fn set_tags(slug: &str, tags: &[String]) -> Vec<Statement> {
    let remove = "DELETE FROM article_tags WHERE article_id = (SELECT id FROM articles WHERE slug = $1)";
    let add = "INSERT INTO article_tags (article_id, tag) SELECT id, $2 FROM articles WHERE slug = $1";
    let adding = tags.iter().map(|tag| (add, vec![slug.into(), tag.as_str().into()]));
    std::iter::once((remove, vec![slug.into()])).chain(adding).collect()
}

/// Whose title is taken has the slug of another.
fn title_taken(fault: crate::db::Fault) -> Problem {
    match fault {
        crate::db::Fault::Taken(_) => crate::db::Fault::Taken("title".to_owned()).into(),
        fault => fault.into(),
    }
}

/// `POST /api/articles`
///
/// # Errors
/// 422 for what is missing, 409 for a title that is taken.
pub async fn create(
    Auth(user): Auth,
    Local(database): Local<Database>,
    body: Result<Json<Asked>, Problem>,
) -> Result<(Status, Json<impl Serialize>), Problem> {
    let Input { title, description, body, tag_list } = errors::body(body)?.article;
    let title = errors::short(errors::required(title, "title")?, "title")?;
    let description = errors::text(errors::required(description, "description")?, "description")?;
    let body = errors::text(errors::required(body, "body")?, "body")?;
    let tags = checked_tags(tag_list.unwrap_or_default())?;
    let (slug, now) = (slug(&title), now_ms());
    let insert =
        "INSERT INTO articles (slug, title, description, body, tags, created_ms, updated_ms, author_id)
        SELECT $1, $2, $3, $4, $5, $6, $6, id FROM users WHERE id = $7";
    let row = vec![
        slug.as_str().into(),
        title.into(),
        description.into(),
        body.into(),
        json(&tags).into(),
        now.into(),
        user.into(),
    ];
    let mut statements = vec![(insert, row)];
    statements.extend(set_tags(&slug, &tags));
    database.all(statements).await.map_err(title_taken)?;
    let (article, author, _) = find(&database, user, &slug).await?;
    // A token outlives its user.
    if author != user {
        return Err(errors::of(Status::UNAUTHORIZED, "token", "is invalid"));
    }
    Ok((Status::CREATED, wrapped("article", article)))
}

/// `PUT /api/articles/{slug}`
///
/// # Errors
/// 404 for none, 403 for that of somebody else, 422 for what is empty, 409 for a title that is taken.
pub async fn update(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(old_slug): Path<String>,
    body: Result<Json<Asked>, Problem>,
) -> Result<Json<impl Serialize>, Problem> {
    let id = own(&database, user, &old_slug).await?;
    let Input { title, description, body, tag_list } = errors::body(body)?.article;
    let title = errors::not_blank(title, "title")?.map(|title| errors::short(title, "title")).transpose()?;
    let text =
        |value, name| errors::not_blank(value, name)?.map(|value| errors::text(value, name)).transpose();
    let (description, body) = (text(description, "description")?, text(body, "body")?);
    let tags = tag_list.map(checked_tags).transpose()?;
    let new_slug = title.as_deref().map_or(old_slug, slug);
    let change = "UPDATE articles SET slug = $1, title = coalesce($2, title), description = coalesce($3, description),
        body = coalesce($4, body), tags = coalesce($5, tags), updated_ms = $6 WHERE id = $7 AND author_id = $8";
    let row = vec![
        new_slug.as_str().into(),
        title.into(),
        description.into(),
        body.into(),
        tags.as_deref().map(json).into(),
        now_ms().into(),
        id.into(),
        user.into(),
    ];
    let mut statements = vec![(change, row)];
    statements.extend(tags.iter().flat_map(|tags| set_tags(&new_slug, tags)));
    database.all(statements).await.map_err(title_taken)?;
    Ok(wrapped("article", find(&database, user, &new_slug).await?.0))
}

/// The number of the user's own article.
async fn own(database: &Database, user: i64, slug: &str) -> Result<i64, Problem> {
    let (_, author, id) = find(database, user, slug).await?;
    if author == user { Ok(id) } else { Err(errors::forbidden("article")) }
}

/// `DELETE /api/articles/{slug}`
///
/// # Errors
/// 404 for none, 403 for that of somebody else.
pub async fn remove(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<(), Problem> {
    let id = own(&database, user, &slug).await?;
    let sql = "DELETE FROM articles WHERE id = $1 AND author_id = $2";
    database.rows(sql, vec![id.into(), user.into()]).await?;
    Ok(())
}

/// `POST /api/articles/{slug}/favorite`
///
/// # Errors
/// 404 for none.
pub async fn favorite(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    let sql = "INSERT INTO favorites (article_id, user_id) SELECT a.id, u.id FROM articles a JOIN users u ON u.id = $2
        WHERE a.id = $1 ON CONFLICT DO NOTHING";
    favored(&database, user, &slug, sql).await
}

/// `DELETE /api/articles/{slug}/favorite`
///
/// # Errors
/// 404 for none.
pub async fn unfavorite(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    favored(&database, user, &slug, "DELETE FROM favorites WHERE article_id = $1 AND user_id = $2").await
}

async fn favored(
    database: &Database,
    user: i64,
    slug: &str,
    sql: &'static str,
) -> Result<Json<impl Serialize + use<>>, Problem> {
    let (_, _, id) = find(database, user, slug).await?;
    database.rows(sql, vec![id.into(), user.into()]).await?;
    Ok(wrapped("article", find(database, user, slug).await?.0))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_paths_of_one_segment() {
        assert_eq!(slug("How to train your dragon"), "how-to-train-your-dragon");
        assert_eq!(slug("  Straße & Größe!! 2 "), "straße-größe-2");
        assert_eq!(slug("a/../b?c#d"), "a-b-c-d");
        for title in ["!!!", "", "feed", "Feed!"] {
            assert!(slug(title).len() > 8, "{title}");
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(1_455_765_776_637), "2016-02-18T03:22:56.637Z");
    }
}
