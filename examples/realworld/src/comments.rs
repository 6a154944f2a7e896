//! Comments.

use flatout::{Json, Local, Path, Problem, Status};
use serde::{Deserialize, Serialize};

use crate::articles::find;
use crate::auth::{Auth, Viewer};
use crate::clock::{now_ms, timestamp};
use crate::db::{Database, Row};
use crate::profiles::Profile;
use crate::{errors, wrapped};

/// Comments of one response.
const LIMIT_MAX: i64 = 500;

/// `{"comment": …}`
#[derive(Deserialize)]
pub struct Asked {
    comment: Input,
}

/// A comment as sent by a client.
#[derive(Deserialize)]
pub struct Input {
    body: Option<String>,
}

/// A comment as clients read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comment {
    id: i64,
    created_at: String,
    updated_at: String,
    body: String,
    author: Profile,
}

/// The query for comments; `$1` is the viewer.
macro_rules! select {
    ($where:literal) => {
        concat!(
            "SELECT c.id, c.created_ms, c.updated_ms, c.body, u.username, u.bio, u.image,
                EXISTS (SELECT 1 FROM follows w WHERE w.follower_id = $1 AND w.followed_id = u.id), c.author_id
            FROM comments c JOIN users u ON u.id = c.author_id ",
            $where
        )
    };
}

impl Comment {
    fn of(row: &Row) -> Comment {
        Comment {
            id: row.int(0),
            created_at: timestamp(row.int(1)),
            updated_at: timestamp(row.int(2)),
            body: row.text(3),
            author: Profile::of(row, 4),
        }
    }
}

/// `GET /api/articles/{slug}/comments`
///
/// # Errors
/// 404 for no article.
pub async fn list(
    Viewer(viewer): Viewer,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    let article = find(&database, viewer, &slug).await?.id;
    let sql = select!("WHERE c.article_id = $2 ORDER BY c.id DESC LIMIT $3");
    let rows = database.rows(sql, vec![viewer.into(), article.into(), LIMIT_MAX.into()]).await?;
    Ok(wrapped("comments", rows.iter().map(Comment::of).collect::<Vec<_>>()))
}

/// `POST /api/articles/{slug}/comments`
///
/// # Errors
/// 404 for no article, 422 for no text.
pub async fn create(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(slug): Path<String>,
    body: Result<Json<Asked>, Problem>,
) -> Result<(Status, Json<impl Serialize>), Problem> {
    let article = find(&database, user, &slug).await?.id;
    let body = errors::required(errors::body(body)?.comment.body, "body")?;
    let body = errors::text(body, "body")?;
    let insert = "INSERT INTO comments (body, created_ms, updated_ms, article_id, author_id)
        SELECT $1, $2, $2, a.id, u.id FROM articles a JOIN users u ON u.id = $4 WHERE a.id = $3 RETURNING id";
    let parameters = vec![body.into(), now_ms().into(), article.into(), user.into()];
    let made = database.row(insert, parameters).await?;
    let made = made.ok_or_else(|| errors::of(Status::UNAUTHORIZED, "token", "is invalid"))?;
    let row = database.row(select!("WHERE c.id = $2"), vec![user.into(), made.int(0).into()]).await?;
    let row = row.ok_or_else(|| errors::not_found("comment"))?;
    Ok((Status::CREATED, wrapped("comment", Comment::of(&row))))
}

/// `DELETE /api/articles/{slug}/comments/{id}`
///
/// # Errors
/// 404 if there is no such comment, 403 if it belongs to another user.
pub async fn remove(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path((slug, id)): Path<(String, String)>,
) -> Result<(), Problem> {
    let article = find(&database, user, &slug).await?.id;
    let id: i64 = id.parse().map_err(|_| errors::not_found("comment"))?;
    let sql = select!("WHERE c.article_id = $2 AND c.id = $3");
    let row = database.row(sql, vec![user.into(), article.into(), id.into()]).await?;
    let row = row.ok_or_else(|| errors::not_found("comment"))?;
    if row.int(8) != user {
        return Err(errors::forbidden("comment"));
    }
    let sql = "DELETE FROM comments WHERE id = $1 AND author_id = $2";
    database.rows(sql, vec![id.into(), user.into()]).await?;
    Ok(())
}
