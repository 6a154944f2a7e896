//! System calls filtered by seccomp.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Process, Setting, status_field};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Whether the server's system calls pass a filter.
pub(super) struct Seccomp;

const ABOUT: About = About {
    name: "seccomp",
    reason: "each system call runs through a filter first",
    detail: "Decided when the server starts. Since Linux 5.11 the kernel skips the filter for calls that it always \
             allows, so most of the cost is gone there.",
    source: "Richards 2021, step 3: +11 % with audit; kernel 5.11",
    scope: Scope::Process,
    risk: Risk::Grave,
    lost: "an attacker who has taken over the server may use every system call",
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
            let by_hand = "start it without one: docker run --security-opt seccomp=unconfined, or seccompProfile of the pod";
            return Ok(Advice::ByHand(by_hand.to_owned()));
        };
        let path = format!("/etc/systemd/system/{unit}.d/zz-flatout-seccomp.conf");
        let then = format!("systemctl daemon-reload && systemctl restart {unit}");
        if host.bytes(&path)?.is_some_and(|bytes| bytes == NO_FILTER.as_bytes()) {
            return Ok(Advice::ByHand(match is_started_since(host, pid, &path) {
                true => format!(
                    "{unit} has filters besides SystemCallFilter=: other options add some, such as \
                     RestrictAddressFamilies=, MemoryDenyWriteExecute=, RestrictNamespaces= or LockPersonality=, or \
                     the server adds its own. Remove them there, or undo this: flatout tune undo seccomp"
                ),
                false => format!("takes effect at the next start: {then}"),
            }));
        }
        let changes = vec![Change::text(Setting::file(path), NO_FILTER)];
        Ok(Advice::Change { what: format!("no filter for {unit}"), changes, then })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let filters = status_field(host, served.pid()?, "Seccomp_filters")?;
        Ok(Counter { name: "Seccomp_filters".to_owned(), value: filters.parse().unwrap_or(0) })
    }
}

/// Whether a process started after a file was written; false if unknown.
fn is_started_since(host: &Host, pid: u32, path: &str) -> bool {
    let started = Process::now(host, pid).and_then(|process| process.started(host));
    started.is_ok_and(|started| host.modified(path).is_ok_and(|written| started > written))
}

/// Removes a unit's filter.
const NO_FILTER: &str = "[Service]\nSystemCallFilter=\nSystemCallArchitectures=\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::served::ServerSelector;

    /// A unit's other options install filters too: a restarted server that still has filters is not waiting for a
    /// restart.
    #[test]
    fn filters_of_other_options_are_reported() {
        let fake = Fake::with(&[
            ("/proc/7/status", "Name:\tweb\nSeccomp:\t2\nSeccomp_filters:\t3\n"),
            ("/proc/7/cgroup", "0::/system.slice/web.service\n"),
            ("/proc/7/stat", "7 (web) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 500 1 1\n"),
            ("/etc/systemd/system/web.service.d/zz-flatout-seccomp.conf", NO_FILTER),
        ]);
        let host = fake.host();
        let served =
            Served::find(&host, &ServerSelector { pid: Some(7), ..ServerSelector::default() }).unwrap();
        for (boot, expected) in [
            ("", "takes effect at the next start"),
            ("cpu 0\nbtime 1000000000\n", "takes effect at the next start"),
            ("cpu 0\nbtime 32503680000\n", "tune undo seccomp"),
            ("cpu 0\nbtime 18446744073709551615\n", "takes effect at the next start"),
        ] {
            fake.file("/proc/stat", boot);
            let advice = Seccomp.advice(&host, &served).unwrap();
            assert!(matches!(&advice, Advice::ByHand(told) if told.contains(expected)), "{boot}: {advice:?}");
        }
    }
}
