//! The primitive operations on the machine, one backend each: the kernel we run on, or a tree of files elsewhere.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use flatout_lane::child::{self, Unfinished};

use crate::change::chosen;
use crate::netlink::{self, Protocol};

/// Bytes read of one file. More than any setting has; of `/proc/net/tcp` it is the start, where listeners stand.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;

/// How long a command may take. `tc`, `nft` and `ethtool` answer in milliseconds; what takes longer hangs.
const RUN_TIME_MAX: Duration = Duration::from_secs(20);

/// Why a command gave no answer.
#[derive(Debug)]
pub enum RunError {
    /// There is no such program.
    Missing,
    /// It ran and said no: its exit status and what it said.
    Failed(Option<i32>, String),
    /// It did not end in time, or could not be started.
    Broken(io::Error),
    /// The tree behind this host is only files.
    OnlyFiles,
}

/// What can be done to a machine. Paths are as they lie on our own disk.
pub trait System: Send {
    /// At most 4 MiB of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The names in a folder, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// When a file was last written.
    fn modified(&self, path: &Path) -> io::Result<SystemTime>;
    /// Where a symbolic link points.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;
    /// Writes to a file that is there, with one `write`, as sysfs and procfs want it.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file, or empties it, and fills it. Before a byte is in it, it has these permissions.
    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()>;
    /// Makes a folder and its parents.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Waits until a file or a folder is on disk.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Gives a file another name, in place of what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Runs a command and returns what it wrote to stdout.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, RunError>;
    /// Sends a netlink request and hands on each datagram that answers it, until `take` says that it has enough.
    fn ask(&self, protocol: Protocol, request: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()>;
}

/// The machine we run on.
pub(crate) struct Kernel;

impl System for Kernel {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
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
        // What answers `a [b] c` takes the choice alone.
        let text = std::str::from_utf8(bytes).ok();
        write_once(path, text.and_then(chosen).map_or(bytes, str::as_bytes))
    }

    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        // A draft that was left behind may have had others.
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
            // Not allowed is what the search of a path ends with that leads through folders of somebody else's.
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

/// Puts a file in place whole: under another name first, on disk before it gets its own.
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

/// Those of our own records: what was typed may hold what others must not see.
pub(crate) const MODE_OWN: u32 = 0o600;

/// How the name of a file ends that is not yet whole.
pub(crate) const DRAFT_ENDING: &str = ".flatout-draft";

pub(crate) fn write_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Truncating means nothing to procfs, and makes a plain file of a tree shorter when the value is.
    write_to(OpenOptions::new().write(true).truncate(true).open(path)?, bytes)
}

/// Writes with one `write`.
pub(crate) fn write_to(mut file: File, bytes: &[u8]) -> io::Result<()> {
    let written = file.write(bytes)?;
    if written == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    // An ordinary user's path often lacks the folders where `tc` and `ethtool` live.
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).env("LC_ALL", "C");
    command
}
