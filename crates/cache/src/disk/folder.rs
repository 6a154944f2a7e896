//! The folder and its files, which only the server's own user can open: responses may be private to those who may
//! request them, and whoever could lock or write to the folder could stop or poison the cache.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Permissions of the folder.
const FOLDER_MODE: u32 = 0o700;

/// Permissions of each file.
const FILE_MODE: u32 = 0o600;

/// Permissions of group and others.
const OF_OTHERS: u32 = 0o077;

/// Permissions of group and others to write.
const WRITES_OF_OTHERS: u32 = 0o022;

/// The name of the file that is locked.
pub(super) const LOCK: &str = "lock";

/// Creates the folder, or takes away the permissions of others if it is a cache's own one.
///
/// # Errors
/// It cannot be created or read, or others can write to it and it has other files too.
pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    // A link to a folder is followed: its target is what counts.
    let dir = dir.canonicalize()?;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(&dir)?;
    let metadata = folder.metadata()?;
    if metadata.mode() & OF_OTHERS == 0 {
        return Ok(());
    }
    if is_own(&metadata) && has_only_ours(&dir)? {
        return folder.set_permissions(PermissionsExt::from_mode(FOLDER_MODE));
    }
    match metadata.mode() & WRITES_OF_OTHERS {
        // Others may list it. They cannot open the files.
        0 => Ok(()),
        _ => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            "other users can write to this folder, and it has other files; give the cache a folder of its own",
        )),
    }
}

/// Opens a file for reading and writing, and creates it if necessary.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    own(options().read(true).write(true).create(true).truncate(false).open(path)?)
}

/// Creates a file.
pub(super) fn create(path: &Path) -> io::Result<File> {
    options().read(true).write(true).create_new(true).open(path)
}

/// Opens a file for reading.
pub(super) fn open(path: &Path) -> io::Result<File> {
    own(options().read(true).open(path)?)
}

/// The name of a segment.
pub(super) fn path_of(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:08}.segment"))
}

/// The number of the segment with this name.
pub(super) fn number_of(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_suffix(".segment")?.parse().ok()
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A link could lead to a file of somebody else.
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    options.mode(FILE_MODE).custom_flags(flags);
    options
}

/// The same file, if it is our own. Takes away the permissions that an earlier version left to others.
fn own(file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    if !is_own(&metadata) {
        let why = "a file of the cache's folder belongs to another user";
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    if metadata.mode() & OF_OTHERS != 0 {
        file.set_permissions(PermissionsExt::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

fn is_own(metadata: &std::fs::Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw()
}

fn has_only_ours(dir: &Path) -> io::Result<bool> {
    for found in std::fs::read_dir(dir)? {
        let name = found?.file_name();
        if name != LOCK && number_of(&name).is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Dir;
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    fn allow(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn folder_and_files_belong_to_the_server_alone() {
        let root = Dir::new("private");
        let dir = root.path().join("a/cache");
        prepare(&dir).unwrap();
        assert_eq!(mode(&dir), FOLDER_MODE);
        let segment = path_of(&dir, 1);
        drop((open_or_create(&dir.join(LOCK)).unwrap(), create(&segment).unwrap()));
        assert_eq!((mode(&dir.join(LOCK)), mode(&segment)), (FILE_MODE, FILE_MODE));
        // What an earlier version has created.
        for (path, before) in [(&dir, 0o755), (&dir.join(LOCK), 0o644), (&segment, 0o664)] {
            allow(path, before);
        }
        prepare(&dir).unwrap();
        drop((open_or_create(&dir.join(LOCK)).unwrap(), open(&segment).unwrap()));
        assert_eq!((mode(&dir), mode(&dir.join(LOCK)), mode(&segment)), (FOLDER_MODE, FILE_MODE, FILE_MODE));
    }

    #[test]
    fn a_folder_with_other_files_keeps_its_permissions() {
        let root = Dir::new("shared");
        std::fs::write(root.path().join("other"), "").unwrap();
        allow(root.path(), 0o755);
        prepare(root.path()).unwrap();
        assert_eq!(mode(root.path()), 0o755);
        allow(root.path(), 0o777);
        let error = prepare(root.path()).unwrap_err();
        assert!(error.to_string().contains("other users can write to this folder"), "{error}");
        assert_eq!(mode(root.path()), 0o777);
    }

    #[test]
    fn links_are_not_followed_to_files_of_others() {
        let root = Dir::new("links");
        let dir = root.path().join("cache");
        prepare(&dir).unwrap();
        std::fs::write(root.path().join("other"), "").unwrap();
        std::os::unix::fs::symlink(root.path().join("other"), dir.join(LOCK)).unwrap();
        assert!(open_or_create(&dir.join(LOCK)).is_err());
        // A link to the folder itself is a way to name it.
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        prepare(&link).unwrap();
    }
}
