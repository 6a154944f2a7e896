//! What the CPU's vulnerabilities cost, and a plan to reboot without their mitigations.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Which vulnerabilities are mitigated.
pub(super) struct Mitigations;

const ABOUT: About = About {
    name: "mitigations",
    reason: "every system call and every indirect jump pays for the CPU's vulnerabilities",
    detail: "Decided at boot. From Linux 6.17 on attack vectors can be chosen: a machine that runs one \
             user's programs and no guests needs none of user to kernel, user to user, guest to host, guest \
             to guest; that asks for less than mitigations=off.",
    source: "Richards 2021, step 2: +28 % (spectre_v2 15 to 20, pti 6, mds and taa 6, spectre_v1 1 to 2); \
             kernel 6.17 attack-vector controls",
    scope: Scope::Reboot,
    risk: Risk::Grave,
    lost: "any program on this machine may read the memory of every other and of the kernel",
    gain_percent: 28.0,
    needs: Needs::Reboot,
};

impl Tuning for Mitigations {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let mitigated = mitigated(host)?;
        let costs: Vec<String> = mitigated
            .iter()
            .map(|name| match COSTS.iter().find(|(known, _)| known == name) {
                Some((_, cost)) => format!("{name} ({cost})"),
                None => name.clone(),
            })
            .collect();
        Ok(if costs.is_empty() {
            "none mitigated".to_owned()
        } else {
            format!("mitigated: {}", costs.join(", "))
        })
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        if mitigated(host)?.is_empty() {
            return Ok(Advice::Fine);
        }
        let wanted = if host.kernel()? >= VECTORS_SINCE { BY_VECTOR } else { ALL };
        if host.text("/proc/cmdline").is_ok_and(|line| line.split_whitespace().any(|word| word == wanted)) {
            return Ok(Advice::Fine);
        }
        let what = format!("boot with {wanted}");
        if !host.has(GRUB_FOLDER) {
            return Ok(Advice::ByHand(format!("{what}, where this machine's kernel command line is set")));
        }
        let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {wanted}\"\n");
        Ok(Advice::Change {
            what,
            changes: vec![Change::text(
                Setting::file(format!("{GRUB_FOLDER}/90-flatout-mitigations.cfg")),
                line,
            )],
            then: "update-grub && reboot (and again after `flatout tune undo mitigations`)".to_owned(),
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        Ok(Counter { name: "vulnerabilities mitigated".to_owned(), value: mitigated(host)?.len() as u64 })
    }
}

/// What the mitigations of a vulnerability cost the published climb.
const COSTS: &[(&str, &str)] = &[
    ("spectre_v2", "15-20 %"),
    ("meltdown", "6 %"),
    ("mds", "6 % with tsx_async_abort"),
    ("tsx_async_abort", "6 % with mds"),
    ("spectre_v1", "1-2 %"),
];

const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";
const GRUB_FOLDER: &str = "/etc/default/grub.d";

/// When attack vectors could first be chosen.
const VECTORS_SINCE: (u32, u32) = (6, 17);

const BY_VECTOR: &str = "mitigations=auto,no_user_kernel,no_user_user,no_guest_host,no_guest_guest";
const ALL: &str = "mitigations=off";

/// The vulnerabilities that this machine has and works around.
fn mitigated(host: &Host) -> Result<Vec<String>, Unknown> {
    let names = host.list(VULNERABILITIES)?;
    let is_mitigated = |name: &String| {
        let state = host.text(&format!("{VULNERABILITIES}/{name}"));
        state.is_ok_and(|state| state.contains("Mitigation:"))
    };
    Ok(names.into_iter().filter(is_mitigated).collect())
}
