//! Registration, login, and the user itself.

use flatout::{Json, Local, Problem, State, Status};
use serde::{Deserialize, Serialize};

use crate::auth::CurrentUser;
use crate::db::{Database, Row};
use crate::password::{self, PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN};
use crate::token::Key;
use crate::{errors, present, wrapped};

/// `{"user": …}`
#[derive(Deserialize)]
pub struct Asked<T> {
    user: T,
}

/// A user as sent by a client. It has no `Debug`, because a password must not be printed.
#[derive(Deserialize)]
pub struct Input {
    email: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// The changes. An absent member is not changed; `null` clears an optional one.
#[derive(Deserialize)]
pub struct Change {
    #[serde(default, deserialize_with = "present")]
    email: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    username: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    password: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    bio: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    image: Option<Option<String>>,
}

/// The user as it sees itself.
#[derive(Serialize)]
pub struct User {
    email: String,
    token: String,
    username: String,
    bio: Option<String>,
    image: Option<String>,
}

fn user(key: &Key, id: i64, row: &Row) -> User {
    User {
        email: row.text(0),
        token: key.sign(id),
        username: row.text(1),
        bio: row.maybe(2),
        image: row.maybe(3),
    }
}

fn checked_password(password: Option<String>) -> Result<String, Problem> {
    let password = errors::required(password, "password")?;
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(errors::of(Status::UNPROCESSABLE_CONTENT, "password", "is too long"));
    }
    Ok(password)
}

/// A password that is to be stored. Those of a login may be older than this rule.
fn new_password(password: Option<String>) -> Result<String, Problem> {
    let password = checked_password(password)?;
    if password.chars().count() < PASSWORD_CHARS_MIN {
        let message = format!("is too short (minimum is {PASSWORD_CHARS_MIN} characters)");
        return Err(errors::of(Status::UNPROCESSABLE_CONTENT, "password", &message));
    }
    Ok(password)
}

/// `POST /api/users`
///
/// # Errors
/// 422 if a member is missing, 409 if a name is taken.
pub async fn register(
    State(key): State<Key>,
    Local(database): Local<Database>,
    body: Result<Json<Asked<Input>>, Problem>,
) -> Result<(Status, Json<impl Serialize>), Problem> {
    let Input { email, username, password } = errors::body(body)?.user;
    let username = errors::short(errors::required(username, "username")?, "username")?;
    let email = errors::short(errors::required(email, "email")?, "email")?;
    let password = new_password(password)?;
    let stored = password::hash(password).await?;
    let sql = "INSERT INTO users (email, username, password) VALUES ($1, $2, $3) RETURNING email, username, bio, image, id";
    let row = database.row(sql, vec![email.into(), username.into(), stored.into()]).await?;
    let row = row.ok_or(Problem::new(Status::INTERNAL_SERVER_ERROR))?;
    Ok((Status::CREATED, wrapped("user", user(&key, row.int(4), &row))))
}

/// `POST /api/users/login`
///
/// # Errors
/// 422 if a member is missing, 401 for wrong credentials.
pub async fn login(
    State(key): State<Key>,
    Local(database): Local<Database>,
    body: Result<Json<Asked<Input>>, Problem>,
) -> Result<Json<impl Serialize>, Problem> {
    let Input { email, password, .. } = errors::body(body)?.user;
    let email = errors::text(errors::required(email, "email")?, "email")?;
    let password = checked_password(password)?;
    let sql = "SELECT email, username, bio, image, id, password FROM users WHERE email = $1";
    let row = database.row(sql, vec![email.into()]).await?;
    let is_right = password::is_right(password, row.as_ref().map(|row| row.text(5))).await?;
    let row = row.filter(|_| is_right);
    let row = row.ok_or_else(|| errors::of(Status::UNAUTHORIZED, "credentials", "invalid"))?;
    Ok(wrapped("user", user(&key, row.int(4), &row)))
}

/// `GET /api/user`
pub async fn current(State(key): State<Key>, current: CurrentUser) -> Json<impl Serialize> {
    wrapped("user", user(&key, current.id, &current.row))
}

/// `PUT /api/user`
///
/// # Errors
/// 422 if a required member is empty, 409 if a name is taken.
pub async fn update(
    State(key): State<Key>,
    current: CurrentUser,
    Local(database): Local<Database>,
    body: Result<Json<Asked<Change>>, Problem>,
) -> Result<Json<impl Serialize>, Problem> {
    let change = errors::body(body)?.user;
    let line = |value: Option<Option<String>>, name| -> Result<Option<String>, Problem> {
        let Some(value) = value else { return Ok(None) };
        Ok(Some(errors::short(errors::required(value, name)?, name)?))
    };
    let email = line(change.email, "email")?;
    let username = line(change.username, "username")?;
    let password = match change.password {
        Some(password) => Some(password::hash(new_password(password)?).await?),
        None => None,
    };
    let maybe = |value: Option<Option<String>>, now: Option<String>, name| match value {
        Some(new) => new.filter(|new| !new.is_empty()).map(|new| errors::text(new, name)).transpose(),
        None => Ok(now),
    };
    let bio = maybe(change.bio, current.row.maybe(2), "bio")?;
    let image = maybe(change.image, current.row.maybe(3), "image")?;
    let sql = "UPDATE users SET email = coalesce($1, email), username = coalesce($2, username),
        password = coalesce($3, password), bio = $4, image = $5 WHERE id = $6 RETURNING email, username, bio, image";
    let parameters =
        vec![email.into(), username.into(), password.into(), bio.into(), image.into(), current.id.into()];
    let row = database.row(sql, parameters).await?;
    let row = row.ok_or_else(|| errors::of(Status::UNAUTHORIZED, "token", "is invalid"))?;
    Ok(wrapped("user", user(&key, current.id, &row)))
}
