//! The state folder: private files, replaced as a whole, and locks between processes that share it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Largest file: a certificate with its chain takes a few thousand bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Permissions for others that a private file must not have.
const MODE_REFUSED: u32 = 0o077;

/// A state folder. It may be shared by several processes, and by several machines on a network file system with
/// locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    folder: PathBuf,
}

/// A lock between processes. It is released when this is dropped, or when its process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl State {
    /// The folder at this path, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> State {
        State { folder: folder.into() }
    }

    /// The folder's path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes sure that the folder exists and can be written to.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn open(&self) -> Result<(), String> {
        let shown = self.folder.display();
        let refused = |error: io::Error| {
            format!("state folder {shown}: cannot be written to: {error}; name another one with --state")
        };
        make_folder(&self.folder).map_err(refused)?;
        let mode = fs::metadata(&self.folder).map_err(refused)?.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(format!(
                "state folder {shown}: others may write to it (mode {mode:04o}); make it private: chmod 700 {shown}"
            ));
        }
        self.lock_now("lock").map(drop).map_err(refused)
    }

    /// The content of a private file, or `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or other users may read it.
    pub fn read(&self, name: &str) -> Result<Option<String>, String> {
        let path = self.path(name);
        let shown = path.display();
        let refused = |error: io::Error| format!("{shown}: cannot be read: {error}");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(error)),
        };
        let mode = file.metadata().map_err(refused)?.permissions().mode() & 0o777;
        if mode & MODE_REFUSED != 0 {
            return Err(format!(
                "{shown}: others may read or write it (mode {mode:04o}); make it private: chmod 600 {shown}"
            ));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(refused)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(format!("{shown}: larger than {FILE_BYTES_MAX} bytes"));
        }
        // The caller's parser rejects what is not UTF-8.
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Writes a private file atomically: readers see the old content or the new.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<(), String> {
        self.write_as(name, text, 0o600)
    }

    /// The same for a file that everybody may read.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_public(&self, name: &str, text: &str) -> Result<(), String> {
        self.write_as(name, text, 0o644)
    }

    /// Writes a private file under a temporary name, checks it, and renames it.
    ///
    /// # Errors
    /// The file cannot be written, or the check fails: the old file is then unchanged.
    pub fn write_checked<T>(
        &self,
        name: &str,
        text: &str,
        check: impl FnOnce(&Path) -> Result<T, String>,
    ) -> Result<T, String> {
        let path = self.path(name);
        let draft = draft_of(&path);
        let kept = write_draft(&draft, text, 0o600)
            .map_err(|error| not_written(&path, &error))
            .and_then(|()| check(&draft))
            .and_then(|checked| {
                rename(&draft, &path).map_err(|error| not_written(&path, &error))?;
                Ok(checked)
            });
        if kept.is_err() {
            let _ = fs::remove_file(&draft);
        }
        kept
    }

    /// Moves a broken file aside for inspection, and returns its new path.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub fn put_aside(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.path(name);
        let mut aside = path.as_os_str().to_owned();
        aside.push(".broken");
        let aside = PathBuf::from(aside);
        fs::rename(&path, &aside)
            .map_err(|error| format!("{}: cannot be renamed: {error}", path.display()))?;
        Ok(aside)
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
    }

    /// Takes a lock, or returns `None` if another process has it.
    ///
    /// # Errors
    /// The file system has no locks, or the file cannot be created.
    pub fn try_lock(&self, name: &str) -> Result<Option<Lock>, String> {
        let path = self.path(name);
        self.lock_now(name).map_err(|error| format!("{}: cannot be locked: {error}", path.display()))
    }

    fn lock_now(&self, name: &str) -> io::Result<Option<Lock>> {
        let path = self.path(name);
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn write_as(&self, name: &str, text: &str, mode: u32) -> Result<(), String> {
        let path = self.path(name);
        let draft = draft_of(&path);
        let written = write_draft(&draft, text, mode).and_then(|()| rename(&draft, &path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written.map_err(|error| not_written(&path, &error))
    }
}

fn not_written(path: &Path, error: &io::Error) -> String {
    format!("{}: cannot be written: {error}", path.display())
}

/// A temporary name in the same folder, unique among processes and threads.
fn draft_of(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.{number}.new", std::process::id()))
}

fn write_draft(draft: &Path, text: &str, mode: u32) -> io::Result<()> {
    if let Some(folder) = draft.parent() {
        make_folder(folder)?;
    }
    // Left behind by an earlier process with the same id.
    let _ = fs::remove_file(draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn rename(draft: &Path, path: &Path) -> io::Result<()> {
    fs::rename(draft, path)?;
    // The new name must survive a power failure too; not every file system supports this.
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Creates a folder for the owner alone, and its parents.
fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_whole() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path().join("a/b"));
        state.open().unwrap();
        assert_eq!(mode(state.folder()), 0o700);
        assert_eq!(state.read("c/d"), Ok(None));
        state.write("c/d", "text").unwrap();
        assert_eq!(state.read("c/d").unwrap().as_deref(), Some("text"));
        assert_eq!((mode(&state.path("c/d")), mode(&state.path("c"))), (0o600, 0o700));
        let refused = state.write_checked("c/d", "other", |_| Err::<(), _>("no".to_owned()));
        assert_eq!(refused, Err("no".to_owned()));
        assert_eq!(state.read("c/d").unwrap().as_deref(), Some("text"));
        let names: Vec<_> =
            fs::read_dir(state.path("c")).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["d"], "no draft is left");
    }

    #[test]
    fn files_readable_by_others_are_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path().join("state"));
        state.write("key", "text").unwrap();
        for refused in [0o640, 0o604, 0o660] {
            fs::set_permissions(state.path("key"), Permissions::from_mode(refused)).unwrap();
            let message = state.read("key").unwrap_err();
            assert!(message.contains(&format!("mode {refused:04o}")) && message.contains("chmod 600"));
        }
        fs::set_permissions(state.folder(), Permissions::from_mode(0o777)).unwrap();
        assert!(state.open().unwrap_err().contains("chmod 700"));
    }

    #[test]
    fn a_lock_is_one_holders() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path());
        let lock = state.try_lock("acme/lock").unwrap();
        assert!(lock.is_some() && state.try_lock("acme/lock").unwrap().is_none());
        drop(lock);
        assert!(state.try_lock("acme/lock").unwrap().is_some());
    }
}
