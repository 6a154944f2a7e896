//! Access logs, and the admin listener.

use flatout_observe::log::{Escape, Plan as Log, Scope, StandardStream, SyslogTarget};
use flatout_observe::observed::RequestLogs;
use flatout_server::Plan;

use crate::serve::options::{AccessLog, Level};
use crate::serve::parse;
use crate::serve::setting::{Change, KEY, Key, ROUTES, SERVERS, SITES, ServeSetting};
use crate::value;

pub(in crate::serve) const LOGS: &[ServeSetting] = &[
    ServeSetting {
        name: "access-log",
        value: "FILE",
        keys: &[
            Key { name: "format", help: "as log-format", ..KEY },
            Key {
                name: "escape",
                value: "text|json|none",
                help: "how values in its format are escaped: as in other servers' logs (\\xXX), as in JSON, or only line ends",
                default: "json for a template that begins with {, otherwise text",
            },
            Key { name: "buffer", value: "BYTES", help: "as log-buffer", ..KEY },
            Key { name: "flush", value: "TIME", help: "as log-flush", ..KEY },
            Key { name: "only", value: "CONDITIONS", help: "as log-only", ..KEY },
            Key { name: "sample", value: "N", help: "as log-sample", ..KEY },
            Key {
                name: "when",
                value: "EXPR",
                help: "only requests for which this is true; it may depend on the response",
                ..KEY
            },
        ],
        default: "off",
        help: "log each request to this file, to - (stdout), stdout or stderr, to a system log (syslog:/dev/log, syslog:ADDRESS:PORT; with messages of RFC 3164 as nginx writes it: syslog:server=ADDRESS:PORT,facility=local7,severity=info,tag=nginx,nohostname), or off; the name of the file may have variables of the request, as in /var/log/$host.log; on a terminal with log-format short unless it is set; in a site, only its requests; in a route, its requests are in these logs alone, or with off in none; SIGUSR1 reopens it after a rotation",
        set: |options, given| {
            let is_off = given.text() == "off";
            if options.level == Level::Route {
                options.rules.logs = if is_off { RequestLogs::None } else { RequestLogs::Usual };
            }
            if is_off {
                options.logs.clear();
                return Ok(());
            }
            let escape = given.read("escape", str::parse::<Escape>)?;
            let format = given.read("format", |text| options.log_format(text))?;
            let format = match (format, escape) {
                (Some(format), Some(escape)) => Some(format.with_escape(escape)),
                (None, Some(_)) => return Err("`escape` is for the `format` beside it".into()),
                (format, None) => format,
            };
            let conditions = |text: &str| parse::names(text).iter().map(|text| text.parse()).collect();
            let skip = given.read("when", |text| options.log_condition(text))?;
            let log = AccessLog {
                path: match given.text() {
                    "-" | "stdout" => StandardStream::Stdout.path().to_owned(),
                    "stderr" => StandardStream::Stderr.path().to_owned(),
                    name => match SyslogTarget::parse(name).transpose()? {
                        Some(_) => name.into(),
                        None => options.path(name),
                    },
                },
                format,
                buffer_bytes: given.read("buffer", value::bytes)?.map(|bytes| bytes as usize),
                flush: given.read("flush", value::time)?,
                only: given.read("only", conditions)?.unwrap_or_default(),
                sample: given.read("sample", value::number)?,
                skip,
            };
            log.clone().plan(&options.log, Scope::Server).check()?;
            options.logs.push(log);
            Ok(())
        },
        is_list: true,
        change: Change::Restart(|plan| of_logs(plan, |log| format!("{:?}", log.skip))),
        ..ROUTES
    },
    ServeSetting {
        name: "log-format",
        value: "TEXT",
        default: "combined",
        help: "common, combined, short (for people), json, or a template with nginx's variables, such as '$remote_addr $status', and those of \
               sites and maps",
        set: |options, given| {
            options.log.format = options.log_format(given.text())?;
            Ok(())
        },
        change: Change::Restart(|plan| of_logs(plan, |log| format!("{:?}", log.format))),
        ..SITES
    },
    ServeSetting {
        name: "log-buffer",
        value: "BYTES",
        default: "256KiB",
        help: "size of each worker's buffer",
        set: |options, given| {
            options.log.buffer_bytes = value::bytes(given.text())? as usize;
            Ok(options.log.check()?)
        },
        change: Change::Restart(|plan| of_logs(plan, |log| format!("{:?}", log.buffer_bytes))),
        ..SITES
    },
    ServeSetting {
        name: "log-flush",
        value: "TIME",
        default: "10s",
        help: "maximum time before a line is written",
        set: |options, given| {
            options.log.flush = value::time(given.text())?;
            Ok(options.log.check()?)
        },
        change: Change::Restart(|plan| of_logs(plan, |log| format!("{:?}", log.flush))),
        ..SITES
    },
    ServeSetting {
        name: "log-only",
        value: "CONDITION",
        help: "log only matching requests, such as status>=500 or time>=1s; can be repeated, then all must match",
        set: |options, given| {
            options.log.only.push(given.text().parse()?);
            Ok(())
        },
        is_list: true,
        change: Change::Restart(|plan| of_logs(plan, |log| format!("{:?}", log.only))),
        ..SITES
    },
    ServeSetting {
        name: "log-sample",
        value: "N",
        default: "1",
        help: "log one request in N; errors (status 400 and above) and aborted requests are always logged",
        set: |options, given| {
            options.log.sample = value::number(given.text())?;
            Ok(options.log.check()?)
        },
        change: Change::Restart(|plan| of_logs(plan, |log| format!("{:?}", log.sample))),
        ..SITES
    },
    ServeSetting {
        name: "log-level",
        value: "error|warning|info",
        default: "info",
        help: "the server's own messages on stderr that are written; they are JSON if log-format is json",
        set: |options, given| {
            options.message_level = given.text().parse()?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "admin",
        value: "ADDR",
        help: "where to serve metrics and the live page: unix:PATH or a loopback address; see flatout top; can be repeated",
        set: |options, given| {
            options.admin.push(given.text().parse()?);
            Ok(())
        },
        is_list: true,
        change: Change::Restart(|plan| format!("{:?}", plan.admin)),
        ..SERVERS
    },
    ServeSetting {
        name: "admin-public",
        value: "[on|off]",
        default: "off",
        help: "allow admin addresses that other machines can reach",
        set: |options, given| {
            options.admin_public = given.is_on();
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.admin_public)),
        ..SERVERS
    },
];

/// A value of each log, with its file and its site or route. Sites and routes may be reordered.
fn of_logs(plan: &Plan, value: fn(&Log) -> String) -> String {
    let scope = |log: &Log| match log.scope {
        Scope::Server => None,
        Scope::Site(site) => plan.sites.sites.get(usize::from(site)).map(|site| &site.name),
        Scope::Route(route) => plan.route_logs.get(usize::from(route)),
    };
    let mut logs: Vec<String> =
        plan.logs.iter().map(|log| format!("{:?} {:?} {}", log.path, scope(log), value(log))).collect();
    logs.sort();
    logs.join("\n")
}
