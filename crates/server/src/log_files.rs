//! Access logs in folders where only root may create files, such as `/var/log/nginx`: they are given to the serving user before the
//! process switches to it.
//!
//! Nobody else chooses the file: the folder and those around it belong to root, and symbolic links are not followed, in no part of the path.

use std::io;
use std::path::Path;

use flatout_lane::process::user_ids;
use rustix::fs::{FileType, Gid, Mode, OFlags, Stat, Uid, fchown, fstat, lstat, open, openat};
use rustix::io::Errno;

/// Gives these files to the user: a missing file is created, and a file that belongs to root changes its owner. Errors are ignored here:
/// they are reported when the user opens the log.
pub(crate) fn give<'p>(paths: impl Iterator<Item = &'p Path>, user: Option<&str>) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(Ok((uid, gid))) = user.map(user_ids).filter(|ids| !matches!(ids, Ok((0, _)))) else { return };
    for path in paths {
        let _ = give_one(path, uid, gid);
    }
}

fn give_one(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    if !path.is_absolute() || !is_safe(folder)? {
        return Ok(());
    }
    let folder = open(folder, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&folder)?;
    if !is_roots(&found) || found.st_mode & 0o022 != 0 {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(&folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            openat(&folder, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o640))?
        }
        opened => opened?,
    };
    let found = fstat(&file)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if is_file && is_roots(&found) && found.st_nlink == 1 {
        fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

/// Whether nobody but root can put another folder in the place of this one.
fn is_safe(folder: &Path) -> io::Result<bool> {
    for outer in folder.ancestors() {
        let found = lstat(outer)?;
        // The target of a link may be in a folder of another user.
        let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let is_for_all = found.st_mode & 0o002 != 0 && found.st_mode & 0o1000 == 0;
        if !is_folder || !is_roots(&found) || is_for_all {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_roots(found: &Stat) -> bool {
    found.st_uid == 0
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    /// Needs root; others may give nothing away.
    #[test]
    fn logs_of_root_are_given_and_nothing_else() {
        let folder = fs::canonicalize(std::env::temp_dir()).unwrap();
        let folder = folder.join(format!("flatout-log-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let (own, others) = (folder.join("own"), folder.join("others"));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&others).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&others, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(own.join("old.log"), "line\n").unwrap();
        fs::write(folder.join("secret"), "").unwrap();
        symlink(folder.join("secret"), own.join("link.log")).unwrap();
        fs::hard_link(folder.join("secret"), own.join("hard.log")).unwrap();
        symlink(&folder, folder.join("linked")).unwrap();
        let paths = [
            own.join("old.log"),
            own.join("new.log"),
            own.join("link.log"),
            own.join("hard.log"),
            others.join("new.log"),
            folder.join("none/new.log"),
            folder.join("linked/own/linked.log"),
            "relative.log".into(),
        ];
        give(paths.iter().map(|path| path.as_path()), Some("nobody"));
        give(paths.iter().map(|path| path.as_path()), Some("no-such-user"));
        give(paths.iter().map(|path| path.as_path()), None);
        if rustix::process::geteuid().is_root()
            && let Ok((uid, _)) = user_ids("nobody")
        {
            for name in ["old.log", "new.log"] {
                assert_eq!(fs::metadata(own.join(name)).unwrap().uid(), uid, "{name}");
            }
            assert_eq!(fs::read_to_string(own.join("old.log")).unwrap(), "line\n");
        }
        assert_eq!(fs::metadata(folder.join("secret")).unwrap().uid(), rustix::process::getuid().as_raw());
        assert!(!others.join("new.log").exists());
        assert!(!own.join("linked.log").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
