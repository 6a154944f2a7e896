//! The variables that a plan uses, in all of its texts and conditions.

use super::condition::{Condition, WhenBlock};
use super::cookies::{CookieRule, LocationRule, Matcher};
use super::expires::Expires;
use super::map::{Map, SetValue, SetVariable};
use super::rules::{
    ByteCount, Cached, ErrorPage, FieldChange, FieldRule, ForwardAuth, Limited, PageSource, ReplacedParts,
    Replacement, Rules,
};
use super::template::{Piece, Template, Variable};
use super::{Action, Plan, Reroute, Rewrite, Route, Site};

/// Gets each variable; one that is used several times comes several times.
type Visit<'v, 'p> = &'v mut dyn FnMut(&'p Variable);

impl Plan {
    /// Visits the variables of all texts and conditions.
    pub(crate) fn variables<'p>(&'p self, visit: Visit<'_, 'p>) {
        for Map { source, cases, default, name: _, file: _, proxies: _ } in &self.maps {
            cases.iter().map(|(_, to)| to).chain([source, default]).for_each(|text| of_text(text, visit));
        }
        for SetVariable { value, when, name: _, before: _ } in &self.sets {
            match value {
                SetValue::Text(text) => of_text(text, visit),
                SetValue::Expression(expression) => expression.facts().iter().for_each(&mut *visit),
            }
            of_conditions(when, visit);
        }
        let keys = self.rates.iter().map(|rate| &rate.key);
        for key in keys.chain(self.concurrency.iter().map(|limit| &limit.key)) {
            of_key(key, visit);
        }
        self.sites.iter().for_each(|site| of_site(site, visit));
    }
}

fn of_site<'p>(site: &'p Site, visit: Visit<'_, 'p>) {
    of_rewrites(&site.rewrites, visit);
    of_rules(&site.rules, visit);
    for route in &site.routes {
        let Route { when, rewrites, rules, upstream_name, action, .. } = route;
        of_conditions(when, visit);
        of_rewrites(rewrites, visit);
        of_rules(rules, visit);
        upstream_name.iter().for_each(|text| of_text(text, visit));
        match action {
            Action::Redirect { to: text, .. } | Action::Respond { body: text, .. } => of_text(text, visit),
            Action::Reroute(to) => of_reroute(to, visit),
            Action::Files(_) | Action::Proxy(_) | Action::Push(_) | Action::StubStatus | Action::Close => {}
        }
    }
}

// All fields are named, so that a new one is not forgotten here.
fn of_rules<'p>(rules: &'p Rules, visit: Visit<'_, 'p>) {
    let Rules {
        trust: _,
        maintenance: _,
        access: _,
        satisfies_any: _,
        rates: _,
        cors: _,
        basic_auth: _,
        forward_auth,
        auth_route,
        body: _,
        concurrency: _,
        request_fields,
        replaced,
        response_fields,
        hsts: _,
        error_pages,
        cache,
        compress: _,
        when,
        locations,
        sendfile: _,
        cookies,
        expires,
        limit_rate,
        limit_rate_after,
        logs: _,
        log_values,
        log_skips: _,
        replacements,
        replaced_types: _,
        charset: _,
        charset_types: _,
        redirect_origin,
    } = rules;
    if let Some(ForwardAuth { target, sign_in, upstream: _, request_fields: _, response_fields: _ }) =
        forward_auth
    {
        sign_in.iter().chain([target]).for_each(|text| of_text(text, visit));
    }
    auth_route.iter().for_each(|to| of_reroute(to, visit));
    for FieldRule { change, name: _, when: _ } in request_fields.iter().chain(response_fields) {
        match change {
            FieldChange::Set(text)
            | FieldChange::Add(text)
            | FieldChange::Default(text)
            | FieldChange::Trailer(text) => of_text(text, visit),
            FieldChange::Remove => {}
        }
    }
    let ReplacedParts { host, method, body, drops_fields: _ } = replaced;
    host.iter().chain(method).chain(body).for_each(|text| of_text(text, visit));
    for ErrorPage { page, statuses: _, status: _, of_upstreams: _ } in error_pages {
        match &page.source {
            PageSource::Route { to, keeps_status: _ } => of_reroute(to, visit),
            PageSource::Text(_) | PageSource::File(_) => {}
        }
    }
    if let Some(Cached { key, bypass, refresh, no_store, rules: _, is_rendered: _ }) = cache {
        let texts = key.iter().chain(bypass).chain(refresh).chain(no_store);
        texts.for_each(|text| of_text(text, visit));
    }
    for WhenBlock { conditions, rules } in when {
        of_conditions(conditions, visit);
        of_rules(rules, visit);
    }
    for LocationRule { from, to } in locations {
        of_matcher(from, visit);
        of_text(to, visit);
    }
    for cookie in cookies {
        match cookie {
            CookieRule::Domain { from, to } | CookieRule::Path { from, to } => {
                of_matcher(from, visit);
                of_text(to, visit);
            }
            CookieRule::Flags { name, flags: _ } => of_matcher(name, visit),
        }
    }
    if let Some(Expires::Text(text, _)) = expires {
        of_text(text, visit);
    }
    for count in [limit_rate, limit_rate_after] {
        match count {
            ByteCount::Text(text) => of_text(text, visit),
            ByteCount::Fixed(_) => {}
        }
    }
    log_values.iter().for_each(|(_, text)| of_text(text, visit));
    for Replacement { from, to, is_once: _ } in replacements {
        of_text(from, visit);
        of_text(to, visit);
    }
    redirect_origin.iter().for_each(|text| of_text(text, visit));
}

fn of_rewrites<'p>(rewrites: &'p [Rewrite], visit: Visit<'_, 'p>) {
    for Rewrite { to, when, from: _, then: _ } in rewrites {
        of_text(to, visit);
        of_conditions(when, visit);
    }
}

fn of_reroute<'p>(to: &'p Reroute, visit: Visit<'_, 'p>) {
    match to {
        Reroute::Path(text) => of_text(text, visit),
        Reroute::Named(_) => {}
    }
}

fn of_matcher<'p>(matcher: &'p Matcher, visit: Visit<'_, 'p>) {
    match matcher {
        Matcher::Text(text) => of_text(text, visit),
        Matcher::Pattern { .. } => {}
    }
}

fn of_key<'p>(key: &'p Limited, visit: Visit<'_, 'p>) {
    match key {
        Limited::Text(text) => of_text(text, visit),
        Limited::Everyone | Limited::Client { .. } => {}
    }
}

fn of_conditions<'p>(conditions: &'p [Condition], visit: Visit<'_, 'p>) {
    conditions.iter().flat_map(Condition::facts).for_each(visit);
}

fn of_text<'p>(text: &'p Template, visit: Visit<'_, 'p>) {
    for piece in &text.0 {
        match piece {
            Piece::Variable(variable) => visit(variable),
            Piece::Text(_) => {}
        }
    }
}
