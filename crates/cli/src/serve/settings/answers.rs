//! Settings of requests and responses: paths, methods, fields, pages.

use flatout_observe::observed::RequestLogs;
use flatout_proxy::PARAM;
use flatout_site::plan::{
    ByteCount, CHARSET_TYPES, ErrorPage, Expires, ExpiresFrom, FieldChange, FieldRule, Maintenance, Page,
    PageSource, PathPolicy, REPLACED_TYPE, Replacement, Reroute, Rewrite, RewriteFrom, Then, Validity, When,
};

use crate::serve::options::{Level, ServeOptions};
use crate::serve::parse;
use crate::serve::setting::{KEY, Key, ROUTES, ServeSetting};
use crate::serve::values::{Refused, Values};
use crate::value;

const PAGE_FILE: Key = Key { name: "file", value: "FILE", help: "file of the page", ..KEY };
const PAGE_TEXT: Key = Key { name: "text", help: "text of the page", ..KEY };
const FIELD_WHEN: Key = Key {
    name: "when",
    value: "always|success",
    default: "always",
    help: "success: only for responses with 200, 201, 204, 206, 301 to 304, 307 and 308",
};
const PAGE_TYPE: Key =
    Key { name: "type", default: "text/html; charset=utf-8", help: "its Content-Type", ..KEY };

/// A number of bytes, or a text with variables that is one.
fn byte_count(options: &ServeOptions, text: &str) -> Result<ByteCount, Refused> {
    Ok(match text.contains('$') {
        true => ByteCount::Text(options.template(text)?),
        false => ByteCount::Fixed(value::bytes(text)?),
    })
}

pub(in crate::serve) const ANSWERS: &[ServeSetting] = &[
    ServeSetting {
        name: "encode",
        value: "CODING…",
        default: "off",
        help: "compress responses of upstreams and texts: br, zstd and gzip, the preferred one first, each optionally with a \
               level such as gzip=6; or off; files are compressed in advance (see compress)",
        set: |options, given| {
            options.compress.levels = match given.values().collect::<Vec<_>>()[..] {
                ["off"] => Vec::new(),
                ref words => words.iter().map(|word| parse::level(word)).collect::<Result<_, _>>()?,
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "encode-types",
        value: "TYPE…",
        default: "text/* application/json application/*+json application/javascript application/wasm application/xml application/*+xml image/svg+xml application/x-ndjson application/vnd.ms-fontobject font/ttf",
        help: "content types to compress, such as text/* or application/json",
        set: |options, given| {
            options.compress.types = given.values().map(parse::content_type).collect::<Result<_, _>>()?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "encode-min",
        value: "BYTES",
        default: "1KiB",
        help: "do not compress shorter bodies",
        set: |options, given| {
            options.compress.bytes_min = value::bytes(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "methods",
        value: "METHOD…",
        default: "all",
        help: "methods that a route accepts; GET includes HEAD; other methods go to a route with the same path that accepts them, or get 405 after the rules of this route; they never go to a less specific route",
        set: |options, given| {
            options.methods = given.values().map(str::to_owned).collect();
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "paths",
        value: "strict|forward",
        default: "strict for files and channels, otherwise forward",
        help: "paths with dot segments, %2F or backslashes: strict responds with 400; forward normalizes them for \
               matching and forwards them unchanged",
        set: |options, given| {
            options.paths =
                Some(if given.text() == "strict" { PathPolicy::Strict } else { PathPolicy::Forward });
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "rewrite",
        value: "REGEX TO",
        keys: &[
            Key {
                name: "then",
                value: "next|stop|route",
                default: "next",
                help: "what happens next: the next rewrite, no further rewrite, or choosing a route for the new path",
            },
            Key { name: "ignore-case", value: "on|off", default: "off", help: "ignore case" },
        ],
        help: "replace a path that a regular expression matches; $1 is the first group; not inherited; in a site it \
               applies before a route is chosen",
        set: |options, given| {
            let pattern = given.text().to_owned();
            parse::regex(&pattern)?;
            let ignore_case = given.read("ignore-case", value::switch)?.unwrap_or(false);
            rewrite(options, given, RewriteFrom::Regex { pattern, ignore_case })
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "rewrite-prefix",
        value: "FROM TO",
        keys: &[Key {
            name: "then",
            value: "next|stop|route",
            default: "next",
            help: "what happens next, as for rewrite",
        }],
        help: "replace the beginning of a path: with /api/ and /, /api/users becomes /users",
        set: |options, given| rewrite(options, given, RewriteFrom::Prefix(given.text().to_owned())),
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "request-header",
        value: "set|add|default|remove NAME [VALUE]",
        help: "change a header field of requests to upstreams; the value may contain variables such as $host",
        set: |options, given| {
            let rule = field(options, given)?;
            options.rules.request_fields.push(rule);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "request-param",
        value: "NAME VALUE",
        help: "for upstreams with protocol fastcgi, scgi or uwsgi: a parameter in place of that of the upstream or a usual one; the value \
               may contain variables such as $remote_user",
        set: |options, given| {
            let name = parse::param_name(given.text())?;
            let value = options.template(parse::field_value(given.value(1).unwrap_or_default())?)?;
            let name = format!("{PARAM}{name}");
            options.rules.request_fields.push(FieldRule {
                change: FieldChange::Set(value),
                name,
                when: When::Always,
            });
            Ok(())
        },
        is_list: true,
        is_spread: true,
        ..ROUTES
    },
    ServeSetting {
        name: "response-header",
        value: "set|add|default|remove NAME [VALUE]",
        keys: &[FIELD_WHEN],
        help: "change a header field of responses; default sets it if it is missing",
        set: |options, given| {
            let rule = FieldRule { when: field_when(given), ..field(options, given)? };
            options.rules.response_fields.push(rule);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "response-trailer",
        value: "NAME VALUE",
        keys: &[FIELD_WHEN],
        help: "add a trailer field, which is sent after the body; the value may contain the variables of response-header, as they are \
               before the body; HTTP/1.1 bodies are then chunked; clients with HTTP/1.0 get none",
        set: |options, given| {
            let name = parse::field_name(given.text())?;
            let value = options.template(parse::field_value(given.value(1).unwrap_or_default())?)?;
            let change = FieldChange::Trailer(value);
            options.rules.response_fields.push(FieldRule { change, name, when: field_when(given) });
            Ok(())
        },
        is_list: true,
        is_spread: true,
        ..ROUTES
    },
    ServeSetting {
        name: "replace-text",
        value: "FROM TO",
        keys: &[Key { name: "once", value: "on|off", default: "on", help: "only where it is found first" }],
        help: "replace a text in bodies of responses, without regard to case; both may contain variables ($$ is a dollar sign); bodies with a Content-Encoding, \
               parts of files, and files that are not in memory (small-bytes) stay as they are",
        set: |options, given| {
            let replacement = Replacement {
                from: options.template(given.text())?,
                to: options.template(given.value(1).unwrap_or_default())?,
                is_once: given.key("once") != Some("off"),
            };
            options.rules.replacements.push(replacement);
            Ok(())
        },
        is_list: true,
        is_spread: true,
        ..ROUTES
    },
    ServeSetting {
        name: "replace-types",
        value: "TYPE…",
        default: "text/html",
        help: "content types of the bodies in which replace-text replaces, such as text/* or */*",
        set: |options, given| {
            let types: Vec<String> = given.values().map(parse::content_type).collect::<Result<_, _>>()?;
            // The default has one form in a plan: a plain folder is known by rules that are all the default ones.
            options.rules.replaced_types = if types == [REPLACED_TYPE] { Vec::new() } else { types };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "decode",
        value: "on|off",
        default: "off",
        help: "decode responses in gzip, mainly those of upstreams, for clients that do not accept it; a response is cut off if one piece \
               of it decodes to more than 16 MiB",
        set: |options, given| {
            options.compress.decodes = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "charset",
        value: "NAME",
        default: "off",
        help: "add this charset, such as utf-8, to the Content-Type of texts without one, or off; it replaces the utf-8 of this \
               server's own files and texts; no text is converted",
        set: |options, given| {
            options.rules.charset = Some(given.text().to_owned()).filter(|name| name != "off");
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "charset-types",
        value: "TYPE…",
        default: "text/html text/xml text/plain text/vnd.wap.wml text/javascript application/javascript application/rss+xml",
        help: "content types that get the charset",
        set: |options, given| {
            let types: Vec<String> = given.values().map(parse::content_type).collect::<Result<_, _>>()?;
            // As for replace-types, the default has one form.
            options.rules.charset_types = if types == CHARSET_TYPES { Vec::new() } else { types };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "redirect-origin",
        value: "TEXT",
        default: "off",
        help: "what is in front of the path in Location when a folder is redirected to its path with a slash, or when \
               proxy-redirect has made it a path in a route without a cache, such as $scheme://$host:8080; off: Location is only the path, which suits \
               any proxy in front of this server",
        set: |options, given| {
            let text = given.text();
            options.rules.redirect_origin = match text {
                "off" => None,
                _ => Some(options.template(parse::field_value(text)?)?),
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "log-requests",
        value: "on|off",
        default: "on",
        help: "off: the access logs leave out these requests",
        set: |options, given| {
            options.rules.logs = if given.is_on() { RequestLogs::Usual } else { RequestLogs::None };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "expires",
        value: "TIME",
        keys: &[Key {
            name: "from",
            value: "now|modified",
            default: "now",
            help: "count the time from the request, or from Last-Modified of the response",
        }],
        default: "off",
        help: "set Expires and the max-age of Cache-Control of successful responses, as for response-header when=success: a time such as \
               30d or 1h30m, a time of the day such as @15h30m (UTC), max (ten years), never (not to be used again without asking), a text with \
               variables that is one of these, or off",
        set: |options, given| {
            let from =
                if given.key("from") == Some("modified") { ExpiresFrom::Modified } else { ExpiresFrom::Now };
            let expires = match given.text() {
                text if text.contains('$') => Some(Expires::Text(options.template(text)?, from)),
                text => Validity::parse(text, from)?.map(Expires::Fixed),
            };
            if expires.is_none() && options.level == Level::When {
                return Err("off has no effect inside when; put the outer expires in a when with the opposite condition".into());
            }
            options.rules.expires = expires;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "limit-rate",
        value: "BYTES",
        default: "off",
        help: "limit the rate at which each response is sent, in bytes per second, or off; a text with variables is a number, with k, m or g \
               behind it, and anything else no limit; a client with several connections or streams gets this rate on each; an upstream's \
               response is buffered, as for slow clients",
        set: |options, given| {
            options.rules.limit_rate = match given.text() {
                "off" => ByteCount::Fixed(0),
                text => byte_count(options, text)?,
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "limit-rate-after",
        value: "BYTES",
        default: "0",
        help: "bytes at the start of each response that limit-rate does not slow down; it may be a text with variables, too",
        set: |options, given| {
            options.rules.limit_rate_after = byte_count(options, given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "error-page",
        value: "STATUSES…",
        keys: &[
            PAGE_FILE,
            PAGE_TEXT,
            PAGE_TYPE,
            Key {
                name: "to",
                value: "TO",
                help: "the page is the response of another route: @NAME, or a path such as /404.html; for an upstream's errors only \
                       of a route that responds at once: files, redirect or respond, without passwords",
                ..KEY
            },
            Key {
                name: "status",
                value: "CODE",
                help: "send the page with this status instead; for to= own: the status of that route",
                ..KEY
            },
            Key {
                name: "upstream",
                value: "on|off",
                default: "off",
                help: "also replace responses of upstreams",
            },
        ],
        help: "a custom page for statuses such as 404 or 500-599, also for redirects (300-399), which keep their Location",
        set: |options, given| {
            let statuses: Result<Vec<_>, _> =
                given.values().map(|text| parse::statuses(text, 300..=599)).collect();
            let (page, status) = match given.read("to", |text| options.reroute(text))? {
                Some(to) => (route_page(given, to)?, None),
                None => {
                    let page = page(options, given)?.ok_or("need file=, text= or to=")?;
                    (page, given.read("status", |text| parse::status(text, 200..=599))?)
                }
            };
            let page = ErrorPage {
                statuses: statuses?,
                page,
                status,
                of_upstreams: given.read("upstream", value::switch)?.unwrap_or(false),
            };
            // The first match is used, and inner levels come before outer ones.
            let pages = &mut options.rules.error_pages;
            let at = options.pages_here;
            pages.insert(at.min(pages.len()), page);
            options.pages_here = at + 1;
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "maintenance",
        value: "[on|off]",
        keys: &[
            PAGE_FILE,
            PAGE_TEXT,
            PAGE_TYPE,
            Key { name: "retry-after", value: "TIME", help: "value of Retry-After", ..KEY },
            Key {
                name: "except",
                value: "PEERS",
                help: "clients that are served as usual, such as \"10.0.0.0/8 unix\"",
                ..KEY
            },
        ],
        default: "off",
        help: "respond to every request with 503",
        set: |options, given| {
            let text = || Page {
                content_type: "text/plain; charset=utf-8".to_owned(),
                source: PageSource::Text("down for maintenance\n".to_owned()),
            };
            let closed = Maintenance {
                page: page(options, given)?.unwrap_or_else(text),
                retry_after: given.read("retry-after", value::time)?,
                except: given.read("except", parse::peers_list)?.unwrap_or_default(),
            };
            options.rules.maintenance = given.is_on().then_some(closed);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "try-files",
        value: "DIR",
        keys: &[Key {
            name: "final",
            value: "on|off",
            default: "off",
            help: "what is there does not continue: a folder without an index gets 403, a file 405 for methods other than GET and HEAD",
        }],
        default: "off",
        help: "serve a file from this folder if it exists, or off; other requests continue as configured; an action in a `when` \
               above it comes before the files, one below it after them",
        set: |options, given| {
            options.try_files = (given.text() != "off").then(|| options.path(given.text()));
            options.try_files_final = given.key("final") == Some("on");
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "files-at",
        value: "PATH",
        default: "/",
        help: "the path at which the folder of files or try-files is: with /app/, /app/a.png is a.png in it, and all else continues \
               with the whole path",
        set: |options, given| {
            options.files_at = files_at(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
];

/// The path of a folder, without the slash at its end.
pub(in crate::serve) fn files_at(text: &str) -> Result<String, String> {
    let at = text.trim_end_matches('/');
    let is_normal = at.is_empty()
        || at.starts_with('/')
            && !at.contains("//")
            && !at.contains(['%', '?', '#'])
            && !at.split('/').any(|part| part == "." || part == "..");
    match text.starts_with('/') && is_normal {
        true => Ok(at.to_owned()),
        false => Err(format!("got `{text}`, need a path such as /app/, in its decoded form")),
    }
}

fn rewrite(options: &mut ServeOptions, given: &Values, from: RewriteFrom) -> Result<(), Refused> {
    let then = match given.key("then") {
        Some("stop") => Then::Stop,
        Some("route") => Then::Route,
        _ => Then::Next,
    };
    let to = options.template(given.value(1).unwrap_or_default())?;
    options.rewrites.push(Rewrite { from, to, then, when: options.conditions.clone() });
    Ok(())
}

/// The responses that a field is for.
fn field_when(given: &Values) -> When {
    if given.key("when") == Some("success") { When::Success } else { When::Always }
}

fn field(options: &ServeOptions, given: &Values) -> Result<FieldRule, Refused> {
    let name = parse::field_name(given.value(1).unwrap_or_default())?;
    let value = given.value(2).map(|text| options.template(parse::field_value(text)?)).transpose()?;
    let change = match (given.text(), value) {
        ("remove", None) => FieldChange::Remove,
        ("remove", Some(_)) => return Err("remove takes a name and no value".into()),
        (what, None) => return Err(format!("{what} needs a value").into()),
        ("set", Some(value)) => FieldChange::Set(value),
        ("add", Some(value)) => FieldChange::Add(value),
        (_, Some(value)) => FieldChange::Default(value),
    };
    Ok(FieldRule { change, name, when: When::Always })
}

/// The page of a route. Without a status of its own it has that of the error.
fn route_page(given: &Values, to: Reroute) -> Result<Page, Refused> {
    let keeps_status = match given.key("status") {
        None => true,
        Some("own") => false,
        Some(other) => {
            let message = format!("got `{other}`, need own: the route may respond with this status itself");
            return Err(Refused { key: Some("status"), message, ..Refused::default() });
        }
    };
    if ["file", "text", "type"].iter().any(|key| given.key(key).is_some()) {
        return Err("give to=, or file= or text=".into());
    }
    Ok(Page { content_type: String::new(), source: PageSource::Route { to, keeps_status } })
}

fn page(options: &ServeOptions, given: &Values) -> Result<Option<Page>, Refused> {
    let source = match (given.key("file"), given.key("text")) {
        (Some(_), Some(_)) => return Err("give file= or text=, not both".into()),
        (Some(file), None) => PageSource::File(options.path(file)),
        (None, Some(text)) => PageSource::Text(text.to_owned()),
        (None, None) => return Ok(None),
    };
    let content_type = given.read("type", |text| parse::field_value(text).map(str::to_owned))?;
    Ok(Some(Page { content_type: content_type.unwrap_or_else(|| PAGE_TYPE.default.to_owned()), source }))
}
