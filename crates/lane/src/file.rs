//! What the kernel knows about a file besides its content: whether its pages are in memory, and whether it is open
//! for writing.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Distance between two probes of a range. The kernel reads ahead in windows of this size by default
/// (`read_ahead_kb`), so cached runs are rarely shorter.
const PROBE_STRIDE_BYTES: u64 = 128 << 10;

/// Most probes of one range; longer ranges are probed at larger distances.
const PROBES_MAX: u64 = 32;

/// Bytes per read of [`warm`].
const WARM_BYTES: usize = 128 << 10;

/// `F_SETSIG` of fcntl(2), which libc leaves out; the same on all of Linux's own architectures that we build for.
const F_SETSIG: libc::c_int = 10;

/// Whether a file is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// No process has it open for writing.
    None,
    /// A process has it open for writing.
    Some,
    /// The kernel cannot tell: the file belongs to another user, or its file system has no leases.
    Unknown,
}

/// Whether `bytes` bytes from `offset` on can be read without waiting for a disk. Probes samples, so a range with
/// small holes may pass as cached. Also `false` if the file system cannot tell.
///
/// Costs one system call per 128 KiB, at most 33.
///
/// # Source
/// `RWF_NOWAIT`, preadv2(2), Linux 4.14. (`cachestat` is exact and cheaper, but newer kernels refuse it without write
/// permission on the file.)
pub fn is_cached(file: &File, offset: u64, bytes: u64) -> bool {
    #[cfg(feature = "simulation")]
    if crate::clock::simulated::is_set() {
        // The seed's decision, not the kernel's.
        return !crate::jobs::is_cold();
    }
    let Some(last) = bytes.checked_sub(1).and_then(|bytes| offset.checked_add(bytes)) else { return true };
    let stride = PROBE_STRIDE_BYTES.max(bytes / PROBES_MAX);
    let mut at = offset;
    while at < last {
        if !is_byte_cached(file, at) {
            return false;
        }
        at = at.saturating_add(stride);
    }
    is_byte_cached(file, last)
}

fn is_byte_cached(file: &File, at: u64) -> bool {
    let mut byte = [0];
    loop {
        match preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) {
            // At the end of the file there is nothing to wait for.
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Reads `bytes` bytes from `offset` on into the page cache. Blocks on the disk: for threads that may wait.
///
/// # Errors
/// The disk's. A shorter file is not an error.
pub fn warm(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; WARM_BYTES];
    let end = offset.saturating_add(bytes);
    let mut at = offset;
    while at < end {
        let wanted = (end - at).min(WARM_BYTES as u64) as usize;
        match file.read_at(&mut buffer[..wanted], at) {
            Ok(0) => return Ok(()),
            Ok(read) => at += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A new file in a folder without a name there: its space is free again when it is closed, however the program ends.
///
/// # Errors
/// The folder's: it is missing, may not be written to, or has no room.
///
/// # Source
/// `O_TMPFILE`, open(2), Linux 3.11. A file system without it (NFS, older overlays) gets a file with a name that is removed
/// at once.
pub fn nameless(folder: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            static NUMBER: AtomicU64 = AtomicU64::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".flatout-{}-{number}", std::process::id()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        opened => opened,
    }
}

/// Whether this file is open for writing; `file` itself must be open for reading only. A writer that opens it in the
/// same microseconds waits that long, or is refused if it asked not to wait (`O_NONBLOCK`).
///
/// # Source
/// `F_SETLEASE`, fcntl(2): a read lease is refused with `EAGAIN` while there is a writer. Network file systems refuse
/// for other reasons, so only local file systems are asked.
pub fn writer(file: &File) -> Writer {
    if !has_leases(file) {
        return Writer::Unknown;
    }
    let fd = file.as_raw_fd();
    // SAFETY: fcntl with two numbers; no memory is involved. A broken lease sends SIGURG, which is ignored unless handled;
    // the default, SIGIO, would end the process.
    if unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) } != 0 {
        return Writer::Unknown;
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) } == 0 {
        // SAFETY: as above; giving back what was just taken cannot fail.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Writer::None;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Writer::Some,
        _ => Writer::Unknown,
    }
}

/// Whether its file system is local, so that its leases depend on writers only.
#[allow(clippy::useless_conversion, reason = "the field's type differs between architectures")]
fn has_leases(file: &File) -> bool {
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const F2FS: i64 = 0xf2f5_2010;
    const TMPFS: i64 = 0x0102_1994;
    const OVERLAY: i64 = 0x794c_7630;
    const ZFS: i64 = 0x2fc1_2fc1;
    let kind = rustix::fs::fstatfs(file).map_or(0, |found| i64::from(found.f_type));
    [EXT, XFS, BTRFS, F2FS, TMPFS, OVERLAY, ZFS].contains(&kind)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_nameless_file_is_in_no_listing() {
        let folder = std::env::temp_dir().join(format!("flatout-lane-nameless-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = nameless(&folder).unwrap();
        file.write_all_at(b"content", 3).unwrap();
        let mut bytes = [0; 7];
        file.read_exact_at(&mut bytes, 3).unwrap();
        assert_eq!(&bytes, b"content");
        // It has no name, so the folder is empty.
        std::fs::remove_dir(&folder).unwrap();
        assert_eq!(nameless(&folder).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    struct Draft(PathBuf);

    impl Draft {
        fn new(name: &str, bytes: usize) -> Draft {
            let path = std::env::temp_dir().join(format!("flatout-lane-{name}-{}", std::process::id()));
            let mut file = File::create(&path).unwrap();
            file.write_all(&vec![b'x'; bytes]).unwrap();
            file.sync_all().unwrap();
            Draft(path)
        }
    }

    impl Drop for Draft {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn pages_dropped_from_memory_are_detected_and_read_again() {
        let draft = Draft::new("cached", 4 << 20);
        let file = File::open(&draft.0).unwrap();
        warm(&file, 0, 4 << 20).unwrap();
        assert!(is_cached(&file, 0, 4 << 20));
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if is_cached(&file, 0, 4 << 20) {
            let _ =
                writeln!(io::stderr(), "skipped: the file system of the temporary folder is memory itself");
            return;
        }
        warm(&file, 1 << 20, 1 << 20).unwrap();
        assert!(is_cached(&file, 1 << 20, 1 << 20));
        assert!(!is_cached(&file, 0, 4 << 20), "the end is not there");
        warm(&file, 0, u64::MAX).unwrap();
        assert!(is_cached(&file, 0, 4 << 20));
    }

    #[test]
    fn ranges_at_the_edges() {
        let draft = Draft::new("edges", 10);
        let file = File::open(&draft.0).unwrap();
        warm(&file, 0, 10).unwrap();
        assert!(is_cached(&file, 0, 10) && is_cached(&file, 3, 0));
        assert!(is_cached(&file, 100, 10), "beyond the end nothing has to be waited for");
    }

    #[test]
    fn a_writer_is_noticed_while_it_has_the_file_open() {
        let draft = Draft::new("writer", 10);
        let file = File::open(&draft.0).unwrap();
        if writer(&file) == Writer::Unknown {
            let _ = writeln!(io::stderr(), "skipped: the file system of the temporary folder has no leases");
            return;
        }
        assert_eq!(writer(&file), Writer::None);
        let open = File::options().append(true).open(&draft.0).unwrap();
        assert_eq!(writer(&file), Writer::Some);
        drop(open);
        assert_eq!(writer(&file), Writer::None);
        assert_eq!(writer(&File::open("/proc/self/stat").unwrap()), Writer::Unknown);
    }
}
