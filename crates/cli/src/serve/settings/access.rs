//! Settings of access control and rate limits.

use flatout_site::plan::{
    Access, BasicAuth, Concurrency, ConcurrencyUse, Cors, ForwardAuth, Limited, Origins, Rate, RateUse, User,
    Verdict,
};

use crate::serve::options::ServeOptions;
use crate::serve::parse;
use crate::serve::setting::{KEY, Key, ROUTES, ServeSetting};
use crate::serve::values::{Refused, Values};
use crate::value;

/// Default number of keys of a limit: one MiB.
const LIMIT_KEYS: usize = 65_536;

/// Default number of queued requests per key.
const QUEUE: u32 = 100;

const LIMIT_KEY: Key = Key {
    name: "key",
    default: "client",
    help: "what requests are counted by: client, everyone, or text with variables such as $http_x_api_key; requests for which it is \
           empty are counted together",
    ..KEY
};

const LIMIT_NAME: Key =
    Key { name: "name", value: "NAME", help: "limits with the same name count together", ..KEY };

const LIMIT_KEYS_MAX: Key =
    Key { name: "keys", value: "N", default: "65536", help: "maximum number of keys to remember" };

/// Limits that only count.
const DRY_RUN: Key = Key {
    name: "dry-run",
    value: "on|off",
    default: "off",
    help: "count requests, but refuse and delay none; response-header shows what it would have done in $limit_req_status and $limit_conn_status",
};

pub(in crate::serve) const ACCESS: &[ServeSetting] = &[
    ServeSetting {
        name: "allow",
        value: "PEER…",
        default: "everyone",
        help: "allow these clients: networks such as 10.0.0.0/8, unix, or all; the first allow or deny that matches decides",
        set: |options, given| access(options, given, Verdict::Allow),
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "deny",
        value: "PEER…",
        help: "respond to these clients with 403; values as for allow; clients that match neither are allowed",
        set: |options, given| access(options, given, Verdict::Deny),
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "satisfy",
        value: "all|any",
        default: "all",
        help: "what a client needs: all of allow and deny, basic-auth and forward-auth, or any of them: an address that allow names, \
               a password, or the permission of the auth service",
        set: |options, given| {
            options.rules.satisfies_any = given.text() == "any";
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "rate-limit",
        value: "RATE",
        keys: &[
            LIMIT_KEY,
            Key {
                name: "burst",
                value: "N",
                default: "0",
                help: "requests that may exceed the rate in a burst",
            },
            Key {
                name: "delay",
                value: "N",
                default: "requests of the burst do not wait",
                help: "requests of the burst after the first N wait until an even pace allows them; 0 spreads out all of them",
            },
            LIMIT_NAME,
            Key { name: "status", value: "STATUS", default: "429", help: "the status of the response" },
            Key {
                name: "fields",
                value: "on|off",
                default: "on",
                help: "add the fields RateLimit and RateLimit-Policy to responses",
            },
            DRY_RUN,
            LIMIT_KEYS_MAX,
        ],
        help: "maximum request rate, such as 100/s, 30/m or 5/10s; further requests get 429; the limit of a site counts \
               all its routes together",
        set: rate_limit,
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "request-limit",
        value: "N",
        keys: &[
            LIMIT_KEY,
            Key {
                name: "queue",
                value: "N",
                default: "100",
                help: "requests of one key that may wait; further ones get 503",
            },
            Key { name: "queue-time", value: "TIME", default: "10s", help: "longest wait; then 503" },
            Key { name: "status", value: "CODE", default: "503", help: "the status in place of 503" },
            DRY_RUN,
            LIMIT_NAME,
            LIMIT_KEYS_MAX,
        ],
        help: "maximum number of concurrent requests; further ones wait, then get 503; subscribers and long polls of channels count only \
               until they wait, see push-subscribers and push-per-address",
        set: request_limit,
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "basic-auth",
        value: "REALM",
        keys: &[Key {
            name: "file",
            value: "FILE",
            help: "users and password hashes, as written by htpasswd -B; those of other kinds than for auth-user cannot log in, and are reported",
            ..KEY
        }],
        default: "off",
        help: "require a user name and a password, or off; see also auth-user",
        set: |options, given| {
            options.begins("auth-user");
            options.rules.basic_auth = (given.text() != "off").then(|| BasicAuth {
                realm: given.text().to_owned(),
                users: Vec::new(),
                user_file: given.key("file").map(|file| options.path(file)),
            });
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "auth-user",
        value: "NAME HASH",
        help: "a user of the preceding basic-auth, and a password hash: bcrypt ($2y$…) or argon2 ($argon2id$…); older ones are accepted but weak: $6$, $5$, $1$, $apr1$, {SSHA}, {SHA}, {PLAIN}",
        set: |options, given| {
            let begins = options.begins("auth-user");
            let Some(auth) = &mut options.rules.basic_auth else {
                return Err("it needs a basic-auth before it".into());
            };
            if begins {
                auth.users.clear();
            }
            let hash = given.value(1).unwrap_or_default();
            if given.text().contains(':') {
                return Err(format!("got `{}`, need a user name without a colon", given.text()).into());
            }
            if !hash.starts_with('$') {
                let message = "this is no password hash; make one with flatout hash-password: it begins with $2y$ or $argon2id$".to_owned();
                return Err(Refused { message, secret: Some(1), ..Refused::default() });
            }
            auth.users.push(User { name: given.text().to_owned(), hash: hash.to_owned() });
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "forward-auth",
        value: "UPSTREAM",
        keys: &[
            Key { name: "path", default: "/", help: "path of the GET request sent to it", ..KEY },
            Key {
                name: "request-headers",
                value: "NAMES",
                help: "header fields to send to it (without this key: all)",
                ..KEY
            },
            Key {
                name: "response-headers",
                value: "NAMES",
                help: "fields of its response to add to the request",
                ..KEY
            },
            Key {
                name: "sign-in",
                value: "TEXT",
                help: "redirect clients there in place of its response 401, such as https://login.example.org/?rd=$scheme://$host$escaped_request_uri",
                ..KEY
            },
        ],
        default: "off",
        help: "ask this upstream whether to allow each request, or off; 2xx allows it, any other response goes to the client; or ask a \
               route of the site (/PATH or @NAME) that responds at once, with respond, redirect or files: 2xx allows the request, \
               401 and 403 go to the client, any other status becomes 500; the rules of that route about clients do not apply",
        set: |options, given| {
            (options.rules.forward_auth, options.rules.auth_route) = (None, None);
            if given.text() == "off" {
                return Ok(());
            }
            if given.text().starts_with(['/', '@']) {
                let keys = ["path", "request-headers", "response-headers", "sign-in"];
                if let Some(key) = keys.into_iter().find(|key| given.key(key).is_some()) {
                    let message = format!("`{key}` is for an upstream; a route has the path that is given");
                    return Err(Refused { key: Some(key), message, ..Refused::default() });
                }
                options.rules.auth_route = Some(options.reroute(given.text())?);
                return Ok(());
            }
            let list = |name: &str| given.key(name).map(parse::names).unwrap_or_default();
            let target = given.read("path", |text| options.template(text))?;
            options.rules.forward_auth = Some(ForwardAuth {
                upstream: options.upstream_of(given.text())?,
                target: target.map_or_else(|| options.template("/"), Ok)?,
                request_fields: list("request-headers"),
                response_fields: list("response-headers"),
                sign_in: given.read("sign-in", |text| options.template(text))?,
            });
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cors",
        value: "ORIGIN…",
        keys: &[
            Key { name: "methods", value: "NAMES", default: "GET, HEAD, POST", help: "allowed methods" },
            Key { name: "headers", value: "NAMES", help: "allowed request fields; * allows all", ..KEY },
            Key { name: "expose", value: "NAMES", help: "response fields that scripts may read", ..KEY },
            Key {
                name: "credentials",
                value: "on|off",
                default: "off",
                help: "allow credentials such as cookies",
            },
            Key {
                name: "max-age",
                value: "TIME",
                help: "how long browsers may cache the preflight response",
                ..KEY
            },
        ],
        default: "off",
        help: "origins that may read responses, such as https://app.example.org, https://*.example.org, *, or off",
        set: cors,
        ..ROUTES
    },
];

fn access(options: &mut ServeOptions, given: &Values, verdict: Verdict) -> Result<(), Refused> {
    let peers: Result<Vec<_>, _> = given.values().map(parse::peers).collect();
    if options.begins("access") {
        options.rules.access.clear();
        let inherited = options.blocks_inherited;
        options.rules.when.iter_mut().take(inherited).for_each(|block| block.rules.access.clear());
    }
    options.rules.access.extend(peers?.into_iter().map(|peers| Access { verdict, peers }));
    Ok(())
}

fn rate_limit(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let begins = options.begins("rate-limit");
    if given.text() == "off" && begins {
        options.rules.rates.clear();
        return Ok(());
    }
    let (requests, window) = parse::rate(given.text())?;
    let key = given.read("key", |text| options.limited(text))?.unwrap_or(Limited::Client { ipv6_bits: 64 });
    let keys_max = given.read("keys", parse::at_least_one::<u32>)?.map_or(LIMIT_KEYS, |keys| keys as usize);
    let status = given.read("status", |text| parse::status(text, 400..=599))?.unwrap_or(429);
    let burst = given.read("burst", value::number)?.unwrap_or(0);
    let delay = given.read("delay", value::number)?;
    let fields = given.read("fields", value::switch)?.unwrap_or(true);
    let rates = &mut options.shared.borrow_mut().rates;
    let name = given.key("name").map_or_else(|| format!("rate-{}", rates.len() + 1), str::to_owned);
    let rate = match rates.iter().position(|rate| rate.name == name) {
        Some(at) if rates[at].requests != requests || rates[at].window != window || rates[at].key != key => {
            return Err(Refused {
                key: Some("name"),
                message: format!("another limit `{name}` has a different rate or key"),
                ..Refused::default()
            });
        }
        Some(at) => at,
        None => {
            rates.push(Rate { name, key, requests, window, keys_max });
            rates.len() - 1
        }
    };
    let is_dry_run = given.read("dry-run", value::switch)?.unwrap_or(false);
    options.rules.rates.push(RateUse { rate, burst, delay, status, fields, is_dry_run });
    Ok(())
}

fn request_limit(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let requests_max = parse::at_least_one(given.text())?;
    let key = given.read("key", |text| options.limited(text))?.unwrap_or(Limited::Client { ipv6_bits: 64 });
    let keys_max = given.read("keys", parse::at_least_one::<u32>)?.map_or(LIMIT_KEYS, |keys| keys as usize);
    let queue_max = given.read("queue", value::number)?.unwrap_or(QUEUE);
    let queue_time_max = given.read("queue-time", value::time)?.unwrap_or(std::time::Duration::from_secs(10));
    let status = given.read("status", |text| parse::status(text, 400..=599))?.unwrap_or(503);
    let limits = &mut options.shared.borrow_mut().concurrency;
    let name = given.key("name").map_or_else(|| format!("requests-{}", limits.len() + 1), str::to_owned);
    let limit = match limits.iter().position(|limit| limit.name == name) {
        Some(at)
            if limits[at].requests_max != requests_max
                || limits[at].key != key
                || limits[at].status != status =>
        {
            return Err(Refused {
                key: Some("name"),
                message: format!("another limit `{name}` has a different number, key or status"),
                ..Refused::default()
            });
        }
        Some(at) => at,
        None => {
            limits.push(Concurrency { name, key, requests_max, queue_max, queue_time_max, keys_max, status });
            limits.len() - 1
        }
    };
    let is_dry_run = given.read("dry-run", value::switch)?.unwrap_or(false);
    options.rules.concurrency.push(ConcurrencyUse { limit, is_dry_run });
    Ok(())
}

fn cors(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let origins: Vec<&str> = given.values().collect();
    let is_origin = |origin: &&str| {
        origin.starts_with("http://") || origin.starts_with("https://") || origin.contains("://")
    };
    let origins = match origins[..] {
        ["off"] => {
            options.rules.cors = None;
            return Ok(());
        }
        ["*"] => Origins::Any,
        _ => match origins.iter().find(|origin| !is_origin(origin) || origin.ends_with('/')) {
            Some(wrong) => {
                return Err(
                    format!("got `{wrong}`, need origins such as https://app.example.org, or *").into()
                );
            }
            None => Origins::These(origins.iter().map(|origin| (*origin).to_owned()).collect()),
        },
    };
    let list = |name: &str| given.key(name).map(parse::names).unwrap_or_default();
    let credentials = given.read("credentials", value::switch)?.unwrap_or(false);
    if credentials && origins == Origins::Any {
        let message = "browsers refuse credentials with `*`; list the origins".to_owned();
        return Err(Refused { key: Some("credentials"), message, ..Refused::default() });
    }
    let methods = given.key("methods").unwrap_or("GET, HEAD, POST");
    options.rules.cors = Some(Cors {
        origins,
        methods: parse::names(methods),
        headers: list("headers"),
        expose: list("expose"),
        credentials,
        age_max: given.read("max-age", value::time)?,
    });
    Ok(())
}
