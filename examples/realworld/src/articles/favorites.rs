//! Favourites.

use flatout::{Json, Local, Path, Problem};
use serde::Serialize;

use super::find;
use crate::auth::Auth;
use crate::db::Database;
use crate::wrapped;

/// `POST /api/articles/{slug}/favorite`
///
/// # Errors
/// 404 if there is no such article.
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
/// 404 if there is no such article.
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
    let id = find(database, user, slug).await?.id;
    database.rows(sql, vec![id.into(), user.into()]).await?;
    Ok(wrapped("article", find(database, user, slug).await?.article))
}
