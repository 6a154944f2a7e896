//! The primitive operations on the machine, one backend each: the current kernel, or a tree of files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use flatout_lane::child::{self, Unfinished};
use rustix::fs::OFlags;

use crate::change::chosen;
use crate::netlink::{self, Protocol};

/// Bytes read from one file. Enough for any setting; of `/proc/net/tcp` it is the start, which lists the listeners.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;

/// Longest record of the kernel's log (`PRINTKRB_RECORD_MAX` is smaller), and records that are read at most.
const LOG_RECORD_BYTES_MAX: usize = 8192;
const LOG_RECORDS_MAX: usize = 65_536;

/// Time limit of a command. `tc`, `nft` and `ethtool` need milliseconds; one that takes longer hangs.
const RUN_TIME_MAX: Duration = Duration::from_secs(20);

/// Why a command gave no result.
#[derive(Debug)]
pub enum RunError {
    /// There is no such program.
    Missing,
    /// It failed: its exit status and its message.
    Failed(Option<i32>, String),
    /// It took too long, or could not be started.
    Broken(io::Error),
    /// This host is only a tree of files.
    OnlyFiles,
}

/// The operations on a machine. Paths are those on our own disk.
pub trait System: Send {
    /// At most 4 MiB of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// What the kernel's log has, at most 4 MiB; does not wait for more.
    fn log(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read(path)
    }
    /// The names in a folder, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// When a file was last written.
    fn modified(&self, path: &Path) -> io::Result<SystemTime>;
    /// The target of a symbolic link.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;
    /// Writes to an existing file, with one `write`, as sysfs and procfs require.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Creates or empties a file, and fills it. It has these permissions before it has any content.
    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()>;
    /// Creates a folder and its parents.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Waits until a file or a folder is on disk.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Runs a command and returns what it wrote to stdout.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, RunError>;
    /// Sends a netlink request and passes each datagram of the reply to `take`, until that returns true.
    fn ask(&self, protocol: Protocol, request: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()>;
}

/// The current machine.
pub(crate) struct Kernel;

impl System for Kernel {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn log(&self, path: &Path) -> io::Result<Vec<u8>> {
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
        let (mut all, mut record) = (Vec::new(), [0; LOG_RECORD_BYTES_MAX]);
        // Each `read` returns one record.
        for _ in 0..LOG_RECORDS_MAX {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => all.extend_from_slice(&record[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Records were overwritten before they were read; the next one follows.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            if all.len() as u64 >= READ_BYTES_MAX {
                break;
            }
        }
        Ok(all)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names: Vec<String> =
            fs::read_dir(path)?.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        fs::metadata(path)?.modified()
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // A file that reads `a [b] c` accepts only the choice itself.
        let text = std::str::from_utf8(bytes).ok();
        write_once(path, text.and_then(chosen).map_or(bytes, str::as_bytes))
    }

    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        // A leftover draft may have other permissions.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, RunError> {
        let ran = child::run(&mut command(program, arguments), input.as_bytes(), RUN_TIME_MAX, None);
        let ran = ran.map_err(|why| match why {
            // A search of the PATH that includes inaccessible folders ends with "permission denied".
            Unfinished::NotStarted(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                RunError::Missing
            }
            Unfinished::NotStarted(error) | Unfinished::System(error) => RunError::Broken(error),
            Unfinished::Late | Unfinished::Stopped => {
                let why = format!("it did not finish within {RUN_TIME_MAX:?}");
                RunError::Broken(io::Error::new(ErrorKind::TimedOut, why))
            }
        })?;
        match ran.status.success() {
            true => Ok(ran.stdout),
            false => Err(RunError::Failed(ran.status.code(), ran.stderr.trim().to_owned())),
        }
    }

    fn ask(&self, protocol: Protocol, request: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
        netlink::talk(protocol, request, take)
    }
}

/// Replaces a file atomically: written under another name and synced before it is renamed.
pub(crate) fn replace(system: &dyn System, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(DRAFT_ENDING);
    let draft = folder.join(name);
    system.create_folder(folder)?;
    system.create(&draft, bytes, mode)?;
    system.sync(&draft)?;
    system.rename(&draft, path)?;
    system.sync(folder)
}

/// The permissions of a setting's file, which every program may read.
pub(crate) const MODE_OPEN: u32 = 0o644;

/// Permissions of our own records: command lines may contain secrets.
pub(crate) const MODE_OWN: u32 = 0o600;

/// The suffix of the name of an incomplete file.
pub(crate) const DRAFT_ENDING: &str = ".flatout-draft";

pub(crate) fn write_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // procfs ignores truncation, and in a tree a plain file must not keep the rest of a longer value.
    write_to(OpenOptions::new().write(true).truncate(true).open(path)?, bytes)
}

/// Writes with one `write`.
pub(crate) fn write_to(mut file: File, bytes: &[u8]) -> io::Result<()> {
    let written = file.write(bytes)?;
    if written == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    // An ordinary user's PATH often lacks the folders of `tc` and `ethtool`.
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).env("LC_ALL", "C");
    command
}
