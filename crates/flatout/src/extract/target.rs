//! The target of a request.

use flatout_wire::Status;

use super::Extract;
use crate::{Context, Problem};

/// The host name, and port if there is one, of the request: the authority of an absolute target, or the field `Host`.
/// Fields that proxies add are ignored.
///
/// # Errors
/// 400 if it is missing (HTTP/1.0) or not text.
///
/// ```
/// use flatout::{App, Host, test::Client};
///
/// let app = App::new().get("/", |Host(name): Host| name);
/// assert_eq!(Client::new(app)?.get("/").send().text(), "test");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host(pub String);

impl Extract for Host {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let refused = || Problem::new(Status::BAD_REQUEST).detail("the request has no host");
        let authority = context.head().authority();
        let name = std::str::from_utf8(authority).ok().filter(|name| !name.is_empty());
        name.map(|name| Host(name.to_owned())).ok_or_else(refused)
    }
}

/// The request target as it was sent: neither decoded nor normalized.
impl Extract for http::Uri {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        http::Uri::try_from(context.head().target())
            .map_err(|_| Problem::new(Status::BAD_REQUEST).detail("the request target is malformed"))
    }
}
