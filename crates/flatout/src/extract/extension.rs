//! Values that middleware has stored for one request.

use std::ops::Deref;

use flatout_engine::say;
use flatout_wire::Status;

use super::Extract;
use crate::{Context, Problem};

/// A value that middleware has put into [`Context::extensions_mut`] for this request, such as the user.
///
/// # Errors
/// 500 if there is no value of this type; use `Option` for optional values.
///
/// ```
/// use flatout::{App, Extension, Problem, Status, test::Client};
///
/// #[derive(Clone)]
/// struct User(String);
///
/// let app = App::new()
///     .before(|context| {
///         let name = context.header("authorization").ok_or(Problem::new(Status::UNAUTHORIZED))?;
///         let user = User(String::from_utf8_lossy(name).into_owned());
///         context.extensions_mut().insert(user);
///         Ok::<(), Problem>(())
///     })
///     .get("/me", |Extension(User(name)): Extension<User>| name);
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/me").header("Authorization", "ada").send().text(), "ada");
/// assert_eq!(client.get("/me").send().status(), Status::UNAUTHORIZED);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extension<T>(pub T);

impl<T> Deref for Extension<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone + Send + Sync + 'static> Extract for Extension<T> {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        context.extensions().get::<T>().cloned().map(Extension).ok_or_else(|| {
            let name = std::any::type_name::<T>();
            say(format_args!("a handler needs the extension `{name}`, which no middleware has set"));
            Problem::new(Status::INTERNAL_SERVER_ERROR)
        })
    }
}
