//! Applies a route's rules to a response before it is sent.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::{ExchangeKey, Response, SendRate};
use tokio::sync::oneshot;

use super::compiled::{ResponseBlock, ResponseRules};
pub(crate) use super::late::BlockNeeds;
use super::late::{FieldValue, Making};
use super::page_request::PageRequest;
use super::permits::{Permits, hold};
use super::replace::RenderedReplacement;
use super::response_rate::ResponseRate;
use super::upstream_fields::RenderedValues;
use super::upstream_redirect::{RedirectRequest, apply_kept, forget_private, kept_rate};
use flatout_gateway::{Finish, Redirection, ResponseOrigin, Stored};
use flatout_observe::observed::{LoggedTexts, Notes};
use flatout_wire::Status;

/// The rules of a route for one response, with the parts of its request that they need.
#[derive(Debug, Default)]
pub(crate) struct Finisher {
    rules: Rc<FinishRules>,
    /// The values of field rules, and after them that of `expires`, if they differ between requests.
    values: Vec<FieldValue>,
    blocks: Vec<BlockNeeds>,
    /// The texts that are replaced in bodies.
    texts: Vec<RenderedReplacement>,
    /// Texts of rules for addresses and cookies of upstreams.
    upstream: RenderedValues,
    origin: Option<Vec<u8>>,
    is_https: bool,
    is_head: bool,
    /// The codings that the client accepts.
    accept: Option<Vec<u8>>,
    /// Lines of rates, each ended by CRLF.
    rate_lines: Vec<u8>,
    /// For the page of an error from another route.
    pages: Option<Box<PageRequest>>,
    /// For a response that the upstream leaves to another route.
    redirects: Option<Box<RedirectRequest>>,
    /// Fields of an upstream that has left its response to this route.
    kept: Vec<(String, Vec<u8>)>,
    /// The status of the error whose page this is.
    error: Option<Status>,
    /// The response only decides about a request, and has no error page.
    is_decision: bool,
    /// The rate of this response, if each has its own.
    rate: Option<ResponseRate>,
    logged: LogValues,
    /// Released when the response has ended: its body may hold them longer.
    permits: Permits,
    /// Dropped when no response is possible any more.
    _signal: Option<oneshot::Sender<()>>,
}

/// The rules of a route; `None` if there are none.
#[derive(Debug, Default)]
pub(crate) struct FinishRules {
    rules: Option<ResponseRules>,
    /// The worker's notes, if a field shows attempts at upstreams, or a log has the bodies of requests.
    notes: Option<Rc<Notes>>,
    /// Whether a log has these.
    logs_body: bool,
    /// Variables that logs have.
    log_names: Vec<Arc<str>>,
}

/// What access logs have of a request.
#[derive(Debug, Default)]
pub(crate) struct LogValues {
    /// Its body.
    pub(crate) body: Vec<u8>,
    /// Values of variables, and whether there is a value even if it is empty.
    pub(crate) named: Vec<(Arc<str>, FieldValue, bool)>,
}

impl LogValues {
    fn is_empty(&self) -> bool {
        self.body.is_empty() && self.named.is_empty()
    }

    fn complete(&self, making: Making<'_>, response: &Response) -> LoggedTexts {
        let value = |(name, value, is_always): &(Arc<str>, FieldValue, bool)| {
            let value = value.complete(making, response);
            (*is_always || !value.is_empty()).then(|| (name.clone(), value.into_owned()))
        };
        LoggedTexts {
            body: (!self.body.is_empty()).then(|| self.body.clone()),
            named: self.named.iter().filter_map(value).collect(),
        }
    }
}

/// Creates the finisher for each response of a route.
pub(crate) struct Finishers {
    rules: Rc<FinishRules>,
    /// Shared by all requests if their responses are changed in the same way: without HTTPS, and with it.
    same: Option<[Rc<Finisher>; 2]>,
}

/// What a finisher needs from a request.
#[derive(Default)]
pub(crate) struct Needs {
    pub(crate) values: Vec<FieldValue>,
    pub(crate) blocks: Vec<BlockNeeds>,
    pub(crate) texts: Vec<RenderedReplacement>,
    pub(crate) upstream: RenderedValues,
    pub(crate) origin: Option<Vec<u8>>,
    pub(crate) is_https: bool,
    pub(crate) is_head: bool,
    pub(crate) accept: Option<Vec<u8>>,
    pub(crate) rate_lines: Vec<u8>,
    pub(crate) pages: Option<Box<PageRequest>>,
    pub(crate) redirects: Option<Box<RedirectRequest>>,
    pub(crate) kept: Vec<(String, Vec<u8>)>,
    pub(crate) error: Option<Status>,
    pub(crate) is_decision: bool,
    pub(crate) rate: Option<ResponseRate>,
    pub(crate) logged: LogValues,
    pub(crate) permits: Permits,
    pub(crate) signal: Option<oneshot::Sender<()>>,
}

impl Finishers {
    /// Without rules.
    pub(crate) fn none() -> Finishers {
        Finishers::new(ResponseRules::default(), None)
    }

    /// `notes` are the worker's, which have the attempts at upstreams if a rule shows them, and know what logs want.
    pub(crate) fn new(rules: ResponseRules, notes: Option<&Rc<Notes>>) -> Finishers {
        let logs_body = notes.is_some_and(|notes| notes.wants_body(rules.site, rules.logs));
        let log_names = notes.map(|notes| notes.wanted_names(rules.site, rules.logs)).unwrap_or_default();
        let is_logged = logs_body || !log_names.is_empty();
        let notes = notes.filter(|_| is_logged || rules.uses_attempts()).cloned();
        let names_origins = rules.cors.is_some();
        let is_same = rules.has_constant_values()
            && rules.upstream.is_constant()
            && !names_origins
            && rules.compress.is_none()
            && rules.replacements.is_none()
            && rules.rate.is_fixed()
            && log_names.is_empty()
            && rules.blocks.is_empty();
        let rules = Rc::new(FinishRules { rules: Some(rules), notes, logs_body, log_names });
        let same = |is_https| Rc::new(Finisher { rules: rules.clone(), is_https, ..Finisher::default() });
        let same = is_same.then(|| [false, true].map(same));
        Finishers { rules, same }
    }

    /// The rules, to find out what they need from a request.
    pub(crate) fn rules(&self) -> Option<&ResponseRules> {
        self.rules.rules.as_ref()
    }

    /// Whether a log has the bodies of requests.
    pub(crate) fn logs_body(&self) -> bool {
        self.rules.logs_body
    }

    /// Variables that logs have.
    pub(crate) fn log_names(&self) -> &[Arc<str>] {
        &self.rules.log_names
    }

    /// Where the worker notes attempts at upstreams, if a rule shows them.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.rules.notes.as_deref()
    }

    /// The finisher of one response. Allocates nothing if all responses of the route get the same one.
    #[inline]
    pub(crate) fn of(&self, needs: Needs) -> Rc<Finisher> {
        let is_usual = needs.permits.is_empty()
            && needs.rate_lines.is_empty()
            && needs.signal.is_none()
            && needs.pages.is_none()
            && needs.redirects.is_none()
            && needs.kept.is_empty()
            && needs.error.is_none()
            && needs.logged.is_empty()
            && !needs.is_decision;
        match &self.same {
            Some(same) if is_usual => same[usize::from(needs.is_https)].clone(),
            _ => Rc::new(Finisher {
                rules: self.rules.clone(),
                values: needs.values,
                blocks: needs.blocks,
                texts: needs.texts,
                upstream: needs.upstream,
                origin: needs.origin,
                is_https: needs.is_https,
                is_head: needs.is_head,
                accept: needs.accept,
                rate_lines: needs.rate_lines,
                pages: needs.pages,
                redirects: needs.redirects,
                kept: needs.kept,
                error: needs.error,
                is_decision: needs.is_decision,
                rate: needs.rate,
                logged: needs.logged,
                permits: needs.permits,
                _signal: needs.signal,
            }),
        }
    }
}

impl Finish for Finisher {
    fn finish(&self, response: &mut Response, by: ResponseOrigin) {
        self.apply(response, by, None);
    }

    fn finish_stored(&self, response: &mut Response, stored: &dyn Stored) {
        self.apply(response, ResponseOrigin::Upstream, Some(stored));
    }

    fn redirect(&self, held: Rc<dyn Finish>, exchange: ExchangeKey, response: &mut Response) -> Redirection {
        let (Some(redirects), Some(rules)) = (&self.redirects, &self.rules.rules) else {
            return Redirection::Nowhere;
        };
        // The page of an error comes first.
        if rules.pages.has_page(response.status(), ResponseOrigin::Upstream) {
            return Redirection::Nowhere;
        }
        redirects.follow(&rules.sendfile, held, exchange, response)
    }
}

impl Finisher {
    #[inline]
    fn apply(&self, response: &mut Response, by: ResponseOrigin, stored: Option<&dyn Stored>) {
        let Some(rules) = &self.rules.rules else { return };
        let making = Making { by, notes: self.rules.notes.as_deref() };
        self.limit_rate(rules, response);
        forget_private(self.redirects.as_deref(), response);
        let error = self.error.filter(|_| response.status() == Status::OK);
        // What an upstream responds is judged by its own status.
        let (error, error_of_upstream) = match by {
            ResponseOrigin::Here => (error, None),
            ResponseOrigin::Upstream => (None, error),
        };
        if let Some(error) = error {
            response.set_status(error);
        }
        apply_kept(&self.kept, response);
        if let Some(pages) = &self.pages
            && let Some((to, is_kept)) = rules.pages.route(response.status(), by)
            && pages.replace(to, is_kept, response)
        {
            return;
        }
        if by == ResponseOrigin::Upstream && !rules.upstream.is_empty() {
            rules.upstream.apply(&self.upstream, response);
        }
        if !rules.pages.is_empty() && !self.is_decision {
            rules.pages.apply(response, by);
        }
        if let Some(error) = error_of_upstream {
            response.set_status(error);
        }
        if let Some(charset) = &rules.charset {
            charset.apply(by, response);
        }
        let in_force = self.in_force(rules, making, response);
        self.expire(rules, in_force, making, response);
        if !rules.fields.is_empty() {
            rules.fields.apply(&self.values, making, response);
        }
        let (mut logs, mut log_skips) = (rules.logs, 0);
        for (block, needs) in self.blocks(rules, in_force) {
            block.fields.apply(&needs.values, making, response);
            block.choose_logs(&mut logs, &mut log_skips);
        }
        if let Some(hsts) = rules.hsts.as_ref().filter(|_| self.is_https)
            && response.field("strict-transport-security").is_none()
        {
            response.header("Strict-Transport-Security", hsts);
        }
        if let Some(cors) = &rules.cors {
            cors.apply(self.origin.as_deref(), response);
        }
        if !self.rate_lines.is_empty() {
            response.encoded_fields(&self.rate_lines);
        }
        let is_replaced =
            rules.replacements.as_ref().is_some_and(|replacements| replacements.apply(&self.texts, response));
        if let Some(compress) = &rules.compress {
            // What is stored in compressed form has the texts as they were.
            let form = |coding, plain: &[u8]| stored.filter(|_| !is_replaced)?.compressed(coding, plain);
            compress.apply(self.is_head, self.accept.as_deref(), form, response);
        }
        let note = match &self.rules.notes {
            Some(notes) if !self.logged.is_empty() => {
                notes.with_texts(response.note(), self.logged.complete(making, response))
            }
            _ => response.note(),
        };
        response.set_note(Notes::routed(note, rules.site, logs, log_skips));
        if !self.permits.is_empty() {
            hold(&self.permits, response);
        }
    }
}

impl Finisher {
    /// The blocks whose conditions are true for this response, a bit for each. They are chosen before any rule changes its fields: the
    /// conditions are about the response that the rules get.
    #[inline]
    fn in_force(&self, rules: &ResponseRules, making: Making<'_>, response: &Response) -> u64 {
        let all = self.blocks(rules, u64::MAX).enumerate();
        let bits = all.map(|(at, (block, needs))| u64::from(needs.holds(block, making, response)) << at);
        bits.fold(0, |all, bit| all | bit)
    }

    /// These blocks, with what they need.
    #[inline]
    fn blocks<'f>(
        &'f self,
        rules: &'f ResponseRules,
        chosen: u64,
    ) -> impl Iterator<Item = (&'f ResponseBlock, &'f BlockNeeds)> {
        let chosen = self.blocks.iter().enumerate().filter(move |(at, _)| chosen >> at & 1 == 1);
        chosen.filter_map(|(_, needs)| Some((rules.blocks.get(needs.at)?, needs)))
    }

    /// Sets how long clients may use a response: as the last block in force says, or else the route.
    #[inline]
    fn expire(&self, rules: &ResponseRules, in_force: u64, making: Making<'_>, response: &mut Response) {
        let of_blocks = self.blocks(rules, in_force);
        let of_blocks = of_blocks.filter_map(|(block, needs)| Some((block.expires.as_ref()?, &needs.values)));
        let of_route = || rules.expires.as_ref().map(|expires| (expires, &self.values));
        if let Some((expires, values)) = of_blocks.last().or_else(of_route) {
            expires.apply(values.last(), making, response);
        }
    }

    /// Limits the rate of a response: as its upstream says, or the one that it stands for, or as the rule says.
    #[inline]
    fn limit_rate(&self, rules: &ResponseRules, response: &mut Response) {
        let rate = self.rate.or_else(|| rules.rate.fixed()).unwrap_or_default();
        let ResponseRate { bytes_per_s, after_bytes } = rate;
        if bytes_per_s > 0 || self.redirects.is_some() || !self.kept.is_empty() {
            let of_upstream = self.redirects.as_ref().and_then(|redirects| redirects.rate(response));
            let given = of_upstream.or_else(|| kept_rate(&self.kept));
            if given.is_some() || bytes_per_s > 0 {
                response.set_rate_limit(SendRate::new(given.unwrap_or(bytes_per_s), after_bytes));
            }
        }
    }
}
