//! A CPU quota that stops the server in the middle of a request.

use crate::cgroup::{Cgroup, Version};
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The quotas of the server's cgroup and its parents.
pub(super) struct CpuQuota;

const ABOUT: About = About {
    name: "cpu-quota",
    reason: "a server that has used up its quota is stopped for the rest of the period",
    detail: "Four workers use up a quota of two CPUs in half of each period, and p99 grows by the other half. The \
             place to raise it is where it was set (CPUQuota= of the unit, resources.limits of the pod). Here it is \
             lifted for the running cgroup.",
    source: "cgroup-v2: cpu.max, cpu.stat; scheduler/sched-bwc for cgroup v1",
    scope: Scope::Process,
    risk: Risk::High,
    lost: "the server may take CPU time from the programs that the quota protects",
    gain_percent: 25.0,
    needs: Needs::AnyPath,
};

impl Tuning for CpuQuota {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let quotas = quotas(host, served)?;
        let narrowest = quotas.iter().map(|quota| quota.cpus).min_by(f64::total_cmp);
        Ok(match narrowest {
            Some(cpus) => format!("{cpus} CPUs, throttled {} times", throttled(&quotas)),
            None => "no quota".to_owned(),
        })
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let quotas = quotas(host, served)?;
        if throttled(&quotas) == 0 {
            return Ok(Advice::Fine);
        }
        let changes = quotas.into_iter().map(|quota| Change::text(Setting::file(quota.path), quota.lifted));
        Ok(Advice::change("no CPU quota", changes.collect()))
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        Ok(Counter { name: "nr_throttled".to_owned(), value: throttled(&quotas(host, served)?) })
    }
}

/// A quota that is set.
pub(super) struct Quota {
    /// Its file.
    path: String,
    /// CPU time per period, in CPUs.
    cpus: f64,
    /// The file's content without a quota.
    lifted: String,
    /// How often the cgroup was throttled.
    pub(super) throttled: u64,
    /// The file of what unused time may be saved up for a burst, in microseconds; kernels before 5.14 have none.
    pub(super) burst_path: String,
    /// CPU time per period, in microseconds.
    pub(super) quota_us: u64,
}

pub(super) fn throttled(quotas: &[Quota]) -> u64 {
    quotas.iter().map(|quota| quota.throttled).fold(0, u64::saturating_add)
}

/// The quotas of the server's cgroup and its parents.
pub(super) fn quotas(host: &Host, served: &Served) -> Result<Vec<Quota>, Unknown> {
    let cgroup = Cgroup::of(host, served)?;
    // The root, and cgroups without the controller, have no such files.
    Ok(cgroup.folders().filter_map(|folder| quota(host, cgroup.version, folder)).collect())
}

/// The quota of one cgroup, if it has one.
fn quota(host: &Host, version: Version, folder: &str) -> Option<Quota> {
    let (path, burst, quota, period, lifted) = match version {
        Version::One => {
            let path = format!("{folder}/cpu.cfs_quota_us");
            let quota = host.number::<i64>(&path).ok().filter(|quota| *quota > 0)?;
            let period = host.number::<i64>(&format!("{folder}/cpu.cfs_period_us")).ok()?;
            (path, "cpu.cfs_burst_us", quota as f64, period as f64, "-1".to_owned())
        }
        Version::Two => {
            let path = format!("{folder}/cpu.max");
            let text = host.text(&path).ok()?;
            let (quota, period) = text.split_once(' ')?;
            let quota: f64 = quota.parse::<u64>().ok()? as f64;
            let period = period.trim();
            (path, "cpu.max.burst", quota, period.parse::<u64>().ok()? as f64, format!("max {period}"))
        }
    };
    let stat = host.text(&format!("{folder}/cpu.stat")).unwrap_or_default();
    let throttled =
        stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok()).unwrap_or(0);
    // No kernel has a period of 0; treat it as no limit.
    (period > 0.0).then(|| Quota {
        path,
        cpus: (quota / period * 100.0).round() / 100.0,
        lifted,
        throttled,
        burst_path: format!("{folder}/{burst}"),
        quota_us: quota as u64,
    })
}
