//! Facts about the server's share of the CPUs, from its cgroup, in the shape of [`super::facts`].

use super::cpu_quota::{quotas, throttled};
use super::facts::{Fact, OF_HOST, PRESSURE_PERCENT_MAX, Reading, pressure_percent};
use crate::card;
use crate::cgroup::{Cgroup, Version};
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Proof, Risk, Scope};

pub(super) static SHARES: &[Fact] = &[
    Fact {
        about: About {
            name: "cpuset",
            reason: "the server's cgroup may use some of the CPUs only",
            detail: "Set by AllowedCPUs= of a systemd unit, --cpuset-cpus of a container, or the static CPU manager of Kubernetes. \
                     Often meant; if not, the other CPUs are idle. More workers than CPUs in the set compete with each other.",
            source: "admin-guide/cgroup-v2: cpuset.cpus.effective",
            scope: Scope::Process,
            gain_percent: 20.1,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "CPUs of the cgroup",
        read: cpuset,
    },
    Fact {
        about: About {
            name: "cpu-weight",
            reason: "other cgroups get more CPU time when there is too little for all",
            detail: "The share of a cgroup among its siblings is its weight by the sum of theirs; 100 is what each has unless set. Kubernetes \
                     derives it from requests.cpu, so a pod that requests little gets little on a full node. Reported only \
                     while tasks wait for a CPU.",
            source: "admin-guide/cgroup-v2: cpu.weight; accounting/psi",
            risk: Risk::Medium,
            lost: "other cgroups get less CPU time while there is too little for all",
            scope: Scope::Process,
            gain_percent: 10.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "the lowest weight",
        read: weight,
    },
    Fact {
        about: About {
            name: "cpu-burst",
            reason: "a server below its CPU quota on average is stopped for a short peak",
            detail: "Time that was not used in earlier periods may be saved up, and then be used at once (Linux 5.14). A quota that is too \
                     low on average needs `cpu-quota` instead.",
            source: "admin-guide/cgroup-v2: cpu.max.burst; scheduler/sched-bwc",
            lost: "others may wait longer while the server uses what it has saved up",
            scope: Scope::Process,
            gain_percent: 5.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "nr_throttled",
        read: burst,
    },
];

/// The server's cgroup, if it is of version 2.
fn second_version(host: &Host, served: &Served) -> Result<Cgroup, Unknown> {
    let cgroup = Cgroup::of(host, served)?;
    match cgroup.version {
        Version::One => Err(Unknown("only of cgroup version 2".to_owned())),
        Version::Two => Ok(cgroup),
    }
}

fn cpuset(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let (cgroup, online) = (second_version(host, served)?, card::cpus(host)?);
    let usable = |folder: &str| host.text(&format!("{folder}/cpuset.cpus.effective")).ok();
    // A cgroup without the controller has the CPUs of the nearest one around it that has it.
    let Some(list) = cgroup.folders().filter_map(usable).last() else {
        return Ok(Reading::new("all".to_owned(), online.len() as u64, None));
    };
    let usable = crate::cpus::of_list(&list).into_iter().filter(|cpu| online.contains(cpu)).count();
    let advice = (usable < online.len()).then(|| {
        format!(
            "CPUs {list} of {} that are online: if that is not meant, raise it where it was set (AllowedCPUs= of the unit, \
             --cpuset-cpus)",
            online.len()
        )
    });
    Ok(Reading::new(format!("{usable} of {}", online.len()), usable as u64, advice))
}

/// The weight of a cgroup for which none was set.
const WEIGHT_DEFAULT: u64 = 100;

fn weight(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let cgroup = second_version(host, served)?;
    let of =
        |folder: &str| Some((host.number::<u64>(&format!("{folder}/cpu.weight")).ok()?, folder.to_owned()));
    let Some((lowest, folder)) = cgroup.folders().filter_map(of).min() else {
        return Ok(Reading::new("not set".to_owned(), WEIGHT_DEFAULT, None));
    };
    let waiting = pressure_percent(host, "cpu").unwrap_or(0.0);
    let is_low = lowest < WEIGHT_DEFAULT && waiting > PRESSURE_PERCENT_MAX;
    let advice = is_low.then(|| {
        format!(
            "weight {WEIGHT_DEFAULT} for {folder}: tasks wait for a CPU {waiting:.0} % of the time. To make it last: \
             CPUWeight={WEIGHT_DEFAULT} of the unit, or more requests.cpu of the pod"
        )
    });
    let change = Change::text(Setting::file(format!("{folder}/cpu.weight")), WEIGHT_DEFAULT);
    Ok(Reading::new(lowest.to_string(), lowest, advice).with([change]))
}

fn burst(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let quotas = quotas(host, served)?;
    let throttled = throttled(&quotas);
    let known = quotas.iter().filter_map(|quota| Some((quota, host.number::<u64>(&quota.burst_path).ok()?)));
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        let value = if quotas.is_empty() { "no quota" } else { "not supported" };
        return Ok(Reading::new(value.to_owned(), throttled, None));
    }
    let unsaved = known.iter().find(|(quota, burst)| quota.throttled > 0 && *burst == 0);
    let advice = unsaved.map(|(quota, _)| format!("{} us may be saved up for a peak", quota.quota_us));
    let change = unsaved.map(|(quota, _)| Change::text(Setting::file(&quota.burst_path), quota.quota_us));
    let values: Vec<String> = known.iter().map(|(_, burst)| format!("{burst} us")).collect();
    Ok(Reading::new(values.join(" "), throttled, advice).with(change))
}
