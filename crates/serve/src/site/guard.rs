//! Checks a request against its route's guards, in the order given in `answer.rs`.

use flatout_engine::Response;
use flatout_lane::clock;
use flatout_wire::{Framing, Head, Status};

use super::answer::{Answers, Progress, Refusal, Step, write_status};
use super::basic::Credentials;
use super::compiled::{Guards, Key};
use super::concurrency::Entered;
use super::fields::push_line;
use super::forward::{Opinion, Question};
use super::plan::Verdict;
use super::rate::{Taken, TooMany};
use super::render::{Paths, escape_unsafe};
use super::settle::{Nowhere, Settled};
use super::suspend::Waiting;

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
        head: &Head<'_>,
        settled: &Settled<'_>,
        progress: &mut Progress,
        response: &mut Response,
    ) -> Outcome {
        let Some(guards) = self.guards(settled) else {
            return Outcome::Refused(Refusal::Status(Status::MISDIRECTED_REQUEST));
        };
        if progress.at <= Step::Begin {
            if let Some(refusal) = self.begin(head, settled, guards, progress) {
                return Outcome::Refused(refusal);
            }
            if let Some(cors) = self.finishers(settled).rules().and_then(|rules| rules.cors.as_ref())
                && cors.preflight(head, response)
            {
                return Outcome::Refused(Refusal::Response(Box::new(std::mem::take(response))));
            }
            if let Some(waits) = progress.waits.take() {
                progress.at = Step::Paced;
                return Outcome::Wait(Waiting::Pace(waits));
            }
        }
        if let Err(nowhere) = &settled.route {
            // A site that requires a password does not reveal which paths exist.
            if *nowhere != Nowhere::NoRoute || guards.basic.is_none() {
                return Outcome::Refused(nowhere_refusal(nowhere));
            }
        }
        if progress.at <= Step::Password {
            match self.password(head, guards, progress) {
                Outcome::Go => {}
                other => return other,
            }
        }
        if let Err(nowhere) = &settled.route {
            return Outcome::Refused(nowhere_refusal(nowhere));
        }
        if progress.at <= Step::Authority
            && let Some(authority) = &guards.authority
        {
            let view = self.compiled.view_of(head, settled, &progress.identity);
            let mut target = Vec::new();
            authority.target.render(&view, Paths::Encoded, &mut target);
            escape_unsafe(&mut target);
            let question =
                Question { authority: &authority.plan, target: &target, head, client: settled.client };
            let (say, said) = tokio::sync::oneshot::channel();
            let then = Box::new(move |opinion: Opinion| drop(say.send(opinion)));
            self.forwarding.ask(question, then);
            return Outcome::Wait(Waiting::Opinion(said));
        }
        if is_too_large(head, guards) {
            return Outcome::Refused(Refusal::Status(Status::CONTENT_TOO_LARGE));
        }
        let entered = match progress.at {
            Step::Room(count) => count,
            _ => 0,
        };
        for (at, (key, gate)) in guards.gates.iter().enumerate().skip(entered) {
            let Some(key) = self.number_of(key, head, settled, progress) else { continue };
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

    /// The checks that run first, and only once.
    fn begin(
        &self,
        head: &Head<'_>,
        settled: &Settled<'_>,
        guards: &Guards,
        progress: &mut Progress,
    ) -> Option<Refusal> {
        let address = settled.client.address;
        if let Some(closed) = guards.maintenance.as_ref().filter(|closed| !closed.except.allows(address)) {
            let mut response = Response::new();
            closed.write(&mut response);
            return Some(Refusal::Response(Box::new(response)));
        }
        if guards.access.verdict(address) == Some(Verdict::Deny) {
            return Some(Refusal::Status(Status::FORBIDDEN));
        }
        self.rates(head, settled, guards, progress)
    }

    /// Counts the request in all rates of the route; rates before the one that refuses have counted it too.
    ///
    /// # Source
    /// `RateLimit-Policy` (`q`, `w`) and `RateLimit` (`r`, `t`) are from draft-ietf-httpapi-ratelimit-headers-10.
    fn rates(
        &self,
        head: &Head<'_>,
        settled: &Settled<'_>,
        guards: &Guards,
        progress: &mut Progress,
    ) -> Option<Refusal> {
        let mut scarcest: Option<(Taken, &str)> = None;
        let mut refused = None;
        for rate in &guards.rates {
            let Some(key) = self.number_of(&rate.key, head, settled, progress) else { continue };
            let taken = rate.buckets.take(key, rate.burst, clock::nanoseconds());
            if let Some((_, name)) = &rate.said
                && scarcest.is_none_or(|(least, _)| taken.remaining < least.remaining || !taken.is_allowed)
            {
                scarcest = Some((taken, name));
            }
            if !taken.is_allowed {
                refused = Some((taken, rate.status));
                break;
            }
            match rate.delay.map(|at_once| rate.buckets.pace(taken, at_once)) {
                Some(Ok(Some(waits)))
                    if progress.waits.as_ref().is_none_or(|most| most.time < waits.time) =>
                {
                    progress.waits = Some(waits);
                }
                Some(Err(TooMany)) => {
                    refused = Some((taken, rate.status));
                    break;
                }
                _ => {}
            }
        }
        let lines = &mut progress.needs.rate_lines;
        if let Some((taken, name)) = scarcest {
            let policies: Vec<&str> = guards
                .rates
                .iter()
                .filter_map(|rate| rate.said.as_ref())
                .map(|(policy, _)| &**policy)
                .collect();
            push_line(b"RateLimit-Policy", policies.join(", ").as_bytes(), lines);
            let (left, seconds) = (taken.remaining, whole_seconds(taken));
            push_line(b"RateLimit", format!("{name};r={left};t={seconds}").as_bytes(), lines);
        }
        refused.map(|(taken, status)| {
            push_line(b"Retry-After", whole_seconds(taken).max(1).to_string().as_bytes(), lines);
            Refusal::Status(status)
        })
    }

    fn number_of(
        &self,
        key: &Key,
        head: &Head<'_>,
        settled: &Settled<'_>,
        progress: &Progress,
    ) -> Option<u64> {
        let view = self.compiled.view_of(head, settled, &progress.identity);
        self.compiled.number_of(key, &view)
    }

    fn password(&self, head: &Head<'_>, guards: &Guards, progress: &mut Progress) -> Outcome {
        let Some(basic) = &guards.basic else { return Outcome::Go };
        let challenge = || Refusal::Password(basic.challenge.clone());
        let Some(Credentials { name, password }) = Credentials::of(head) else {
            return Outcome::Refused(challenge());
        };
        let Some(passwords) = &self.passwords else { return Outcome::Refused(Refusal::Busy) };
        if passwords.remembers(&basic.users, &name, &password) {
            progress.identity.user = name;
            return Outcome::Go;
        }
        match passwords.check(&basic.users, &name, &password) {
            Ok(answered) => Outcome::Wait(Waiting::Password(answered, name, basic.challenge.clone())),
            Err(_) => Outcome::Refused(Refusal::Busy),
        }
    }
}

fn nowhere_refusal(nowhere: &Nowhere) -> Refusal {
    let mut response = Response::new();
    match nowhere {
        Nowhere::Server => {
            response.set_status(Status::NO_CONTENT).header("Allow", "GET, HEAD, OPTIONS");
        }
        Nowhere::WrongMethod(methods) => {
            write_status(Status::METHOD_NOT_ALLOWED, &mut response);
            response.header("Allow", methods);
        }
        Nowhere::Path(reason) => {
            write_status(Status::BAD_REQUEST, &mut response);
            let body = response.buffer();
            body.clear();
            body.extend_from_slice(reason.as_bytes());
            body.push(b'\n');
        }
        Nowhere::NoSite | Nowhere::NoRoute | Nowhere::Circle => write_status(nowhere.status(), &mut response),
    }
    Refusal::Response(Box::new(response))
}

pub(super) fn is_too_large(head: &Head<'_>, guards: &Guards) -> bool {
    match (head.framing, guards.body_bytes_max) {
        (Framing::Length(bytes), Some(bytes_max)) => bytes > bytes_max,
        _ => false,
    }
}

fn whole_seconds(taken: Taken) -> u64 {
    taken.wait.as_secs() + u64::from(taken.wait.subsec_nanos() > 0)
}
