//! A control group of the kernel for a browser: memory and processes of all its pages together are limited.
//!
//! ```text
//! version 2, delegated by systemd:   unit.service ─┬─ server: this process
//!                                                  └─ flatout-browser-PID-N: memory.max, pids.max
//! version 1:                         own group of memory ── flatout-browser-PID-N;  own group of pids ── the same
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flatout_lane::process::{Ending, signal_process};

/// Memory of a browser beside its pages: its own process, and those that all pages use.
const BROWSER_MEMORY_BYTES: u64 = 512 << 20;

/// Processes and threads of a browser beside its pages, and of a page with its frames and workers.
const BROWSER_TASKS: u64 = 512;
const PAGE_TASKS: u64 = 256;

/// How the names of groups begin; then come the id of the server's process, and a number.
const PREFIX: &str = "flatout-browser-";

/// The group below a delegated one that has the server itself: a group with limits for those below it has no process of its own.
const SERVER_GROUP: &str = "server";

/// How often it is tried to remove a group whose processes were ended, and the pause between: the kernel takes some milliseconds. One
/// that is left is removed when a later server starts a browser.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

/// The group of one browser. Dropping it ends what is in it, and removes it.
pub(crate) struct BrowserGroup {
    dirs: Vec<PathBuf>,
    /// Its limits, in words.
    pub(crate) limits: String,
}

/// The group of this process in each hierarchy.
#[derive(Debug, Default, PartialEq, Eq)]
struct OwnGroups {
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl BrowserGroup {
    /// Makes a group for a browser with this many pages of this size.
    ///
    /// # Errors
    /// Why this process cannot make groups with limits.
    pub(crate) fn make(number: u64, pages: usize, page_memory_bytes: u64) -> Result<BrowserGroup, String> {
        let pages = pages as u64;
        let bytes = pages.saturating_mul(page_memory_bytes).saturating_add(BROWSER_MEMORY_BYTES);
        let tasks = pages.saturating_mul(PAGE_TASKS).saturating_add(BROWSER_TASKS);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let mut group = BrowserGroup {
            dirs: Vec::new(),
            limits: format!("{} MiB and {tasks} threads for all pages", bytes >> 20),
        };
        match OwnGroups::of_this_process() {
            OwnGroups { memory: Some(memory), pids: Some(pids), .. } => {
                group.add_dir(&memory, &name, &[("memory.limit_in_bytes", bytes)])?;
                group.add_dir(&pids, &name, &[("pids.max", tasks)])?;
            }
            OwnGroups { unified: Some(own), .. } => {
                let parent = delegated(&own)?;
                group.add_dir(&parent, &name, &[("memory.max", bytes), ("pids.max", tasks)])?;
            }
            _ => return Err("this machine has no control groups for memory and processes".to_owned()),
        }
        Ok(group)
    }

    fn add_dir(&mut self, parent: &Path, name: &str, limits: &[(&str, u64)]) -> Result<(), String> {
        remove_abandoned(parent);
        let dir = parent.join(name);
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        self.dirs.push(dir.clone());
        for (file, value) in limits {
            write(&dir.join(file), &value.to_string())?;
        }
        Ok(())
    }

    /// Moves a process into the group; those that it starts from now on are in it too.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn add(&self, process: u32) -> Result<(), String> {
        self.dirs.iter().try_for_each(|dir| write(&dir.join("cgroup.procs"), &process.to_string()))
    }
}

impl Drop for BrowserGroup {
    fn drop(&mut self) {
        for dir in &self.dirs {
            for _ in 0..REMOVALS_MAX {
                end_all(dir);
                if !matches!(fs::remove_dir(dir), Err(error) if error.kind() == io::ErrorKind::ResourceBusy) {
                    break;
                }
                std::thread::sleep(REMOVAL_PAUSE);
            }
        }
    }
}

/// Ends all processes of a group. Some may have ended already.
fn end_all(dir: &Path) {
    // Version 2 can do it at once, so that none escapes.
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| line.parse().ok()) {
        let _ = signal_process(process, Ending::Forced);
    }
}

/// Removes groups of servers that were killed. The kernel removes none that has a process.
fn remove_abandoned(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        if owner.is_some_and(|(process, _)| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The group below which this process may make others: its own one or that above it, if systemd has delegated it (`Delegate=`).
fn delegated(own: &Path) -> Result<PathBuf, String> {
    let is_server = own.file_name().is_some_and(|name| name == SERVER_GROUP);
    let parent = own.parent().filter(|parent| is_server && is_delegated(parent));
    let dir = match parent {
        Some(parent) => parent,
        None if is_delegated(own) => {
            let server = own.join(SERVER_GROUP);
            if !server.exists() {
                fs::create_dir(&server).map_err(|error| format!("{}: {error}", server.display()))?;
            }
            let processes = fs::read_to_string(own.join("cgroup.procs")).unwrap_or_default();
            processes.lines().try_for_each(|process| write(&server.join("cgroup.procs"), process))?;
            own
        }
        None => {
            return Err(format!(
                "{} is not delegated to this service (systemd: Delegate=memory pids)",
                own.display()
            ));
        }
    };
    write(&dir.join("cgroup.subtree_control"), "+memory +pids")?;
    Ok(dir.to_owned())
}

fn is_delegated(dir: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(dir, *name, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

impl OwnGroups {
    fn of_this_process() -> OwnGroups {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        OwnGroups::of(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// From `/proc/PID/cgroup` and `/proc/PID/mountinfo` (cgroups(7), proc(5)).
    fn of(own: &str, mounts: &str) -> OwnGroups {
        let mut groups = OwnGroups::default();
        for line in own.lines() {
            let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':'))
            else {
                continue;
            };
            if controllers.is_empty() {
                groups.unified = place(mounts, "cgroup2", None, path);
            }
            for controller in controllers.split(',') {
                match controller {
                    "memory" => groups.memory = place(mounts, "cgroup", Some(controller), path),
                    "pids" => groups.pids = place(mounts, "cgroup", Some(controller), path),
                    _ => {}
                }
            }
        }
        groups
    }
}

/// Where a path of a hierarchy is mounted.
fn place(mounts: &str, kind: &str, controller: Option<&str>, path: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let is_kind = file_system.next()? == kind;
        let options = file_system.nth(1)?;
        if !is_kind || controller.is_some_and(|controller| !options.split(',').any(|one| one == controller)) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_are_found_by_their_mounts() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            39 31 0:36 /a /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids,x\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = "8:pids:/a/b\n4:cpu,memory:/service/x\n0::/\n";
        let expected = OwnGroups {
            unified: Some("/sys/fs/cgroup/unified/".into()),
            memory: Some("/sys/fs/cgroup/memory/service/x".into()),
            pids: Some("/sys/fs/cgroup/pids/b".into()),
        };
        assert_eq!(OwnGroups::of(own, mounts), expected);
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = OwnGroups::of("0::/system.slice/a.service\n", mounts);
        assert_eq!(found.unified, Some("/sys/fs/cgroup/system.slice/a.service".into()));
        assert_eq!((found.memory, found.pids), (None, None));
        // Mounted from another place than the own group: nothing is guessed.
        assert_eq!(
            OwnGroups::of("8:pids:/other\n", "39 31 0:36 /a /p rw - cgroup cgroup rw,pids\n").pids,
            None
        );
        assert_eq!(OwnGroups::of("nonsense", "nonsense - x"), OwnGroups::default());
    }

    #[test]
    fn a_group_without_delegation_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let refused = delegated(folder.path()).unwrap_err();
        assert!(refused.contains("Delegate=memory pids"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
