//! The user who sent a request, as an argument of handlers.

use flatout::{Context, Extract, ExtractAsync, Problem, Status};

use crate::db::{Database, Row};
use crate::errors;
use crate::token::Key;

/// The number of the user whose token the request has. 401 without one.
pub struct Auth(pub i64);

/// The number of the user, or 0 where the request has no token. A token that is not good is 401 here too.
pub struct Viewer(pub i64);

/// The user as the database knows it now: an argument that waits for it.
pub struct CurrentUser {
    /// Its number.
    pub id: i64,
    /// `email`, `username`, `bio`, `image`.
    pub row: Row,
}

impl Extract for Auth {
    fn extract(context: &mut Context<'_>) -> Result<Auth, Problem> {
        let missing = || errors::of(Status::UNAUTHORIZED, "token", "is missing");
        find(context)?.map(Auth).ok_or_else(missing)
    }
}

impl Extract for Viewer {
    fn extract(context: &mut Context<'_>) -> Result<Viewer, Problem> {
        Ok(Viewer(find(context)?.unwrap_or(0)))
    }
}

impl ExtractAsync for CurrentUser {
    fn extract_async(
        context: &mut Context<'_>,
    ) -> impl Future<Output = Result<CurrentUser, Problem>> + use<> {
        let (auth, database) = (Auth::extract(context), context.local::<Database>());
        async move {
            let Auth(id) = auth?;
            let database = database.ok_or(Problem::new(Status::INTERNAL_SERVER_ERROR))?;
            let sql = "SELECT email, username, bio, image FROM users WHERE id = $1";
            let row = database.row(sql, vec![id.into()]).await?;
            // A token outlives its user.
            let row = row.ok_or_else(|| errors::of(Status::UNAUTHORIZED, "token", "is invalid"))?;
            Ok(CurrentUser { id, row })
        }
    }
}

/// `Authorization: Token …`, or `Bearer …`, which many clients send instead.
fn find(context: &Context<'_>) -> Result<Option<i64>, Problem> {
    let Some(value) = context.header("authorization") else { return Ok(None) };
    let invalid = || errors::of(Status::UNAUTHORIZED, "token", "is invalid");
    let value = std::str::from_utf8(value).map_err(|_| invalid())?;
    let (scheme, token) = value.split_once(' ').ok_or_else(invalid)?;
    if !scheme.eq_ignore_ascii_case("token") && !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid());
    }
    let key = context.state::<Key>().ok_or(Problem::new(Status::INTERNAL_SERVER_ERROR))?;
    key.verify(token.trim()).map(Some).ok_or_else(invalid)
}
