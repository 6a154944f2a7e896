//! The only access to the machine: files below a root, commands, and netlink. Results are text, numbers, lists or
//! messages, or `Unknown` with the reason.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use crate::error::Unknown;
use crate::netlink::{Answer, Fault, Message, Protocol, Request};
use crate::system::{Kernel, MODE_OPEN, READ_BYTES_MAX, RunError, System, replace};
use crate::tree::Tree;

/// A machine: the current one, a recorded one, or a test's.
pub struct Host {
    system: Box<dyn System>,
    root: PathBuf,
}

impl Host {
    /// The current machine.
    pub fn live() -> Host {
        Host::with(Box::new(Kernel), "/")
    }

    /// The machine whose files are below `root`. Commands are only run if that is `/`.
    pub fn at(root: &Path) -> Host {
        match root == Path::new("/") {
            true => Host::live(),
            false => Host::with(Box::new(Tree::at(root)), root),
        }
    }

    /// A machine with the caller's system.
    pub fn with(system: Box<dyn System>, root: impl Into<PathBuf>) -> Host {
        Host { system, root: root.into() }
    }

    /// The journal's default path: on disk, because it must survive a crash; for users other than root, where they
    /// may write; and never inside a tree of files, which belongs to another machine.
    pub fn state_default(&self) -> PathBuf {
        let home = |name: &str, below: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(|value| PathBuf::from(value).join(below))
        };
        let own = match rustix::process::geteuid().is_root() {
            true => None,
            false => home("XDG_STATE_HOME", "flatout").or_else(|| home("HOME", ".local/state/flatout")),
        };
        let folder = own.unwrap_or_else(|| PathBuf::from(STATE_FOLDER));
        match self.root == Path::new("/") {
            true => folder.join(STATE_NAME),
            false => {
                let root = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
                folder.join("images").join(root.display().to_string().trim_matches('/').replace('/', "-"))
            }
        }
    }

    /// Whether a path on our own disk is inside the tree of this machine.
    pub fn holds(&self, path: &Path) -> bool {
        let real = |path: &Path| {
            let found = path.ancestors().find_map(|part| Some((part, std::fs::canonicalize(part).ok()?)));
            found.map_or_else(
                || path.to_owned(),
                |(part, real)| path.strip_prefix(part).map_or(real.clone(), |rest| real.join(rest)),
            )
        };
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.root != Path::new("/") && real(&absolute(path)).starts_with(real(&absolute(&self.root)))
    }

    /// The path on our own disk of a path on the machine.
    pub fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The primitive operations.
    pub(crate) fn system(&self) -> &dyn System {
        &*self.system
    }

    /// A file's bytes; `None` if there is no file.
    pub(crate) fn bytes(&self, path: &str) -> Result<Option<Vec<u8>>, Unknown> {
        match self.system.read(&self.place(path)) {
            Ok(bytes) if bytes.len() as u64 >= READ_BYTES_MAX => {
                Err(Unknown(format!("{path} is larger than {READ_BYTES_MAX} bytes")))
            }
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(Unknown::at(path, &error)),
        }
    }

    /// When a file was last written.
    pub(crate) fn modified(&self, path: &str) -> Result<SystemTime, Unknown> {
        self.system.modified(&self.place(path)).map_err(|error| Unknown::at(path, &error))
    }

    /// A file's text without the white space at its end.
    pub(crate) fn text(&self, path: &str) -> Result<String, Unknown> {
        let bytes = self.system.read(&self.place(path)).map_err(|error| Unknown::at(path, &error))?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// The records of the kernel's log.
    pub(crate) fn log(&self) -> Result<String, Unknown> {
        let bytes =
            self.system.log(&self.place(KERNEL_LOG)).map_err(|error| Unknown::at(KERNEL_LOG, &error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file that holds one number.
    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Result<T, Unknown> {
        let text = self.text(path)?;
        text.parse().map_err(|_| Unknown(format!("{path} holds `{text}`, which is not a number")))
    }

    /// The names in a folder, sorted.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, Unknown> {
        self.system.list(&self.place(path)).map_err(|error| Unknown::at(path, &error))
    }

    /// Whether a path exists and may be read.
    pub(crate) fn has(&self, path: &str) -> bool {
        let place = self.place(path);
        self.system.read(&place).is_ok() || self.system.list(&place).is_ok()
    }

    /// The target of a symbolic link.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = self.system.link(&self.place(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// The output of a command.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Unknown> {
        self.system
            .run(program, arguments, "")
            .map_err(|error| Unknown(run_message(program, arguments, error)))
    }

    /// Whether a command says yes (status 0) or no (status 1); any other status is an error.
    pub(crate) fn agrees(&self, program: &str, arguments: &[&str]) -> Result<bool, Unknown> {
        match self.system.run(program, arguments, "") {
            Ok(_) => Ok(true),
            Err(RunError::Failed(Some(1), _)) => Ok(false),
            Err(error) => Err(Unknown(run_message(program, arguments, error))),
        }
    }

    /// What to install for a missing program.
    pub(crate) fn lacks(&self, program: &str) -> Option<String> {
        match self.system.run(program, &["--version"], "") {
            Err(RunError::Missing) => Some(missing_message(program)),
            _ => None,
        }
    }

    /// Runs a command that changes something.
    pub(crate) fn act(&self, program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
        let answer = self.system.run(program, arguments, input);
        answer.map(drop).map_err(|error| run_message(program, arguments, error))
    }

    /// The kernel's reply over netlink. A list that changed during the read is read again.
    pub(crate) fn ask(&self, protocol: Protocol, request: &Request) -> Result<Vec<Message>, Fault> {
        for _ in 0..ASK_ATTEMPTS_MAX {
            let mut answer = Answer::to(request);
            let talk = self.system.ask(protocol, request.bytes(), &mut |datagram| answer.take(datagram));
            talk.map_err(|error| Fault::of(&error))?;
            match answer.whole() {
                Err(Fault::Interrupted) => {}
                whole => return whole,
            }
        }
        Err(Fault::Interrupted)
    }

    /// Writes a file: the kernel's in place, those on disk atomically.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let place = self.place(path);
        let written = match is_kernel_file(path) {
            true => self.system.write(&place, bytes),
            false => replace(&*self.system, &place, bytes, MODE_OPEN),
        };
        written.map_err(|error| write_message(path, &error))
    }

    /// Removes a file; it may not exist.
    pub(crate) fn remove(&self, path: &str) -> Result<(), String> {
        match self.system.remove(&self.place(path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(write_message(path, &error)),
            _ => Ok(()),
        }
    }

    /// The kernel's version as numbers, such as (6, 18).
    pub(crate) fn kernel(&self) -> Result<(u32, u32), Unknown> {
        let release = self.text("/proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(['.', '-']).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => Err(Unknown(format!("cannot parse the kernel version `{release}`"))),
        }
    }
}

/// The kernel's log, record by record.
const KERNEL_LOG: &str = "/dev/kmsg";

/// The folder of the journal and other persistent data.
const STATE_FOLDER: &str = "/var/lib/flatout";
const STATE_NAME: &str = "journal";

/// How often to read a list that keeps changing.
const ASK_ATTEMPTS_MAX: usize = 5;

/// The owners of sockets are found through the same interface.
impl flatout_owner::Proc for Host {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.system.read(&self.place(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.system.list(&self.place(path))
    }

    fn link(&self, path: &str) -> io::Result<String> {
        Ok(self.system.link(&self.place(path))?.to_string_lossy().into_owned())
    }
}

/// Whether a path is an interface of the kernel rather than a file on a disk.
pub(crate) fn is_kernel_file(path: &str) -> bool {
    path.starts_with("/proc/") || path.starts_with("/sys/")
}

fn run_message(program: &str, arguments: &[&str], error: RunError) -> String {
    let line = || format!("`{program} {}`", arguments.join(" "));
    match error {
        RunError::Missing => missing_message(program),
        RunError::OnlyFiles => format!("{} is not run with --root", line()),
        RunError::Broken(error) => format!("{}: {error}", line()),
        RunError::Failed(_, said) if said.contains("ermission denied") || said.contains("not permitted") => {
            format!("{} is not allowed: run as root, outside a container", line())
        }
        RunError::Failed(code, said) => {
            let said = said.lines().next().unwrap_or_default();
            format!(
                "{} ended with {}: {said}",
                line(),
                code.map_or("a signal".to_owned(), |code| code.to_string())
            )
        }
    }
}

/// What to install, by Debian's names.
fn missing_message(program: &str) -> String {
    let package = match program {
        "auditctl" => "auditd",
        "ip6tables" => "iptables",
        "nft" => "nftables",
        "systemctl" => "systemd",
        "ip" | "tc" => "iproute2",
        program => program,
    };
    format!("`{program}` is not installed: install the package {package}")
}

fn write_message(path: &str, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("no permission to write {path}: run as root, outside a container")
        }
        ErrorKind::ReadOnlyFilesystem => {
            format!("{path} is read-only here, as in a container: run on the host")
        }
        _ => format!("{path}: {error}"),
    }
}
