//! A CPU quota that stops the server in the middle of a request.

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
struct Quota {
    /// Its file.
    path: String,
    /// CPU time per period, in CPUs.
    cpus: f64,
    /// The file's content without a quota.
    lifted: String,
    /// How often the cgroup was throttled.
    throttled: u64,
}

/// The cgroup version of a folder.
#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

const CGROUPS: &str = "/sys/fs/cgroup";

fn throttled(quotas: &[Quota]) -> u64 {
    quotas.iter().map(|quota| quota.throttled).fold(0, u64::saturating_add)
}

/// The quotas of the server's cgroup and its parents.
fn quotas(host: &Host, served: &Served) -> Result<Vec<Quota>, Unknown> {
    let text = host.text(&format!("/proc/{}/cgroup", served.pid()?))?;
    let (version, mount, own) = cgroup(host, &text)?;
    if own.split('/').any(|part| part == "..") {
        return Err(Unknown("the server's cgroup is outside of this cgroup namespace".to_owned()));
    }
    // In a container the path may be the host's, which is not visible; the mount is then the cgroup itself.
    let own = format!("{mount}{}", own.trim_end_matches('/'));
    let own = if host.list(&own).is_ok() { own } else { mount.clone() };
    let around = own.match_indices('/').map(|(at, _)| &own[..at]).chain([own.as_str()]);
    // The root, and cgroups without the controller, have no such files.
    Ok(around.filter(|path| path.starts_with(&mount)).filter_map(|path| quota(host, version, path)).collect())
}

/// The version, the mount point and the path below it, from the lines `number:controllers:path`.
fn cgroup<'t>(host: &Host, text: &'t str) -> Result<(Version, String, &'t str), Unknown> {
    let lines = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    if host.has(&format!("{CGROUPS}/cgroup.controllers")) {
        let own = lines().find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| path);
        return Ok((Version::Two, CGROUPS.to_owned(), own.unwrap_or_default()));
    }
    let own = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "cpu"));
    let mounts = own.map(|(controllers, path)| (format!("{CGROUPS}/{controllers}"), path));
    match mounts.filter(|(mount, _)| host.list(mount).is_ok()) {
        Some((mount, path)) => Ok((Version::One, mount, path)),
        None => Err(Unknown(format!("no cgroup with the CPU controller is mounted below {CGROUPS}"))),
    }
}

/// The quota of one cgroup, if it has one.
fn quota(host: &Host, version: Version, folder: &str) -> Option<Quota> {
    let (path, quota, period, lifted) = match version {
        Version::One => {
            let path = format!("{folder}/cpu.cfs_quota_us");
            let quota = host.number::<i64>(&path).ok().filter(|quota| *quota > 0)?;
            let period = host.number::<i64>(&format!("{folder}/cpu.cfs_period_us")).ok()?;
            (path, quota as f64, period as f64, "-1".to_owned())
        }
        Version::Two => {
            let path = format!("{folder}/cpu.max");
            let text = host.text(&path).ok()?;
            let (quota, period) = text.split_once(' ')?;
            let quota: f64 = quota.parse::<u64>().ok()? as f64;
            (path, quota, period.trim().parse::<u64>().ok()? as f64, format!("max {}", period.trim()))
        }
    };
    let stat = host.text(&format!("{folder}/cpu.stat")).unwrap_or_default();
    let throttled =
        stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok()).unwrap_or(0);
    // No kernel has a period of 0; treat it as no limit.
    (period > 0.0).then(|| Quota { path, cpus: (quota / period * 100.0).round() / 100.0, lifted, throttled })
}
