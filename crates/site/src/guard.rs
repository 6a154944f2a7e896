//! The guards of a route: steps that may refuse a request. Their order is in `steps.rs`.

use flatout_engine::{Response, bug, write_error_page};
use flatout_lane::clock;
use flatout_wire::Status;

use super::basic::Credentials;
use super::compiled::{CompiledGate, CompiledRate, Key};
use super::concurrency::{GateResult, Permit};
use super::facts::Uses;
use super::fields::push_line;
use super::limit_status::{Count, LimitStatus};
use super::page_request::PageRequest;
use super::passwords::{Busy, Login};
use super::plan::Verdict;
use super::rate::{Admission, TooMany};
use super::render::{Paths, escape_unsafe};
use super::reroute::CompiledReroute;
use super::resolve::NoRoute;
use super::steps::{Next, Outcome, Refusal, RequestContext, Step};
use super::suspend::Event;
use super::worker::{SiteWorker, write_status};
use flatout_gateway::AuthQuery;

/// The part of an IPv6 address by which password checks are limited: a client usually has a /64.
const CLIENT_IPV6_BITS: u8 = 64;

/// Characters of a host name that are shown: no DNS name is longer.
const HOST_CHARS_MAX: usize = 255;

/// 421: no site has this host.
pub(super) fn host(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    let site = context.resolution.site.and_then(|at| worker.compiled.site(at));
    match site {
        Some(site) if site.tls_rules.is_none_or(|rules| follows(context, rules)) => Next::Continue(()),
        Some(_) => Next::Break(Outcome::Refuse(Refusal::Status(Status::MISDIRECTED_REQUEST))),
        None => {
            let mut response = Response::with_status(Status::MISDIRECTED_REQUEST);
            let host = String::from_utf8_lossy(context.request.head.authority());
            let host: String = host.chars().take(HOST_CHARS_MAX).collect();
            let detail = format!("no site for host `{host}`");
            write_error_page(&context.request, &detail, &mut response);
            Next::Break(Outcome::Refuse(Refusal::Response(Box::new(response))))
        }
    }
}

/// Whether the connection of a request has followed these rules of TLS: it may have been opened for another site. That of a
/// request that has waited is not known any more; it did.
fn follows(context: &RequestContext<'_>, rules: u16) -> bool {
    let followed = context.request.tls.and_then(|tls| tls.rules());
    followed.is_none_or(|followed| followed == rules)
}

/// 503, except for some clients.
pub(super) fn maintenance(_: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    let address = context.resolution.client.address;
    match context.guards.maintenance.as_ref().filter(|closed| !closed.except.allows(address)) {
        None => Next::Continue(()),
        Some(closed) => {
            let mut response = Response::new();
            closed.write(&mut response);
            Next::Break(Outcome::Refuse(Refusal::Response(Box::new(response))))
        }
    }
}

/// 403 by the client's address.
pub(super) fn access(_: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    let address = context.resolution.client.address;
    let verdict = match context.blocks {
        0 => context.guards.access.verdict(address),
        _ => {
            let of_blocks = context.blocks().filter(|block| !block.uses.has(Uses::USER));
            let all = of_blocks.map(|block| &block.guards).chain([context.guards]);
            all.map(|guards| &guards.access).find_map(|access| access.verdict(address))
        }
    };
    if context.guards.satisfies_any {
        // Otherwise a password or the auth service decides.
        context.progress.is_satisfied = verdict == Some(Verdict::Allow);
        return Next::Continue(());
    }
    match verdict {
        // A user may be allowed.
        Some(Verdict::Deny) if !context.guards.of_user.allow => {
            Next::Break(Outcome::Refuse(Refusal::Status(Status::FORBIDDEN)))
        }
        _ => Next::Continue(()),
    }
}

/// Counts the request in the rates of the route that do not depend on the user.
pub(super) fn rates(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    count(worker, context, false)
}

/// Counts the request in rates of the route; those before the one that refuses have counted it too.
///
/// # Source
/// `RateLimit-Policy` (`q`, `w`) and `RateLimit` (`r`, `t`) are from draft-ietf-httpapi-ratelimit-headers-10.
fn count(worker: &SiteWorker, context: &mut RequestContext<'_>, is_of_user: bool) -> Next {
    if context.resolution.is_for_render {
        // The request of the crawler was counted.
        return Next::Continue(());
    }
    let counts = &context.progress.counts;
    let before = if is_of_user { counts.user_rates } else { counts.rates };
    let mut scarcest: Option<(Admission, &str)> = None;
    let mut refused = None;
    for rate in rates_of(context, is_of_user, before) {
        let counts = &mut context.progress.counts;
        let count = if is_of_user { &mut counts.user_rates } else { &mut counts.rates };
        count.add(rate.is_dry_run);
        let key = number_of(worker, &rate.key, context);
        let admission = rate.buckets.take(key, rate.burst, clock::nanoseconds());
        if let Some((_, name)) = &rate.field_values
            && scarcest
                .is_none_or(|(least, _)| admission.remaining < least.remaining || !admission.is_allowed)
        {
            scarcest = Some((admission, name));
        }
        let paced = match (admission.is_allowed, rate.delay) {
            (false, _) => Err(TooMany),
            (true, Some(at_once)) => rate.buckets.pace(admission, at_once),
            (true, None) => Ok(None),
        };
        let status = match (&paced, rate.is_dry_run) {
            (Ok(None), _) => LimitStatus::Passed,
            (Ok(Some(_)), false) => LimitStatus::Delayed,
            (Ok(Some(_)), true) => LimitStatus::DelayedDryRun,
            (Err(TooMany), false) => LimitStatus::Rejected,
            (Err(TooMany), true) => LimitStatus::RejectedDryRun,
        };
        context.progress.identity.limits.rates.add(status);
        match paced {
            _ if rate.is_dry_run => {}
            Ok(Some(waits)) if context.progress.waits.as_ref().is_none_or(|most| most.time < waits.time) => {
                context.progress.waits = Some(waits);
            }
            Ok(_) => {}
            Err(TooMany) => {
                // Its page does not wait for a rate before.
                context.progress.waits = None;
                refused = Some((admission, rate.status));
                break;
            }
        }
    }
    let rates = rates_of(context, is_of_user, before);
    let lines = &mut context.progress.needs.rate_lines;
    if let Some((admission, name)) = scarcest {
        let policies: Vec<&str> =
            rates.filter_map(|rate| rate.field_values.as_ref()).map(|(policy, _)| &**policy).collect();
        push_line(b"RateLimit-Policy", policies.join(", ").as_bytes(), lines);
        let (left, seconds) = (admission.remaining, whole_seconds(admission));
        push_line(b"RateLimit", format!("{name};r={left};t={seconds}").as_bytes(), lines);
    }
    match refused {
        None => Next::Continue(()),
        Some((admission, status)) => {
            push_line(b"Retry-After", whole_seconds(admission).max(1).to_string().as_bytes(), lines);
            Next::Break(Outcome::Refuse(Refusal::Status(status)))
        }
    }
}

/// The rates of the route that depend on the user, or those that do not, if they still count the request.
fn rates_of<'a>(
    context: &RequestContext<'a>,
    is_of_user: bool,
    before: Count,
) -> impl Iterator<Item = &'a CompiledRate> + use<'a> {
    let all = context.all_guards().flat_map(|guards| &guards.rates);
    all.filter(move |rate| rate.is_of_user == is_of_user && before.admits(rate.is_dry_run))
}

/// 204 for a CORS preflight.
pub(super) fn preflight(_: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    let cors = context.finishers.rules().and_then(|rules| rules.cors.as_ref());
    match cors.is_some_and(|cors| cors.preflight(&context.request.head, context.response)) {
        true => Next::Break(Outcome::Respond),
        false => Next::Continue(()),
    }
}

/// Delays the request to an even rate.
pub(super) fn pace(_: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    match context.progress.waits.take() {
        Some(waits) => Next::Break(Outcome::Suspend(Event::Pace(waits), Step::Target)),
        None => Next::Continue(()),
    }
}

/// The target leads to no rules: it is malformed or ambiguous, or about the server itself.
pub(super) fn target(_: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    match &context.resolution.route {
        Err(no_route) if !no_route.follows_rules() => {
            Next::Break(Outcome::Refuse(no_route_refusal(no_route)))
        }
        _ => Next::Continue(()),
    }
}

/// 401: Basic authentication.
pub(super) fn password(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    const CLIENT: Key = Key::Client { ipv6_bits: CLIENT_IPV6_BITS };
    let Some(basic) = &context.guards.basic else { return Next::Continue(()) };
    let challenge = || Refusal::Password(basic.challenge.clone());
    if context.progress.is_satisfied {
        return Next::Continue(());
    }
    let Some(Credentials { name, password }) = Credentials::of(&context.request.head) else {
        if context.guards.satisfies_any && context.guards.has_authority() {
            return Next::Continue(());
        }
        return Next::Break(Outcome::Refuse(challenge()));
    };
    let Some(passwords) = &worker.passwords else {
        bug!("a worker without threads for passwords has a route with users");
        return Next::Break(Outcome::Refuse(Refusal::Status(Status::INTERNAL_SERVER_ERROR)));
    };
    let address = number_of(worker, &CLIENT, context);
    let login =
        Login { users: &basic.users, name: &name, password: &password, address, peer: context.request.peer };
    if passwords.recalls(&login) {
        context.progress.identity.user = name;
        context.progress.is_satisfied = context.guards.satisfies_any;
        return Next::Continue(());
    }
    match passwords.check(&login) {
        Ok(answered) => Next::Break(Outcome::Suspend(
            Event::Password(answered, name, basic.challenge.clone()),
            Step::Authority,
        )),
        Err(Busy) => Next::Break(Outcome::Refuse(Refusal::BUSY)),
    }
}

/// Asks an auth service.
pub(super) fn authority(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    // The user is known after a password was checked.
    let is_user = context.guards.satisfies_any && !context.progress.identity.user.is_empty();
    if context.progress.is_satisfied || is_user {
        return Next::Continue(());
    }
    if let Some(to) = &context.guards.auth_route {
        return ask_route(worker, context, to);
    }
    let Some(authority) = &context.guards.authority else { return Next::Continue(()) };
    let mut target = Vec::new();
    authority.target.render(&context.view(worker), Paths::Encoded, &mut target);
    escape_unsafe(&mut target);
    let query = AuthQuery {
        upstream: authority.plan.upstream,
        request_fields: &authority.plan.request_fields,
        response_fields: &authority.asked,
        target: &target,
        head: &context.request.head,
        client: context.resolution.client,
    };
    let (then, decision) = tokio::sync::oneshot::channel();
    worker.forwarding.ask(query, then);
    Next::Break(Outcome::Suspend(Event::AuthDecision(decision, authority.clone()), Step::User))
}

/// Asks another route of the site.
fn ask_route(worker: &SiteWorker, context: &RequestContext<'_>, to: &CompiledReroute) -> Next {
    let decision = worker.this().and_then(|worker| PageRequest::of(worker, context).decision(to));
    let status = decision.as_ref().map_or(Status::INTERNAL_SERVER_ERROR, Response::status);
    if (200..300).contains(&status.code()) {
        return Next::Continue(());
    }
    let Some(decision) = decision.filter(|_| matches!(status, Status::UNAUTHORIZED | Status::FORBIDDEN))
    else {
        return Next::Break(Outcome::Refuse(Refusal::Status(Status::INTERNAL_SERVER_ERROR)));
    };
    // The client may still send a password.
    if let Some(basic) = context.guards.basic.as_ref().filter(|_| context.guards.satisfies_any) {
        return Next::Break(Outcome::Refuse(Refusal::Password(basic.challenge.clone())));
    }
    let mut refusal = Response::new();
    write_status(status, &mut refusal);
    decision.field_all("www-authenticate").for_each(|challenge| {
        refusal.header("WWW-Authenticate", challenge);
    });
    Next::Break(Outcome::Refuse(Refusal::Response(Box::new(refusal))))
}

/// 403, 429: the rules that depend on the user.
pub(super) fn user(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    if context.guards.identifies() {
        context.identify(worker);
    }
    let of_user = context.guards.of_user;
    if of_user.access {
        let address = context.resolution.client.address;
        // The list around the blocks has decided before, if an address alone is enough.
        let around = Some(context.guards).filter(|guards| !guards.satisfies_any);
        let all = context.blocks().map(|block| &block.guards).chain(around);
        let verdict = all.map(|guards| &guards.access).find_map(|access| access.verdict(address));
        if verdict == Some(Verdict::Deny) {
            return Next::Break(Outcome::Refuse(Refusal::Status(Status::FORBIDDEN)));
        }
    }
    if !of_user.rates {
        return Next::Continue(());
    }
    count(worker, context, true)?;
    match context.progress.waits.take() {
        Some(waits) => Next::Break(Outcome::Suspend(Event::Pace(waits), Step::Route)),
        None => Next::Continue(()),
    }
}

/// 404, 405: no route has the path and the method.
pub(super) fn route(_: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    match &context.resolution.route {
        Err(no_route) => Next::Break(Outcome::Refuse(no_route_refusal(no_route))),
        Ok(_) => Next::Continue(()),
    }
}

/// 413 by the declared length.
pub(super) fn length(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    match worker.is_too_large(&context.request.head, context.guards) {
        true => Next::Break(Outcome::Refuse(Refusal::Status(Status::CONTENT_TOO_LARGE))),
        false => Next::Continue(()),
    }
}

/// Takes a permit of each limit of concurrent requests. A request that has waited for one goes on with the next limit.
pub(super) fn concurrency(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    if context.resolution.is_for_render {
        // The request of the crawler has its permits, and waits for it.
        return Next::Continue(());
    }
    let before = context.progress.counts.concurrency;
    let all = context.all_guards().flat_map(|guards| &guards.gates);
    let gates = all.filter(move |gate| before.admits(gate.is_dry_run));
    // Only once it has passed all of them: it may wait for several.
    let mut count = before;
    for (at, CompiledGate { key, gate, is_dry_run }) in gates.enumerate() {
        count.add(*is_dry_run);
        if at < context.progress.gates_passed {
            continue;
        }
        let result = gate.enter(number_of(worker, key, context));
        let (progress, is_dry_run) = (&mut context.progress, *is_dry_run);
        match result {
            GateResult::Now(permit) => progress.enter(permit, LimitStatus::Passed),
            // It does not wait for its place in the queue.
            GateResult::Queued(_) | GateResult::Full if is_dry_run => {
                progress.enter(Permit::NONE, LimitStatus::RejectedDryRun);
            }
            GateResult::Queued(permit) => {
                return Next::Break(Outcome::Suspend(Event::Permit(permit, gate.clone()), Step::Concurrency));
            }
            GateResult::Full => {
                progress.turn_away();
                return Next::Break(Outcome::Refuse(Refusal::Busy(gate.status)));
            }
        }
    }
    context.progress.counts.concurrency = count;
    Next::Continue(())
}

fn number_of(worker: &SiteWorker, key: &Key, context: &RequestContext<'_>) -> u64 {
    worker.compiled.number_of(key, &context.view(worker))
}

fn no_route_refusal(no_route: &NoRoute) -> Refusal {
    let mut response = Response::new();
    match no_route {
        NoRoute::Server => {
            response.set_status(Status::NO_CONTENT).header("Allow", "GET, HEAD, OPTIONS");
        }
        NoRoute::WrongMethod { allowed, .. } => {
            write_status(Status::METHOD_NOT_ALLOWED, &mut response);
            response.header("Allow", allowed);
        }
        NoRoute::Path(reason) => {
            write_status(Status::BAD_REQUEST, &mut response);
            let body = response.buffer();
            body.clear();
            body.extend_from_slice(reason.as_bytes());
            body.push(b'\n');
        }
        NoRoute::NoSite | NoRoute::NotFound | NoRoute::Circle | NoRoute::Bug => {
            write_status(no_route.status(), &mut response)
        }
    }
    Refusal::Response(Box::new(response))
}

fn whole_seconds(admission: Admission) -> u64 {
    admission.wait.as_secs() + u64::from(admission.wait.subsec_nanos() > 0)
}
