//! Mitigations of CPU vulnerabilities.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The mitigations of this boot.
pub(super) struct Mitigations;

const ABOUT: About = About {
    name: "mitigations",
    reason: "workarounds for vulnerabilities of the CPU slow down every system call and indirect jump",
    detail: "Decided at boot. From Linux 6.17 on, the command line can select who is protected from whom. A machine \
             that runs the programs of one user needs no protection of the kernel from users and of users from each \
             other; one without /dev/kvm needs none against guests. That gives up less than mitigations=off, the \
             only choice before, and is suggested where the kernel supports it. The figures are those of the \
             published climb, each measured alone. Where there is none, only a measurement before and after a reboot \
             shows the gain.",
    source: "Richards 2021, step 2: +28 % (spectre_v2 15 to 20, pti 6, mds and taa 6, spectre_v1 1 to 2); \
             admin-guide/hw-vuln/attack_vector_controls, kernel 6.17",
    scope: Scope::Reboot,
    risk: Risk::Grave,
    lost: "any program on this machine may be able to read the memory of all others and of the kernel",
    gain_percent: 28.0,
    needs: Needs::Reboot,
};

impl Tuning for Mitigations {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let costs: Vec<String> =
            mitigated(host)?.iter().map(|name| format!("{name} ({})", known(name).cost)).collect();
        Ok(match costs.is_empty() {
            true => "none mitigated".to_owned(),
            false => format!("mitigated: {}", costs.join(", ")),
        })
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let mitigated = mitigated(host)?;
        let line = host.text("/proc/cmdline").unwrap_or_default();
        // The last one counts.
        let now = line.split_whitespace().filter_map(|word| word.strip_prefix(PARAMETER)).next_back();
        let (wanted, vectors) = wanted(host, now.unwrap_or(AUTO))?;
        let (open, shut): (Vec<&str>, Vec<&str>) = mitigated
            .iter()
            .map(String::as_str)
            .partition(|name| known(name).vectors.iter().all(|vector| vectors.contains(vector)));
        if open.is_empty() || now == Some(&wanted) {
            return Ok(Advice::Fine);
        }
        let kept = match shut.is_empty() {
            true => String::new(),
            false => format!("; {} stay mitigated", shut.join(", ")),
        };
        let what = format!("boot with {PARAMETER}{wanted}: opens {}{kept}", open.join(", "));
        if !host.has(GRUB_FOLDER) {
            return Ok(Advice::ByHand(format!(
                "{what}; set it where this machine's boot loader is configured"
            )));
        }
        let path = format!("{GRUB_FOLDER}/90-flatout-mitigations.cfg");
        let line =
            format!("GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {PARAMETER}{wanted}\"\n");
        let then = "update-grub && reboot (and again after `flatout tune undo mitigations`)".to_owned();
        if host.bytes(&path)?.is_some_and(|bytes| bytes == line.as_bytes()) {
            return Ok(Advice::ByHand(format!("{PARAMETER}{wanted} takes effect at the next boot: {then}")));
        }
        Ok(Advice::Change { what, changes: vec![Change::text(Setting::file(path), line)], then })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        Ok(Counter { name: "vulnerabilities mitigated".to_owned(), value: mitigated(host)?.len() as u64 })
    }
}

/// An attack vector: who is protected from whom, as on the kernel's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vector {
    UserKernel,
    UserUser,
    GuestHost,
    GuestGuest,
}

use Vector::{GuestGuest, GuestHost, UserKernel, UserUser};

/// A vulnerability.
struct Vulnerability {
    name: &'static str,
    /// The cost of its mitigation in a published climb.
    cost: &'static str,
    /// Its mitigation is dropped if all of these vectors are open.
    vectors: &'static [Vector],
}

const NO_FIGURE: &str = "no figure";

const fn vulnerability(name: &'static str, cost: &'static str, vectors: &'static [Vector]) -> Vulnerability {
    Vulnerability { name, cost, vectors }
}

const ALL: &[Vector] = &[UserKernel, UserUser, GuestHost, GuestGuest];

/// From the kernel's table of attack vectors. spectre_v2 occurs there twice, for the kernel and for programs.
const VULNERABILITIES: &[Vulnerability] = &[
    vulnerability("gather_data_sampling", NO_FIGURE, ALL),
    vulnerability("indirect_target_selection", NO_FIGURE, &[UserKernel, GuestHost]),
    vulnerability("l1tf", NO_FIGURE, &[UserKernel, GuestHost]),
    vulnerability("mds", "6 % with tsx_async_abort", ALL),
    vulnerability("meltdown", "6 %", &[UserKernel]),
    vulnerability("mmio_stale_data", NO_FIGURE, ALL),
    vulnerability("reg_file_data_sampling", NO_FIGURE, ALL),
    vulnerability("retbleed", NO_FIGURE, &[UserKernel, GuestHost]),
    vulnerability("spec_rstack_overflow", NO_FIGURE, ALL),
    vulnerability("spec_store_bypass", NO_FIGURE, &[UserUser]),
    vulnerability("spectre_v1", "1-2 %", &[UserKernel]),
    vulnerability("spectre_v2", "15-20 %", ALL),
    vulnerability("srbds", NO_FIGURE, ALL),
    vulnerability("tsa", NO_FIGURE, ALL),
    vulnerability("tsx_async_abort", "6 % with mds", ALL),
    vulnerability("vmscape", NO_FIGURE, &[GuestHost]),
];

/// A vulnerability that is newer than the table: its cost is unknown, and every vector may need it.
const UNHEARD_OF: Vulnerability = vulnerability("", NO_FIGURE, ALL);

fn known(name: &str) -> &'static Vulnerability {
    VULNERABILITIES.iter().find(|vulnerability| vulnerability.name == name).unwrap_or(&UNHEARD_OF)
}

const PARAMETER: &str = "mitigations=";
const AUTO: &str = "auto";
const OFF: &str = "off";
const FOLDER: &str = "/sys/devices/system/cpu/vulnerabilities";
const GRUB_FOLDER: &str = "/etc/default/grub.d";

/// The first kernel with attack vectors, on x86.
const VECTORS_SINCE: (u32, u32) = (6, 17);

impl Vector {
    /// The word that leaves this vector open.
    fn word(self) -> &'static str {
        match self {
            UserKernel => "no_user_kernel",
            UserUser => "no_user_user",
            GuestHost => "no_guest_host",
            GuestGuest => "no_guest_guest",
        }
    }
}

/// Files that exist in containers.
const CONTAINER_MARKS: &[&str] = &["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];

/// Devices of a host that may run guests.
const GUEST_DEVICES: &[&str] = &["kvm", "vboxdrv", "vmmon"];

/// The wanted parameter if it is `now`, and the vectors that are then open.
fn wanted(host: &Host, now: &str) -> Result<(String, Vec<Vector>), Unknown> {
    // Only x86 lists its CPU bugs there.
    let is_x86 =
        host.text("/proc/cpuinfo").is_ok_and(|text| text.lines().any(|line| line.starts_with("bugs")));
    if host.kernel()? < VECTORS_SINCE || !is_x86 || now == OFF {
        return Ok((OFF.to_owned(), ALL.to_vec()));
    }
    // The /dev of a container says nothing about its host.
    let is_container = CONTAINER_MARKS.iter().any(|mark| host.has(mark));
    let has_guests = is_container
        || host
            .list("/dev")
            .is_ok_and(|names| names.iter().any(|name| GUEST_DEVICES.contains(&name.as_str())));
    // The line goes into a file that a shell reads: it must not contain anything special to it.
    let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let kept = now.split(',').filter(is_word).filter(|word| !word.is_empty() && *word != AUTO);
    let mut words: Vec<&str> = [AUTO].into_iter().chain(kept).collect();
    for vector in if has_guests { &ALL[..2] } else { ALL } {
        if !words.contains(&vector.word()) {
            words.push(vector.word());
        }
    }
    let open = ALL.iter().copied().filter(|vector| words.contains(&vector.word())).collect();
    Ok((words.join(","), open))
}

/// The vulnerabilities of this machine that are mitigated.
fn mitigated(host: &Host) -> Result<Vec<String>, Unknown> {
    let names = host.list(FOLDER)?;
    let is_mitigated = |name: &String| {
        let state = host.text(&format!("{FOLDER}/{name}"));
        state.is_ok_and(|state| state.contains("Mitigation:"))
    };
    Ok(names.into_iter().filter(is_mitigated).collect())
}
