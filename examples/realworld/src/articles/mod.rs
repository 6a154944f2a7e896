//! Articles, one at a time.

mod favorites;
mod lists;
mod slug;

use std::collections::BTreeSet;

use flatout::{Json, Local, Path, Problem, Status};
use serde::{Deserialize, Serialize};

use crate::auth::{Auth, Viewer};
use crate::clock::{now_ms, timestamp};
use crate::db::{Database, Fault, Row, Statement};
use crate::profiles::Profile;
use crate::{errors, present, wrapped};

pub use favorites::{favorite, unfavorite};
pub use lists::{feed, list, tags};

/// Tags of an article.
const TAGS_MAX: usize = 50;

/// `{"article": …}`
#[derive(Deserialize)]
pub struct Asked<T> {
    article: T,
}

/// A new article.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Input {
    title: Option<String>,
    description: Option<String>,
    body: Option<String>,
    tag_list: Option<Vec<String>>,
}

/// The changes. An absent member is not changed; no member may be `null`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    #[serde(default, deserialize_with = "present")]
    title: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    description: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    body: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    tag_list: Option<Option<Vec<String>>>,
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

/// The query for articles; `$1` is the viewer.
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

use select;

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

/// An article as the database has it.
pub struct Found {
    /// The article as sent to clients.
    pub article: Article,
    /// Its author's number.
    pub author: i64,
    /// Its own number.
    pub id: i64,
}

/// The article of a slug, as the viewer sees it.
///
/// # Errors
/// 404 if there is no such article.
pub async fn find(database: &Database, viewer: i64, slug: &str) -> Result<Found, Problem> {
    let found = match slug.contains('\0') {
        true => None,
        false => database.row(select!("WHERE a.slug = $2"), vec![viewer.into(), slug.into()]).await?,
    };
    let row = found.ok_or_else(|| errors::not_found("article"))?;
    Ok(Found { article: Article::of(&row), author: row.int(13), id: row.int(14) })
}

/// `GET /api/articles/{slug}`
///
/// # Errors
/// 404 if there is no such article.
pub async fn show(
    Viewer(viewer): Viewer,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    Ok(wrapped("article", find(&database, viewer, &slug).await?.article))
}

fn checked_tags(tags: Vec<String>) -> Result<Vec<String>, Problem> {
    if tags.len() > TAGS_MAX {
        return Err(errors::of(Status::UNPROCESSABLE_CONTENT, "tagList", "has more than 50 tags"));
    }
    // Each once, in alphabetical order: the specification's tests ask for that.
    let mut checked = BTreeSet::new();
    for tag in tags {
        checked.insert(errors::short(errors::required(Some(tag), "tagList")?, "tagList")?);
    }
    Ok(checked.into_iter().collect())
}

fn json(tags: &[String]) -> String {
    serde_json::to_string(tags).unwrap_or_default()
}

/// The tags of the user's article by its slug, instead of those that it has.
fn set_tags(user: i64, slug: &str, tags: &[String]) -> Vec<Statement> {
    let remove = "DELETE FROM article_tags
        WHERE article_id = (SELECT id FROM articles WHERE slug = $1 AND author_id = $2)";
    let add = "INSERT INTO article_tags (article_id, tag)
        SELECT id, $3 FROM articles WHERE slug = $1 AND author_id = $2";
    let adding = tags.iter().map(|tag| (add, vec![slug.into(), user.into(), tag.as_str().into()]));
    std::iter::once((remove, vec![slug.into(), user.into()])).chain(adding).collect()
}

/// Does the statements for one of these slugs: the first that no other article has.
async fn store(
    database: &Database,
    slugs: impl Iterator<Item = String>,
    statements: impl Fn(&str) -> Vec<Statement>,
) -> Result<String, Problem> {
    for slug in slugs {
        match database.all(statements(&slug)).await {
            Ok(()) => return Ok(slug),
            Err(Fault::Taken(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    Err(Fault::Taken("title".to_owned()).into())
}

/// `POST /api/articles`
///
/// # Errors
/// 422 if a member is missing.
pub async fn create(
    Auth(user): Auth,
    Local(database): Local<Database>,
    body: Result<Json<Asked<Input>>, Problem>,
) -> Result<(Status, Json<impl Serialize>), Problem> {
    let Input { title, description, body, tag_list } = errors::body(body)?.article;
    let title = errors::short(errors::required(title, "title")?, "title")?;
    let description = errors::text(errors::required(description, "description")?, "description")?;
    let body = errors::text(errors::required(body, "body")?, "body")?;
    let tags = checked_tags(tag_list.unwrap_or_default())?;
    let now = now_ms();
    let insert =
        "INSERT INTO articles (slug, title, description, body, tags, created_ms, updated_ms, author_id)
        SELECT $1, $2, $3, $4, $5, $6, $6, id FROM users WHERE id = $7";
    let statements = |slug: &str| {
        let row = vec![
            slug.into(),
            title.as_str().into(),
            description.as_str().into(),
            body.as_str().into(),
            json(&tags).into(),
            now.into(),
            user.into(),
        ];
        [vec![(insert, row)], set_tags(user, slug, &tags)].concat()
    };
    let slug = store(&database, slug::all(&title), statements).await?;
    match find(&database, user, &slug).await {
        Ok(found) if found.author == user => Ok((Status::CREATED, wrapped("article", found.article))),
        Err(problem) if problem.status() != Status::NOT_FOUND => Err(problem),
        // A token outlives its user, for whom nothing was stored.
        _ => Err(errors::of(Status::UNAUTHORIZED, "token", "is invalid")),
    }
}

/// `PUT /api/articles/{slug}`
///
/// # Errors
/// 404 if there is no such article, 403 if it belongs to another user, 422 if a member is empty or `null`.
pub async fn update(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(old_slug): Path<String>,
    body: Result<Json<Asked<Change>>, Problem>,
) -> Result<Json<impl Serialize>, Problem> {
    let old = own(&database, user, &old_slug).await?;
    let change = errors::body(body)?.article;
    let text = |value: Option<Option<String>>, name| {
        value.map(|value| errors::text(errors::required(value, name)?, name)).transpose()
    };
    let title = text(change.title, "title")?.map(|title| errors::short(title, "title")).transpose()?;
    let (description, body) = (text(change.description, "description")?, text(change.body, "body")?);
    let tags = match change.tag_list {
        Some(tags) => Some(checked_tags(tags.ok_or_else(|| errors::blank("tagList"))?)?),
        None => None,
    };
    // Always later than before, so that a client sees that there is something new.
    let sql = "UPDATE articles SET slug = $1, title = coalesce($2, title), description = coalesce($3, description),
        body = coalesce($4, body), tags = coalesce($5, tags),
        updated_ms = CASE WHEN updated_ms < $6 THEN $6 ELSE updated_ms + 1 END WHERE id = $7 AND author_id = $8";
    let statements = |slug: &str| {
        let row = vec![
            slug.into(),
            title.as_deref().into(),
            description.as_deref().into(),
            body.as_deref().into(),
            tags.as_deref().map(json).into(),
            now_ms().into(),
            old.id.into(),
            user.into(),
        ];
        let tags = tags.iter().flat_map(|tags| set_tags(user, slug, tags));
        std::iter::once((sql, row)).chain(tags).collect()
    };
    let slug = match &title {
        // Keep the slug if the new title yields the same one.
        Some(title) if !slug::is_same(title, &old.article.title) => {
            store(&database, slug::all(title), statements).await?
        }
        _ => store(&database, std::iter::once(old_slug), statements).await?,
    };
    Ok(wrapped("article", find(&database, user, &slug).await?.article))
}

/// The user's own article.
async fn own(database: &Database, user: i64, slug: &str) -> Result<Found, Problem> {
    let found = find(database, user, slug).await?;
    if found.author == user { Ok(found) } else { Err(errors::forbidden("article")) }
}

/// `DELETE /api/articles/{slug}`
///
/// # Errors
/// 404 if there is no such article, 403 if it belongs to another user.
pub async fn remove(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<(), Problem> {
    let Found { id, .. } = own(&database, user, &slug).await?;
    let sql = "DELETE FROM articles WHERE id = $1 AND author_id = $2";
    database.rows(sql, vec![id.into(), user.into()]).await?;
    Ok(())
}
