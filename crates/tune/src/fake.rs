//! A machine for tests: a folder of files, tables of recorded command output and netlink replies, and the ability to
//! die at any operation.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::host::Host;
use crate::netlink::fake::Datagrams;
use crate::netlink::{self, Protocol};
use crate::system::{RunError, System};
use crate::tree::Tree;

/// A folder that is removed with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // In memory if possible: every change is synced, and there are thousands.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = folder.join(format!("flatout-tune-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Output of command lines.
pub(crate) type Answers = BTreeMap<String, String>;

/// The effect of a command line on the output table and the machine's files, given the line and its input.
type Handler = fn(&mut Answers, &Path, &str, &str) -> Result<(), RunError>;

/// A machine for tests.
pub(crate) struct Fake {
    pub(crate) folder: Folder,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    answers: Answers,
    datagrams: Datagrams,
    handler: Option<Handler>,
    /// Files that were read and commands that were run.
    asked: BTreeSet<String>,
    asked_by_netlink: BTreeSet<(Protocol, Vec<u8>)>,
    /// Files in which a written number is rounded up to a multiple.
    rounded: BTreeMap<PathBuf, u64>,
    /// What the driver resets with its rings: files and their values then.
    reset_with_rings: Vec<(PathBuf, String)>,
    /// Remaining operations; after these every one fails, as after a kill.
    left: Option<u32>,
}

struct FakeSystem(Arc<Mutex<State>>, PathBuf, Tree);

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake { folder: Folder::new(), state: Arc::default() }
    }

    /// A machine with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Fake {
        let fake = Fake::new();
        files.iter().for_each(|(path, text)| fake.file(path, text));
        fake
    }

    /// A machine from a text: after `=== ` a path, `$ ` and a command line, `@ ` and the path of a link, or `~ `, the
    /// netlink protocol and a request in hexadecimal, then a comment; below it the content, output, target, or for
    /// netlink a line of hexadecimal per datagram. Text before the first entry is a comment.
    pub(crate) fn recorded(text: &str) -> Fake {
        let fake = Fake::new();
        for entry in text.split("=== ").skip(1) {
            let (name, content) = entry.split_once('\n').unwrap();
            fake.plant(name, content);
        }
        fake
    }

    /// One entry of such a text.
    pub(crate) fn plant(&self, name: &str, content: &str) {
        match name.split_once(' ') {
            Some(("$", line)) => self.answer(line, content),
            Some(("@", path)) => self.link(path, content.trim_end()),
            Some(("~", request)) => self.datagrams(request, content),
            _ => self.file(name, content),
        }
    }

    pub(crate) fn host(&self) -> Host {
        Host::with(
            Box::new(FakeSystem(self.state.clone(), self.folder.0.clone(), Tree::at(&self.folder.0))),
            &self.folder.0,
        )
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let place = self.folder.0.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, content).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let place = self.folder.0.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&place);
        std::os::unix::fs::symlink(target, place).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder.0.join(path.trim_start_matches('/'))).unwrap()
    }

    pub(crate) fn answer(&self, line: &str, text: &str) {
        self.state.lock().unwrap().answers.insert(line.to_owned(), text.to_owned());
    }

    fn datagrams(&self, request: &str, content: &str) {
        let mut words = request.split(' ');
        let protocol = match words.next() {
            Some("route") => Protocol::Route,
            Some("audit") => Protocol::Audit,
            Some("netfilter") => Protocol::Netfilter,
            Some("generic") => Protocol::Generic,
            other => panic!("no netlink protocol: {other:?}"),
        };
        let request = unhex(words.next().unwrap());
        let datagrams = content.lines().filter(|line| !line.is_empty()).map(unhex).collect();
        self.state.lock().unwrap().datagrams.insert((protocol, request), datagrams);
    }

    /// Its netlink replies.
    pub(crate) fn replies(&self) -> Datagrams {
        self.state.lock().unwrap().datagrams.clone()
    }

    /// Changes a netlink reply.
    pub(crate) fn set_reply(&self, protocol: Protocol, request: &[u8], datagrams: &[Vec<u8>]) {
        self.state.lock().unwrap().datagrams.insert((protocol, request.to_vec()), datagrams.to_vec());
    }

    /// Replaces all netlink replies.
    pub(crate) fn tell_all(&self, told: Datagrams) {
        self.state.lock().unwrap().datagrams.extend(told);
    }

    pub(crate) fn handle(&self, handler: Handler) {
        self.state.lock().unwrap().handler = Some(handler);
    }

    /// Makes the kernel round a written number up to a multiple of this.
    pub(crate) fn round(&self, path: &str, multiple: u64) {
        let place = self.folder.0.join(path.trim_start_matches('/'));
        self.state.lock().unwrap().rounded.insert(place, multiple);
    }

    /// Makes the driver reset its receive table and these files whenever its rings are set.
    pub(crate) fn reset_with_rings(&self, files: &[(&str, &str)]) {
        let place = |path: &str| self.folder.0.join(path.trim_start_matches('/'));
        let files = files.iter().map(|(path, value)| (place(path), (*value).to_owned()));
        self.state.lock().unwrap().reset_with_rings = files.collect();
    }

    /// Allows this many changing operations; after these all fail.
    pub(crate) fn die_after(&self, operations: Option<u32>) {
        self.state.lock().unwrap().left = operations;
    }

    /// Files that were read and commands that were run since the last call.
    pub(crate) fn take_asked(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// The same for netlink requests.
    pub(crate) fn take_asked_by_netlink(&self) -> BTreeSet<(Protocol, Vec<u8>)> {
        std::mem::take(&mut self.state.lock().unwrap().asked_by_netlink)
    }

    /// All files and all replies.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(&self.folder.0, &mut found);
        let state = self.state.lock().unwrap();
        found.extend(state.answers.iter().map(|(line, text)| (line.clone(), text.clone().into_bytes())));
        found.extend(state.datagrams.iter().map(|(asked, told)| (format!("{asked:?}"), told.concat())));
        found
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn collect(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => collect(&path, found),
            false => {
                found.insert(path.display().to_string(), std::fs::read(&path).unwrap_or_default());
            }
        }
    }
}

impl FakeSystem {
    /// Counts an operation; fails if the machine has died.
    fn step(&self) -> io::Result<()> {
        match &mut self.0.lock().unwrap().left {
            Some(0) => Err(io::Error::other("killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl System for FakeSystem {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let own = path.strip_prefix(&self.1).unwrap_or(path);
        self.0.lock().unwrap().asked.insert(format!("/{}", own.display()));
        self.2.read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.2.list(path)
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.2.modified(path)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        self.2.link(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        let multiple = self.0.lock().unwrap().rounded.get(path).copied();
        let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<u64>().ok());
        match multiple.zip(number) {
            // A rounded value is accepted unchanged.
            Some((multiple, number)) if number > 100 => {
                self.2.write(path, (number.div_ceil(multiple) * multiple).to_string().as_bytes())
            }
            _ => self.2.write(path, bytes),
        }
    }

    /// A kill in the middle leaves half of the file.
    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        match self.step() {
            Ok(()) => self.2.create(path, bytes, mode),
            Err(error) => {
                self.2.create(path, &bytes[..bytes.len() / 2], mode)?;
                Err(error)
            }
        }
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.2.create_folder(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.2.sync(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.2.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.2.remove(path)
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, RunError> {
        let line = format!("{program} {}", arguments.join(" "));
        let handler = {
            let mut state = self.0.lock().unwrap();
            state.asked.insert(format!("$ {line}"));
            if let Some(answer) = state.answers.get(&line) {
                return Ok(answer.clone());
            }
            state.handler.ok_or(RunError::Missing)?
        };
        self.step().map_err(RunError::Broken)?;
        handler(&mut self.0.lock().unwrap().answers, &self.1, &line, input).map(|()| String::new())
    }

    fn ask(&self, protocol: Protocol, request: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
        let known = {
            let mut state = self.0.lock().unwrap();
            let asked = (protocol, request.to_vec());
            state.asked_by_netlink.insert(asked.clone());
            state.datagrams.get(&asked).cloned()
        };
        if let Some(datagrams) = known {
            let _ = datagrams.iter().any(|datagram| take(datagram));
            return Ok(());
        }
        let flags = u16::from_ne_bytes(request[6..8].try_into().unwrap());
        if flags & netlink::ACK != 0 {
            self.step()?;
        }
        let mut state = self.0.lock().unwrap();
        let answer = netlink::fake::answer(&mut state.datagrams, protocol, request);
        if protocol == Protocol::Generic && netlink::fake::sets_rings(request) {
            if !state.reset_with_rings.is_empty() {
                netlink::fake::reset_table(&mut state.datagrams);
            }
            for (place, value) in &state.reset_with_rings {
                self.2.write(place, value.as_bytes())?;
            }
        }
        match answer {
            Some(datagram) => {
                take(&datagram);
                Ok(())
            }
            // Like a kernel that was built without it.
            None => Err(rustix::io::Errno::PROTONOSUPPORT.into()),
        }
    }
}
