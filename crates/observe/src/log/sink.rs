//! The file of a log, which gets complete lines even if the disk fails.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::files::{Files, has_variables};
use super::syslog::Syslog;

/// The permissions of a new log: what clients do is not for every user of the machine.
const MODE: u32 = 0o640;

/// Where a log goes.
pub(super) enum Target {
    File(Sink),
    /// The requests choose the file.
    Files(Files),
    Syslog(Syslog),
}

impl Target {
    pub(super) fn open(path: &Path) -> io::Result<Target> {
        match Syslog::of(path) {
            Some(log) => log.map(Target::Syslog),
            None if has_variables(path) => Ok(Target::Files(Files::new(path))),
            None => Sink::open(path).map(Target::File),
        }
    }

    /// Writes this many lines, each ended by a line feed.
    pub(super) fn write(&mut self, lines: &[u8], lines_count: u64) -> Written {
        match self {
            Target::File(file) => file.write(lines, lines_count),
            Target::Files(files) => files.write(lines),
            Target::Syslog(log) => log.write(lines, lines_count),
        }
    }
}

/// An open file.
pub(super) struct Sink {
    file: File,
    /// The file ends with a partial line that could not be removed, because it is not a regular file.
    is_torn: bool,
    /// It is this log's own file. A standard stream may be shared with other processes.
    is_own: bool,
}

/// The result of writing lines.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) lines: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) error: Option<io::Error>,
}

impl Sink {
    pub(super) fn open(path: &Path) -> io::Result<Sink> {
        if let Some(stream) = StandardStream::of(path) {
            return Ok(Sink { file: stream.file()?, is_torn: false, is_own: false });
        }
        // A pipe without a reader would block the server here; the open fails instead.
        let flags = rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK;
        let file = File::options()
            .append(true)
            .create(true)
            .mode(MODE)
            .custom_flags(flags.bits() as i32)
            .open(path)?;
        Ok(Sink { file: blocking(file)?, is_torn: false, is_own: true })
    }

    /// Writes this many lines, each ended by a line feed. If the disk does not accept everything, complete lines are
    /// lost: a line that was written partially is removed again.
    pub(super) fn write(&mut self, lines: &[u8], lines_count: u64) -> Written {
        if std::mem::take(&mut self.is_torn) && write_all(&mut self.file, b"\n").1.is_some() {
            self.is_torn = true;
        }
        let (taken, error) = write_all(&mut self.file, lines);
        let (done, rest) = lines.split_at(taken);
        if rest.is_empty() {
            return Written { lines: lines_count, bytes: taken as u64, lost: 0, error };
        }
        let begun = done.iter().rev().take_while(|byte| **byte != b'\n').count() as u64;
        let kept = if begun > 0 && self.take_back(begun) { begun } else { 0 };
        Written { lines: count(done), bytes: taken as u64 - kept, lost: count(rest), error }
    }

    /// Removes bytes from the end of the file that were just written.
    fn take_back(&mut self, bytes: u64) -> bool {
        let found = self.file.metadata().ok().filter(|found| found.is_file() && self.is_own);
        let is_cut = found.is_some_and(|found| self.file.set_len(found.len().saturating_sub(bytes)).is_ok());
        self.is_torn = !is_cut;
        is_cut
    }
}

/// A stream that this process has from the start. It is not opened by name: the serving user may not be allowed to, and a
/// socket, as systemd gives, cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardStream {
    /// `/dev/stdout`
    Stdout,
    /// `/dev/stderr`
    Stderr,
}

impl StandardStream {
    /// The stream that a path names.
    pub fn of(path: &Path) -> Option<StandardStream> {
        match path.to_str()? {
            "/dev/stdout" => Some(StandardStream::Stdout),
            "/dev/stderr" => Some(StandardStream::Stderr),
            _ => None,
        }
    }

    /// Its path.
    pub fn path(self) -> &'static Path {
        Path::new(match self {
            StandardStream::Stdout => "/dev/stdout",
            StandardStream::Stderr => "/dev/stderr",
        })
    }

    /// Whether it is a terminal.
    pub fn is_terminal(self) -> bool {
        match self {
            StandardStream::Stdout => io::stdout().is_terminal(),
            StandardStream::Stderr => io::stderr().is_terminal(),
        }
    }

    fn file(self) -> io::Result<File> {
        let copy = match self {
            StandardStream::Stdout => io::stdout().as_fd().try_clone_to_owned(),
            StandardStream::Stderr => io::stderr().as_fd().try_clone_to_owned(),
        };
        copy.map(File::from)
    }
}

/// Writes as much as possible: returns how many bytes, and the error if not all.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return (at, Some(ErrorKind::WriteZero.into())),
            Ok(taken) => at += taken,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (at, Some(error)),
        }
    }
    (at, None)
}

fn blocking(file: File) -> io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_loses_whole_lines() {
        let mut sink = Sink::open(Path::new("/dev/full")).unwrap();
        let written = sink.write(b"one\ntwo\n", 2);
        assert_eq!((written.lines, written.lost), (0, 2));
        assert_eq!(written.error.and_then(|error| error.raw_os_error()), Some(28), "no space");
    }

    #[test]
    fn a_partly_written_line_is_removed() {
        let folder = std::env::temp_dir().join(format!("flatout-sink-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        let mut sink = Sink::open(&path).unwrap();
        assert_eq!(sink.write(b"one\n", 1).lines, 1);
        sink.file.write_all(b"tw").unwrap();
        assert!(sink.take_back(2));
        assert_eq!(sink.write(b"three\n", 1).lines, 1);
        assert_eq!(std::fs::read(&path).unwrap(), b"one\nthree\n");
        std::fs::remove_dir_all(&folder).unwrap();
        // A device cannot be truncated, so the next write starts with a line feed.
        let mut sink = Sink::open(Path::new("/dev/null")).unwrap();
        assert!(!sink.take_back(2) && sink.is_torn);
        assert_eq!(sink.write(b"four\n", 1).lines, 1);
        assert!(!sink.is_torn);
    }
}
