//! Which machine this is, and which boot of it.

use serde::{Deserialize, Serialize};

use crate::error::Unknown;
use crate::host::Host;

/// One boot of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The machine's id; empty if it has none.
    pub machine: String,
    /// The host's name.
    pub host: String,
    /// The boot's own id.
    pub id: String,
    /// The kernel's command line.
    pub command_line: String,
}

impl Boot {
    /// The current boot.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn now(host: &Host) -> Result<Boot, Unknown> {
        Ok(Boot {
            machine: host.text("/etc/machine-id").unwrap_or_default(),
            host: host.text("/proc/sys/kernel/hostname").unwrap_or_default(),
            id: host.text(BOOT_ID)?,
            command_line: host.text("/proc/cmdline").unwrap_or_default(),
        })
    }

    /// Whether both belong to one machine: by its id, which survives a new name; by name if it has no id.
    pub fn is_of_same_machine(&self, other: &Boot) -> bool {
        match self.machine.is_empty() && other.machine.is_empty() {
            true => self.host == other.host,
            false => self.machine == other.machine,
        }
    }
}

/// Where the kernel reports a boot's id.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_machine_is_known_by_its_id_or_its_name() {
        let boot = |files: &[(&str, &str)]| Boot::now(&Fake::with(files).host());
        let named = |name: &str| boot(&[(BOOT_ID, "1\n"), ("/proc/sys/kernel/hostname", name)]).unwrap();
        assert!(named("a\n").is_of_same_machine(&named("a\n")));
        assert!(!named("a\n").is_of_same_machine(&named("b\n")));
        let with_id = |id: &str| Boot { machine: id.to_owned(), ..named("a\n") };
        assert!(!with_id("1").is_of_same_machine(&with_id("2")));
        assert!(with_id("1").is_of_same_machine(&Boot { host: "b".to_owned(), ..with_id("1") }));
        assert!(boot(&[]).is_err());
    }
}
