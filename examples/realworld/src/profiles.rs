//! Users as others see them.

use flatout::{Json, Local, Path, Problem};
use serde::Serialize;

use crate::auth::{Auth, Viewer};
use crate::db::{Database, Row};
use crate::{errors, wrapped};

/// A user as others see it.
#[derive(Serialize)]
pub struct Profile {
    username: String,
    bio: Option<String>,
    image: Option<String>,
    following: bool,
}

impl Profile {
    /// Of four columns from `at` on: `username`, `bio`, `image`, and whether the viewer follows.
    pub fn of(row: &Row, at: usize) -> Profile {
        Profile {
            username: row.text(at),
            bio: row.maybe(at + 1),
            image: row.maybe(at + 2),
            following: row.flag(at + 3),
        }
    }
}

async fn find(database: &Database, viewer: i64, username: String) -> Result<(Profile, i64), Problem> {
    let sql = "SELECT u.username, u.bio, u.image,
        EXISTS (SELECT 1 FROM follows f WHERE f.follower_id = $1 AND f.followed_id = u.id), u.id
        FROM users u WHERE u.username = $2";
    let username = errors::text(username, "profile").map_err(|_| errors::not_found("profile"))?;
    let row = database.row(sql, vec![viewer.into(), username.into()]).await?;
    let row = row.ok_or_else(|| errors::not_found("profile"))?;
    Ok((Profile::of(&row, 0), row.int(4)))
}

/// `GET /api/profiles/{username}`
///
/// # Errors
/// 404 if there is no such user.
pub async fn show(
    Viewer(viewer): Viewer,
    Local(database): Local<Database>,
    Path(username): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    let (profile, _) = find(&database, viewer, username).await?;
    Ok(wrapped("profile", profile))
}

/// `POST /api/profiles/{username}/follow`
///
/// # Errors
/// 404 if there is no such user.
pub async fn follow(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(username): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    let (profile, id) = find(&database, user, username).await?;
    let sql = "INSERT INTO follows (follower_id, followed_id) SELECT $1, u.id FROM users u
        WHERE u.id = $2 AND EXISTS (SELECT 1 FROM users WHERE id = $1) ON CONFLICT DO NOTHING";
    database.rows(sql, vec![user.into(), id.into()]).await?;
    Ok(wrapped("profile", Profile { following: true, ..profile }))
}

/// `DELETE /api/profiles/{username}/follow`
///
/// # Errors
/// 404 if there is no such user.
pub async fn unfollow(
    Auth(user): Auth,
    Local(database): Local<Database>,
    Path(username): Path<String>,
) -> Result<Json<impl Serialize>, Problem> {
    let (profile, id) = find(&database, user, username).await?;
    let sql = "DELETE FROM follows WHERE follower_id = $1 AND followed_id = $2";
    database.rows(sql, vec![user.into(), id.into()]).await?;
    Ok(wrapped("profile", Profile { following: false, ..profile }))
}
