//! System calls filtered by a program.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::settings::status_field;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Whether the server's system calls run a filter.
pub(super) struct Seccomp;

const ABOUT: About = About {
    name: "seccomp",
    reason: "each system call runs a filter first",
    detail: "Decided when the server is started. Since Linux 5.11 a filter that always allows a call is \
             skipped for it, so most of the cost is gone there.",
    source: "Richards 2021, step 3: +11 % with audit; kernel 5.11",
    scope: Scope::Process,
    risk: Risk::Grave,
    lost: "a server that is broken into may use every system call",
    gain_percent: 5.0,
    needs: Needs::AnyPath,
};

impl Tuning for Seccomp {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ok(match status_field(host, served.pid()?, "Seccomp")?.as_str() {
            "0" => "no filter".to_owned(),
            "1" => "strict".to_owned(),
            _ => format!(
                "{} filters",
                status_field(host, served.pid()?, "Seccomp_filters").unwrap_or("some".to_owned())
            ),
        })
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let pid = served.pid()?;
        if status_field(host, pid, "Seccomp")? == "0" {
            return Ok(Advice::Fine);
        }
        let Some(unit) = served.unit(host) else {
            let by_hand =
                "start it without: --security-opt seccomp=unconfined of docker, seccompProfile of a pod";
            return Ok(Advice::ByHand(by_hand.to_owned()));
        };
        let path = format!("/etc/systemd/system/{unit}.d/zz-flatout-seccomp.conf");
        let then = format!("systemctl daemon-reload && systemctl restart {unit}");
        if host.bytes(&path)?.is_some_and(|bytes| bytes == NO_FILTER.as_bytes()) {
            return Ok(Advice::ByHand(format!("waits for the next start: {then}")));
        }
        let changes = vec![Change::text(Setting::file(path), NO_FILTER)];
        Ok(Advice::Change { what: format!("no filter for {unit}"), changes, then })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let filters = status_field(host, served.pid()?, "Seccomp_filters")?;
        Ok(Counter { name: "Seccomp_filters".to_owned(), value: filters.parse().unwrap_or(0) })
    }
}

/// What takes a unit's filter away.
const NO_FILTER: &str = "[Service]\nSystemCallFilter=\nSystemCallArchitectures=\n";
