//! Facts about processors, cards and the kernel's own observers, in the shape of [`super::facts`].

use super::facts::{Fact, OF_HOST, Reading};
use crate::card;
use crate::change::Change;
use crate::counters::sockstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Needs, Proof, Risk, Scope};

pub(super) static HARDWARE: &[Fact] = &[
    Fact {
        about: About {
            name: "smt",
            reason: "the second hardware thread of each core is switched off",
            detail: "Two threads of a core serve 20 to 30 % more requests than one. It is switched off against attacks between \
                     threads (mds, l1tf), or by nosmt at boot: find out why before you switch it on. What a second thread gains \
                     depends on the work; flatout climb measures it with a set and an unset command.",
            source: "admin-guide/hw-vuln/l1tf: smt control; ABI/testing/sysfs-devices-system-cpu",
            risk: Risk::Grave,
            lost: "protection against attacks between the threads of a core, if it was switched off for that",
            gain_percent: 20.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: smt,
    },
    Fact {
        about: About {
            name: "turbo",
            reason: "cores may not run faster than their base frequency",
            detail: "The clock of a busy core is a third and more above its base frequency if the processor is cool. Switched off \
                     mostly for measurements that have to be repeatable.",
            source: "admin-guide/pm/intel_pstate: no_turbo; admin-guide/pm/cpufreq: boost",
            lost: "power; and figures of two days differ more, because the clock depends on the temperature",
            gain_percent: 15.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: turbo,
    },
    Fact {
        about: About {
            name: "energy-preference",
            reason: "the processor prefers saving energy to speed (EPP)",
            detail: "With intel_pstate or amd_pstate in active mode, this hint decides how fast the clock rises, whatever the \
                     governor is called.",
            source: "admin-guide/pm/intel_pstate: energy_performance_preference",
            lost: "power: the clock stays high between bursts",
            gain_percent: 3.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: energy_preference,
    },
    Fact {
        about: About {
            name: "isolated-cpus",
            reason: "the scheduler places nothing on some CPUs",
            detail: "CPUs of isolcpus= get only threads that are pinned to them. A server that is not pinned leaves them idle; one \
                     that is needs no change.",
            source: "admin-guide/kernel-parameters: isolcpus",
            gain_percent: 2.5,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: isolated,
    },
    Fact {
        about: About {
            name: "nohz-full",
            reason: "the server runs on CPUs that the kernel keeps free of its timer",
            detail: "On CPUs of nohz_full=, the kernel accounts each change between a program and itself by the clock. That suits \
                     programs that compute and rarely call it; a server calls it several times for each request.",
            source: "timers/no_hz: adaptive-tick CPUs, known issues",
            gain_percent: 2.45,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: nohz_full,
    },
    Fact {
        about: About {
            name: "tracing",
            reason: "the kernel's tracer is on, and its functions cost more",
            detail: "A function tracer adds work to every function of the kernel, an event to every place that it names, and a probe \
                     to each call of its function. Tracers of other instances, and probes of perf and of BPF, are not seen here.",
            source: "trace/ftrace, trace/events, trace/kprobetrace",
            risk: Risk::Medium,
            lost: "whoever records a trace: another tracer clears what is recorded so far, and events are missing meanwhile",
            gain_percent: 4.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: tracing,
    },
    Fact {
        about: About {
            name: "link",
            reason: "the card's link is slow or half duplex",
            detail: "A gigabit carries 0.1 million responses of 1 kB a second. Half duplex is a failed negotiation: set both ends to \
                     negotiate, and check the cable.",
            source: "ethtool(8); ABI/testing/sysfs-class-net: speed, duplex",
            scope: Scope::Device,
            needs: Needs::Card,
            gain_percent: 5.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: link,
    },
    Fact {
        about: About {
            name: "bond",
            reason: "the device joins several cards, and has no queues or interrupts of its own",
            detail: "Rings, queues and moderation are those of the members: examine each by its name. Their interrupts are examined together \
                     (`irq-affinity`), so that two cards do not share CPUs while others are idle.",
            source: "networking/bonding; Yang Jian 2008: interrupts of two bonded cards on different CPUs",
            scope: Scope::Device,
            needs: Needs::Card,
            gain_percent: 1.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: bond,
    },
    Fact {
        about: About {
            name: "socket-memory",
            reason: "TCP has little room left for buffers or closed connections",
            detail: "Beyond the third number of tcp_mem, or tcp_max_orphans closed connections that still send, the kernel logs \
                     \"TCP: out of memory\" or \"too many orphaned sockets\" (\"Out of socket memory\" before Linux 3.3) and resets \
                     connections. Find what fills them: slow clients, or responses that nobody reads.",
            source: "proc_net_sockstat, ip-sysctl: tcp_mem, tcp_max_orphans",
            gain_percent: 1.0,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: socket_memory,
    },
    Fact {
        about: About {
            name: "huge-page-text",
            reason: "the program's code is in small pages, and a large program misses the instruction TLB",
            detail: "A kernel with CONFIG_READ_ONLY_THP_FOR_FS puts code into huge pages, if these are `always` on and the program is \
                     linked for them; khugepaged does it while the program runs. Only programs with megabytes of code gain.",
            source: "admin-guide/mm/transhuge; proc_pid_smaps(5): FilePmdMapped; ld(1): max-page-size",
            scope: Scope::Process,
            gain_percent: 1.4,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: huge_page_text,
    },
];

/// Programs with less code than this fit in the TLB: in MiB.
const TEXT_MIB_MIN: u64 = 4;

fn huge_page_text(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let pid = served.pid()?;
    let maps = host.text(&format!("/proc/{pid}/maps"))?;
    let text_mib = maps.lines().filter_map(code_bytes).max().unwrap_or(0) >> 20;
    let rollup = host.text(&format!("/proc/{pid}/smaps_rollup"))?;
    let mapped =
        rollup.lines().find_map(|line| line.strip_prefix("FilePmdMapped:")?.trim().strip_suffix(" kB"));
    let mapped_kib: u64 = mapped
        .and_then(|mapped| mapped.parse().ok())
        .ok_or_else(|| Unknown("this kernel does not report FilePmdMapped".to_owned()))?;
    let value = format!("{text_mib} MiB of code, {} in huge pages", mapped_kib >> 10);
    let release = host.text("/proc/sys/kernel/osrelease")?;
    let config = host.text(&format!("/boot/config-{release}")).unwrap_or_default();
    let is_supported = config.lines().any(|line| line == "CONFIG_READ_ONLY_THP_FOR_FS=y");
    let advice = (is_supported && text_mib >= TEXT_MIB_MIN && mapped_kib == 0).then(|| {
        format!(
            "{text_mib} MiB of code in pages of 4 KiB: link the program with -Wl,-z,max-page-size=0x200000, and \
             echo always > /sys/kernel/mm/transparent_hugepage/enabled"
        )
    });
    Ok(Reading::new(value, mapped_kib, advice))
}

/// The length of a mapping of code from a file: `55d0c0000000-55d0c1300000 r-xp 004de000 fe:00 1234 /usr/bin/server`.
fn code_bytes(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
    let address = |text| u64::from_str_radix(text, 16).ok();
    is_code.then_some(address(end)?.checked_sub(address(begin)?)?)
}

const SMT: &str = "/sys/devices/system/cpu/smt/control";

fn smt(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let control = host.text(SMT)?;
    let advice = (control == "off")
        .then(|| "the second thread of each core on, if nothing here needs it off".to_owned());
    let change = Change::text(Setting::file(SMT), "on");
    Ok(Reading::new(control, u64::from(advice.is_some()), advice).with([change]))
}

/// The file that limits the clock to the base frequency, and the value that does.
const TURBO: [(&str, &str, &str); 2] = [
    ("/sys/devices/system/cpu/intel_pstate/no_turbo", "1", "0"),
    ("/sys/devices/system/cpu/cpufreq/boost", "0", "1"),
];

fn turbo(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let (path, off, on, now) = TURBO
        .iter()
        .find_map(|(path, off, on)| Some((path, off, on, host.text(path).ok()?)))
        .ok_or_else(|| Unknown("the kernel does not control the clock of these CPUs".to_owned()))?;
    let advice = (now == *off).then(|| "turbo on".to_owned());
    let change = Change::text(Setting::file(*path), *on);
    Ok(Reading::new(if now == *off { "off" } else { "on" }, u64::from(now == *off), advice).with([change]))
}

/// Preferences that hold the clock back.
const SAVING: [&str; 3] = ["power", "balance_power", "default"];

fn energy_preference(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let path = |cpu| format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/energy_performance_preference");
    let now = host.text(&path(0))?;
    let saving = card::cpus(host)?
        .into_iter()
        .map(path)
        // With triggers it reads `1*`, which cannot be written back.
        .filter(|path| host.text(path).is_ok_and(|preference| SAVING.contains(&preference.as_str())));
    let changes: Vec<Change> = saving.map(|path| Change::text(Setting::file(path), "performance")).collect();
    let advice = (!changes.is_empty()).then(|| "energy preference performance".to_owned());
    Ok(Reading::new(now, changes.len() as u64, advice).with(changes))
}

fn isolated(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let text = host.text("/sys/devices/system/cpu/isolated")?;
    let cpus = crate::cpus::of_list(&text);
    if cpus.is_empty() {
        return Ok(Reading::new("none", 0, None));
    }
    let used = allowed_cpus(host, served)?;
    let is_used = cpus.iter().any(|cpu| used.contains(cpu));
    let advice = (!is_used).then(|| {
        format!("CPUs {text} are isolated and idle: pin workers there (flatout serve --cpus {text}), or boot without isolcpus")
    });
    Ok(Reading::new(text.as_str(), cpus.len() as u64, advice))
}

/// The CPUs that the server's threads may run on.
fn allowed_cpus(host: &Host, served: &Served) -> Result<Vec<usize>, Unknown> {
    let mut allowed = Vec::new();
    for thread in served.threads(host)? {
        let status = host.text(&format!("/proc/{thread}/status")).unwrap_or_default();
        let list =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        allowed.extend(crate::cpus::of_list(list.trim()));
    }
    Ok(allowed)
}

fn nohz_full(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    // The kernel prints `(null)` if there are none.
    let text = host.text("/sys/devices/system/cpu/nohz_full")?;
    let cpus = crate::cpus::of_list(&text);
    if cpus.is_empty() {
        return Ok(Reading::new("none", 0, None));
    }
    let (used, online) = (allowed_cpus(host, served)?, card::cpus(host)?);
    let others: Vec<String> = online.iter().filter(|cpu| !cpus.contains(cpu)).map(usize::to_string).collect();
    let advice = cpus.iter().any(|cpu| used.contains(cpu)).then(|| {
        format!(
            "the server may run on CPUs {text}, whose system calls cost more: keep it on the others (flatout serve --cpus {}, or taskset)",
            others.join(",")
        )
    });
    Ok(Reading::new(text.as_str(), cpus.len() as u64, advice))
}

/// The folder of the tracer, and where it was before Linux 4.1.
const TRACERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

fn tracing(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let folder =
        TRACERS.into_iter().find(|folder| host.has(&format!("{folder}/current_tracer"))).ok_or_else(
            || Unknown("the tracer's files are not mounted, or only root may read them".to_owned()),
        )?;
    let is_on = host.text(&format!("{folder}/tracing_on")).is_ok_and(|on| on == "1");
    let tracer = host.text(&format!("{folder}/current_tracer"))?;
    let set = host.text(&format!("{folder}/set_event")).unwrap_or_default();
    // `net:netif_receive_skb`; probes are events of the system `kprobes` or `uprobes`.
    let enabled: Vec<String> = set
        .lines()
        .filter_map(|line| line.trim().split_once(':'))
        .map(|(system, event)| format!("{folder}/events/{system}/{event}/enable"))
        // With triggers it reads `1*`, which cannot be written back.
        .filter(|path| host.text(path).is_ok_and(|state| state == "1"))
        .take(EVENTS_MAX)
        .collect();
    let (mut found, mut changes) = (Vec::new(), Vec::new());
    if tracer != "nop" && is_on {
        found.push(format!("tracer {tracer}"));
        changes.push(Change::text(Setting::file(format!("{folder}/current_tracer")), "nop"));
    }
    if !enabled.is_empty() && is_on {
        found.push(format!("{} events", enabled.len()));
        changes.extend(enabled.into_iter().map(|path| Change::text(Setting::file(path), "0")));
    }
    let value = if found.is_empty() { "off".to_owned() } else { found.join(", ") };
    let advice = (!found.is_empty()).then(|| format!("{value} off, if nobody records a trace now"));
    Ok(Reading::new(value, found.len() as u64, advice).with(changes))
}

/// Events that are switched off at most; with all events of the kernel on, the rest is switched off the next time.
const EVENTS_MAX: usize = 256;

/// A slower link is the bottleneck of most servers, in Mbit/s.
const SPEED_MIN: i64 = 1000;

fn link(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let device = served.card(host)?;
    // A virtual card reports no speed, or -1.
    let speed = host.number::<i64>(&format!("/sys/class/net/{device}/speed")).unwrap_or(-1);
    let duplex = host.text(&format!("/sys/class/net/{device}/duplex")).unwrap_or_default();
    let value = match speed {
        1.. => format!("{speed} Mbit/s, {duplex} duplex"),
        _ => "not known".to_owned(),
    };
    let advice = match (duplex.as_str(), speed) {
        ("half", _) => {
            Some(format!("{device} runs half duplex: let both ends negotiate, and check the cable"))
        }
        (_, 1..SPEED_MIN) => {
            Some(format!("{device} runs at {speed} Mbit/s: check the cable and the switch's port"))
        }
        _ => None,
    };
    Ok(Reading::new(value, u64::try_from(speed).unwrap_or(0), advice))
}

fn bond(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let device = served.card(host)?;
    let members = card::members(host, device);
    if members.is_empty() {
        return Ok(Reading::new("one card", 0, None));
    }
    let of_member = |member: &String| {
        let interrupts = card::interrupts(host, member).map_or(0, |interrupts| interrupts.len());
        format!("{member} ({interrupts} interrupts)")
    };
    let value: Vec<String> = members.iter().map(of_member).collect();
    let commands: Vec<String> =
        members.iter().map(|member| format!("flatout tune --interface {member}")).collect();
    let advice = format!(
        "the cards behind {device} have the queues: {}; `irq-affinity` places the interrupts of all of them",
        commands.join(", ")
    );
    Ok(Reading::new(value.join(", "), commands.len() as u64, Some(advice)))
}

/// A limit that is used this far is worth reporting, in percent.
const USED_PERCENT_MAX: u64 = 80;

fn socket_memory(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let (pages, orphans) = (sockstat(host, "mem")?, sockstat(host, "orphan")?);
    let limits = host.text("/proc/sys/net/ipv4/tcp_mem")?;
    let pages_max =
        limits.split_whitespace().nth(2).and_then(|max| max.parse::<u64>().ok()).unwrap_or(u64::MAX);
    let orphans_max = host.number::<u64>("/proc/sys/net/ipv4/tcp_max_orphans").unwrap_or(u64::MAX);
    let is_near = |used: u64, max: u64| used.saturating_mul(100) >= max.saturating_mul(USED_PERCENT_MAX);
    let advice = if is_near(pages, pages_max) {
        Some(format!(
            "buffers use {pages} of {pages_max} pages: find the connections (ss -tm), or raise tcp_mem"
        ))
    } else if is_near(orphans, orphans_max) {
        Some(format!(
            "{orphans} of {orphans_max} closed connections still send: find the clients (ss -to state fin-wait-1)"
        ))
    } else {
        None
    };
    Ok(Reading::new(format!("{pages} pages, {orphans} orphans"), pages, advice))
}
