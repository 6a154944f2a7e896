//! Routes with many rules: conditions, maps, variables, error pages, CORS, `expires`, rewrites after a condition, changes of what upstreams
//! say about themselves, and the choice among routes. What they must do is in `model/ruled.rs`.
//!
//! The rules use parts of the request that follow from its number: [`Inputs`]. Their texts name the version of the configuration, so that what is
//! left of a former one is noticed.

use std::time::Duration;

use flatout_gateway::Forward;
use flatout_site::plan::{
    Access, Action, Condition, CookieFlag, CookieRule, Cors, ErrorPage, Expires, ExpiresFrom, Expression,
    FieldChange, FieldRule, Host, LocationRule, Map, MapKey, Matcher, Origins, Page, PageSource, PathMatch,
    Peers, Reroute, Rewrite, RewriteFrom, Route, RouteEntry, Rules, SameSite, SetValue, SetVariable, Site,
    Template, Then, Trust, Validity, Variable, Verdict, Vocabulary, When, WhenBlock,
};

use super::routes::{field, template};

/// The path with most of the rules, and what one rule makes of it.
pub(crate) const RULED: &str = "/ruled";

/// A path whose routes are chosen by their kinds of paths and by a condition.
pub(crate) const CHOSEN: &str = "/chosen";

/// A path that only error pages reach.
pub(crate) const SORRY: &str = "/sorry";

/// The origin whose pages may read responses, and one whose pages may not.
pub(crate) const ORIGIN: &str = "https://app.test";
pub(crate) const OTHER_ORIGIN: &str = "https://other.test";

/// How long responses may be used.
pub(crate) const EXPIRES_S: i64 = 60;

/// The names of the hosts. Those of the last one are below a name.
pub(crate) const HOSTS: [&str; 3] = ["a.test", "b.test", "x.c.test"];

/// The indexes of the map and of the variables in the plan.
const CLASS: usize = 0;
const LABEL_FIRST: usize = 0;
const LABEL: usize = 1;
const SUMMARY: usize = 2;

/// The name of the route for the page of an upstream's error.
const FAILED: &str = "failed";

/// What the rules look at in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// `X-Kind`; not all requests have one.
    pub(crate) kind: Option<u32>,
    /// The cookie `theme`.
    pub(crate) is_dark: bool,
    /// The cookie `role` says that the client is banned.
    pub(crate) is_banned: bool,
    pub(crate) origin: Option<&'static str>,
}

impl Inputs {
    /// Those of the request with this number.
    pub(crate) fn of(id: u32) -> Inputs {
        Inputs {
            kind: Some(id % 4).filter(|kind| *kind < 3),
            is_dark: id.is_multiple_of(5),
            is_banned: id.is_multiple_of(11),
            origin: [None, Some(ORIGIN), Some(OTHER_ORIGIN)][id as usize % 3],
        }
    }

    /// The request's fields. `is_preflight`: it asks whether a page may send another one.
    pub(crate) fn fields(self, is_preflight: bool) -> Vec<(&'static str, String)> {
        let theme = if self.is_dark { "dark" } else { "light" };
        let role = if self.is_banned { "banned" } else { "guest" };
        let mut fields = vec![("cookie", format!("theme={theme}; role={role}"))];
        fields.push(("x-secret", "inside".to_owned()));
        fields.extend(self.kind.map(|kind| ("x-kind", format!("kind-{kind}"))));
        fields.extend(self.origin.map(|origin| ("origin", origin.to_owned())));
        fields.extend(is_preflight.then(|| ("access-control-request-method", "PUT".to_owned())));
        fields
    }
}

/// A variable of the file.
fn variable(name: &str) -> Option<Variable> {
    match name {
        "class" => Some(Variable::Map(CLASS)),
        "label" => Some(Variable::Set(LABEL)),
        "summary" => Some(Variable::Set(SUMMARY)),
        _ => None,
    }
}

fn text(text: &str) -> Template {
    Template::parse(text, variable).expect("known variables")
}

const VOCABULARY: Vocabulary<'static> = Vocabulary { other: &variable, others: &[] };

fn condition(text: &str) -> Condition {
    Condition::parse(text, &VOCABULARY).expect("a condition")
}

fn block(conditions: &[&str], rules: Rules) -> WhenBlock {
    WhenBlock { conditions: conditions.iter().map(|text| condition(text)).collect(), rules }
}

fn regex(pattern: &str) -> MapKey {
    MapKey::Regex { pattern: pattern.to_owned(), ignore_case: false }
}

/// The map that the rules use.
pub(super) fn maps(version: u8) -> Vec<Map> {
    vec![Map {
        name: "class".to_owned(),
        source: template("$http_x_kind"),
        cases: vec![
            (MapKey::Exact("kind-0".to_owned()), text(&format!("zero-v{version}"))),
            (regex("^kind-([12])$"), text(&format!("some-$1-v{version}"))),
        ],
        default: text(&format!("none-v{version}")),
        ..Map::default()
    }]
}

/// The variables that they use.
pub(super) fn sets(version: u8) -> Vec<SetVariable> {
    let set = |name: &str, value, when: &[&str], before| SetVariable {
        name: name.to_owned(),
        value,
        when: when.iter().map(|text| condition(text)).collect(),
        before,
    };
    let summary = Expression::parse(&format!("method + '-' + $class + '-v{version}'"), &VOCABULARY);
    vec![
        set("label", SetValue::Text(text("$class/$request_method")), &[], None),
        set("label", SetValue::Text(text("dark $class")), &["cookie['theme'] == 'dark'"], Some(LABEL_FIRST)),
        set("summary", SetValue::Expression(summary.expect("an expression")), &[], None),
    ]
}

/// The rules of [`RULED`], in addition to those of all routes.
fn rules(version: u8, common: &Rules) -> Rules {
    let set = |name: &str, value: &str| field(name, FieldChange::Set(text(value)));
    let success = FieldRule { when: When::Success, ..set("X-Class", "$class") };
    let request_fields = vec![
        set("X-Label", "$label"),
        set("X-Summary", "$summary"),
        field("X-Kind", FieldChange::Default(text("missing"))),
        field("X-Secret", FieldChange::Remove),
    ];
    let response_fields =
        vec![success, set("X-Trace", "$request_method $status"), set("X-Version", &format!("v{version}"))];
    let of_kind = Rules {
        request_fields: vec![set("X-Conditional", &format!("one-v{version}"))],
        response_fields: vec![set("X-Conditional", &format!("one-v{version}"))],
        ..Rules::default()
    };
    let only_response =
        |name: &str, value: &str| Rules { response_fields: vec![set(name, value)], ..Rules::default() };
    let banning =
        Rules { access: vec![Access { verdict: Verdict::Deny, peers: Peers::All }], ..Rules::default() };
    Rules {
        request_fields: [common.request_fields.clone(), request_fields].concat(),
        response_fields: [common.response_fields.clone(), response_fields].concat(),
        when: vec![
            block(&["header['x-kind'] == 'kind-1'"], of_kind),
            block(&["cookie['role'] == 'banned'"], banning),
            block(&["status >= 400"], only_response("X-Failed", "$status")),
            block(&["int(arg['id']) % 5 == 0", "status < 400"], only_response("X-Fifth", "yes")),
        ],
        error_pages: vec![
            page(404, Some(410), true, PageSource::Text(missing_page(version))),
            page(500, None, true, of_route(Reroute::Named(FAILED.to_owned()))),
            page(403, None, false, of_route(Reroute::Path(text(&format!("{SORRY}/$class"))))),
        ],
        cors: Some(Cors {
            origins: Origins::These(vec![ORIGIN.to_owned()]),
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
            headers: Vec::new(),
            expose: vec!["X-Sent".to_owned()],
            credentials: true,
            age_max: None,
        }),
        expires: Some(Expires::Fixed(Validity::Seconds(EXPIRES_S, ExpiresFrom::Now))),
        locations: vec![LocationRule {
            from: Matcher::Text(template("http://application.test/")),
            to: text("/moved/$class/"),
        }],
        cookies: vec![
            CookieRule::Domain { from: Matcher::Text(template("application.test")), to: template("$host") },
            CookieRule::Path { from: Matcher::Text(template("/app")), to: Template::default() },
            CookieRule::Flags {
                name: Matcher::Text(template("*")),
                flags: vec![CookieFlag::Secure(true), CookieFlag::SameSite(Some(SameSite::Lax))],
            },
        ],
        ..common.clone()
    }
}

fn page(status: u16, new_status: Option<u16>, of_upstreams: bool, source: PageSource) -> ErrorPage {
    ErrorPage {
        statuses: vec![status..=status],
        page: Page { content_type: "text/plain".to_owned(), source },
        status: new_status,
        of_upstreams,
    }
}

fn of_route(to: Reroute) -> PageSource {
    PageSource::Route { to, keeps_status: true }
}

/// The page in place of an upstream's 404.
pub(crate) fn missing_page(version: u8) -> String {
    format!("missing, says version {version}")
}

fn respond(body: &str) -> Action {
    Action::Respond { status: 200, content_type: "text/plain".to_owned(), body: text(body) }
}

/// The rewrite of [`RULED`]: for one kind of requests, and some of the paths.
fn rewrite() -> Rewrite {
    Rewrite {
        from: RewriteFrom::Regex { pattern: "^/ruled/([0-2])$".to_owned(), ignore_case: false },
        to: text("/ruled/small-$1?from=rewrite"),
        then: Then::Next,
        when: vec![condition("header['x-kind'] == 'kind-2'")],
    }
}

/// The routes. `common` are the rules of all routes.
pub(super) fn all(version: u8, common: &Rules, forward: &Forward) -> Vec<Route> {
    let prefix = |path: &str, action| Route::new(PathMatch::prefix(path), action);
    let chosen = |path: PathMatch, body: &str| Route::new(path, respond(body));
    let expression = PathMatch::Regex { pattern: format!("^{CHOSEN}/([01])$"), ignore_case: false };
    vec![
        Route {
            rules: rules(version, common),
            rewrites: vec![rewrite()],
            ..prefix(RULED, Action::Proxy(forward.clone()))
        },
        Route {
            name: FAILED.to_owned(),
            entry: RouteEntry::Named,
            ..prefix("/", respond(&format!("failed, says $class of v{version}")))
        },
        Route { entry: RouteEntry::Internal, ..prefix(SORRY, respond(&format!("sorry $uri, v{version}"))) },
        chosen(PathMatch::Exact(format!("{CHOSEN}/3")), &format!("exact, v{version}")),
        chosen(expression, &format!("expression $1, v{version}")),
        chosen(PathMatch::Glob(format!("{CHOSEN}/*4")), &format!("glob, v{version}")),
        Route {
            when: vec![condition("header['x-kind'] == 'kind-0'")],
            ..chosen(PathMatch::prefix(CHOSEN), &format!("first, v{version}"))
        },
        chosen(PathMatch::prefix(CHOSEN), &format!("second, v{version}")),
    ]
}

/// Sites for other hosts.
pub(super) fn sites(version: u8, trust: &Trust) -> Vec<Site> {
    let site = |name: &str, host| Site {
        name: name.to_owned(),
        hosts: vec![host],
        routes: vec![Route::new(
            PathMatch::prefix("/"),
            respond(&format!("$host of $server_name, v{version}")),
        )],
        trust: trust.clone(),
        ..Site::default()
    };
    vec![site("b", Host::Exact(HOSTS[1].to_owned())), site("below c", Host::Below("c.test".to_owned()))]
}

/// The validity of the rules for a client.
pub(crate) fn expires_text() -> String {
    format!("max-age={}", Duration::from_secs(EXPIRES_S as u64).as_secs())
}
