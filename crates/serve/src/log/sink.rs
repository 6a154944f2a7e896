//! The file behind a log: whole lines, whatever the disk does.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// An open file. `torn` is the rest of a line of which the disk has only taken the beginning: it comes before everything
/// else.
pub(super) struct Sink {
    file: File,
    torn: Vec<u8>,
    /// Bytes of that line that are in the file.
    torn_bytes: u64,
}

/// What became of some lines.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) lines: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) error: Option<io::Error>,
}

impl Sink {
    pub(super) fn open(path: &Path) -> io::Result<Sink> {
        // A pipe that nobody reads would hold the server up here; the open fails instead.
        let flags = rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK;
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o644)
            .custom_flags(flags.bits() as i32)
            .open(path)?;
        let file = blocking(file)?;
        Ok(Sink { file, torn: Vec::new(), torn_bytes: 0 })
    }

    /// Opens the file of this name. Where that fails, the old one stays.
    pub(super) fn reopen(&mut self, path: &Path) -> io::Result<()> {
        let fresh = Sink::open(path)?;
        if !self.torn.is_empty() && self.finish_torn().is_err() {
            self.cut_torn();
        }
        *self = fresh;
        Ok(())
    }

    /// Writes so many lines, each ended by a line feed. What the disk does not take is lost, whole lines of it.
    pub(super) fn write(&mut self, lines: &[u8], lines_count: u64) -> Written {
        let mut written = Written::default();
        if !self.torn.is_empty() {
            match self.finish_torn() {
                Ok(bytes) => (written.lines, written.bytes) = (1, bytes),
                Err(error) => {
                    return Written { lost: lines_count, error: Some(error), ..written };
                }
            }
        }
        let (taken, error) = write_all(&mut self.file, lines);
        written.bytes += taken as u64;
        written.error = error;
        let (done, rest) = lines.split_at(taken);
        if rest.is_empty() {
            written.lines += lines_count;
            return written;
        }
        written.lines += count(done);
        let begun = done.iter().rev().take_while(|byte| **byte != b'\n').count();
        let mut rest = rest;
        if begun > 0 {
            let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
            let (line, behind) = rest.split_at(end);
            (self.torn, self.torn_bytes) = (line.to_vec(), begun as u64);
            rest = behind;
        }
        written.lost = count(rest);
        written
    }

    /// Writes the rest of the line that is torn: how many bytes.
    fn finish_torn(&mut self) -> io::Result<u64> {
        let (taken, error) = write_all(&mut self.file, &self.torn);
        self.torn.drain(..taken);
        self.torn_bytes += taken as u64;
        match error {
            Some(error) => Err(error),
            None => Ok(taken as u64),
        }
    }

    /// Takes the beginning of the torn line off the end of the file: its rest has nowhere to go.
    fn cut_torn(&mut self) {
        if let Ok(found) = self.file.metadata()
            && found.is_file()
        {
            let _ = self.file.set_len(found.len().saturating_sub(self.torn_bytes));
        }
    }
}

/// Writes as much as it can: how many bytes, and why not all.
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
        assert!(sink.torn.is_empty(), "nothing of a line was written");
    }

    /// A file that may not grow over a size is a disk that fills up in the middle of a line.
    #[test]
    fn a_torn_line_is_finished_first_or_taken_back() {
        let folder = std::env::temp_dir().join(format!("flatout-sink-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        let mut sink = Sink::open(&path).unwrap();
        assert_eq!(sink.write(b"one\n", 1).lines, 1);
        (sink.torn, sink.torn_bytes) = (b"o\n".to_vec(), 2);
        sink.file.write_all(b"tw").unwrap();
        assert_eq!(sink.write(b"three\n", 1).lines, 2);
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
        // With nowhere to go for its rest, the beginning is taken back.
        sink.file.write_all(b"fo").unwrap();
        (sink.torn, sink.torn_bytes) = (b"ur\n".to_vec(), 2);
        sink.cut_torn();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
