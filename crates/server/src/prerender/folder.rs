//! The folder of this process for sockets and for profiles of browsers, and those that killed processes left.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const PREFIX: &str = "flatout-prerender-";

/// The file in a folder that its process has locked for as long as it runs.
const LOCK: &str = "lock";

/// Its path. Nobody else can guess its name.
pub(super) fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let random = RandomState::new().hash_one(std::process::id());
        std::env::temp_dir().join(format!("{PREFIX}{}-{random:016x}", std::process::id()))
    })
}

/// Makes it, for browsers of a user, and removes the folders of processes that were killed.
///
/// # Errors
/// The folder cannot be made.
pub(super) fn make(user: Option<&str>) -> io::Result<()> {
    static HELD: OnceLock<File> = OnceLock::new();
    // Browsers of a server that runs as root have another user, who has to pass.
    DirBuilder::new().mode(0o711).create(path())?;
    let lock = lock_of(path())?;
    if let Some(user) = user {
        let (uid, gid) = flatout_lane::process::user_ids(user)?;
        chown(path(), Some(uid), Some(gid))?;
    }
    let _ = HELD.set(lock);
    remove_left(&std::env::temp_dir());
    Ok(())
}

/// Locks a new folder. The file has its name only when it is locked: a folder without it is not removed.
fn lock_of(folder: &Path) -> io::Result<File> {
    let draft = folder.join("lock.new");
    let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    lock.lock()?;
    std::fs::rename(draft, folder.join(LOCK))?;
    Ok(lock)
}

/// Removes the folders of this user that no process holds any more.
fn remove_left(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) && is_left(&entry.path()) {
            // The next server tries again.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_left(folder: &Path) -> bool {
    let is_folder = std::fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    let lock = folder.join(LOCK);
    // What belongs to another user, or is a link, is not opened.
    let is_ours =
        |found: std::fs::Metadata| found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
    is_folder
        && std::fs::symlink_metadata(&lock).is_ok_and(is_ours)
        && OpenOptions::new().write(true).open(lock).is_ok_and(|file| file.try_lock().is_ok())
}

/// Removes it, at the end of the process.
pub(super) fn remove() {
    // Without a renderer there is none.
    let _ = std::fs::remove_dir_all(path());
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn folders_of_processes_that_were_killed_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let made = |name: &str| {
            let folder = parent.path().join(name);
            std::fs::create_dir_all(folder.join("browser-0/Default")).expect("a folder");
            folder
        };
        let (left, held) = (made("flatout-prerender-1-a"), made("flatout-prerender-2-b"));
        let (unlocked, other) = (made("flatout-prerender-3-c"), made("flatout-cache"));
        drop(lock_of(&left).expect("locked"));
        drop(lock_of(&other).expect("locked"));
        let holder = lock_of(&held).expect("locked");
        let link = parent.path().join("flatout-prerender-4-d");
        std::os::unix::fs::symlink(&other, &link).expect("a link");
        // A process that another test starts has copies of all locks, until it has its own program.
        let is_removed = |folder: &Path| {
            let began = Instant::now();
            while folder.exists() && began.elapsed() < Duration::from_secs(60) {
                remove_left(parent.path());
            }
            !folder.exists()
        };
        assert!(is_removed(&left));
        assert!(held.exists() && unlocked.exists() && other.exists() && link.exists());
        drop(holder);
        assert!(is_removed(&held));
    }
}
