//! Files whose names depend on the requests, as in `access-log "/var/log/$host.log"`: the variables are in the name of the file, so that
//! no request leaves the folder.
//!
//! The line of such a log begins with the name of its file, as a line of its own: no value contains a line end.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::sink::{Sink, Written};
use super::template::Format;

/// Files that are open at a time; beyond that, the one that was not used for the longest time is closed.
const OPEN_MAX: usize = 64;

/// Files of one log, until it is reopened: clients choose their names, and must not fill the folder. Lines for further ones are lost.
const FILES_MAX: usize = 4096;

/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;

/// The folder of such a log.
pub(super) struct Files {
    folder: PathBuf,
    /// The last used ones at the end.
    open: Vec<(String, Sink)>,
    names: HashSet<String>,
}

/// The format of the name of a log's file; `None` if it has no variables.
///
/// # Errors
/// A variable that is unknown, only known when a request has ended, or in the name of the folder.
pub(super) fn name_format(path: &Path) -> Result<Option<Format>, String> {
    if !has_variables(path) {
        return Ok(None);
    }
    let text = path.to_string_lossy();
    let (folder, name) = text.rsplit_once('/').unwrap_or(("", &text));
    if folder.contains('$') {
        return Err(format!(
            "access log {text}: variables are possible in the name of the file, not of its folder"
        ));
    }
    let format = Format::parse(name).map_err(|message| format!("access log {text}: {message}"))?;
    match format.is_early() {
        true => Ok(Some(format)),
        false => Err(format!(
            "access log {text}: its name has a variable that is known only when a request has ended"
        )),
    }
}

pub(super) fn has_variables(path: &Path) -> bool {
    path.to_string_lossy().contains('$')
}

impl Files {
    pub(super) fn new(path: &Path) -> Files {
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Files { folder, open: Vec::new(), names: HashSet::new() }
    }

    /// Writes lines, each behind the name of its file.
    pub(super) fn write(&mut self, lines: &[u8]) -> Written {
        let mut all = Written::default();
        let mut parts = lines.split_inclusive(|&byte| byte == b'\n');
        while let (Some(name), Some(line)) = (parts.next(), parts.next()) {
            let written = match self.file(name) {
                Ok(file) => file.write(line, 1),
                Err(error) => Written { lost: 1, error: Some(error), ..Written::default() },
            };
            all.lines += written.lines;
            all.bytes += written.bytes;
            all.lost += written.lost;
            all.error = written.error.or(all.error);
        }
        all
    }

    fn file(&mut self, name: &[u8]) -> io::Result<&mut Sink> {
        let name = file_name(name);
        match self.open.iter().position(|(known, _)| *known == name) {
            Some(at) => self.open[at..].rotate_left(1),
            None => {
                if !self.names.contains(&name) && self.names.len() >= FILES_MAX {
                    return Err(io::Error::new(
                        ErrorKind::QuotaExceeded,
                        format!("more than {FILES_MAX} files"),
                    ));
                }
                let sink = Sink::open(&self.folder.join(&name))?;
                self.names.insert(name.clone());
                if self.open.len() >= OPEN_MAX {
                    self.open.remove(0);
                }
                self.open.push((name, sink));
            }
        }
        self.open.last_mut().map(|(_, sink)| sink).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// A name in the folder itself, that is not hidden.
fn file_name(given: &[u8]) -> String {
    let given = given.strip_suffix(b"\n").unwrap_or(given);
    let given = given.get(..NAME_BYTES_MAX).unwrap_or(given);
    let letter = |&byte: &u8| match byte {
        b'/' | b'\\' => '_',
        byte if byte.is_ascii_graphic() => char::from(byte),
        _ => '_',
    };
    let name: String = given.iter().map(letter).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if name.is_empty() => "_".to_owned(),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_the_folder() {
        for (given, expected) in [
            (&b"a.test.log\n"[..], "a.test.log"),
            (b"../../etc/passwd\n", "_._.._etc_passwd"),
            (b"..\n", "_."),
            (b"\n", "_"),
            (b"a\x00b\xff c\\x22\n", "a_b__c_x22"),
        ] {
            assert_eq!(file_name(given), expected);
        }
        assert_eq!(file_name(&[b'a'; 300]).len(), NAME_BYTES_MAX);
        assert!(matches!(name_format(Path::new("/a/b.log")), Ok(None)));
        assert!(matches!(name_format(Path::new("/a/$host.log")), Ok(Some(_))));
        for (path, expected) in [
            ("/a/$host/b.log", "not of its folder"),
            ("/a/$status.log", "only when a request has ended"),
            ("/a/$nonesuch.log", "unknown log variable"),
        ] {
            let message = name_format(Path::new(path)).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn lines_go_to_the_files_that_they_name() {
        let folder = std::env::temp_dir().join(format!("flatout-log-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut files = Files::new(&folder.join("$host"));
        let written = files.write(b"a\none\nb\ntwo\na\nthree\n");
        assert_eq!((written.lines, written.lost, written.bytes), (3, 0, 14));
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"one\nthree\n");
        assert_eq!(std::fs::read(folder.join("b")).unwrap(), b"two\n");
        let many: String = (0..FILES_MAX).map(|at| format!("n{at}\nx\n")).collect();
        let written = files.write(many.as_bytes());
        assert_eq!((written.lines, written.lost), (FILES_MAX as u64 - 2, 2));
        assert_eq!(files.open.len(), OPEN_MAX);
        // Those that are known can still be opened.
        assert_eq!(files.write(b"a\nfour\n").lines, 1);
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"one\nthree\nfour\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
