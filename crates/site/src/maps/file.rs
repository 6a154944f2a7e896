//! Entries of a map, or addresses, in a file, which a thread reads again when the file changes. A file with a mistake changes nothing.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use flatout_engine::say;

use super::super::plan::{MapKey, MapKind};
use super::Tables;
use super::addresses::networks;
use super::keys::Keys;

/// The largest file of a map: it is kept in memory.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Entries of one file.
pub(super) const ENTRIES_MAX: usize = 1_000_000;

/// How often files are compared with their times.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a file has.
#[derive(Debug, Clone, Copy)]
pub(super) enum FileForm {
    /// Keys of this kind, each with a value.
    Map(MapKind),
    /// Networks.
    Addresses,
}

/// The entries of a file.
#[derive(Debug)]
pub(super) struct FileTable {
    path: PathBuf,
    form: FileForm,
    entries: RwLock<Arc<Entries>>,
}

#[derive(Debug)]
struct Entries {
    keys: Keys,
    values: Vec<String>,
    count: usize,
    stamp: Option<Stamp>,
}

/// What differs when a file was changed or replaced: its number, size and times.
type Stamp = (u64, u64, i64, i64, i64, i64);

impl FileTable {
    /// # Errors
    /// The file cannot be read, is too large, or a line of it is wrong.
    pub(super) fn open(path: &Path, form: FileForm) -> Result<FileTable, String> {
        let stamp = stamp(path);
        let mut entries = read(path, form)?;
        entries.stamp = stamp;
        Ok(FileTable { path: path.to_owned(), form, entries: RwLock::new(Arc::new(entries)) })
    }

    /// Whether this address is in one of its networks.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.current().keys.network(address).is_some()
    }

    /// Writes the value for a text; returns whether there is one.
    pub(super) fn write(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let entries = self.current();
        let value = entries.keys.find(text).and_then(|(at, _)| entries.values.get(at));
        value.is_some_and(|value| {
            out.extend_from_slice(value.as_bytes());
            true
        })
    }

    fn current(&self) -> Arc<Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file if it differs from the one that was read last, `seen`. Returns a line for the log if it was read.
    fn renew(&self, seen: &mut Option<Stamp>) -> Option<String> {
        let now = stamp(&self.path);
        if now == *seen {
            return None;
        }
        *seen = now;
        let shown = self.path.display();
        Some(match read(&self.path, self.form) {
            Ok(entries) => {
                let count = entries.count;
                *self.entries.write().unwrap_or_else(PoisonError::into_inner) =
                    Arc::new(Entries { stamp: now, ..entries });
                format!("{} {shown}: read again, {count} entries", self.form.name())
            }
            Err(reason) => format!("{reason}; the former entries stay in use"),
        })
    }
}

/// Starts a thread that follows changes of all files, until the tables are dropped.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn watch(tables: &Arc<Tables>) -> std::io::Result<()> {
    let mut seen: Vec<Option<Stamp>> = tables.files().map(|file| file.current().stamp).collect();
    if seen.is_empty() {
        return Ok(());
    }
    let tables = Arc::downgrade(tables);
    let thread = std::thread::Builder::new().name("map-files".to_owned());
    thread.spawn(move || {
        while renewed(&tables, &mut seen) {
            std::thread::sleep(INTERVAL);
        }
    })?;
    Ok(())
}

/// Reads all changed files; returns whether the tables still exist.
fn renewed(tables: &Weak<Tables>, seen: &mut [Option<Stamp>]) -> bool {
    let Some(tables) = tables.upgrade() else { return false };
    for (file, seen) in tables.files().zip(seen) {
        if let Some(line) = file.renew(seen) {
            say(format_args!("{line}"));
        }
    }
    true
}

fn stamp(path: &Path) -> Option<Stamp> {
    let of = std::fs::metadata(path).ok()?;
    Some((of.ino(), of.len(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()))
}

impl FileForm {
    fn name(self) -> &'static str {
        match self {
            FileForm::Map(_) => "map file",
            FileForm::Addresses => "address file",
        }
    }
}

fn read(path: &Path, form: FileForm) -> Result<Entries, String> {
    let shown = format!("{} {}", form.name(), path.display());
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    file.map_err(|error| format!("{shown}: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown}: larger than {FILE_BYTES_MAX} bytes"));
    }
    let entries = match form {
        FileForm::Map(kind) => parse(&text, kind),
        FileForm::Addresses => networks(&text).and_then(|keys| Entries::new(&keys, Vec::new())),
    };
    entries.map_err(|reason| format!("{shown}{reason}"))
}

impl Entries {
    fn new(keys: &[MapKey], values: Vec<String>) -> Result<Entries, String> {
        let count = keys.len();
        Ok(Entries {
            keys: Keys::new(keys.iter()).map_err(|reason| format!(": {reason}"))?,
            values,
            count,
            stamp: None,
        })
    }
}

/// `KEY VALUE` lines; `#` begins a comment, a `;` at the end is ignored, and quotes keep blanks together.
fn parse(text: &str, kind: MapKind) -> Result<Entries, String> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let wrong = |reason: String| format!(":{}: {reason}", at + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_suffix(';').unwrap_or(line);
        let (key, rest) = word(line).ok_or_else(|| wrong("need a key".to_owned()))?;
        let (value, rest) =
            word(rest.trim_start()).ok_or_else(|| wrong("need a key and a value".to_owned()))?;
        if !rest.trim().is_empty() {
            return Err(wrong("more than a key and a value; texts with blanks need quotes".to_owned()));
        }
        keys.push(MapKey::parse(key, kind).map_err(wrong)?);
        values.push(value.to_owned());
        if keys.len() > ENTRIES_MAX {
            return Err(wrong(format!("more than {ENTRIES_MAX} entries")));
        }
    }
    Entries::new(&keys, values)
}

/// The first word of a line, and the rest.
fn word(line: &str) -> Option<(&str, &str)> {
    if let Some(quote) = line.chars().next().filter(|first| matches!(first, '"' | '\'')) {
        return line.get(1..)?.split_once(quote);
    }
    let end = line.find(char::is_whitespace).unwrap_or(line.len());
    line.split_at_checked(end).filter(|(word, _)| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_keys_and_values() {
        let text = "# countries\n10.0.0.0/8 lan;\n 2001:db8::/32\t\"a b\"\n10.1.0.0/16 'x';\n\n";
        let entries = parse(text, MapKind::Address).unwrap();
        assert_eq!(entries.values, ["lan", "a b", "x"]);
        assert_eq!(entries.keys.find(b"10.1.2.3").map(|found| found.0), Some(2));
        for (text, reason) in [
            ("a\n", ":1: need a key and a value"),
            ("\n10.0.0.1/8 x", ":2: got `10.0.0.1/8`"),
            ("1.2.3.4 a b", ":1: more than"),
        ] {
            let error = parse(text, MapKind::Address).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
        assert!(parse("a b\nA c\n", MapKind::Text).unwrap_err().contains("occurs twice"));
    }

    #[test]
    fn a_changed_file_is_read_and_a_wrong_one_is_reported() {
        let path = std::env::temp_dir().join(format!("flatout-map-{}", std::process::id()));
        std::fs::write(&path, "a 1\n").unwrap();
        let table = FileTable::open(&path, FileForm::Map(MapKind::Text)).unwrap();
        let value = || {
            let mut out = Vec::new();
            table.write(b"A", &mut out).then(|| String::from_utf8(out).unwrap())
        };
        let mut seen = table.current().stamp;
        assert_eq!((value().as_deref(), table.renew(&mut seen)), (Some("1"), None));
        std::fs::write(&path, "a second\n").unwrap();
        assert!(table.renew(&mut seen).unwrap().contains("1 entries"));
        assert_eq!(value().as_deref(), Some("second"));
        std::fs::write(&path, "a second value\n").unwrap();
        assert!(table.renew(&mut seen).unwrap().contains("former entries"));
        assert_eq!((value().as_deref(), table.renew(&mut seen)), (Some("second"), None), "reported once");
        std::fs::remove_file(&path).unwrap();
        assert!(table.renew(&mut seen).unwrap().contains("No such file"));
        assert_eq!(value().as_deref(), Some("second"));
    }
}
