//! Requests for files of a volume that may hang (`remote.rs`): the worker notes what it needs from the volume, other threads get it,
//! and the request begins again with what they have found.

use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{BodyPlan, OwnedRequest, Prepared, Reply, Request, RequestBody, Response, Service, bug};
use flatout_wire::{Head, Status};
use tokio::time::timeout;

use super::answer::Files;
use super::disk::{self, Found, Reached};
use super::entry::Entry;
use super::indexer::FolderState;
use super::opened::OpenFiles;
use super::remote::Closing;

/// How often a request may need something else: a compressed file that is gone, then the plain one; a path, then the index file. More
/// only while files are being replaced.
const FETCHES_MAX: usize = 4;

/// What a worker needs to know of a volume.
#[derive(Clone)]
pub(crate) enum Needed {
    /// The state of an entry's file.
    Entry(Arc<Entry>),
    /// What is at a path.
    Path(Vec<u8>),
}

/// What was found.
pub(crate) enum Fetched {
    Entry(Arc<Entry>, Reached),
    Path(Vec<u8>, Found),
}

/// What was found for a request, until it has its response.
pub(crate) struct Lookup {
    fetched: Fetched,
    /// The last field, which is dropped last: it has the file closed by a thread of the folder.
    _closing: Closing,
}

impl Fetched {
    /// The file that was opened.
    fn file(&self) -> Option<Arc<File>> {
        match self {
            Fetched::Entry(_, Reached::Same(opened) | Reached::Newer(_, opened))
            | Fetched::Path(_, Found::File(_, opened)) => Some(opened.file.clone()),
            _ => None,
        }
    }
}

impl Needed {
    /// Asks the volume, which may take as long as it likes.
    fn fetch(self, site: &FolderState) -> Fetched {
        match self {
            Needed::Entry(entry) => {
                let reached = disk::reach(site, &mut OpenFiles::default(), &entry);
                Fetched::Entry(entry, reached)
            }
            Needed::Path(path) => {
                let found = disk::find(site, &path);
                Fetched::Path(path, found)
            }
        }
    }
}

impl Files {
    /// What was found for this entry, or notes that it is needed.
    pub(crate) fn fetched_entry(&self, entry: &Arc<Entry>) -> Option<Reached> {
        let found = self.fetched.borrow().iter().find_map(|lookup| match &lookup.fetched {
            Fetched::Entry(of, reached) if Arc::ptr_eq(of, entry) => Some(reached.clone()),
            _ => None,
        });
        if found.is_none() {
            self.needed.replace(Some(Needed::Entry(entry.clone())));
        }
        found
    }

    /// The same for a path.
    pub(crate) fn fetched_path(&self, path: &[u8]) -> Option<Found> {
        let found = self.fetched.borrow().iter().find_map(|lookup| match &lookup.fetched {
            Fetched::Path(of, found) if of == path => Some(found.clone()),
            _ => None,
        });
        if found.is_none() {
            self.needed.replace(Some(Needed::Path(path.to_vec())));
        }
        found
    }

    /// Gets what is needed, as often as that is so, and responds. 503 if the volume does not answer in time.
    async fn fetch(self: Rc<Self>, request: OwnedRequest, mut needed: Needed) -> Response {
        let OwnedRequest { head, path, origin, .. } = request;
        let mut fields = Vec::new();
        let mut response = Response::new();
        let Some(head) = flatout_wire::head::parse_kept(&head, &mut fields, None) else {
            bug!("the head of a request for a file cannot be parsed again");
            response.set_status(Status::INTERNAL_SERVER_ERROR);
            return response;
        };
        let mut request = Request::detached(head, &path, RequestBody::NONE);
        request.number = origin.number();
        // Each time the request begins again, so what was found before is needed again.
        let mut all = Vec::new();
        for _ in 0..FETCHES_MAX {
            let Some(lookup) = self.ask(needed).await else { break };
            all.push(lookup);
            self.fetched.replace(all);
            self.respond(&request, &mut response);
            all = self.fetched.take();
            match self.needed.take() {
                None => return response,
                Some(more) => needed = more,
            }
            response.reset();
        }
        self.refuse_for_now(&mut response);
        response
    }

    /// Fetches it. Its file is closed by a thread of the folder, also if the request has ended.
    async fn ask(&self, needed: Needed) -> Option<Lookup> {
        let threads = self.site.remote.as_ref()?;
        let (site, closer) = (self.site.clone(), threads.clone());
        let fetched = threads.run(move || {
            let fetched = needed.fetch(&site);
            let _closing = Closing::new(closer, fetched.file());
            Lookup { fetched, _closing }
        })?;
        timeout(self.site.plan.open_time_max, fetched).await.ok()?.ok()
    }
}

/// The service of a folder on one worker.
pub(crate) struct WorkerFiles(Rc<Files>);

impl WorkerFiles {
    pub(crate) fn new(site: Arc<FolderState>, writes_pages: bool) -> WorkerFiles {
        WorkerFiles(Rc::new(Files::new(site, writes_pages)))
    }
}

impl Service for WorkerFiles {
    /// Files need no request body: whatever the method, the response does not wait for it.
    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::None.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        self.0.respond(&request, response);
        if self.0.site.remote.is_none() {
            return Reply::Now;
        }
        match self.0.needed.take() {
            None => Reply::Now,
            Some(needed) => {
                response.reset();
                let request = OwnedRequest::without_body(&request);
                Reply::Later(Box::pin(self.0.clone().fetch(request, needed)))
            }
        }
    }
}
