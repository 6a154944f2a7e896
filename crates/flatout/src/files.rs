//! Static files beside handlers, with the module of `flatout serve`.

use std::path::PathBuf;
use std::sync::OnceLock;

use flatout_engine::{Reply, Request, RequestBody, Response, Service};
use flatout_files::{Listing, Plan, Site};
use flatout_wire::Status;

use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::mount::below;
use crate::ready::SpareId;
use crate::{Context, Error, Problem, Respond, Result};

/// A folder for [`App::files`](crate::App::files): small files are kept in memory, text is compressed in advance, changes
/// are detected. Strings and paths convert to it.
///
/// ```no_run
/// use flatout::{App, Files};
///
/// App::new()
///     .get("/api/time", || "now")
///     .files("/", Files::folder("./public").spa().cache_control("max-age=60"));
/// ```
///
/// Downloads, with a list of them:
///
/// ```no_run
/// use flatout::{App, Files};
///
/// let downloads = Files::folder("/srv/downloads").listing().plan(|plan| plan.compress = false);
/// App::new().files("/downloads", downloads);
/// ```
#[derive(Debug, Clone)]
pub struct Files(Plan);

impl Files {
    /// A folder.
    pub fn folder(root: impl Into<PathBuf>) -> Files {
        Files(Plan { root: root.into(), ..Plan::default() })
    }

    /// Responds with the index file to paths without a file and without an extension, for applications that do their
    /// routing in the browser.
    pub fn spa(self) -> Files {
        self.plan(|plan| plan.spa = true)
    }

    /// Lists folders that have no index file.
    pub fn listing(self) -> Files {
        self.plan(|plan| plan.listing = Listing::Html)
    }

    /// The value of `Cache-Control`.
    pub fn cache_control(self, value: impl Into<String>) -> Files {
        let value = Some(value.into());
        self.plan(|plan| plan.cache_control = value)
    }

    /// Changes any setting of the plan.
    pub fn plan(mut self, change: impl FnOnce(&mut Plan)) -> Files {
        change(&mut self.0);
        self
    }
}

impl<P: Into<PathBuf>> From<P> for Files {
    fn from(root: P) -> Files {
        Files::folder(root)
    }
}

/// A folder below a prefix.
pub(crate) struct FilesEndpoint {
    /// Segments of the prefix, once the nesting is known.
    segments: OnceLock<usize>,
    plan: Plan,
    site: OnceLock<Site>,
    /// Of each worker's service.
    id: SpareId,
}

impl FilesEndpoint {
    pub(crate) fn new(Files(plan): Files) -> FilesEndpoint {
        FilesEndpoint { segments: OnceLock::new(), plan, site: OnceLock::new(), id: SpareId::new() }
    }

    /// Opens the folder with the current rights of the process.
    ///
    /// # Errors
    /// It is not a readable folder.
    pub(crate) fn open(&self) -> Result<()> {
        let root = self.plan.root.display();
        let site = Site::open(self.plan.clone())
            .map_err(|error| Error::Start(format!("cannot serve files of `{root}`: {error}")))?;
        // Opening it again returns the first one.
        let _ = self.site.set(site);
        Ok(())
    }
}

impl Endpoint for FilesEndpoint {
    fn body_use(&self) -> BodyUse {
        BodyUse::None
    }

    fn placed(&self, prefix: &str) {
        let _ = self.segments.set(prefix.matches('/').count());
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let path = context.path();
        let Some(site) = self.site.get() else {
            Problem::new(Status::NOT_FOUND).respond(response);
            return Reply::Now;
        };
        let segments = self.segments.get().copied().unwrap_or_default();
        let inner = below(path, segments);
        if inner.is_empty() {
            let query = context.query().map(|query| format!("?{query}")).unwrap_or_default();
            let location = [context.head().path(), b"/", query.as_bytes()].concat();
            response.set_status(Status::MOVED_PERMANENTLY).header("Location", location);
            return Reply::Now;
        }
        let service: std::rc::Rc<Box<dyn Service>> = context.local.spares.keep(self.id, || site.service());
        let detached = Request::detached(*context.head(), path.as_bytes(), RequestBody::NONE);
        let mut request = std::mem::replace(&mut context.request, detached);
        request.path = inner.as_bytes();
        service.call(request, response)
    }
}
