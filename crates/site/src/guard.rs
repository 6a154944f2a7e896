//! Checks a request against its route's guards, in the order given in `answer.rs`.

use flatout_engine::{Lane, Request, Response};
use flatout_lane::clock;
use flatout_wire::{Framing, Head, Status};

use super::answer::{Answers, Progress, Refusal, Step, write_status};
use super::basic::Credentials;
use super::compiled::{Guards, Key};
use super::concurrency::Entered;
use super::fields::push_line;
use super::passwords::{Busy, Login};
use super::plan::Verdict;
use super::rate::{Admission, TooMany};
use super::render::{Paths, escape_unsafe};
use super::resolve::{NoRoute, Resolution};
use super::suspend::Waiting;
use flatout_gateway::AuthQuery;

/// The part of an IPv6 address by which password checks are limited: a client usually has a /64.
const CLIENT_IPV6_BITS: u8 = 64;

/// The result of a step.
pub(super) enum Outcome {
    Go,
    Refused(Refusal),
    Wait(Waiting),
}

impl Answers {
    /// Runs all guards in order.
    pub(super) fn guard(
        &self,
        request: &Request<'_>,
        resolution: &Resolution<'_>,
        progress: &mut Progress,
        response: &mut Response,
    ) -> Outcome {
        let head = &request.head;
        if progress.at == Step::Collected {
            return Outcome::Go;
        }
        let Some(guards) = self.guards(resolution) else {
            return Outcome::Refused(Refusal::Status(Status::MISDIRECTED_REQUEST));
        };
        if progress.at <= Step::Begin {
            if let Some(refusal) = self.begin(head, resolution, guards, progress) {
                return Outcome::Refused(refusal);
            }
            if let Some(cors) = self.finishers(resolution).rules().and_then(|rules| rules.cors.as_ref())
                && cors.preflight(head, response)
            {
                return Outcome::Refused(Refusal::Response(Box::new(std::mem::take(response))));
            }
            if let Some(waits) = progress.waits.take() {
                progress.at = Step::Paced;
                return Outcome::Wait(Waiting::Pace(waits));
            }
        }
        if let Err(no_route) = &resolution.route
            && !no_route.follows_rules()
        {
            return Outcome::Refused(no_route_refusal(no_route));
        }
        if progress.at <= Step::Password {
            match self.password(request, resolution, guards, progress) {
                Outcome::Go => {}
                other => return other,
            }
        }
        if progress.at <= Step::Authority
            && let Some(authority) = &guards.authority
        {
            let view = self.compiled.view_of(head, resolution, &progress.identity);
            let mut target = Vec::new();
            authority.target.render(&view, Paths::Encoded, &mut target);
            escape_unsafe(&mut target);
            let query = AuthQuery {
                upstream: authority.plan.upstream,
                request_fields: &authority.plan.request_fields,
                response_fields: &authority.plan.response_fields,
                target: &target,
                head,
                client: resolution.client,
            };
            let (then, decision) = tokio::sync::oneshot::channel();
            self.forwarding.ask(query, then);
            return Outcome::Wait(Waiting::AuthDecision(decision));
        }
        if let Err(no_route) = &resolution.route {
            return Outcome::Refused(no_route_refusal(no_route));
        }
        if self.is_too_large(head, guards) {
            return Outcome::Refused(Refusal::Status(Status::CONTENT_TOO_LARGE));
        }
        let entered = match progress.at {
            Step::Room(count) => count,
            _ => 0,
        };
        for (at, (key, gate)) in guards.gates.iter().enumerate().skip(entered) {
            let key = self.number_of(key, head, resolution, progress);
            match gate.enter(key) {
                Entered::Now(permit) => progress.needs.permits.push(permit),
                Entered::Queued(permit) => {
                    progress.at = Step::Room(at + 1);
                    return Outcome::Wait(Waiting::Room(permit, gate.queue_time_max));
                }
                Entered::Full => return Outcome::Refused(Refusal::Busy),
            }
        }
        Outcome::Go
    }

    /// Whether its declared length is above the limit of its route, or else of the server.
    pub(super) fn is_too_large(&self, head: &Head<'_>, guards: &Guards) -> bool {
        let Framing::Length(bytes) = head.framing else { return false };
        let bytes_max = guards.body_bytes_max.or_else(|| self.lane.as_ref().map(Lane::body_bytes_max));
        bytes_max.is_some_and(|bytes_max| bytes > bytes_max)
    }

    /// The checks that run first, and only once.
    fn begin(
        &self,
        head: &Head<'_>,
        resolution: &Resolution<'_>,
        guards: &Guards,
        progress: &mut Progress,
    ) -> Option<Refusal> {
        let address = resolution.client.address;
        if let Some(closed) = guards.maintenance.as_ref().filter(|closed| !closed.except.allows(address)) {
            let mut response = Response::new();
            closed.write(&mut response);
            return Some(Refusal::Response(Box::new(response)));
        }
        if guards.access.verdict(address) == Some(Verdict::Deny) {
            return Some(Refusal::Status(Status::FORBIDDEN));
        }
        self.rates(head, resolution, guards, progress)
    }

    /// Counts the request in all rates of the route; rates before the one that refuses have counted it too.
    ///
    /// # Source
    /// `RateLimit-Policy` (`q`, `w`) and `RateLimit` (`r`, `t`) are from draft-ietf-httpapi-ratelimit-headers-10.
    fn rates(
        &self,
        head: &Head<'_>,
        resolution: &Resolution<'_>,
        guards: &Guards,
        progress: &mut Progress,
    ) -> Option<Refusal> {
        let mut scarcest: Option<(Admission, &str)> = None;
        let mut refused = None;
        for rate in &guards.rates {
            let key = self.number_of(&rate.key, head, resolution, progress);
            let admission = rate.buckets.take(key, rate.burst, clock::nanoseconds());
            if let Some((_, name)) = &rate.field_values
                && scarcest
                    .is_none_or(|(least, _)| admission.remaining < least.remaining || !admission.is_allowed)
            {
                scarcest = Some((admission, name));
            }
            if !admission.is_allowed {
                refused = Some((admission, rate.status));
                break;
            }
            match rate.delay.map(|at_once| rate.buckets.pace(admission, at_once)) {
                Some(Ok(Some(waits)))
                    if progress.waits.as_ref().is_none_or(|most| most.time < waits.time) =>
                {
                    progress.waits = Some(waits);
                }
                Some(Err(TooMany)) => {
                    refused = Some((admission, rate.status));
                    break;
                }
                _ => {}
            }
        }
        let lines = &mut progress.needs.rate_lines;
        if let Some((admission, name)) = scarcest {
            let policies: Vec<&str> = guards
                .rates
                .iter()
                .filter_map(|rate| rate.field_values.as_ref())
                .map(|(policy, _)| &**policy)
                .collect();
            push_line(b"RateLimit-Policy", policies.join(", ").as_bytes(), lines);
            let (left, seconds) = (admission.remaining, whole_seconds(admission));
            push_line(b"RateLimit", format!("{name};r={left};t={seconds}").as_bytes(), lines);
        }
        refused.map(|(admission, status)| {
            push_line(b"Retry-After", whole_seconds(admission).max(1).to_string().as_bytes(), lines);
            Refusal::Status(status)
        })
    }

    fn number_of(&self, key: &Key, head: &Head<'_>, resolution: &Resolution<'_>, progress: &Progress) -> u64 {
        let view = self.compiled.view_of(head, resolution, &progress.identity);
        self.compiled.number_of(key, &view)
    }

    fn password(
        &self,
        request: &Request<'_>,
        resolution: &Resolution<'_>,
        guards: &Guards,
        progress: &mut Progress,
    ) -> Outcome {
        const CLIENT: Key = Key::Client { ipv6_bits: CLIENT_IPV6_BITS };
        let Some(basic) = &guards.basic else { return Outcome::Go };
        let challenge = || Refusal::Password(basic.challenge.clone());
        let Some(Credentials { name, password }) = Credentials::of(&request.head) else {
            return Outcome::Refused(challenge());
        };
        let Some(passwords) = &self.passwords else { return Outcome::Refused(Refusal::Busy) };
        let address = self.number_of(&CLIENT, &request.head, resolution, progress);
        let login =
            Login { users: &basic.users, name: &name, password: &password, address, peer: request.peer };
        if passwords.recalls(&login) {
            progress.identity.user = name;
            return Outcome::Go;
        }
        match passwords.check(&login) {
            Ok(answered) => Outcome::Wait(Waiting::Password(answered, name, basic.challenge.clone())),
            Err(Busy) => Outcome::Refused(Refusal::Busy),
        }
    }
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
        NoRoute::NoSite | NoRoute::NotFound | NoRoute::Circle => {
            write_status(no_route.status(), &mut response)
        }
    }
    Refusal::Response(Box::new(response))
}

fn whole_seconds(admission: Admission) -> u64 {
    admission.wait.as_secs() + u64::from(admission.wait.subsec_nanos() > 0)
}
