//! The request as extractors and middleware see it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{Request, RequestBody};
use flatout_wire::target::PathForm;
use flatout_wire::{Head, Method, Status};
use http::Extensions;
use matchit::Params;

use crate::Problem;
use crate::scope::{NestedScope, WorkerLocal};

/// A request while its handler is looked up and its arguments are made.
///
/// ```
/// use flatout::{App, Context, Extract, Problem, test::Client};
///
/// struct Summary(String);
///
/// impl Extract for Summary {
///     fn extract(context: &mut Context<'_>) -> Result<Summary, Problem> {
///         let (method, path, query) = (context.method().name(), context.path(), context.query());
///         let agent = context.header("user-agent").map(String::from_utf8_lossy).unwrap_or_default();
///         let id = context.param("id").unwrap_or("none");
///         Ok(Summary(format!("{method} {path} {query:?}: {id}, {agent}")))
///     }
/// }
///
/// let client = Client::new(App::new().get("/items/{id}", |Summary(text): Summary| text))?;
/// let answer = client.get("/items/7?full=1").header("User-Agent", "curl").send();
/// assert_eq!(answer.text(), r#"GET /items/7 Some("full=1"): 7, curl"#);
/// # Ok::<(), flatout::Error>(())
/// ```
///
/// Stored values are looked up by type:
///
/// ```
/// use std::cell::Cell;
/// use flatout::{App, Extension, Status, test::Client};
///
/// struct Limit(u32);
///
/// let app = App::new()
///     .state(Limit(2))
///     .local(|| Cell::new(0_u32))
///     .before(|context| {
///         let (Some(limit), Some(count)) = (context.state::<Limit>(), context.local::<Cell<u32>>()) else {
///             return Err(Status::INTERNAL_SERVER_ERROR);
///         };
///         count.set(count.get() + 1);
///         let accepts = context.head().field_all("accept").count();
///         println!("{:?} accepts {accepts} types", context.peer());
///         context.extensions_mut().insert(count.get());
///         if count.get() > limit.0 { Err(Status::TOO_MANY_REQUESTS) } else { Ok(()) }
///     })
///     .before(|context| {
///         println!("request {:?}", context.extensions().get::<u32>());
///         Ok::<(), Status>(())
///     })
///     .get("/", |Extension(count): Extension<u32>| count.to_string());
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/").send().text(), "1");
/// assert_eq!(client.get("/").send().text(), "2");
/// assert_eq!(client.get("/").send().status(), Status::TOO_MANY_REQUESTS);
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Context<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) body_is_taken: bool,
    pub(crate) path: &'a str,
    pub(crate) path_form: PathForm,
    pub(crate) params: Params<'a, 'a>,
    pub(crate) extensions: Extensions,
    /// Of the handler, or the middleware that runs.
    pub(crate) place: &'a NestedScope,
    pub(crate) local: &'a WorkerLocal,
}

impl<'a> Context<'a> {
    /// The method; HEAD stays HEAD, although it is served by the handler of GET.
    pub fn method(&self) -> Method {
        self.request.head.method
    }

    /// The decoded, normalized path; [`App::escaped_slashes`](crate::App::escaped_slashes) selects one of two forms.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// The part after the `?`, as it was sent.
    pub fn query(&self) -> Option<&'a str> {
        // The parser accepts only visible ASCII.
        self.request.head.query().and_then(|query| std::str::from_utf8(query).ok())
    }

    /// The value of the first field with this name. For `Host`, the authority of an absolute target takes precedence.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        let sent = self.request.head.field(name);
        if name.eq_ignore_ascii_case("host") { sent.map(|_| self.request.head.authority()) } else { sent }
    }

    /// The whole head.
    pub fn head(&self) -> &Head<'a> {
        &self.request.head
    }

    /// The value of a `{name}` in the route.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.get(name)
    }

    /// The client's address; `None` on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.request.peer
    }

    /// The value given to [`App::state`](crate::App::state), by its type.
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.place.state()
    }

    /// The value that this worker made with [`App::local`](crate::App::local), by its type.
    pub fn local<T: 'static>(&self) -> Option<Rc<T>> {
        self.local.value(self.place)
    }

    /// Values that middleware has stored for this request; see [`Extension`](crate::Extension).
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Values for handlers and mounted services of this request, by type. Costs nothing while it is empty.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Takes the body; only one extractor can do this.
    pub(crate) fn take_body(&mut self) -> Result<RequestBody<'a>, Problem> {
        if std::mem::replace(&mut self.body_is_taken, true) {
            let detail = "a handler reads its request body twice";
            return Err(Problem::new(Status::INTERNAL_SERVER_ERROR).detail(detail));
        }
        Ok(std::mem::replace(&mut self.request.body, RequestBody::NONE))
    }
}
