//! Settings of forwarding to upstreams.

use flatout_proxy::{BufferRequests, Forward, Host, may_be_trailer};
use flatout_site::plan::{
    CookieFlag, CookieRule, LocationRule, Matcher, ReplacedParts, SameSite, SendfileFolder, Template,
};

use crate::serve::options::{MirrorSetting, ServeOptions};
use crate::serve::parse;
use crate::serve::setting::{Key, ROUTES, SERVERS, ServeSetting};
use crate::value;

/// The name of a trailer field that may be passed on.
fn trailer(name: &str) -> Result<String, String> {
    let name = parse::field_name(name)?.to_ascii_lowercase();
    match may_be_trailer(name.as_bytes()) {
        true => Ok(name),
        false => Err(format!(
            "got `{name}`, which must not follow a body: it frames, routes or describes the request, or says who \
             sends it; name a field of the application"
        )),
    }
}

/// The value of an attribute of a cookie.
fn attribute(options: &ServeOptions, text: Option<&str>) -> Result<Template, String> {
    let text = parse::field_value(text.unwrap_or_default())?;
    match text.contains([';', ',']) {
        true => Err(format!("got `{text}`, need a value without `;` and `,`")),
        false => options.template(text),
    }
}

/// Parts of which shares of copied requests are so many: a thousandth of a percent.
const SHARE_PARTS: u32 = 100_000;

/// Upstreams that get copies of one request.
const MIRRORS_MAX: usize = 8;

/// A share in these parts.
fn copied_share(text: &str) -> Result<u32, String> {
    let share = value::percent(text)?;
    let parts = (share * f64::from(SHARE_PARTS)).round();
    match (1.0..=f64::from(SHARE_PARTS)).contains(&parts) {
        true => Ok(parts as u32),
        false => Err(format!("got `{text}`, need a share from 0.001% to 100%")),
    }
}

/// What is looked for: a text, or a regular expression behind `~`, or `~*` if case does not matter.
fn matcher(options: &ServeOptions, text: &str) -> Result<Matcher, String> {
    let Some(pattern) = text.strip_prefix('~') else { return options.template(text).map(Matcher::Text) };
    let (pattern, ignore_case) = match pattern.strip_prefix('*') {
        Some(pattern) => (pattern, true),
        None => (pattern, false),
    };
    parse::regex(pattern)?;
    Ok(Matcher::Pattern { pattern: pattern.to_owned(), ignore_case })
}

fn flag(text: &str) -> Result<CookieFlag, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "secure" => CookieFlag::Secure(true),
        "nosecure" => CookieFlag::Secure(false),
        "httponly" => CookieFlag::HttpOnly(true),
        "nohttponly" => CookieFlag::HttpOnly(false),
        "samesite=strict" => CookieFlag::SameSite(Some(SameSite::Strict)),
        "samesite=lax" => CookieFlag::SameSite(Some(SameSite::Lax)),
        "samesite=none" => CookieFlag::SameSite(Some(SameSite::None)),
        "nosamesite" => CookieFlag::SameSite(None),
        _ => return Err(format!("got `{text}`, need a flag such as secure, httponly or samesite=lax")),
    })
}

pub(in crate::serve) const FORWARDING: &[ServeSetting] = &[
    ServeSetting {
        name: "proxy-host",
        value: "HOST",
        default: "kept",
        help: "the Host sent to upstreams: kept (that of the client), upstream (the server's address), or a name, with variables; one that \
               is empty is that of the client",
        set: |options, given| {
            options.rules.replaced.host = None;
            options.forward.host = match given.text() {
                "kept" => Host::Kept,
                "upstream" => Host::Upstream,
                text if text.contains('$') => {
                    options.rules.replaced.host = Some(options.template(text)?);
                    Host::Kept
                }
                name => Host::Set(parse::field_value(name)?.to_owned()),
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "proxy-method",
        value: "METHOD",
        default: "kept",
        help: "the method sent to upstreams: kept (that of the client), or another one, with variables; one that is empty is that of the \
               client; never HEAD or CONNECT",
        set: |options, given| {
            options.rules.replaced.method = match given.text() {
                "kept" => None,
                text => {
                    let is_constant = !text.contains('$');
                    if is_constant && !ReplacedParts::may_be_method(text.as_bytes()) {
                        return Err(format!(
                            "got `{text}`, need kept or a method other than HEAD and CONNECT"
                        )
                        .into());
                    }
                    Some(options.template(text)?)
                }
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "proxy-body",
        value: "TEXT",
        default: "kept",
        help: "the body sent to upstreams: kept (that of the client), or this text, with variables; with \"\", upstreams get none; the \
               client's own body is not read then, and a request with a text is not served from the cache",
        set: |options, given| {
            options.rules.replaced.body = match given.text() {
                "kept" => None,
                text => Some(options.template(text)?),
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "forward-headers",
        value: "on|off",
        default: "on",
        help: "send the client's header fields to upstreams; with off, they get only Host, and what this server and the rules add",
        set: |options, given| {
            options.rules.replaced.drops_fields = !value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "proxy-redirect",
        value: "FROM TO",
        help: "replace the beginning of Location and Refresh in responses of upstreams, such as http://app:8000/ by /; the first that \
               fits is used; both may contain variables; FROM may be a regular expression behind ~, or ~* if case does not matter: \
               then the whole address is replaced, and TO may contain its groups",
        set: |options, given| {
            let to = parse::field_value(given.value(1).unwrap_or_default())?;
            if given.text().is_empty() {
                return Err("need the beginning of a URL".into());
            }
            let rule = LocationRule { from: matcher(options, given.text())?, to: options.template(to)? };
            options.rules.locations.push(rule);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "proxy-cookie-domain",
        value: "FROM TO",
        help: "replace the Domain of cookies of upstreams, with variables and regular expressions as in proxy-redirect; an empty TO removes it",
        set: |options, given| {
            let from = matcher(options, given.text().trim_start_matches('.'))?;
            let rule = CookieRule::Domain { from, to: attribute(options, given.value(1))? };
            options.rules.cookies.push(rule);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "proxy-cookie-path",
        value: "FROM TO",
        help: "replace the beginning of the Path of cookies of upstreams, with variables and regular expressions as in proxy-redirect",
        set: |options, given| {
            let from = matcher(options, given.text())?;
            let rule = CookieRule::Path { from, to: attribute(options, given.value(1))? };
            options.rules.cookies.push(rule);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "proxy-cookie-flags",
        value: "NAME FLAG…",
        help: "set or remove flags of a cookie of upstreams, or of all with *: secure, httponly, samesite=strict, samesite=lax, \
               samesite=none, nosecure, nohttponly, nosamesite; NAME may contain variables, or be a regular expression behind ~",
        set: |options, given| {
            let flags = given.values().skip(1).map(flag).collect::<Result<_, _>>()?;
            let name = matcher(options, given.text())?;
            options.rules.cookies.push(CookieRule::Flags { name, flags });
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "x-forwarded",
        value: "on|off",
        default: "on",
        help: "send X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host to upstreams",
        set: |options, given| {
            options.forward.x_forwarded = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "forwarded",
        value: "on|off",
        default: "off",
        help: "send Forwarded (RFC 7239) to upstreams",
        set: |options, given| {
            options.forward.forwarded = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "via",
        value: "NAME",
        default: "off",
        help: "the name to add to Via in both directions, or off",
        set: |options, given| {
            let name = parse::field_value(given.text())?;
            options.forward.via = (name != "off").then(|| name.to_owned());
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "buffer-requests",
        value: "[on|off|auto]",
        default: "auto",
        help: "take the whole request body before a server is chosen, first into memory, then into a file in buffer-dir, so that slow uploads hold \
               no server and a request can be sent again; auto: only a short one, up to 16 KiB; with off, the upstream gets the head at \
               once, and the body as it arrives",
        set: |options, given| {
            options.forward.buffer_requests = match given.text() {
                "" | "on" => BufferRequests::All,
                "off" => BufferRequests::None,
                "auto" => BufferRequests::Short,
                text => return Err(format!("got `{text}`, need on, off or auto").into()),
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "buffer-response",
        value: "BYTES",
        default: "auto",
        help: "take a response as fast as its upstream sends it while the client is slower, first into memory, then into a file \
               of up to this size, or auto (1GiB), so that the upstream is free; with off, and for events and gRPC, the upstream waits \
               for the client; X-Accel-Buffering of the upstream overrides it",
        set: |options, given| {
            options.forward.buffer_response_bytes = match given.text() {
                "auto" => Forward::BUFFER_RESPONSE_BYTES,
                "off" => 0,
                text => value::bytes(text)?,
            };
            if given.text() != "off" && options.forward.buffer_response_bytes == 0 {
                return Err(format!(
                    "got `{}`, need auto, a number of bytes such as 64MiB, or off",
                    given.text()
                )
                .into());
            }
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "x-accel",
        value: "on|off",
        default: "off",
        help: "follow X-Accel-Redirect (the response comes from another route, also one with entry=internal), X-Accel-Expires, \
               X-Accel-Charset and X-Accel-Limit-Rate of upstreams; without it they are removed, and only X-Accel-Buffering is followed",
        set: |options, given| {
            options.forward.private.accel = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "x-sendfile",
        value: "FOLDER PATH",
        help: "follow X-Sendfile of upstreams for files in FOLDER, as the upstream names it: the response comes from the route of PATH \
               and the rest of the file's path; other files get 502",
        set: |options, given| {
            let folder = given.text().trim_end_matches('/').to_owned();
            let path = given.value(1).unwrap_or_default().to_owned();
            if !given.text().starts_with('/') || !path.starts_with('/') {
                return Err("need a folder and a path of this site, which begin with /".into());
            }
            options.rules.sendfile.push(SendfileFolder { folder, path });
            options.forward.private.sendfile = true;
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "mirror",
        value: "UPSTREAM",
        keys: &[Key {
            name: "share",
            value: "PERCENT",
            default: "100%",
            help: "the share of requests that is copied",
        }],
        default: "off",
        help: "send a copy of each request to this upstream too, or off; can be repeated for several upstreams, and replaces those of outer \
               levels; nobody waits for the response, which is dropped; requests with a \
               body that is larger than 64 KiB or of unknown length, and those that change the protocol, are not copied",
        set: |options, given| {
            let share = given.read("share", copied_share)?;
            if options.begins("mirror") || given.text() == "off" {
                options.mirrors.clear();
            }
            if given.text() == "off" {
                return Ok(());
            }
            if options.mirrors.len() == MIRRORS_MAX {
                return Err(format!("at most {MIRRORS_MAX} upstreams can get copies of a request").into());
            }
            options.mirrors.push(MirrorSetting {
                upstream: given.text().to_owned(),
                numerator: share.unwrap_or(SHARE_PARTS),
                denominator: SHARE_PARTS,
            });
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "buffer-dir",
        value: "DIR",
        default: "/var/tmp",
        help: "the folder of the files of buffered responses and requests, which have no names in it, or off: in memory only",
        set: |options, given| {
            options.spool.folder = (given.text() != "off").then(|| options.path(given.text()));
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "buffer-size",
        value: "BYTES",
        default: "4GiB",
        help: "bytes of all these files; above that, upstreams wait for slow clients, and requests whose body needs a file get 503",
        set: |options, given| {
            options.spool.bytes_max = value::bytes(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "buffer-memory",
        value: "BYTES",
        default: "64MiB",
        help: "memory for all buffered responses and requests; above that, further responses are not buffered, and bodies of requests go to files",
        set: |options, given| {
            options.spool.memory_max = value::bytes(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "request-trailers",
        value: "NAME…",
        default: "off",
        help: "trailer fields of chunked and HTTP/2 requests to pass on, or off; others are dropped",
        set: |options, given| {
            let names = given.values().flat_map(parse::names).filter(|name| name != "off");
            options.forward.request_trailers = names.map(|name| trailer(&name)).collect::<Result<_, _>>()?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "forward-path",
        value: "sent|normal",
        default: "sent",
        help: "the path sent to upstreams: as the client sent it, or normalized",
        set: |options, given| {
            options.forward.normal_path = given.text() == "normal";
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "upgrade",
        value: "PROTOCOL…",
        default: "websocket",
        help: "the protocols in Upgrade that are forwarded, or off, or any, which is all but those that carry requests; the connection becomes a tunnel, in which no rule applies, if \
               the upstream agrees; never for requests with a body or routes with a cache",
        set: |options, given| {
            options.forward.upgrade = match given.values().collect::<Vec<_>>()[..] {
                ["off"] => Vec::new(),
                ["on"] => vec!["websocket".to_owned()],
                ["any"] => vec![Forward::ANY_UPGRADE.to_owned()],
                _ => given.values().map(parse::upgrade).collect::<Result<_, _>>()?,
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "underscore-headers",
        value: "on|off",
        default: "off",
        help: "send header fields with _ in their names to upstreams; some applications take X_User for X-User",
        set: |options, given| {
            options.forward.underscores = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
];
