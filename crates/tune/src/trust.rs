//! Checks who owns the journal's folder. Its content is executed with the rights of the reader: root trusts nothing
//! that another user could have written.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The permissions of the folder: nobody else needs to read it, or to hold its lock.
pub(crate) const MODE_FOLDER: u32 = 0o700;

/// Write permission of the group and of others.
const WRITABLE: u32 = 0o022;

/// Anybody may create files, but only their owner may rename or remove them.
const STICKY: u32 = 0o1000;

/// Makes our folder inaccessible to others.
///
/// # Errors
/// It does not belong to us.
pub(crate) fn close(folder: &Path) -> io::Result<()> {
    match fs::metadata(folder)?.mode() & 0o077 {
        0 => Ok(()),
        _ => fs::set_permissions(folder, Permissions::from_mode(MODE_FOLDER)),
    }
}

/// As root: checks that only root can have written a path, which need not exist. Other users trust what they may
/// read: it is executed with no more than their own rights.
///
/// # Errors
/// Who else could have written it.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    match rustix::process::geteuid().is_root() {
        true => check_owner(path, 0),
        false => Ok(()),
    }
}

fn check_owner(path: &Path, owner: u32) -> Result<(), String> {
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        real => real.map_err(|error| format!("{}: {error}", path.display()))?,
    };
    for (at, part) in real.ancestors().enumerate() {
        let found = fs::metadata(part).map_err(|error| format!("{}: {error}", part.display()))?;
        let (mode, uid) = (found.mode(), found.uid());
        // Other users may own siblings in a parent folder if they cannot rename ours.
        let is_open = mode & WRITABLE != 0 && (at == 0 || mode & STICKY == 0);
        let whose = match (uid == owner, is_open) {
            (false, _) => format!("belongs to user {uid}"),
            (true, true) => format!("is writable by others (mode {:o})", mode & 0o7777),
            (true, false) => continue,
        };
        return Err(format!(
            "{} {whose}: commands recorded in {} are run as root, so only root may own and write it; chown and chmod \
             it, or use another folder with --state",
            part.display(),
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Folder;

    #[test]
    fn only_files_writable_by_their_owner_alone_are_trusted() {
        let folder = Folder::new();
        let owner = fs::metadata(&folder.0).unwrap().uid();
        let state = folder.0.join("state");
        fs::create_dir(&state).unwrap();
        close(&state).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&state), MODE_FOLDER);
        let allow = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let found = |path: &Path| check_below(path, &folder.0, owner);
        assert_eq!((found(&state), found(&state.join("not there"))), (Ok(()), Ok(())));
        for mode in [0o770, 0o707, 0o1777] {
            allow(&state, mode);
            assert!(found(&state).unwrap_err().contains("is writable by others"), "{mode:o}");
        }
        close(&state).unwrap();
        assert_eq!((mode(&state), found(&state)), (MODE_FOLDER, Ok(())));
        assert!(check_below(&state, &folder.0, owner + 1).unwrap_err().contains("belongs to user"));
        allow(&folder.0, 0o777);
        assert!(found(&state).is_err(), "who may rename it may put another in its place");
    }

    /// The same without the folders above the test's own.
    fn check_below(path: &Path, top: &Path, owner: u32) -> Result<(), String> {
        check_owner(path, owner).or_else(|why| match why.starts_with(&top.display().to_string()) {
            true => Err(why),
            false => Ok(()),
        })
    }
}
