//! Responses that an upstream leaves to another route of its site: `X-Accel-Redirect`, and `X-Sendfile` by the route of its folder.

use std::borrow::Cow;
use std::rc::Rc;

use flatout_engine::tls::PeerCertificate;
use flatout_engine::{ExchangeKey, OwnedRequest, Reply, Request, Response, bug};
use flatout_gateway::private::{LIMIT_RATE, REDIRECT, SENDFILE, private_rate, remove_private};
use flatout_gateway::{Finish, Redirection, TrustedFields};
use flatout_wire::target::forward_path;
use flatout_wire::{Method, Status};
use tokio::sync::oneshot;

use super::compiled::CompiledSite;
use super::limit_status::Counts;
use super::permits::Permits;
use super::plan::{RouteEntry, SendfileFolder};
use super::reroute::REROUTES_MAX;
use super::rewrite::Goal;
use super::steps::{Identity, Progress, RequestContext};
use super::suspend::complete_or_leave;
use super::worker::SiteWorker;

/// Fields of the upstream's response that the other one gets, as with nginx. Those of cookies also go with errors. The rate is no field there.
const KEPT: [&str; 6] =
    ["content-type", "content-disposition", "cache-control", "expires", "set-cookie", LIMIT_RATE];

/// Fields of a response whose meaning stays when a page takes its place: where a redirect leads, and how to authenticate. The page's own
/// ones come first.
const OF_ERROR: [&str; 2] = ["location", "www-authenticate"];

/// A request, kept until its upstream has responded.
pub(crate) struct RedirectRequest {
    worker: Rc<SiteWorker>,
    request: OwnedRequest,
    site: Option<usize>,
    followed: TrustedFields,
    user: Vec<u8>,
    certificate: Option<PeerCertificate>,
    counts: Counts,
    /// Those that it has, for the response that is sent in the end.
    permits: Permits,
    /// How often it has continued at another route.
    reroutes: u8,
}

/// Where a request continues, and what it takes along.
pub(crate) struct UpstreamRedirect {
    pub(crate) goal: Goal<'static>,
    pub(crate) named: Option<usize>,
    pub(crate) kept: Vec<(String, Vec<u8>)>,
    pub(crate) reroutes: u8,
}

impl std::fmt::Debug for RedirectRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedirectRequest").field("followed", &self.followed).finish_non_exhaustive()
    }
}

impl RedirectRequest {
    pub(crate) fn of(
        worker: Rc<SiteWorker>,
        context: &RequestContext<'_>,
        followed: TrustedFields,
        permits: &Permits,
    ) -> RedirectRequest {
        let RequestContext { request, progress, resolution, .. } = context;
        RedirectRequest {
            worker,
            request: OwnedRequest::unparked(request),
            site: resolution.site,
            followed,
            user: progress.identity.user.clone(),
            certificate: progress.identity.certificate.clone(),
            counts: progress.counts,
            permits: permits.clone(),
            reroutes: progress.rerouted.as_ref().map_or(0, |rerouted| rerouted.count()),
        }
    }

    /// Follows the response of the upstream. `held` is kept until the other route has responded.
    pub(crate) fn follow(
        &self,
        folders: &[SendfileFolder],
        held: Rc<dyn Finish>,
        exchange: ExchangeKey,
        response: &mut Response,
    ) -> Redirection {
        let target = match self.target(folders, response) {
            None => return Redirection::Nowhere,
            Some(target) if self.reroutes < REROUTES_MAX => target,
            Some(_) => Err(Status::INTERNAL_SERVER_ERROR),
        };
        let (goal, named) = match target {
            Ok(target) => target,
            Err(status) => {
                super::worker::write_status(status, response);
                return Redirection::Refused;
            }
        };
        let Some(lane) = &self.worker.lane else {
            bug!("a site without a server has an upstream");
            return Redirection::Nowhere;
        };
        let (signal, abandoned) = oneshot::channel();
        let mut progress = Progress::new();
        progress.identity = Identity {
            user: self.user.clone(),
            certificate: self.certificate.clone(),
            ..Identity::default()
        };
        progress.identity.noted.number = self.request.origin.number();
        progress.needs.signal = Some(signal);
        progress.counts = self.counts;
        progress.needs.permits.clone_from(&self.permits);
        let redirect =
            UpstreamRedirect { goal, named, kept: kept(response, self.followed), reroutes: self.reroutes };
        let (worker, note) = (self.worker.clone(), response.note());
        let request = self.request.again(exchange);
        // Not now: the proxy is in the middle of a response.
        let future = async move {
            let mut response = Response::new();
            response.set_note(note);
            let reply = request.resume(|request| run(&worker, request, progress, redirect, &mut response));
            let reply = reply.unwrap_or(Reply::Now);
            let response = complete_or_leave(&worker, exchange, reply, response, abandoned).await;
            drop(held);
            response
        };
        lane.answer_later(exchange, Box::pin(future));
        Redirection::Taken
    }

    /// The rate that the upstream asks for, in bytes per second.
    pub(crate) fn rate(&self, response: &Response) -> Option<u64> {
        if self.followed.accel { private_rate(response.field(LIMIT_RATE)?) } else { None }
    }

    /// Where the response says that the request continues; an error if there is no such place.
    fn target(
        &self,
        folders: &[SendfileFolder],
        response: &Response,
    ) -> Option<Result<(Goal<'static>, Option<usize>), Status>> {
        if self.followed.accel
            && let Some(value) = response.field(REDIRECT)
        {
            let site = self.site.and_then(|at| self.worker.compiled.site(at));
            let named = || named(site?, value);
            let target = match value.first() {
                Some(b'@') => named().map(|at| (own_goal(&self.request.path), Some(at))),
                _ => goal(value).map(|goal| (goal, None)),
            };
            return Some(target.ok_or(Status::BAD_GATEWAY));
        }
        let file = response.field(SENDFILE).filter(|_| self.followed.sendfile)?;
        Some(file_goal(file, folders).map(|goal| (goal, None)).ok_or(Status::BAD_GATEWAY))
    }
}

/// Takes the request through the steps of the other route.
fn run(
    worker: &Rc<SiteWorker>,
    mut request: Request<'_>,
    progress: Progress,
    redirect: UpstreamRedirect,
    response: &mut Response,
) -> Reply {
    // Its body is gone.
    if request.head.method != Method::Head {
        request.head.method = Method::Get;
    }
    let mut context = RequestContext::new(worker, request, progress, response);
    context.follow_upstream(worker, redirect);
    context.begin_again(worker)
}

/// Removes what is for this server alone.
pub(crate) fn forget_private(request: Option<&RedirectRequest>, response: &mut Response) {
    if request.is_some() {
        remove_private(response);
    }
}

/// Gives a response the fields of the response that it replaces.
pub(crate) fn apply_kept(kept: &[(String, Vec<u8>)], response: &mut Response) {
    // Most replace none, and looking for fields costs.
    if kept.is_empty() {
        return;
    }
    let is_error = response.status().code() >= 400;
    let own: Vec<&str> = OF_ERROR.into_iter().filter(|name| response.field(name).is_some()).collect();
    let is_field = |name: &str| name != LIMIT_RATE && (!is_error || goes_with_errors(name));
    for (name, value) in kept.iter().filter(|(name, _)| is_field(name)) {
        if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            continue;
        }
        // There may be several challenges, as there may be several cookies.
        if !goes_with_errors(name) {
            response.remove_header(name);
        }
        response.header(name, value);
    }
}

/// The rate that the upstream has asked for whose response is replaced.
pub(crate) fn kept_rate(kept: &[(String, Vec<u8>)]) -> Option<u64> {
    let (_, value) = kept.iter().find(|(name, _)| name == LIMIT_RATE)?;
    private_rate(value)
}

fn kept(response: &Response, followed: TrustedFields) -> Vec<(String, Vec<u8>)> {
    let is_rate = |name: &[u8]| name.eq_ignore_ascii_case(LIMIT_RATE.as_bytes());
    let mut kept = fields_of(response, |name| is_one(name, &KEPT) && (followed.accel || !is_rate(name)));
    kept.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
    kept
}

/// Whether a field stays if the response that takes its place is an error.
pub(crate) fn goes_with_errors(name: &str) -> bool {
    name == "set-cookie" || is_one(name.as_bytes(), &OF_ERROR)
}

/// The fields that the page for a response gets from it.
pub(crate) fn kept_of_error(response: &Response) -> Vec<(String, Vec<u8>)> {
    fields_of(response, |name| is_one(name, &OF_ERROR))
}

fn is_one(name: &[u8], names: &[&str]) -> bool {
    names.iter().any(|this| name.eq_ignore_ascii_case(this.as_bytes()))
}

fn fields_of(response: &Response, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<(String, Vec<u8>)> {
    let fields = response.fields().filter(|(name, _)| is_wanted(name));
    fields.map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec())).collect()
}

/// The route of this name.
fn named(site: &CompiledSite, name: &[u8]) -> Option<usize> {
    site.routes.iter().position(|route| {
        route.entry == RouteEntry::Named
            && route.name.as_deref().is_some_and(|known| known.as_bytes() == name)
    })
}

/// The request's own path, for a route that is named.
fn own_goal(path: &[u8]) -> Goal<'static> {
    Goal { path: Cow::Owned(path.to_vec()), query: None, is_rewritten: true }
}

/// A path and query as an upstream writes them, encoded.
fn goal(target: &[u8]) -> Option<Goal<'static>> {
    let at = target.iter().position(|&byte| byte == b'?');
    let (path, query) = match at {
        Some(at) => (target.get(..at)?, target.get(at + 1..).filter(|query| !query.is_empty())),
        None => (target, None),
    };
    let mut form = Vec::new();
    let path = forward_path(path, &mut form).ok()?.to_vec();
    Some(Goal {
        path: Cow::Owned(path),
        query: query.map(|query| Cow::Owned(query.to_vec())),
        is_rewritten: true,
    })
}

/// The path of a file, by the folder that it is in. `None` if none of them has it.
fn file_goal(file: &[u8], folders: &[SendfileFolder]) -> Option<Goal<'static>> {
    let rest_of = |folder: &SendfileFolder| file.strip_prefix(folder.folder.as_bytes())?.strip_prefix(b"/");
    let fitting = folders.iter().filter(|folder| rest_of(folder).is_some());
    let folder = fitting.max_by_key(|folder| folder.folder.len())?;
    let rest = rest_of(folder)?;
    // The file of another folder, or something that is no plain name.
    if rest.split(|&byte| byte == b'/').any(|segment| matches!(segment, b"" | b"." | b"..")) {
        return None;
    }
    let mut encoded = folder.path.trim_end_matches('/').as_bytes().to_vec();
    for &byte in b"/".iter().chain(rest) {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' => encoded.push(byte),
            byte if byte.is_ascii_alphanumeric() => encoded.push(byte),
            byte => encoded.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    goal(&encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(goal: Option<Goal<'static>>) -> Option<String> {
        let goal = goal?;
        let query = goal.query.map(|query| format!("?{}", String::from_utf8_lossy(&query)));
        Some(String::from_utf8_lossy(&goal.path).into_owned() + &query.unwrap_or_default())
    }

    #[test]
    fn targets_of_upstreams_are_normalized() {
        for (target, expected) in [
            ("/protected/a.pdf", Some("/protected/a.pdf")),
            ("/protected/a%20b?x=1&y", Some("/protected/a b?x=1&y")),
            ("/a/../b//c", Some("/b/c")),
            ("/a?", Some("/a")),
            ("/%2e%2e/etc", None),
            ("/../etc", None),
            ("protected/a", None),
            ("http://other/", None),
            ("/a%00", None),
            ("", None),
        ] {
            assert_eq!(path(goal(target.as_bytes())).as_deref(), expected, "{target}");
        }
    }

    #[test]
    fn files_are_in_a_folder_that_the_route_names() {
        let folder =
            |folder: &str, path: &str| SendfileFolder { folder: folder.to_owned(), path: path.to_owned() };
        let folders = [folder("/srv/files", "/files/"), folder("/srv/files/own", "/own")];
        for (file, expected) in [
            ("/srv/files/a.pdf", Some("/files/a.pdf")),
            ("/srv/files/own/a b%2F?.pdf", Some("/own/a b%252F?.pdf")),
            ("/srv/files2/a", None),
            ("/srv/files", None),
            ("/srv/files/", None),
            ("/srv/files/../secret", None),
            ("/srv/files/a/../b", None),
            ("/srv/files//etc/passwd", None),
            ("/etc/passwd", None),
            ("srv/files/a", None),
            ("/srv/files/a\0", None),
            ("", None),
        ] {
            assert_eq!(path(file_goal(file.as_bytes(), &folders)).as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn fields_of_the_upstream_go_along() {
        let mut upstream = Response::new();
        for (name, value) in [
            ("Content-Type", "a/b"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("X-Other", "x"),
            ("X-Accel-Limit-Rate", "9"),
            ("ETag", "\"1\""),
        ] {
            upstream.header(name, value);
        }
        let kept = kept(&upstream, TrustedFields { accel: true, sendfile: true });
        assert_eq!(kept_rate(&kept), Some(9));
        for (code, expected) in [
            (200, vec!["content-type: a/b", "etag: \"f\"", "set-cookie: a=1", "set-cookie: b=2"]),
            (404, vec!["content-type: text/plain", "etag: \"f\"", "set-cookie: a=1", "set-cookie: b=2"]),
        ] {
            let mut file = Response::with_status(Status::from_code(code).unwrap());
            file.header("Content-Type", "text/plain").header("ETag", "\"f\"");
            apply_kept(&kept, &mut file);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mut fields: Vec<String> = file
                .fields()
                .map(|(name, value)| format!("{}: {}", text(name).to_ascii_lowercase(), text(value)))
                .collect();
            fields.sort();
            assert_eq!(fields, expected, "{code}");
        }
    }
}
