//! The journal: what has to be restored, written to disk before anything is changed.
//!
//! ```text
//! DIR/lock           held while a run changes things
//! DIR/000001.json    one record: a line with the checksum, then the setting and what it held
//! DIR/000002.json    …in the order of the changes; undo goes backwards and removes each when it is done
//! DIR/000002.left    one that was left alone, because somebody else had changed the setting meanwhile
//! ```
//!
//! A record is written under another name, synced, renamed, and its folder synced, before its change is made. So a
//! record with its final name is complete; a draft belongs to a change that was never started. A record that still
//! cannot be read (a bad disk, an editor) stays where it is and is reported; the others are restored.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::change::Content;
use crate::error::Error;
use crate::sealed::{seal, unseal};
use crate::settings::Setting;
use crate::system::{DRAFT_ENDING, MODE_OWN, System, replace};
use crate::trust;

/// One change that was made, or was about to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The tuning that made it.
    pub(crate) tuning: String,
    /// The setting.
    pub(crate) setting: Setting,
    /// Its old value, complete.
    pub(crate) before: Content,
    /// The wanted value.
    pub(crate) wanted: Content,
    /// The value afterwards, as the kernel reports it; `None` if we died before reading it.
    pub(crate) settled: Option<Content>,
    /// Where it was made.
    pub(crate) place: Place,
    /// Other settings that the driver may have reset with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) beside: Vec<Beside>,
}

/// A setting that the driver may reset when another one is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// The setting.
    pub(crate) setting: Setting,
    /// The value to restore.
    pub(crate) before: Content,
    /// The value afterwards, [`Content::Absent`] if it no longer existed. `None` if any value is the driver's or ours: we died
    /// before reading it, or while undoing.
    pub(crate) settled: Option<Content>,
}

/// The boot and the network namespace in which a change was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The boot's id.
    pub(crate) boot: String,
    /// The network namespace.
    pub(crate) namespace: String,
    /// Whether that is the initial one of the machine.
    pub(crate) is_first: bool,
}

/// A record and its number.
pub(crate) type Numbered = (u32, Record);

/// The locked journal of one folder.
pub(crate) struct Journal {
    folder: PathBuf,
    _lock: File,
}

/// The content of the journal.
pub(crate) struct Entries {
    /// In the order of the changes.
    pub(crate) records: Vec<Numbered>,
    /// Files that are not complete records, each with the reason.
    pub(crate) broken: Vec<String>,
}

const RECORD_ENDING: &str = ".json";
const LEFT_ENDING: &str = ".left";
const HEADING: &str = "flatout journal 1";

impl Journal {
    /// Opens the journal, and locks it until it is dropped.
    pub(crate) fn open(system: &dyn System, folder: &Path) -> Result<Journal, Error> {
        let journal_error = |error| {
            Error::Journal(
                format!(
                    "journal {}: cannot be opened (are you root? --state names another folder)",
                    folder.display()
                ),
                error,
            )
        };
        let untrusted = |why| Error::Refused(format!("journal {}: {why}", folder.display()));
        trust::check(folder).map_err(untrusted)?;
        let is_new = !folder.exists();
        system.create_folder(folder).map_err(journal_error)?;
        if is_new {
            trust::close(folder).map_err(journal_error)?;
        }
        // No other user can open it, so none can hold its lock.
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(MODE_OWN)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(folder.join("lock"))
            .map_err(journal_error)?;
        lock.set_permissions(Permissions::from_mode(MODE_OWN)).map_err(journal_error)?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked(format!(
                    "journal {}: another flatout is changing settings; wait until it has finished",
                    folder.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(journal_error(error)),
        }
        // The folder's own name must be as persistent as its content.
        for ancestor in folder.ancestors().take_while(|ancestor| !ancestor.as_os_str().is_empty()) {
            system.sync(ancestor).map_err(journal_error)?;
        }
        let journal = Journal { folder: folder.to_owned(), _lock: lock };
        journal.remove_drafts(system).map_err(journal_error)?;
        Ok(journal)
    }

    /// Whether a folder has nothing to restore; checks without taking the lock.
    pub(crate) fn is_empty(system: &dyn System, folder: &Path) -> bool {
        match system.list(folder) {
            Ok(names) => !names.iter().any(|name| name.ends_with(RECORD_ENDING)),
            // If the folder belongs to someone else, its content does not concern us.
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied),
        }
    }

    /// The records in a folder, without the lock; empty if they cannot be read.
    pub(crate) fn look(system: &dyn System, folder: &Path) -> Vec<Record> {
        let names = system.list(folder).unwrap_or_default();
        let records = names.iter().filter(|name| name.ends_with(RECORD_ENDING));
        records.filter_map(|name| decode(&system.read(&folder.join(name)).ok()?).ok()).collect()
    }

    /// Everything that has to be restored.
    pub(crate) fn entries(&self, system: &dyn System) -> Result<Entries, Error> {
        let names = system.list(&self.folder).map_err(|error| self.error("cannot be listed", error))?;
        let mut entries = Entries { records: Vec::new(), broken: Vec::new() };
        for name in names {
            let Some(number) = name.strip_suffix(RECORD_ENDING) else { continue };
            let path = self.folder.join(&name);
            let text =
                trust::check(&path).and_then(|()| system.read(&path).map_err(|error| error.to_string()));
            let record = text.and_then(|bytes| decode(&bytes));
            match (number.parse(), record) {
                (Ok(number), Ok(record)) => entries.records.push((number, record)),
                (Err(_), _) => {
                    entries.broken.push(format!("{}: this is not the name of a record", path.display()))
                }
                (_, Err(reason)) => entries.broken.push(format!("{}: {reason}", path.display())),
            }
        }
        entries.records.sort_by_key(|(number, _)| *number);
        Ok(entries)
    }

    /// Writes a record; it is on disk when this returns.
    pub(crate) fn write(&self, system: &dyn System, number: u32, record: &Record) -> Result<(), Error> {
        let written = encode(record)
            .and_then(|text| replace(system, &self.path(number, RECORD_ENDING), &text, MODE_OWN));
        written.map_err(|error| self.error("a record cannot be written", error))
    }

    /// Deletes the record of a restored setting.
    pub(crate) fn forget(&self, system: &dyn System, number: u32) -> Result<(), Error> {
        let removed = system.remove(&self.path(number, RECORD_ENDING));
        removed
            .and_then(|()| system.sync(&self.folder))
            .map_err(|error| self.error("a record cannot be removed", error))
    }

    /// Moves aside the record of a setting that someone else has changed; returns its new path.
    pub(crate) fn set_aside(&self, system: &dyn System, number: u32) -> Result<PathBuf, Error> {
        let path = self.path(number, LEFT_ENDING);
        let renamed = system.rename(&self.path(number, RECORD_ENDING), &path);
        let renamed = renamed.and_then(|()| system.sync(&self.folder));
        renamed.map_err(|error| self.error("a record cannot be set aside", error))?;
        Ok(path)
    }

    /// A number above all others, including those moved aside.
    pub(crate) fn next_number(&self, system: &dyn System) -> Result<u32, Error> {
        let names = system.list(&self.folder).map_err(|error| self.error("cannot be listed", error))?;
        let numbers = names.iter().filter_map(|name| name.split('.').next()?.parse::<u32>().ok());
        Ok(numbers.max().unwrap_or(0).saturating_add(1))
    }

    fn path(&self, number: u32, ending: &str) -> PathBuf {
        self.folder.join(format!("{number:06}{ending}"))
    }

    /// Drafts are records of changes that were never started.
    fn remove_drafts(&self, system: &dyn System) -> io::Result<()> {
        let names = system.list(&self.folder)?;
        let mut drafts = names.iter().filter(|name| name.ends_with(DRAFT_ENDING));
        drafts.try_for_each(|name| system.remove(&self.folder.join(name)))
    }

    fn error(&self, what: &str, error: io::Error) -> Error {
        Error::Journal(format!("journal {}: {what}", self.folder.display()), error)
    }
}

/// How long to wait for a lock that is still shared by a child process: between `fork` and `exec` it has all
/// descriptors of its parent.
const LOCK_TIME: Duration = Duration::from_millis(200);

fn lock_soon(lock: &File) -> Result<(), TryLockError> {
    let deadline = Instant::now() + LOCK_TIME;
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(LOCK_TIME / 40),
            locked => return locked,
        }
    }
}

fn encode(record: &Record) -> io::Result<Vec<u8>> {
    let body = serde_json::to_string_pretty(record)?;
    Ok(seal(HEADING, &body))
}

fn decode(bytes: &[u8]) -> Result<Record, String> {
    serde_json::from_str(unseal(HEADING, bytes)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Folder;
    use crate::system::Kernel;

    fn record(tuning: &str) -> Record {
        Record {
            tuning: tuning.to_owned(),
            setting: Setting::sysctl("net.core.somaxconn"),
            before: Content::Bytes(vec![0xff, 0]),
            wanted: Content::Text("8192".to_owned()),
            settled: None,
            place: Place { boot: "b".to_owned(), namespace: "n".to_owned(), is_first: true },
            beside: Vec::new(),
        }
    }

    #[test]
    fn records_can_be_read_back() {
        let folder = Folder::new();
        let journal = Journal::open(&Kernel, &folder.0).unwrap();
        for number in [2, 1, 11] {
            journal.write(&Kernel, number, &record(&format!("t{number}"))).unwrap();
        }
        let mode = std::fs::metadata(journal.path(1, RECORD_ENDING)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE_OWN);
        assert_eq!(journal.set_aside(&Kernel, 11).unwrap(), folder.0.join("000011.left"));
        let entries = journal.entries(&Kernel).unwrap();
        assert_eq!(entries.records, [(1, record("t1")), (2, record("t2"))]);
        assert_eq!(journal.next_number(&Kernel).unwrap(), 12);
    }

    #[test]
    fn one_run_at_a_time() {
        let folder = Folder::new();
        let first = Journal::open(&Kernel, &folder.0.join("new")).unwrap();
        let mode = |path: &str| std::fs::metadata(folder.0.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("new"), mode("new/lock")), (0o700, 0o600), "nobody else can hold it");
        drop(first);
        let first = Journal::open(&Kernel, &folder.0).unwrap();
        assert!(matches!(Journal::open(&Kernel, &folder.0), Err(Error::Locked(_))));
        drop(first);
        assert!(Journal::open(&Kernel, &folder.0).is_ok());
    }

    /// Truncated anywhere, or with any byte changed, a record is reported as broken and never taken for another one.
    #[test]
    fn damaged_records_are_reported() {
        let whole = encode(&record("t")).unwrap();
        for end in 0..whole.len() - 1 {
            assert!(decode(&whole[..end]).is_err(), "cut at {end}");
        }
        for at in 0..whole.len() - 1 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x11;
            assert!(decode(&bytes).is_err(), "changed at {at}");
        }
        let folder = Folder::new();
        let journal = Journal::open(&Kernel, &folder.0).unwrap();
        journal.write(&Kernel, 1, &record("t")).unwrap();
        std::fs::write(folder.0.join("000002.json"), &whole[..20]).unwrap();
        std::fs::write(folder.0.join("notes.json"), &whole).unwrap();
        let entries = journal.entries(&Kernel).unwrap();
        assert_eq!((entries.records.len(), entries.broken.len()), (1, 2));
    }
}
