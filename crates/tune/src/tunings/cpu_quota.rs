//! A CPU quota that stops the server in mid-request.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The CPU quota of the server's cgroup.
pub(super) struct CpuQuota;

const ABOUT: About = About {
    name: "cpu-quota",
    reason: "a server that has used its quota stands still for the rest of the period",
    detail: "A quota of two CPUs used by four workers is spent in half of each period: p99 grows by the \
             other half. Raising it is up to whoever set it (CPUQuota= of the unit, resources.limits of the \
             pod); here it is lifted for the running cgroup.",
    source: "cgroup-v2: cpu.max, cpu.stat",
    scope: Scope::Process,
    risk: Risk::High,
    lost: "the server may take all CPUs from others who were to be protected from it",
    gain_percent: 25.0,
    needs: Needs::AnyPath,
};

impl Tuning for CpuQuota {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let quotas: Vec<String> = limits(host, served)?.into_iter().map(|(_, quota)| quota).collect();
        let throttled = self.effect(host, served)?.value;
        Ok(match quotas.first() {
            Some(quota) => format!("{quota}, throttled {throttled} times"),
            None => "no quota".to_owned(),
        })
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let quotas = limits(host, served)?;
        let changes: Vec<Change> = quotas
            .into_iter()
            .map(|(path, quota)| Change::text(Setting::file(path), lifted(&quota)))
            .collect();
        Ok(match changes.is_empty() || self.effect(host, served)?.value == 0 {
            true => Advice::Fine,
            false => Advice::change("no CPU quota", changes),
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let stat = host.text(&format!("{}/cpu.stat", cgroup(host, served)?))?;
        let value = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok());
        Ok(Counter { name: "nr_throttled".to_owned(), value: value.unwrap_or(0) })
    }
}

/// The same period without a quota: `max 100000` for `200000 100000`.
fn lifted(quota: &str) -> String {
    quota.split_once(' ').map_or("max".to_owned(), |(_, period)| format!("max {period}"))
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// Where the server's cgroup lies, in the one hierarchy of cgroup v2.
fn cgroup(host: &Host, served: &Served) -> Result<String, Unknown> {
    let path = format!("/proc/{}/cgroup", served.pid()?);
    let text = host.text(&path)?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::"));
    match own.filter(|_| host.has(&format!("{CGROUPS}/cgroup.controllers"))) {
        Some(own) => Ok(format!("{CGROUPS}{}", own.trim_end_matches('/'))),
        None => Err(Unknown("there is no cgroup v2 here".to_owned())),
    }
}

/// The quotas of the cgroup and of those around it: the file, and what it holds where it is not `max`.
fn limits(host: &Host, served: &Served) -> Result<Vec<(String, String)>, Unknown> {
    let own = cgroup(host, served)?;
    let around = own.match_indices('/').map(|(at, _)| &own[..at]).chain([own.as_str()]);
    let files = around.filter(|path| path.starts_with(CGROUPS)).map(|path| format!("{path}/cpu.max"));
    // The root, and a cgroup without the controller, have no such file.
    let quotas = files.filter_map(|path| host.text(&path).ok().map(|quota| (path, quota)));
    Ok(quotas.filter(|(_, quota)| !quota.starts_with("max")).collect())
}
