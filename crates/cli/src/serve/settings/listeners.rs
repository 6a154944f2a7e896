//! Addresses, and settings of the server as a whole.

use std::time::Duration;

use flatout_engine::{BUSY_POLL_TIME_MAX, ProxyHeader};
use flatout_server::LISTEN_DEFAULT;
use flatout_site::plan::AddressFrom;

use crate::serve::options::{Level, ListenSetting, ServeOptions};
use crate::serve::parse;
use crate::serve::setting::{Change, Key, ROUTES, SERVERS, SITES, ServeSetting};
use crate::serve::values::{Refused, Values};
use crate::value;

/// The keys of an address.
pub(super) const LISTEN_KEYS: &[Key] = &[
    Key {
        name: "proxy-protocol",
        value: "on|off|untrusted",
        default: "on if client-address is proxy-protocol, else off",
        help: "expect a PROXY protocol header (version 1 or 2) with the client's address at the start of each connection; \
               accepted from trusted-proxies only: other connections are closed, and so are those whose header is missing, \
               malformed, longer than 4096 bytes or later than 5 seconds; untrusted: accepted from any peer; the client stays \
               the peer of the connection, and the header is available only in variables such as $proxy_protocol_addr",
    },
    Key {
        name: "default",
        value: "on|off",
        default: "off",
        help: "in a site: it also gets requests for host names that no site has at this address",
    },
];

/// Reads an address, with TLS or without.
pub(super) fn listen(options: &mut ServeOptions, given: &Values, is_plain: bool) -> Result<(), Refused> {
    let is_default = given.read("default", value::switch)?.unwrap_or(false);
    if is_default && options.level == Level::Top {
        return Err("default=on belongs into a site: the site that gets requests for other host names".into());
    }
    options.listens.push(ListenSetting {
        text: given.text().to_owned(),
        address: given.text().parse()?,
        is_plain,
        proxy_header: given.read("proxy-protocol", proxy_header)?,
        is_default,
    });
    Ok(())
}

fn proxy_header(text: &str) -> Result<ProxyHeader, String> {
    match text {
        "on" => Ok(ProxyHeader::Trusted),
        "off" => Ok(ProxyHeader::None),
        "untrusted" => Ok(ProxyHeader::Untrusted),
        _ => Err(format!("got `{text}`, need on, off or untrusted")),
    }
}

/// `off`, or a time in microseconds.
fn busy_poll(text: &str) -> Result<Option<Duration>, Refused> {
    let range = 1..=BUSY_POLL_TIME_MAX.as_micros() as u64;
    match text.strip_suffix("us").map(str::parse) {
        None if text == "off" => Ok(None),
        Some(Ok(time)) if range.contains(&time) => Ok(Some(Duration::from_micros(time))),
        _ => Err(format!("got `{text}`, need off, or a time from 1us to {}us", range.end()).into()),
    }
}

pub(in crate::serve) const LISTENERS: &[ServeSetting] = &[
    ServeSetting {
        name: "listen",
        value: "ADDR",
        keys: LISTEN_KEYS,
        default: LISTEN_DEFAULT,
        help: "where to listen: IP:PORT, [IPv6]:PORT, :PORT or unix:PATH; [::]:PORT is for IPv4 too, unless :PORT is listed; with TLS if there is a certificate; can be repeated; \
               a site with `listen` or `listen-plain` of its own is served there and nowhere else; sockets from systemd \
               (LISTEN_FDS) take the place of all addresses; each is used as the address or port that it has is listed",
        set: |options, given| listen(options, given, false),
        is_list: true,
        ..SITES
    },
    ServeSetting {
        name: "workers",
        value: "N",
        default: "one for each CPU",
        help: "threads; each is pinned to its own CPU",
        set: |options, given| {
            options.server.workers = Some(value::number(given.text())?);
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.workers)),
        ..SERVERS
    },
    ServeSetting {
        name: "cpus",
        value: "LIST",
        default: "all that the process may use",
        help: "the CPUs that the server runs on, such as 1-3 or 0,2: one worker for each, unless `workers` is set; the other \
               CPUs are left to the network card's interrupts",
        set: |options, given| {
            options.server.cpus = Some(value::cpu_list(given.text())?);
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.cpus)),
        ..SERVERS
    },
    ServeSetting {
        name: "busy-poll",
        value: "TIME",
        default: "off",
        help: "how long a worker polls the network card for packets before it sleeps, such as 50us, up to 1000us, or off: shorter waits, \
               paid with CPU time while there are few requests; needs Linux 6.9, and does nothing over loopback",
        set: |options, given| {
            options.server.busy_poll = busy_poll(given.text())?;
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.busy_poll)),
        ..SERVERS
    },
    ServeSetting {
        name: "user",
        value: "NAME",
        default: "",
        help: "switch to this user after binding the sockets; needs root",
        set: |options, given| {
            options.server.user = Some(given.text().to_owned());
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.user)),
        ..SERVERS
    },
    ServeSetting {
        name: "server-name",
        value: "TEXT",
        default: "flatout",
        help: "the Server header field, or off",
        set: |options, given| {
            options.server.server_name = (given.text() != "off").then(|| given.text().to_owned());
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "drain-time",
        value: "TIME",
        default: "30s",
        help: "maximum time for requests in flight after SIGTERM or SIGINT; a second signal stops the server at once",
        set: |options, given| {
            options.server.drain_time_max = value::time(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "tunnel-drain-time",
        value: "TIME",
        default: "1h",
        help: "maximum time for WebSockets and other tunnels to upstreams after an upgrade: the old process carries them until they end",
        set: |options, given| {
            options.server.tunnel_drain_time_max = value::time(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "trusted-proxies",
        value: "PEER…",
        default: "none",
        help: "proxies in front of this server whose client address is trusted; networks such as 10.0.0.0/8, unix, or \
               all; in a route, this applies to the rules of the route; conditions that select the route use the \
               setting of the site",
        set: |options, given| {
            let peers: Result<Vec<_>, _> = given.values().map(parse::peers).collect();
            if options.begins("trusted-proxies") {
                options.trust.proxies.clear();
            }
            options.trust.proxies.extend(peers?);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "client-address",
        value: "FROM",
        default: "x-forwarded-for",
        help: "where trusted proxies give the client's address: x-forwarded-for, forwarded, proxy-protocol, or the name of \
               a field such as X-Real-IP; only one of them is trusted, so a listener with proxy-protocol=on excludes the fields",
        set: |options, given| {
            options.trust.from = match given.text() {
                "x-forwarded-for" => AddressFrom::XForwardedFor,
                "forwarded" => AddressFrom::Forwarded,
                "proxy-protocol" => AddressFrom::ProxyProtocol,
                name => AddressFrom::Header(parse::field_name(name)?),
            };
            options.names_client_address = true;
            Ok(())
        },
        ..ROUTES
    },
];
