//! The volume: its folders, and files that appear complete or not at all.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::name::Name;

/// A part that nobody has written to for this time is of a writer that is gone.
pub const PART_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// A folder of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    /// Files on their way; they have random names. On the same file system as all others, so that a rename moves them.
    Parts,
    /// Resumable uploads.
    Uploads,
    /// Complete files that wait for a transformer.
    Inbox,
    /// A folder for each transformer, with the files it works on.
    Work,
    /// What was transformed.
    Done,
    /// What could not be transformed, beside a text with the reason.
    Failed,
    /// What is served.
    Public,
}

impl Folder {
    /// All of them.
    pub const ALL: [Folder; 7] = [
        Folder::Parts,
        Folder::Uploads,
        Folder::Inbox,
        Folder::Work,
        Folder::Done,
        Folder::Failed,
        Folder::Public,
    ];

    fn name(self) -> &'static str {
        match self {
            Folder::Parts => "parts",
            Folder::Uploads => "uploads",
            Folder::Inbox => "inbox",
            Folder::Work => "work",
            Folder::Done => "done",
            Folder::Failed => "failed",
            Folder::Public => "public",
        }
    }
}

/// A volume that other machines may have mounted too.
#[derive(Debug, Clone)]
pub struct Volume {
    root: PathBuf,
}

impl Volume {
    /// Opens a volume, and makes the folders that it lacks.
    ///
    /// # Errors
    /// The folder is missing, or cannot be written to.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Volume> {
        let volume = Volume { root: root.into() };
        for folder in Folder::ALL {
            match fs::create_dir(volume.folder(folder)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(volume)
    }

    /// The path of a folder.
    pub fn folder(&self, folder: Folder) -> PathBuf {
        self.root.join(folder.name())
    }

    /// The path of a file in a folder.
    pub fn path(&self, folder: Folder, name: &Name) -> PathBuf {
        self.folder(folder).join(name.as_str())
    }

    /// Starts a file that has no name yet.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn part(&self) -> io::Result<Part> {
        let path = self.folder(Folder::Parts).join(format!("{}.part", random()));
        Ok(Part { file: File::create_new(&path)?, path, is_published: false })
    }

    /// Removes parts of writers that are gone, and returns how many. Their age is measured by the volume's own clock: those of two
    /// machines may differ.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn remove_old_parts(&self) -> io::Result<usize> {
        let now = self.now()?;
        let mut count = 0;
        for entry in fs::read_dir(self.folder(Folder::Parts))? {
            let entry = entry?;
            let Ok(written) = entry.metadata().and_then(|about| about.modified()) else { continue };
            if now.duration_since(written).unwrap_or_default() > PART_TIME_MAX {
                count += usize::from(fs::remove_file(entry.path()).is_ok());
            }
        }
        Ok(count)
    }

    /// The time of the volume's clock: that of a file written just now.
    ///
    /// # Errors
    /// No file can be written.
    pub fn now(&self) -> io::Result<SystemTime> {
        let mut part = self.part()?;
        part.write_all(b"now")?;
        part.file.sync_all()?;
        part.file.metadata()?.modified()
    }
}

/// A file on its way. It is removed when it is dropped, unless it was published.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    is_published: bool,
}

impl Part {
    /// Gives the file its name, once it is complete and on disk. A file of that name is replaced at once: readers see the old one or
    /// the new one.
    ///
    /// # Errors
    /// The disk is full, or failed. There is no new file then.
    pub fn publish(mut self, to: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, to)?;
        self.is_published = true;
        sync_folder(to)
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Moves a file, so that its new place is on disk.
///
/// # Errors
/// The file is gone, or the disk failed.
pub fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        // Over NFS a repeated request finds that the first one has moved it.
        Err(error) if error.kind() == io::ErrorKind::NotFound && to.exists() && !from.exists() => {}
        done => done?,
    }
    sync_folder(to)
}

/// Writes to disk that a file has this name.
fn sync_folder(of: &Path) -> io::Result<()> {
    let folder = of.parent().unwrap_or(Path::new("."));
    match File::open(folder)?.sync_all() {
        // Some file systems in user space cannot; NFS has it on disk when the rename returns.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) => {
            Ok(())
        }
        done => done,
    }
}

/// 64 random bits as text, for names that nobody can guess or has already.
pub fn random() -> String {
    let number = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_appear_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::open(folder.path()).unwrap();
        let to = volume.path(Folder::Inbox, &Name::parse("a.csv").unwrap());
        let mut part = volume.part().unwrap();
        part.write_all(b"half").unwrap();
        drop(part);
        assert!(!to.exists());
        assert_eq!(fs::read_dir(volume.folder(Folder::Parts)).unwrap().count(), 0, "the part is removed");
        let mut part = volume.part().unwrap();
        part.write_all(b"whole").unwrap();
        part.publish(&to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"whole");
        assert_eq!(fs::read_dir(volume.folder(Folder::Parts)).unwrap().count(), 0);
    }

    #[test]
    fn only_old_parts_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::open(folder.path()).unwrap();
        let (old, new) = (volume.part().unwrap(), volume.part().unwrap());
        old.file.set_modified(SystemTime::now() - PART_TIME_MAX * 2).unwrap();
        assert_eq!(volume.remove_old_parts().unwrap(), 1);
        assert!(new.path.exists() && !old.path.exists());
    }

    #[test]
    fn a_move_that_was_done_already_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&to, "moved").unwrap();
        move_file(&from, &to).unwrap();
        assert!(move_file(&from, &folder.path().join("elsewhere")).is_err());
    }
}
