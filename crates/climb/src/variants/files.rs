//! Configuration files, and copies of them elsewhere.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Files of one configuration: nobody writes one with more.
pub(super) const FILES_MAX: usize = 200;

/// Largest size of one file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files of a server, its main one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files(pub(super) Vec<File>);

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The `include` that names it: the number of the earlier file, and the word.
    pub(super) included: Option<(usize, String)>,
}

impl Files {
    /// Reads only the main file; `None` if it is not text, or too large for a configuration.
    pub(super) fn read(path: &Path) -> Option<Files> {
        Some(Files(vec![File { path: fs::canonicalize(path).ok()?, text: text(path)?, included: None }]))
    }

    pub(super) fn main(&self) -> &str {
        self.0.first().map_or("", |file| &file.text)
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|file| file.path.clone()).collect()
    }

    /// Replaces a word in all texts.
    pub(super) fn replace(&mut self, word: &str, other: &str) {
        for file in &mut self.0 {
            file.text = file.text.replace(word, other);
        }
    }

    /// Writes copies into a folder, in which everything next to the main file can be found by its name. Returns the
    /// path of the main file.
    pub(super) fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        let copy = |at: usize| folder.join(format!("flatout-{at}.conf"));
        if let Some(beside) = self.0.first().and_then(|main| main.path.parent()) {
            for entry in fs::read_dir(beside)?.flatten() {
                match symlink(entry.path(), folder.join(entry.file_name())) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
        }
        for (at, file) in self.0.iter().enumerate() {
            let mut text = file.text.clone();
            let mut words: Vec<&str> = Vec::new();
            for included in self.0.iter().filter_map(|other| other.included.as_ref()) {
                if included.0 == at && !words.contains(&included.1.as_str()) {
                    words.push(&included.1);
                }
            }
            for word in words {
                let of_word = |(_, other): &(usize, &File)| {
                    other.included.as_ref().is_some_and(|(by, name)| *by == at && name == word)
                };
                let copies = self.0.iter().enumerate().filter(of_word);
                let lines: Vec<String> =
                    copies.map(|(number, _)| format!("include {};", copy(number).display())).collect();
                text = super::syntax::replace_include(&text, word, &lines.join(" "));
            }
            fs::write(copy(at), text)?;
        }
        Ok(copy(0))
    }
}

/// A file's text.
pub(super) fn text(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return None;
    }
    fs::read_to_string(path).ok()
}

/// The files that match a pattern, with `*` in the last part only, sorted by name.
pub(super) fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((before, behind)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let entries =
        pattern.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // As in a shell: names that start with a dot only match a written dot.
            name.len() >= before.len() + behind.len()
                && name.starts_with(before)
                && name.ends_with(behind)
                && (!before.is_empty() || !name.starts_with('.'))
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}
