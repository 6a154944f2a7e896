//! Settings of upstreams.

use std::net::SocketAddr;

use flatout_proxy::{
    Balance, Key as HashKey, NamedHost, NamedServers, Passive, Protocol, ProxyProtocol, Resolver, RetryOn,
    Tls,
};

use crate::serve::options::ServeOptions;
use crate::serve::parse;
use crate::serve::setting::{KEY, Key, ServeSetting, SettingScope, UPSTREAMS};
use crate::serve::settings::answers::files_at;
use crate::serve::settings::health::{eject_outliers, health_check};
use crate::serve::settings::tls::{CRL, PASSWORDS, identity};
use crate::serve::values::{Refused, Values};
use crate::value;

/// What makes a request be sent again.
fn retry_on<'a>(words: impl Iterator<Item = &'a str>) -> Result<RetryOn, String> {
    let mut found = RetryOn::none();
    let words: Vec<&str> = words.collect();
    for &word in &words {
        match word {
            "off" if words.len() == 1 => {}
            "error" => found.error = true,
            "timeout" => found.timeout = true,
            "invalid-response" => found.invalid_response = true,
            "non-idempotent" => found.non_idempotent = true,
            _ => match word.parse() {
                Ok(status @ 400..=599) => found.statuses.push(status),
                _ => {
                    let known = "error, timeout, invalid-response, non-idempotent or statuses from 400 to 599, or off alone";
                    return Err(format!("got `{word}`, need {known}"));
                }
            },
        }
    }
    Ok(found)
}

pub(in crate::serve) const UPSTREAM: &[ServeSetting] = &[
    ServeSetting {
        name: "balance",
        value: "round-robin|least-connections|least-time|two-choices|hash|sticky",
        keys: &[
            Key {
                name: "key",
                default: "client",
                help: "for hash: client, path, target, header NAME, cookie NAME, or argument NAME of the query; requests without it go to the servers in turn",
                ..KEY
            },
            Key {
                name: "cookie",
                value: "NAME",
                default: "flatout",
                help: "for sticky: the name of the cookie",
            },
        ],
        default: "round-robin",
        help: "how to choose one of several servers; least-time: by the requests at each and the time to its latest responses",
        set: balance,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "protocol",
        value: "http/1.1|h2c|h2|fastcgi|scgi|uwsgi",
        keys: &[Key {
            name: "streams",
            value: "N",
            default: "100",
            help: "for h2c and h2: requests at a time on each connection, at most 1024; the server may allow fewer",
        }],
        default: "http/1.1",
        help: "the protocol of requests to servers; h2c is HTTP/2 without TLS, h2 is HTTP/2 over TLS (https); fastcgi, as of php-fpm, \
               needs fastcgi-root; scgi and uwsgi are for one application, whose PATH_INFO is the whole path",
        set: protocol,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "resolver",
        value: "ADDR…",
        default: "the system's",
        help: "DNS servers that look up the names of upstreams, such as 127.0.0.1:8600 or 10.0.0.2, whose port is 53; without it, \
               /etc/hosts and /etc/resolv.conf are used",
        stands: SettingScope::Top,
        set: resolver,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "named-servers",
        value: "HOST…",
        keys: &[
            Key {
                name: "resolver",
                value: "ADDR…",
                default: "as resolver",
                help: "DNS servers that look up their names, separated by spaces",
            },
            Key { name: "ipv6", value: "on|off", default: "on", help: "use IPv6 addresses of names too" },
            Key { name: "time", value: "TIME", default: "5s", help: "how long a lookup may take; then 502" },
            Key {
                name: "valid",
                value: "TIME",
                default: "the record's",
                help: "how long an address of a name is used",
            },
        ],
        default: "off",
        help: "for an upstream without servers: requests name them, by a `proxy` with variables and others=; these hosts may be named: \
               a host name, *.example.org, an IP address, `address` for all IP addresses, or * for all hosts that this machine \
               reaches, itself included; or off",
        stands: SettingScope::Upstream,
        set: named_servers,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "fastcgi-root",
        value: "DIR",
        keys: &[
            Key {
                name: "index",
                value: "NAME",
                default: "index.php",
                help: "the script of a folder, or off",
            },
            Key {
                name: "front",
                value: "on|off",
                default: "on",
                help: "the index of DIR gets all requests whose path names no script; off: they get 404",
            },
            Key {
                name: "split",
                value: "TEXT",
                default: ".php",
                help: "the script ends with the first segment that ends so; what follows is PATH_INFO; off: the whole path names the \
                       script",
            },
            Key {
                name: "at",
                value: "PATH",
                default: "/",
                help: "the path at which DIR is, as in files-at: with /app/, /app/a.php is a.php in it; other paths get 404",
            },
        ],
        default: "",
        help: "for fastcgi: the folder of the scripts, as the application sees it; if it is on this machine too, only scripts that \
               are there are run",
        set: fastcgi_root,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "fastcgi-param",
        value: "NAME VALUE",
        default: "",
        help: "for fastcgi: a parameter in addition to the usual ones, or in place of one; can be repeated",
        set: param,
        is_list: true,
        is_spread: true,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "scgi-param",
        value: "NAME VALUE",
        default: "",
        help: "for scgi: a variable in addition to the usual ones, or in place of one; can be repeated",
        set: param,
        is_list: true,
        is_spread: true,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "uwsgi-param",
        value: "NAME VALUE",
        default: "",
        help: "for uwsgi: a variable in addition to the usual ones, or in place of one; can be repeated",
        set: param,
        is_list: true,
        is_spread: true,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "pool",
        value: "N",
        default: "256",
        help: "idle connections that each worker keeps to each server; 0 keeps none",
        set: |options, given| {
            options.upstream.idle_max = value::number(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "pool-time",
        value: "TIME",
        default: "60s",
        help: "how long to keep an idle connection to a server",
        set: |options, given| {
            options.upstream.idle_time_max = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-connections",
        value: "N",
        default: "4096",
        help: "maximum number of connections from each worker to each server; further requests go to other servers, and wait in the queue if all are \
               full; with hash, or with the cookie of sticky, they wait for their server, and backups do not take over",
        set: |options, given| {
            options.upstream.connections_max = parse::at_least_one::<u32>(given.text())? as usize;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "queue",
        value: "N",
        default: "4096",
        help: "requests of a worker that may wait for a connection; further ones get 503",
        set: |options, given| {
            options.upstream.queue_max = value::number(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "queue-time",
        value: "TIME",
        default: "10s",
        help: "how long a request may wait for a connection; then 503",
        set: |options, given| {
            options.upstream.queue_time_max = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "connect-time",
        value: "TIME",
        default: "5s",
        help: "maximum time to connect to a server",
        set: |options, given| {
            options.upstream.connect_time_max = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "send-time",
        value: "TIME",
        default: "30s",
        help: "maximum time in which a server accepts no data of a request",
        set: |options, given| {
            options.upstream.send_time_max = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "read-time",
        value: "TIME",
        default: "60s",
        help: "maximum time in which a server sends no data of a response; then 504",
        set: |options, given| {
            options.upstream.read_time_max = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "tunnel-time",
        value: "TIME",
        default: "1h",
        help: "maximum time in which nothing moves through a WebSocket or a connection that is passed on (tls-passthrough); then it is closed",
        set: |options, given| {
            options.upstream.tunnel_time_max = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "request-time",
        value: "TIME",
        default: "off",
        help: "maximum time from a request's head to the end of the server's response, with all waiting; then 504; or off",
        set: |options, given| {
            options.upstream.request_time_max = match given.text() {
                "off" => None,
                text => Some(value::time(text)?),
            };
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "retries",
        value: "N",
        default: "2",
        help: "further attempts for a request, if a retry is safe",
        set: |options, given| {
            options.upstream.retries_max = value::number(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "retry-on",
        value: "STATUSES…",
        default: "error timeout",
        help: "what makes a request be sent again, or off: error, timeout, invalid-response, statuses such as 503, for which another \
               server is asked, and non-idempotent for POST and the like, which servers may then process twice",
        set: |options, given| {
            options.upstream.retry_on = retry_on(given.values())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "retry-time",
        value: "TIME",
        default: "off",
        help: "how long after its start a request may be sent again, or off",
        set: |options, given| {
            options.upstream.retry_time_max = match given.text() {
                "off" => None,
                text => Some(value::time(text)?),
            };
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "retry-budget",
        value: "SHARE",
        default: "20%",
        help: "maximum share of retries among all requests of the last seconds",
        set: |options, given| {
            options.upstream.retry_budget =
                if given.text() == "0%" { 0.0 } else { value::percent(given.text())? };
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "failures",
        value: "N",
        keys: &[
            Key { name: "window", value: "TIME", default: "10s", help: "time in which they are counted" },
            Key {
                name: "down-time",
                value: "TIME",
                default: "10s",
                help: "how long the server gets no requests",
            },
        ],
        default: "3",
        help: "failures after which a server is considered down; 0 for never",
        set: |options, given| {
            let usual = options.upstream.passive;
            options.upstream.passive = Passive {
                failures_max: value::number(given.text())?,
                window: given.read("window", value::time)?.unwrap_or(usual.window),
                down_time: given.read("down-time", value::time)?.unwrap_or(usual.down_time),
            };
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "eject-outliers",
        value: "on|off",
        keys: &[
            Key {
                name: "interval",
                value: "TIME",
                default: "10s",
                help: "time in which servers are compared",
            },
            Key {
                name: "requests",
                value: "N",
                default: "50",
                help: "requests in it that a server, and all others together, need to be compared",
            },
            Key {
                name: "slow",
                value: "TIMES",
                default: "3",
                help: "how many times as slow as the others a server has to be, from 1.1 on, or off",
            },
            Key {
                name: "pause",
                value: "TIME",
                default: "30s",
                help: "the first pause; each further one in a row is twice as long",
            },
            Key { name: "pause-max", value: "TIME", default: "5m", help: "the longest pause" },
        ],
        default: "off",
        help: "send no requests for a while to a server whose share of errors (no response, or 500 and above) or whose time to a \
               response stands out from those of the others, with a confidence of 99.9 %; never to more than half of the servers",
        set: eject_outliers,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "health-check",
        value: "PATH",
        keys: &[
            Key { name: "interval", value: "TIME", default: "5s", help: "how often" },
            Key { name: "timeout", value: "TIME", default: "2s", help: "how long a response may take" },
            Key {
                name: "rise",
                value: "N",
                default: "2",
                help: "successful checks after which a server is up",
            },
            Key {
                name: "fall",
                value: "N",
                default: "3",
                help: "failed checks after which a server is down",
            },
            Key {
                name: "status",
                value: "STATUSES",
                default: "200-399",
                help: "statuses that count as success, such as \"200-299 404\"",
            },
            Key {
                name: "body",
                value: "TEXT",
                default: "",
                help: "a text that the body of a success has in its first 64 KiB",
            },
            Key {
                name: "service",
                value: "NAME",
                default: "the server",
                help: "for grpc: the service that is asked about",
            },
        ],
        default: "off",
        help: "check each server periodically: request this path, or open a connection (tcp), or ask grpc.health.v1.Health (grpc, with \
               protocol h2 or h2c), or off",
        set: health_check,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "slow-start",
        value: "TIME",
        default: "0s",
        help: "time over which a recovered server's share grows to its full weight",
        set: |options, given| {
            options.upstream.slow_start = value::time(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-source",
        value: "ADDR",
        default: "the system's",
        help: "the IP address of this machine from which connections to servers are made, if it is of the same kind as theirs (IPv4, IPv6)",
        set: |options, given| {
            let text = given.text();
            let address = text.trim_start_matches('[').trim_end_matches(']').parse();
            let address = address.map_err(|_| format!("got `{text}`, need an IP address without a port"))?;
            options.upstream.source = Some(address);
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "send-proxy",
        value: "off|v1|v2",
        default: "off",
        help: "send a PROXY protocol header on connections to servers",
        set: |options, given| {
            options.upstream.send_proxy_protocol = match given.text() {
                "v1" => Some(ProxyProtocol::V1),
                "v2" => Some(ProxyProtocol::V2),
                _ => None,
            };
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-state",
        value: "FILE",
        default: "off",
        help: "keep changes by `flatout upstream` in this file over restarts, or off; it no longer counts when the servers of the \
               upstream change in the site file",
        set: |options, given| {
            options.upstream.state_file = match given.text() {
                "off" => None,
                text => Some(options.path(text)),
            };
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-name",
        value: "HOST",
        default: "the server's",
        help: "for https: the name to verify in certificates and to send as SNI",
        set: |options, given| {
            options.tls.name = Some(given.text().to_owned());
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-ca",
        value: "FILE",
        keys: &[CRL],
        default: "the system's",
        help: "for https: trusted CA certificates (PEM)",
        set: |options, given| {
            options.tls.authorities = Some(options.path(given.text()));
            options.tls.revoked = given.key("crl").map(|file| options.path(file));
            Ok(())
        },
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-certificate",
        value: "CERT KEY",
        keys: &[PASSWORDS],
        default: "",
        help: "for https: certificate and key (PEM files) for servers that ask for one",
        set: |options, given| {
            let key = given.value(1).unwrap_or_default();
            options.tls.certificate = Some(identity(options, given.text(), key, given));
            Ok(())
        },
        is_spread: true,
        ..UPSTREAMS
    },
    ServeSetting {
        name: "upstream-verify",
        value: "on|off",
        default: "on",
        help: "for https: check certificates; off is dangerous: anyone on the path can read and change all traffic",
        set: |options, given| {
            options.tls.verify = value::switch(given.text())?;
            Ok(())
        },
        ..UPSTREAMS
    },
];

fn balance(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let of = |key: &'static str, only: &str| match given.key(key) {
        Some(_) if given.text() != only => Err(Refused {
            key: Some(key),
            message: format!("`{key}=` is for {only} only"),
            ..Refused::default()
        }),
        value => Ok(value),
    };
    of("key", "hash")?;
    let cookie = of("cookie", "sticky")?;
    options.upstream.balance = match given.text() {
        "least-connections" => Balance::LeastConnections,
        "least-time" => Balance::LeastTime,
        "two-choices" => Balance::TwoChoices,
        "hash" => Balance::Hash(given.read("key", hash_key)?.unwrap_or(HashKey::Client)),
        "sticky" => Balance::Sticky { cookie: cookie.unwrap_or("flatout").to_owned() },
        _ => Balance::RoundRobin,
    };
    Ok(())
}

fn protocol(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let refused = |message| Refused { key: Some("streams"), message, ..Refused::default() };
    let streams = given.read("streams", parse::at_least_one::<u32>)?;
    if !matches!(given.text(), "h2c" | "h2") && streams.is_some() {
        return Err(refused("`streams=` is for h2c and h2 only".to_owned()));
    }
    let streams_max = streams.unwrap_or(Protocol::STREAMS_MAX);
    if streams_max > Protocol::STREAMS_MAX_CEILING {
        return Err(refused(format!("got {streams_max}, allowed 1 to {}", Protocol::STREAMS_MAX_CEILING)));
    }
    options.upstream.protocol = match given.text() {
        "h2c" => Protocol::H2c { streams_max },
        "h2" => Protocol::H2 { streams_max },
        "fastcgi" => Protocol::FastCgi,
        "scgi" => Protocol::Scgi,
        "uwsgi" => Protocol::Uwsgi,
        _ => Protocol::Http1,
    };
    Ok(())
}

fn fastcgi_root(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let root = given.text();
    if !root.starts_with('/') {
        return Err(format!("got `{root}`, need an absolute path such as /srv/www").into());
    }
    let name = |key: &'static str, usual: &str| match given.key(key).unwrap_or(usual) {
        text if text.contains('/') || text.is_empty() => Err(Refused {
            key: Some(key),
            message: format!("got `{text}`, need a name without a slash"),
            ..Refused::default()
        }),
        text => Ok(text.to_owned()),
    };
    let fastcgi = &mut options.upstream.cgi;
    fastcgi.root = root.trim_end_matches('/').to_owned();
    fastcgi.at = files_at(given.key("at").unwrap_or("/")).map_err(|message| Refused {
        key: Some("at"),
        message,
        ..Refused::default()
    })?;
    fastcgi.index = match name("index", "index.php")?.as_str() {
        "off" => String::new(),
        index => index.to_owned(),
    };
    fastcgi.split = match name("split", ".php")?.as_str() {
        "off" => String::new(),
        split => split.to_owned(),
    };
    fastcgi.has_front = given.key("front") != Some("off");
    if fastcgi.root.is_empty() {
        return Err("got `/`: a folder of scripts cannot be the root of the file system".into());
    }
    Ok(())
}

fn param(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let (name, value) = (parse::param_name(given.text())?, given.value(1).unwrap_or_default());
    let params = &mut options.upstream.cgi.params;
    params.retain(|(earlier, _)| earlier != name);
    params.push((name.to_owned(), value.to_owned()));
    Ok(())
}

/// Hosts of `named-servers`.
const NAMED_HOSTS_MAX: usize = 256;

fn named_servers(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    if given.text() == "off" && given.value(1).is_none() {
        options.upstream.named = None;
        return Ok(());
    }
    let hosts = given.values().map(str::parse).collect::<Result<Vec<NamedHost>, String>>()?;
    if hosts.len() > NAMED_HOSTS_MAX {
        return Err(format!("got {} hosts, at most {NAMED_HOSTS_MAX} are allowed", hosts.len()).into());
    }
    let resolvers = |text: &str| dns_servers(text.split_ascii_whitespace());
    options.upstream.named = Some(NamedServers {
        hosts,
        tls: Tls::default(),
        resolvers: given.read("resolver", resolvers)?.unwrap_or_default(),
        ipv6: given.key("ipv6") != Some("off"),
        lookup_time_max: given.read("time", value::time)?.unwrap_or(NamedServers::LOOKUP_TIME_MAX),
        valid_time: given.read("valid", value::time)?,
    });
    Ok(())
}

/// DNS servers that can be named.
const RESOLVERS_MAX: usize = 8;

fn resolver(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    options.resolver = Resolver::Servers(dns_servers(given.values())?);
    Ok(())
}

fn dns_servers<'t>(texts: impl Iterator<Item = &'t str>) -> Result<Vec<SocketAddr>, String> {
    let address = |text: &str| {
        let ip = text.trim_start_matches('[').trim_end_matches(']');
        let with_port = || Some(SocketAddr::new(ip.parse().ok()?, 53));
        let found = text.parse().ok().or_else(with_port).filter(|it| it.port() > 0);
        found.ok_or_else(|| format!("got `{text}`, need an IP address, with a port or without"))
    };
    let servers = texts.map(address).collect::<Result<Vec<_>, String>>()?;
    if servers.len() > RESOLVERS_MAX {
        return Err(format!("got {} DNS servers, at most {RESOLVERS_MAX} are allowed", servers.len()));
    }
    Ok(servers)
}

fn hash_key(text: &str) -> Result<HashKey, String> {
    Ok(match text.split_once(' ').unwrap_or((text, "")) {
        ("client", "") => HashKey::Client,
        ("path", "") => HashKey::Path,
        ("target", "") => HashKey::Target,
        ("header", name) => HashKey::Header(parse::field_name(name)?),
        ("cookie", name) => HashKey::Cookie(parse::field_name(name)?),
        ("argument", name) if !name.is_empty() => HashKey::Argument(name.to_owned()),
        _ => {
            return Err(format!(
                "got `{text}`, need client, path, target, header NAME, cookie NAME or argument NAME"
            ));
        }
    })
}
