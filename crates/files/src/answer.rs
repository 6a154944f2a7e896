//! Responds to a request with a file, on a worker.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use bytes::Bytes;
use flatout_engine::{Body, FileRange, Part, Request, Response, write_error};
use flatout_wire::condition::{Decision, evaluate, range_applies};
use flatout_wire::range::{self, Ranges};
use flatout_wire::{Head, Method, Status};

use super::Listing;
use super::disk::{self, Reached};
use super::entry::{Content, Entry, Sidecar, Variant};
use super::fetch::{Lookup, Needed};
use super::indexer::FolderState;
use super::opened::{OpenFiles, Opened};
use super::remote::{RemoteBody, Threads};
use super::tree::{Node, Tree};

/// Contents up to this size are copied, because that costs less than incrementing a shared reference count.
const COPY_BYTES_MAX: usize = 4 << 10;

/// `Retry-After` for a file that cannot be read now.
const RETRY_AFTER_S: &str = "1";

const ALLOW: &str = "GET, HEAD, OPTIONS";

/// One worker's view of a folder.
pub(crate) struct Files {
    pub(crate) site: Arc<FolderState>,
    /// What other threads have found for a request, and what they are to look for next (`fetch.rs`).
    pub(crate) fetched: RefCell<Vec<Lookup>>,
    pub(crate) needed: RefCell<Option<Needed>>,
    tree: RefCell<Cache<SharedTree, Arc<Tree>>>,
    open: RefCell<OpenFiles>,
    /// The address of the tree whose files may be open.
    opened_of: Cell<usize>,
    boundary: String,
    /// The page of a file that does not exist is in the form that its client prefers; a site does that itself, after its rules.
    writes_pages: bool,
}

/// Lets the worker cache the pointer to the site's tree.
struct SharedTree(Arc<FolderState>);

impl std::ops::Deref for SharedTree {
    type Target = ArcSwap<Tree>;

    fn deref(&self) -> &ArcSwap<Tree> {
        &self.0.tree
    }
}

impl Files {
    pub(crate) fn new(site: Arc<FolderState>, writes_pages: bool) -> Files {
        Files {
            tree: RefCell::new(Cache::new(SharedTree(site.clone()))),
            open: RefCell::default(),
            opened_of: Cell::default(),
            fetched: RefCell::default(),
            needed: RefCell::default(),
            boundary: format!("flatout-{:016x}", RandomState::new().hash_one(0)),
            site,
            writes_pages,
        }
    }

    /// Writes the response to a request, unless [`Files::needed`] is set afterwards.
    pub(crate) fn respond(&self, request: &Request<'_>, response: &mut Response) {
        let (head, path) = (&request.head, request.path);
        match head.method {
            Method::Get | Method::Head => {}
            Method::Options => {
                response.set_status(Status::NO_CONTENT).header("Allow", ALLOW);
                return;
            }
            Method::Other => return self.refuse(Status::NOT_IMPLEMENTED, response),
            _ => {
                self.refuse(Status::METHOD_NOT_ALLOWED, response);
                response.header("Allow", ALLOW);
                return;
            }
        }
        let mut tree = self.tree.borrow_mut();
        let tree = tree.load();
        let address = Arc::as_ptr(tree).addr();
        if self.opened_of.replace(address) != address {
            // The disk has no room for others until files that were removed are closed.
            self.open.borrow_mut().close_gone();
        }
        match tree.get(path) {
            Some(Node::File(entry)) => self.file(head, entry, response),
            Some(Node::Folder) => redirect_to_folder(head, response),
            Some(Node::Listing(text)) => self.listing(text.clone(), response),
            None if !tree.is_complete() => self.not_seen_yet(head, path, response),
            None => self.missing(request, tree, response),
        }
    }

    /// Responds with a file, or with 304 if the client has it.
    fn file(&self, head: &Head<'_>, entry: &Arc<Entry>, response: &mut Response) {
        entry.use_in(self.site.epoch.load(Ordering::Relaxed));
        let contents = entry.contents();
        let accept = head.field("accept-encoding");
        let Some(variant) = contents.choose(accept) else { return self.refuse_codings(response) };
        if let Content::Memory(bytes) = &variant.content {
            if accept.is_some() && entry.is_to_precompress(&contents) {
                self.site.request_precompression(entry);
            }
            return self.variant(head, entry, variant, &VariantSource::Memory(bytes), response);
        }
        self.site.ask_to_load(entry);
        match entry.sidecar(variant.coding) {
            Some(sidecar) => self.compressed(head, entry, variant, sidecar, response),
            None => self.plain(head, entry, variant, response),
        }
    }

    /// The current state of an entry's file. `None`: other threads have to find it, and `needed` says so.
    fn reach(&self, entry: &Arc<Entry>) -> Option<Reached> {
        match &self.site.remote {
            None => Some(disk::reach(&self.site, &mut self.open.borrow_mut(), entry)),
            Some(_) => self.fetched_entry(entry),
        }
    }

    /// The same for a path, during the first scan of the folder.
    fn find(&self, path: &[u8]) -> Option<disk::Found> {
        match &self.site.remote {
            None => Some(disk::find(&self.site, path)),
            Some(_) => self.fetched_path(path),
        }
    }

    /// Responds with a file on disk.
    fn plain(&self, head: &Head<'_>, entry: &Arc<Entry>, variant: &Variant, response: &mut Response) {
        let Some(reached) = self.reach(entry) else { return };
        match reached {
            Reached::Same(opened) => {
                self.variant(head, entry, variant, &self.source_of(&opened, entry), response);
            }
            Reached::Newer(entry, opened) => self.send_as_it_is(head, &entry, &opened, response),
            Reached::NotNow => self.refuse_for_now(response),
            Reached::Nothing => self.answer_404(response),
        }
    }

    /// Responds with a compressed file on disk. If it has changed, the plain one is sent, if there is one.
    fn compressed(
        &self,
        head: &Head<'_>,
        entry: &Arc<Entry>,
        variant: &Variant,
        sidecar: &Arc<Entry>,
        response: &mut Response,
    ) {
        let Some(reached) = self.reach(sidecar) else { return };
        let contents = entry.contents();
        let plain = contents.variants.first().filter(|_| entry.has_plain);
        match (reached, plain) {
            (Reached::Same(opened), _) => {
                self.variant(head, entry, variant, &self.source_of(&opened, sidecar), response);
            }
            (_, Some(plain)) => match &plain.content {
                Content::Memory(bytes) => {
                    self.variant(head, entry, plain, &VariantSource::Memory(bytes), response);
                }
                Content::Disk(_) => self.plain(head, entry, plain, response),
            },
            (Reached::Newer(file, opened), None) => {
                let sidecars = vec![Sidecar { coding: variant.coding, file }];
                let cache_control = self.site.plan.cache_control.as_deref();
                match Entry::compressed_only(entry.path.clone(), sidecars, cache_control) {
                    Some(newer) => self.send_as_it_is(head, &newer, &opened, response),
                    None => self.answer_404(response),
                }
            }
            (Reached::NotNow, None) => self.refuse_for_now(response),
            (Reached::Nothing, None) => self.answer_404(response),
        }
    }

    /// Responds with an open file that is not an entry of the tree, and has one form.
    fn send_as_it_is(&self, head: &Head<'_>, entry: &Entry, opened: &Opened, response: &mut Response) {
        match entry.contents().choose(head.field("accept-encoding")) {
            Some(variant) => self.variant(head, entry, variant, &self.source_of(opened, entry), response),
            None => self.refuse_codings(response),
        }
    }

    fn listing(&self, text: Bytes, response: &mut Response) {
        response.encoded_fields(match self.site.plan.listing {
            Listing::Json => b"Content-Type: application/json\r\nCache-Control: no-cache\r\n",
            Listing::Xml => b"Content-Type: text/xml; charset=utf-8\r\nCache-Control: no-cache\r\n",
            Listing::Html | Listing::Off => {
                b"Content-Type: text/html; charset=utf-8\r\nCache-Control: no-cache\r\n"
            }
        });
        response.set_body(Body::Shared(text));
    }

    /// Responds during the first scan of the folder: a path that is not in the tree may still exist.
    fn not_seen_yet(&self, head: &Head<'_>, path: &[u8], response: &mut Response) {
        let Some(found) = self.find(path) else { return };
        match found {
            disk::Found::File(entry, opened) => return self.send_as_it_is(head, &entry, &opened, response),
            disk::Found::Folder => return redirect_to_folder(head, response),
            disk::Found::Listing(text) => return self.listing(text, response),
            disk::Found::NotNow => return self.refuse_for_now(response),
            disk::Found::Nothing => {}
        }
        if self.site.plan.spa && !has_extension(path) {
            let Some(found) = self.find(b"/") else { return };
            if let disk::Found::File(entry, opened) = found {
                return self.send_as_it_is(head, &entry, &opened, response);
            }
        }
        self.answer_404(response);
    }

    fn source_of<'f>(&'f self, opened: &'f Opened, entry: &'f Entry) -> VariantSource<'f> {
        match &self.site.remote {
            None => VariantSource::File(opened, entry),
            Some(threads) => VariantSource::Remote(opened, entry, threads),
        }
    }

    fn variant(
        &self,
        head: &Head<'_>,
        entry: &Entry,
        variant: &Variant,
        source: &VariantSource<'_>,
        response: &mut Response,
    ) {
        match evaluate(head, &variant.etag, variant.modified) {
            Decision::Proceed => {}
            Decision::NotModified => {
                response.set_status(Status::NOT_MODIFIED).encoded_fields(&variant.fields_unmodified);
                return;
            }
            Decision::Failed => {
                self.refuse(Status::PRECONDITION_FAILED, response);
                return;
            }
        }
        let length = variant.content.bytes();
        let ranges = match head.field("range") {
            Some(value)
                if head.method == Method::Get && range_applies(head, &variant.etag, variant.modified) =>
            {
                range::parse(value, length, self.site.plan.ranges_max)
            }
            _ => Ranges::Whole,
        };
        match ranges {
            Ranges::Whole => {
                response.encoded_fields(&variant.fields);
                source.write(0..length, response);
            }
            Ranges::Unsatisfiable => {
                self.refuse(Status::RANGE_NOT_SATISFIABLE, response);
                response.header("Content-Range", format!("bytes */{length}"));
            }
            Ranges::Some(ranges) => match ranges.as_slice() {
                [range] => {
                    response.set_status(Status::PARTIAL_CONTENT).encoded_fields(&variant.fields);
                    response.header("Content-Range", content_range(range, length));
                    source.write(range.clone(), response);
                }
                // One after the other; the client may ask for each (RFC 9110 section 14.2).
                _ if matches!(source, VariantSource::Remote(..)) => {
                    response.encoded_fields(&variant.fields);
                    source.write(0..length, response);
                }
                ranges => self.multipart(entry, variant, source, ranges, response),
            },
        }
    }

    /// Several ranges as `multipart/byteranges` (RFC 9110 section 14.6).
    fn multipart(
        &self,
        entry: &Entry,
        variant: &Variant,
        source: &VariantSource<'_>,
        ranges: &[Range<u64>],
        response: &mut Response,
    ) {
        let length = variant.content.bytes();
        let boundary = &self.boundary;
        let mut parts = Vec::with_capacity(ranges.len() * 2 + 1);
        for range in ranges {
            let content_range = content_range(range, length);
            let content_type = &entry.content_type;
            let head = format!(
                "\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {content_range}\r\n\r\n"
            );
            parts.push(Part::Bytes(head.into()));
            parts.push(source.part(range.clone()));
        }
        parts.push(Part::Bytes(format!("\r\n--{boundary}--\r\n").into()));
        response.set_status(Status::PARTIAL_CONTENT).encoded_fields(&variant.fields);
        response.remove_header("content-type");
        response.header("Content-Type", format!("multipart/byteranges; boundary={boundary}"));
        response.set_body(Body::Parts(parts));
    }

    /// Responds for a path that does not exist.
    fn missing(&self, request: &Request<'_>, tree: &Tree, response: &mut Response) {
        let (head, path) = (&request.head, request.path);
        if self.site.plan.spa
            && !has_extension(path)
            && let Some(Node::File(index)) = tree.get(b"/")
        {
            return self.file(head, index, response);
        }
        // The site's own page, if it is in memory.
        if let Some(Node::File(page)) = tree.get(b"/404.html")
            && let Some(bytes) = page.contents().plain()
        {
            response.set_status(Status::NOT_FOUND).header("Content-Type", &page.content_type);
            response.set_body(Body::Shared(bytes.clone()));
            return;
        }
        match self.writes_pages {
            true => write_error(request, Status::NOT_FOUND, response),
            false => self.answer_404(response),
        }
    }

    /// Responds for a file that exists but cannot be read completely now.
    pub(crate) fn refuse_for_now(&self, response: &mut Response) {
        self.refuse(Status::SERVICE_UNAVAILABLE, response);
        response.header("Retry-After", RETRY_AFTER_S);
    }

    /// Responds for a file of which only compressed forms exist that the client does not accept.
    fn refuse_codings(&self, response: &mut Response) {
        self.refuse(Status::NOT_ACCEPTABLE, response);
        response.header("Vary", "Accept-Encoding");
    }

    fn answer_404(&self, response: &mut Response) {
        self.refuse(Status::NOT_FOUND, response);
    }

    fn refuse(&self, status: Status, response: &mut Response) {
        response.set_status(status).encoded_fields(b"Content-Type: text/plain; charset=utf-8\r\n");
        let body = response.buffer();
        body.extend_from_slice(status.reason().as_bytes());
        body.push(b'\n');
    }
}

/// The source of a variant's bytes.
enum VariantSource<'a> {
    Memory(&'a Bytes),
    /// An open file that is this version.
    File(&'a Opened, &'a Entry),
    /// The same on a volume that may hang.
    Remote(&'a Opened, &'a Entry, &'a Arc<Threads>),
}

impl VariantSource<'_> {
    #[inline]
    fn write(&self, range: Range<u64>, response: &mut Response) {
        match self {
            VariantSource::Memory(bytes) => {
                let range = range.start as usize..range.end as usize;
                if range.len() <= COPY_BYTES_MAX {
                    response.buffer().extend_from_slice(bytes.get(range).unwrap_or_default());
                } else {
                    response.set_body(Body::Shared(bytes.slice(range)));
                }
            }
            VariantSource::File(opened, entry) => {
                response.set_body(Body::File(file_range(opened, entry, range)));
            }
            VariantSource::Remote(opened, entry, threads) => {
                let body = RemoteBody::new(Arc::clone(threads), file_range(opened, entry, range));
                response.set_body(Body::Stream(Box::pin(body)));
            }
        }
    }

    fn part(&self, range: Range<u64>) -> Part {
        match self {
            VariantSource::Memory(bytes) => {
                Part::Bytes(bytes.slice(range.start as usize..range.end as usize))
            }
            VariantSource::File(opened, entry) | VariantSource::Remote(opened, entry, _) => {
                Part::File(file_range(opened, entry, range))
            }
        }
    }
}

fn file_range(opened: &Opened, entry: &Entry, range: Range<u64>) -> FileRange {
    FileRange {
        file: Arc::clone(&opened.file),
        offset: range.start,
        bytes: range.end - range.start,
        modified: entry.stamp.modified,
        witness: opened.witness.clone(),
    }
}

/// Redirects a request without the slash at the end of its path to the folder. If slashes were merged for the lookup, the path as
/// sent may start with two slashes, which would name another host.
pub fn redirect_to_folder(head: &Head<'_>, response: &mut Response) {
    let path = head.path();
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let mut location = path.get(slashes.saturating_sub(1)..).unwrap_or_default().to_vec();
    location.push(b'/');
    if let Some(query) = head.query() {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    response.set_status(Status::MOVED_PERMANENTLY).header("Location", location);
}

fn content_range(range: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", range.start, range.end - 1)
}

/// Whether the last segment has a dot: then the path names a file, not a page of the application.
fn has_extension(path: &[u8]) -> bool {
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|last| last.contains(&b'.'))
}
