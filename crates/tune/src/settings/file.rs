//! Files: sysctls, attributes in sysfs, and configuration on a disk.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Setting, Step};
use crate::change::{Content, chosen};
use crate::cpus;
use crate::error::Unknown;
use crate::host::{Host, is_kernel_file};
use crate::system::DRAFT_ENDING;

/// A file by its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSetting {
    /// Its absolute path.
    pub path: String,
}

impl FileSetting {
    /// The file at a path.
    pub(crate) fn at(path: impl Into<String>) -> FileSetting {
        FileSetting { path: path.into() }
    }

    /// The file of a sysctl such as `net.core.somaxconn`.
    pub(crate) fn sysctl(key: &str) -> FileSetting {
        FileSetting::at(sysctl_path(key))
    }
}

/// The path of a sysctl.
pub(crate) fn sysctl_path(key: &str) -> String {
    format!("{SYSCTLS}{}", key.replace('.', "/"))
}

const SYSCTLS: &str = "/proc/sys/";
const DEVICES: &str = "/sys/class/net/";
const MODULES: &str = "/sys/module/";

impl Kind for FileSetting {
    fn name(&self) -> String {
        match self.path.strip_prefix(SYSCTLS) {
            Some(key) => key.replace('/', "."),
            None => self.path.clone(),
        }
    }

    fn is_namespaced(&self) -> bool {
        self.path.starts_with("/proc/sys/net/") || self.path.starts_with(DEVICES)
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        match host.bytes(&self.path)? {
            None if is_kernel_file(&self.path) => Err(Unknown(format!("there is no {} here", self.path))),
            bytes => Ok(Content::of(bytes)),
        }
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let path = self.path.clone();
        match to.bytes() {
            Some(bytes) => Ok(vec![Step::Write { path, bytes: bytes.to_vec() }]),
            None if is_kernel_file(&path) => {
                Err(format!("{path} belongs to the kernel and cannot be removed"))
            }
            None => Ok(vec![Step::Remove { path }]),
        }
    }

    fn lasting(&self, to: &Content) -> Lasting {
        let Content::Text(text) = to else { return Lasting::Already };
        let value = chosen(text).unwrap_or(text).trim().to_owned();
        if let Some(key) = self.path.strip_prefix(SYSCTLS) {
            return Lasting::Sysctl { key: key.replace('/', "."), value };
        }
        if let Some((device, attribute)) =
            self.path.strip_prefix(DEVICES).and_then(|path| path.split_once('/'))
        {
            let (device, attribute) = (device.to_owned(), attribute.to_owned());
            return Lasting::Attribute { device, attribute, value };
        }
        if let Some((module, parameter)) =
            self.path.strip_prefix(MODULES).and_then(|path| path.split_once("/parameters/"))
        {
            let (module, parameter) = (module.to_owned(), parameter.to_owned());
            return Lasting::Module { module, parameter, path: self.path.clone(), value };
        }
        match self.path.as_str() {
            path if path.starts_with("/proc/irq/") => {
                Lasting::Not("interrupt numbers change from boot to boot")
            }
            path if path.starts_with("/sys/fs/cgroup/") => {
                Lasting::Not("the cgroup is created again when the server starts: set the quota there")
            }
            path if is_kernel_file(path) => Lasting::Tmpfile { path: path.to_owned(), value },
            _ => Lasting::Already,
        }
    }

    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        match (now, wanted) {
            // The kernel pads CPU masks to the number of CPUs that it was built for.
            (Content::Text(now), Content::Text(wanted)) if self.path.ends_with("_cpus") => {
                cpus::same_mask(now, wanted)
            }
            (now, wanted) => now.means(wanted),
        }
    }

    fn tidy(&self, host: &Host) {
        if !is_kernel_file(&self.path) {
            // A leftover draft is harmless: nothing reads a file with this name.
            let _ = host.remove(&format!("{}{DRAFT_ENDING}", self.path));
        }
    }

    fn gone(&self, host: &Host) -> Option<String> {
        let missing = is_kernel_file(&self.path) && matches!(host.bytes(&self.path), Ok(None));
        missing.then(|| format!("{} no longer exists", self.path))
    }
}

impl Setting {
    /// A sysctl by its key.
    pub(crate) fn sysctl(key: &str) -> Setting {
        FileSetting::sysctl(key).into()
    }

    /// A file by its path.
    pub(crate) fn file(path: impl Into<String>) -> Setting {
        FileSetting::at(path).into()
    }
}
