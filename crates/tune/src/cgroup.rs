//! The control group of the server, and those around it.

use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;

/// Where the server's cgroup is.
pub(crate) struct Cgroup {
    pub(crate) version: Version,
    mount: String,
    own: String,
}

/// The version of the interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

const CGROUPS: &str = "/sys/fs/cgroup";

impl Cgroup {
    /// The cgroup of the server's first process, with the CPU controller.
    pub(crate) fn of(host: &Host, served: &Served) -> Result<Cgroup, Unknown> {
        let text = host.text(&format!("/proc/{}/cgroup", served.pid()?))?;
        let (version, mount, own) = find(host, &text)?;
        if own.split('/').any(|part| part == "..") {
            return Err(Unknown("the server's cgroup is outside of this cgroup namespace".to_owned()));
        }
        // In a container the path may be the host's, which is not visible; the mount is then the cgroup itself.
        let own = format!("{mount}{}", own.trim_end_matches('/'));
        let own = if host.list(&own).is_ok() { own } else { mount.clone() };
        Ok(Cgroup { version, mount, own })
    }

    /// The folders of the cgroups around it, the root first, and its own.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &str> {
        let around = self.own.match_indices('/').map(|(at, _)| &self.own[..at]).chain([self.own.as_str()]);
        around.filter(|path| path.starts_with(&self.mount))
    }
}

/// The version, the mount point and the path below it, from the lines `number:controllers:path`.
fn find<'t>(host: &Host, text: &'t str) -> Result<(Version, String, &'t str), Unknown> {
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
