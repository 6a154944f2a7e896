//! The query string as an argument.

use std::ops::Deref;

use flatout_wire::Status;
use serde::de::DeserializeOwned;

use super::Extract;
use super::fault::fields;
use crate::{Context, Problem};

/// The query string, read into a struct by name; a name that occurs several times fills a `Vec`.
///
/// # Errors
/// 400 with the invalid parameter.
///
/// ```
/// use flatout::{App, Query, Status, test::Client};
///
/// #[derive(serde::Deserialize)]
/// struct Search {
///     text: String,
///     #[serde(default)]
///     tag: Vec<String>,
///     page: Option<u32>,
/// }
///
/// let app = App::new().get("/search", |Query(search): Query<Search>| {
///     format!("{} {:?} {}", search.text, search.tag, search.page.unwrap_or(1))
/// });
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/search?text=a+b&tag=x&tag=y").send().text(), r#"a b ["x", "y"] 1"#);
/// assert_eq!(client.get("/search?text=a&page=two").send().status(), Status::BAD_REQUEST);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Query<T>(pub T);

impl<T> Deref for Query<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned> Extract for Query<T> {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        fields(context.query().unwrap_or_default().as_bytes())
            .map(Query)
            .map_err(|message| Problem::new(Status::BAD_REQUEST).detail(format!("the query: {message}")))
    }
}
