//! The routes of the site, and the rules for fields: fixed responses, redirects, rewrites, allowed methods and denied clients.

use std::net::{IpAddr, Ipv4Addr};

use flatout_gateway::Forward;
use flatout_site::plan::{
    Access, Action, FieldChange, FieldRule, Net, PathMatch, Peers, Rewrite, RewriteFrom, Route, Rules,
    Template, Then, Verdict, When,
};

/// Paths that no client may reach, and where the authorization service refuses.
pub(crate) const DENIED: &str = "/denied";
pub(crate) const REFUSED: &str = "/refused";

/// The path of most requests, and one that is rewritten to it.
pub(crate) const OPEN: &str = "/open";
pub(crate) const OLD: &str = "/old";

/// Paths with a fixed response and with a redirect.
pub(crate) const FIXED: &str = "/fixed";
pub(crate) const MOVED: &str = "/moved";

/// A path that allows only GET and HEAD.
pub(crate) const READ_ONLY: &str = "/read-only";

/// A path that is denied to clients of one network, by the address that a proxy announces.
pub(crate) const DISTANT: &str = "/distant";

const NEAR_BITS: u8 = 25;

fn near() -> Net {
    Net::new(Ipv4Addr::new(192, 0, 2, 0).into(), NEAR_BITS).expect("a network")
}

/// Whether a client is in the network that may not reach [`DISTANT`].
pub(crate) fn is_near(address: Option<IpAddr>) -> bool {
    matches!(address, Some(IpAddr::V4(address)) if address.octets()[..3] == [192, 0, 2] && address.octets()[3] < 128)
}

/// Fields of responses that the site's rules set, remove, and add if missing.
pub(crate) const SET_FIELD: &str = "x-frame-options";
pub(crate) const REMOVED_FIELD: &str = "x-powered-by";
pub(crate) const DEFAULT_FIELD: &str = "x-served-by";

/// The request field with the values of the site's variables.
pub(crate) const SHOWN_FIELD: &str = "x-shown";

pub(super) fn template(text: &str) -> Template {
    Template::parse(text, |_| None).expect("known variables")
}

/// The rule that sends the values of the site's variables to the upstream.
pub(super) fn shown_field() -> FieldRule {
    field("X-Shown", FieldChange::Set(template("$host $uri $args")))
}

/// The rules for fields of responses.
pub(super) fn response_fields() -> Vec<FieldRule> {
    vec![
        field("X-Frame-Options", FieldChange::Set(Template::text("DENY"))),
        field("X-Powered-By", FieldChange::Remove),
        field("X-Served-By", FieldChange::Default(template("site of $host"))),
    ]
}

/// A rule that changes a field under all conditions.
pub(super) fn field(name: &str, change: FieldChange) -> FieldRule {
    FieldRule { change, name: name.to_owned(), when: When::Always }
}

/// All routes except the one for channels.
pub(super) fn all(rules: &Rules, forward: &Forward) -> Vec<Route> {
    let route =
        |path: &str, rules: Rules, action| Route { rules, ..Route::new(PathMatch::prefix(path), action) };
    let proxy = || Action::Proxy(forward.clone());
    let denying = |peers| Rules { access: vec![Access { verdict: Verdict::Deny, peers }], ..rules.clone() };
    let to_open = Rewrite {
        from: RewriteFrom::Prefix(OLD.to_owned()),
        to: Template::text(OPEN),
        then: Then::Next,
        when: Vec::new(),
    };
    let fixed = Action::Respond {
        status: 200,
        content_type: "text/plain".to_owned(),
        body: template("fixed $request_method $uri"),
    };
    let moved = Action::Redirect { status: 307, to: template(&format!("{OPEN}$uri?$args")) };
    vec![
        route("/", rules.clone(), proxy()),
        route(DENIED, denying(Peers::All), proxy()),
        route(DISTANT, denying(Peers::Net(near())), proxy()),
        Route { rewrites: vec![to_open], ..route(OLD, rules.clone(), proxy()) },
        Route { methods: vec!["GET".to_owned()], ..route(READ_ONLY, rules.clone(), proxy()) },
        route(FIXED, rules.clone(), fixed),
        route(MOVED, rules.clone(), moved),
    ]
}
