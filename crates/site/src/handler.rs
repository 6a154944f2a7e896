//! The steps of a request that all guards have let through: a file, its body, an upstream, a redirect, a text.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use flatout_engine::{Lane, Reply, Request, RequestBody, Response, Service, adapt_error_page, bug};
use flatout_wire::head::parse_kept;
use flatout_wire::{Head, Method, Status};

use super::compiled::{Block, CompiledAction, CompiledCached, CompiledRoute};
use super::crawlers;
use super::late::{FieldValue, Making};
use super::page_request::PageRequest;
use super::render::{Paths, Text, View, escape_unsafe};
use super::replaced::ReadyParts;
use super::steps::{Next, Outcome, Refusal, RequestContext, Step};
use super::stub_status;
use super::suspend::Event;
use super::upstream_redirect::RedirectRequest;
use super::worker::{SiteWorker, write_status};
use flatout_files::redirect_to_folder;
use flatout_gateway::{Caching, Edits, Finish, Forward, Forwarded, Host, ResponseOrigin};
use flatout_push::{self as push, Who};

impl CompiledCached {
    /// How the response to this request is cached; its key is written to `key`.
    fn for_request<'c>(&'c self, view: &View<'_>, blocks: &[&Block], key: &'c mut Vec<u8>) -> Caching<'c> {
        let mut is_set = |texts: &[Text]| {
            texts.iter().any(|text| {
                key.clear();
                text.render(view, Paths::Decoded, key);
                !key.is_empty() && key != b"0"
            })
        };
        let is_bypassed = is_set(&self.bypass) || blocks.iter().any(|block| is_set(&block.bypass));
        let is_refreshed = is_set(&self.refresh);
        let is_unstored = is_set(&self.no_store) || blocks.iter().any(|block| is_set(&block.no_store));
        let key = self.key.as_ref().map(|text| {
            key.clear();
            text.render(view, Paths::Decoded, key);
            key.as_slice()
        });
        Caching {
            rules: &self.rules,
            key,
            space: &self.space,
            names_authorization: self.names_authorization,
            repeats: self.repeats,
            is_bypassed,
            is_refreshed,
            is_unstored,
        }
    }
}

/// Looks for a file of `try-files` before the handler.
pub(super) fn try_files(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    // Without a route, `handle` reports it.
    let Some(route) = context.route else { return Next::Continue(()) };
    let Some(folder) = route.try_files else { return Next::Continue(()) };
    let is_read = matches!(context.request.head.method, Method::Get | Method::Head);
    let is_tried = is_read || route.try_files_final && is_there(worker, folder, context);
    if !is_tried {
        return Next::Continue(());
    }
    let reply = match file(worker, folder, context) {
        // The redirect of a folder to its path with a slash, where it has nothing.
        FolderReply::File
            if route.tries_files_only && context.response.status() == Status::MOVED_PERMANENTLY =>
        {
            FolderReply::Nothing
        }
        reply => reply,
    };
    match reply {
        FolderReply::File => {
            complete_redirect(worker, route, context);
            Next::Break(Outcome::Respond)
        }
        FolderReply::Later(response) => {
            Next::Break(Outcome::Suspend(Event::Response(response), Step::TryFiles))
        }
        FolderReply::Nothing => {
            context.response.reset();
            if route.try_files_final && is_folder(worker, folder, context) {
                write_status(Status::FORBIDDEN, context.response);
                return Next::Break(Outcome::Respond);
            }
            Next::Continue(())
        }
    }
}

/// Whether the folder has a file, or a folder with a slash at its end, at the path of a request with another method than GET.
fn is_there(worker: &SiteWorker, folder: usize, context: &mut RequestContext<'_>) -> bool {
    let tries_files_only = context.route.is_some_and(|route| route.tries_files_only);
    match status_of(worker, folder, context, 0) {
        Status::NOT_FOUND => is_folder(worker, folder, context),
        Status::MOVED_PERMANENTLY => !tries_files_only,
        _ => true,
    }
}

/// Whether the path of the request is that of a folder in it, with a slash at its end. The one without a slash is redirected.
fn is_folder(worker: &SiteWorker, folder: usize, context: &mut RequestContext<'_>) -> bool {
    let is_tried = context.route.is_some_and(|route| !route.tries_files_only);
    let path = context.resolution.file_path();
    let path = path.as_ref().and_then(|path| below_files(context.route, path));
    is_tried
        && path.is_some_and(|path| path.ends_with(b"/"))
        && (path == Some(b"/") || status_of(worker, folder, context, 1) == Status::MOVED_PERMANENTLY)
}

/// How the folder responds at the path of the request without its last bytes.
fn status_of(worker: &SiteWorker, folder: usize, context: &mut RequestContext<'_>, bytes: usize) -> Status {
    let RequestContext { request, resolution, response, route, .. } = context;
    let path = resolution.file_path();
    let path = path.as_ref().and_then(|path| below_files(*route, path));
    let path = path.and_then(|path| path.get(..path.len().checked_sub(bytes)?));
    let Some((folder, path)) = worker.folders.get(folder).zip(path.filter(|path| path.starts_with(b"/")))
    else {
        return Status::NOT_FOUND;
    };
    let reply = whole(&**folder, request, "HEAD", path, response);
    // A file that is still to be read is there.
    let status = if matches!(reply, Reply::Later(_)) { Status::OK } else { response.status() };
    response.reset();
    status
}

/// The part of a path that names a file in the folder of a route.
#[inline]
fn below_files<'p>(route: Option<&CompiledRoute>, path: &'p [u8]) -> Option<&'p [u8]> {
    path.strip_prefix(route.map_or("", |route| route.files_at.as_str()).as_bytes())
}

/// Collects a body that the handler needs as a whole. Only such bodies are streamed to a site.
pub(super) fn body(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    if !matches!(context.request.body, RequestBody::Stream(_)) {
        return Next::Continue(());
    }
    let needs_body = |route: &CompiledRoute| {
        route.response.uses_body || matches!(route.action, CompiledAction::Proxy(_) | CompiledAction::Push(_))
    };
    match context.route {
        Some(route) if needs_body(route) => {
            // It is streamed up to the largest limit of the site's routes.
            let servers = worker.lane.as_ref().map(Lane::body_bytes_max);
            let bytes_max = context.guards.body_bytes_max.or(servers).unwrap_or(u64::MAX);
            Next::Break(Outcome::Suspend(Event::Body(worker.lane.clone(), bytes_max), Step::Handler))
        }
        _ => Next::Continue(()),
    }
}

/// Runs the action of the route.
pub(super) fn handle(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    let Some(route) = context.route else {
        bug!("a request without a route has passed the step `Route`");
        return Next::Break(Outcome::Refuse(Refusal::Status(Status::INTERNAL_SERVER_ERROR)));
    };
    match &route.action {
        CompiledAction::Proxy(forward) => proxy(worker, context, route, forward),
        CompiledAction::Push(plan) => channel(worker, context, plan),
        CompiledAction::Files(folder) => {
            match file(worker, *folder, context) {
                FolderReply::Later(response) => {
                    return Next::Break(Outcome::Suspend(Event::Response(response), Step::Handler));
                }
                FolderReply::Nothing if context.response.status() == Status::OK => {
                    write_status(Status::NOT_FOUND, context.response);
                }
                // A folder has nothing here, with or without the slash.
                FolderReply::File
                    if route.tries_files_only && context.response.status() == Status::MOVED_PERMANENTLY =>
                {
                    context.response.reset();
                    write_status(Status::NOT_FOUND, context.response);
                }
                FolderReply::File | FolderReply::Nothing => complete_redirect(worker, route, context),
            }
            Next::Continue(())
        }
        CompiledAction::Redirect { status, to } => {
            let location = location(to, &context.view(worker));
            context.response.set_status(*status).header("Location", location);
            Next::Continue(())
        }
        CompiledAction::Reroute(to) => match context.reroute(worker, to, None) {
            true => Next::Break(Outcome::Reroute),
            false => Next::Break(Outcome::Refuse(Refusal::Status(Status::INTERNAL_SERVER_ERROR))),
        },
        CompiledAction::StubStatus => stub_status::respond(worker, context),
        // Taking over a connection and dropping it closes it.
        CompiledAction::Close => {
            Next::Break(Outcome::Reply(Reply::Leave(Box::new(|taken| Box::pin(async move { drop(taken) })))))
        }
        CompiledAction::RespondLate { status, content_type, body } => {
            write_late(worker, context, *status, content_type, body);
            Next::Continue(())
        }
        CompiledAction::Respond { status, content_type, body } => {
            let RequestContext { request, resolution, progress, response, .. } = context;
            let view =
                worker.compiled.view_of(&request.head, Some(&*request), resolution, &progress.identity);
            response.set_status(*status);
            body.render(&view, Paths::Decoded, response.buffer());
            if response.body_bytes().is_some_and(|body| !body.is_empty()) && !content_type.is_empty() {
                response.header("Content-Type", content_type);
            }
            Next::Continue(())
        }
    }
}

/// Writes the text of an error page, which may have the status of the error.
#[cold]
fn write_late(
    worker: &SiteWorker,
    context: &mut RequestContext<'_>,
    status: Status,
    content_type: &str,
    body: &Text,
) {
    let value = FieldValue::of(body, &context.view(worker));
    let rerouted = context.progress.rerouted.as_ref();
    let error = rerouted.and_then(|rerouted| rerouted.kept_status());
    let mut of_error = Response::with_status(error.unwrap_or(status));
    of_error.set_note(rerouted.map_or(0, |rerouted| rerouted.note));
    let making = Making { by: ResponseOrigin::Here, notes: context.finishers.notes() };
    let text = value.complete(making, &of_error);
    context.response.set_status(status);
    context.response.buffer().extend_from_slice(&text);
    if !text.is_empty() && !content_type.is_empty() {
        context.response.header("Content-Type", content_type);
    }
}

/// The page of an error, from another route.
pub(super) fn error_route(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    let may_reroute = context.route.is_some_and(|route| route.may_reroute);
    match may_reroute && context.reroute_error(worker) {
        true => Next::Break(Outcome::Reroute),
        false => Next::Continue(()),
    }
}

/// Applies the response rules to a response made here.
pub(super) fn finish(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    gather_needs(worker, context);
    let needs = std::mem::take(&mut context.progress.needs);
    context.finishers.of(needs).finish(context.response, ResponseOrigin::Here);
    // After the rules: a page of their own stays as it is.
    if context.response.status().code() >= 400 {
        adapt_error_page(&context.request.head, context.request.number, context.response);
    }
    Next::Continue(())
}

fn gather_needs(worker: &SiteWorker, context: &mut RequestContext<'_>) {
    let blocks = context.blocks;
    let RequestContext { request, resolution, finishers, progress, .. } = context;
    if let Some(rerouted) = &mut progress.rerouted {
        progress.needs.kept = std::mem::take(&mut rerouted.kept);
        progress.needs.error = rerouted.kept_status();
        progress.needs.is_decision = rerouted.is_decision;
    }
    worker.gather_needs(request, resolution, finishers, &progress.identity, &mut progress.needs, blocks);
}

/// Sends the request to an upstream, through the cache if the route has one.
fn proxy(
    worker: &SiteWorker,
    context: &mut RequestContext<'_>,
    route: &CompiledRoute,
    forward: &Forward,
) -> Next {
    let mut named_path = None;
    let named = match &route.upstream_name {
        None => None,
        Some(text) => {
            let mut name = Vec::new();
            text.render(&context.view(worker), Paths::Decoded, &mut name);
            match worker.compiled.upstream(&name, route.named_upstreams.as_deref()) {
                Some(upstream) => Some(Forward { upstream, ..forward.clone() }),
                None => match named_server(&name).filter(|_| route.names_server) {
                    Some((server, path)) => {
                        named_path = path.map(str::to_owned);
                        Some(to_named(forward, server))
                    }
                    None => return Next::Break(Outcome::Refuse(Refusal::Status(Status::BAD_GATEWAY))),
                },
            }
        }
    };
    let forward = named.as_ref().unwrap_or(forward);
    let replaced = match route.replaced.as_ref().map(|replaced| replaced.ready(&context.view(worker))) {
        None => ReadyParts::default(),
        Some(Some(parts)) => parts,
        Some(None) => return Next::Break(Outcome::Refuse(Refusal::Status(Status::BAD_REQUEST))),
    };
    let with_host = replaced.host.clone().map(|host| Forward { host: Host::Set(host), ..forward.clone() });
    let forward = with_host.as_ref().unwrap_or(forward);
    if route.cache.as_ref().is_some_and(|cache| cache.is_rendered) && !context.resolution.is_for_render {
        crawlers::count(&context.request, &context.resolution.client);
    }
    gather_needs(worker, context);
    let mut needs = std::mem::take(&mut context.progress.needs);
    if route.may_reroute && context.progress.rerouted.is_none() {
        needs.pages = worker.this().map(|worker| Box::new(PageRequest::of(worker, context)));
    }
    if forward.private.any() {
        let request = |worker| RedirectRequest::of(worker, context, forward.private, &needs.permits);
        needs.redirects = worker.this().map(request).map(Box::new);
    }
    let blocks: Vec<&Block> = context.blocks().collect();
    let RequestContext { request, resolution, finishers, progress, response, .. } = context;
    let head = request.head;
    let mut lines = worker.lines.take();
    lines.clear();
    let view = worker.compiled.view_of(&head, Some(&*request), resolution, &progress.identity);
    route.request_fields.request_lines(&head, &view, &mut lines);
    let mut left_out = Vec::new();
    for block in &blocks {
        block.request_fields.request_lines(&head, &view, &mut lines);
        left_out.extend(block.request_fields.dropped().iter().map(String::as_bytes));
    }
    lines.extend_from_slice(&progress.authority_lines);
    let target = resolution.target(&head);
    let mut key = worker.key.take();
    let forwarded = Forwarded {
        forward,
        target: named_path.as_deref().map_or(&*target, str::as_bytes),
        client: resolution.client,
        edits: Edits {
            dropped: route.request_fields.dropped(),
            dropped_too: route.guards.authority.as_ref().map_or(&[], |authority| &authority.dropped),
            left_out: &left_out,
            handled: &[],
            authority: None,
            method: replaced.method.as_deref(),
            replaces_body: replaced.body.is_some(),
            drops_all: replaced.drops_fields,
            lines: &lines,
        },
        finish: finishers.of(needs),
        caching: route.cache.as_ref().map(|cache| {
            let caching = cache.for_request(&view, &blocks, &mut key);
            // The next request with this head may go elsewhere.
            Caching { repeats: caching.repeats && progress.rerouted.is_none(), ..caching }
        }),
    };
    let mut request = take_request(request);
    request.path = &resolution.goal.path;
    if let Some(body) = &replaced.body {
        request.head = replaced.reframed(request.head);
        request.body = RequestBody::Whole { bytes: body, trailers: &[] };
    }
    let reply = worker.forwarding.forward(request, forwarded, response);
    worker.lines.replace(lines);
    worker.key.replace(key);
    Next::Break(Outcome::Reply(reply))
}

/// The server and the path in a text made from a request. `None` if it has bytes that must not get into the request to the upstream.
fn named_server(text: &[u8]) -> Option<(&str, Option<&str>)> {
    let text = std::str::from_utf8(text).ok()?;
    let begin = text.find("://").map_or(0, |at| at + 3);
    let (server, path) = match text.get(begin..)?.find('/') {
        Some(at) => (text.get(..begin + at)?, text.get(begin + at..)),
        None => (text, None),
    };
    let authority = server.get(begin..)?;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let is_server = !authority.is_empty() && authority.bytes().all(is_part);
    let is_target = |path: &str| path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    (is_server && path.is_none_or(is_target)).then_some((server, path))
}

/// The same for a server that the request names. `Host` is that name too, unless the route has another one.
fn to_named(forward: &Forward, server: &str) -> Forward {
    let authority = server.split_once("://").map_or(server, |(_, rest)| rest);
    let host = match &forward.host {
        Host::Upstream => Host::Set(authority.to_owned()),
        host => host.clone(),
    };
    Forward { host, server: Some(server.to_owned()), ..forward.clone() }
}

/// The request, for a handler that keeps it.
fn take_request<'a>(request: &mut Request<'a>) -> Request<'a> {
    let rest = detached(request, request.head, request.path);
    std::mem::replace(request, rest)
}

/// Publishes or subscribes.
fn channel(worker: &SiteWorker, context: &mut RequestContext<'_>, plan: &Arc<push::Plan>) -> Next {
    gather_needs(worker, context);
    let RequestContext { request, resolution, finishers, progress, response, .. } = context;
    // A subscriber and a long poll are counted by the limits of subscriptions while they wait, and a publish by those
    // of requests. Otherwise waiting polls would keep publishers out.
    let is_subscription = matches!(request.head.method, Method::Get | Method::Head);
    let _until_it_waits = is_subscription.then(|| std::mem::take(&mut progress.needs.permits));
    let finish = finishers.of(std::mem::take(&mut progress.needs));
    let Some(worker_channels) = &worker.worker_channels else {
        bug!("a worker without channels has a route with `push`");
        write_status(Status::INTERNAL_SERVER_ERROR, response);
        finish.finish(response, ResponseOrigin::Here);
        return Next::Break(Outcome::Reply(Reply::Now));
    };
    let who = Who { address: resolution.client.address };
    let mut request = take_request(request);
    request.path = &resolution.goal.path;
    let reply = worker_channels.call(&request, plan, who, finish.clone(), response);
    if matches!(reply, Reply::Now) {
        finish.finish(response, ResponseOrigin::Here);
    }
    Next::Break(Outcome::Reply(reply))
}

/// What a folder has for a request.
enum FolderReply {
    /// The response is written.
    File,
    /// There is none.
    Nothing,
    /// The folder is on a volume that may take its time: the response comes from a future.
    Later(Pin<Box<dyn Future<Output = Response>>>),
}

/// Responds from a folder.
fn file(worker: &SiteWorker, folder: usize, context: &mut RequestContext<'_>) -> FolderReply {
    let RequestContext { request, resolution, response, progress, .. } = context;
    let Some(folder) = worker.folders.get(folder) else {
        bug!("no folder has the index {folder}");
        write_status(Status::INTERNAL_SERVER_ERROR, response);
        return FolderReply::File;
    };
    let Some(path) = resolution.file_path() else { return FolderReply::Nothing };
    let path = match below_files(context.route, &path) {
        Some(rest) if rest.starts_with(b"/") => rest,
        // The folder says which methods it has.
        Some([]) if !matches!(request.head.method, Method::Get | Method::Head) => b"/",
        Some([]) => {
            redirect_to_folder(&request.head, response);
            return FolderReply::File;
        }
        _ => return FolderReply::Nothing,
    };
    let reply = match progress.made.take() {
        Some(made) => {
            **response = *made;
            Reply::Now
        }
        // The whole file is the page, whatever the request said about ranges and versions.
        None if progress.rerouted.as_ref().is_some_and(|rerouted| rerouted.error.is_some()) => {
            let method = if request.head.method == Method::Head { "HEAD" } else { "GET" };
            whole(&**folder, request, method, path, response)
        }
        None => folder.call(detached(request, request.head, path), response),
    };
    match reply {
        Reply::Later(response) => FolderReply::Later(response),
        _ if response.status() == Status::NOT_FOUND => FolderReply::Nothing,
        _ => FolderReply::File,
    }
}

/// Puts the origin of the route in front of the path to which a folder is redirected.
#[inline]
fn complete_redirect(worker: &SiteWorker, route: &CompiledRoute, context: &mut RequestContext<'_>) {
    let Some(origin) = &route.redirect_origin else { return };
    let path = context.response.field("location").filter(|path| path.starts_with(b"/")).map(<[u8]>::to_vec);
    let Some(path) = path.filter(|_| context.response.status() == Status::MOVED_PERMANENTLY) else { return };
    let mut location = Vec::new();
    origin.render(&context.view(worker), Paths::Encoded, &mut location);
    escape_unsafe(&mut location);
    location.extend_from_slice(&path);
    context.response.remove_header("Location").header("Location", location);
}

/// A request for a part of the handling of another one, with the same number.
fn detached<'a>(of: &Request<'_>, head: Head<'a>, path: &'a [u8]) -> Request<'a> {
    let mut request = Request::detached(head, path, RequestBody::NONE);
    request.number = of.number;
    request
}

/// Responds with a whole file.
fn whole(
    folder: &dyn Service,
    request: &Request<'_>,
    method: &str,
    path: &[u8],
    response: &mut Response,
) -> Reply {
    let text = format!("{method} / HTTP/1.1\r\nHost: page\r\n\r\n");
    let mut fields = Vec::new();
    match parse_kept(text.as_bytes(), &mut fields, None) {
        Some(head) => folder.call(detached(request, head, path), response),
        None => Reply::Now,
    }
}

/// A redirect must not lead to a host that its rule does not name: a path that starts with two slashes would be read
/// as a host.
pub(crate) fn location(to: &Text, view: &View<'_>) -> Vec<u8> {
    let mut location = Vec::new();
    to.render(view, Paths::Encoded, &mut location);
    escape_unsafe(&mut location);
    if !to.begins_with("//") {
        let slashes = location.iter().take_while(|&&byte| byte == b'/').count();
        location.drain(..slashes.saturating_sub(1));
    }
    location
}
