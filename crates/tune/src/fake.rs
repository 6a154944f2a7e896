//! A machine for tests: a folder of files, a table of commands' answers and one of netlink's, which can die at any operation.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::host::Host;
use crate::netlink::{self, Protocol};
use crate::system::{RunError, System, Tree};

/// A folder that goes away with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // In memory where there is such a folder: every change is synced, and there are thousands.
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

/// Answers to command lines, and whatever else a machine's kernel remembers.
pub(crate) type Answers = BTreeMap<String, String>;

/// Netlink answers to requests: the datagrams.
pub(crate) type Datagrams = BTreeMap<(Protocol, Vec<u8>), Vec<Vec<u8>>>;

/// What the kernel of a machine answers to a request that is in no table; it may change what is known.
type Kernel = fn(&mut Answers, Protocol, &[u8]) -> Option<Vec<u8>>;

/// A machine for tests.
pub(crate) struct Fake {
    pub(crate) folder: Folder,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    answers: Answers,
    datagrams: Datagrams,
    kernel: Option<Kernel>,
    /// Operations that are still done; then every one fails, as after a kill.
    left: Option<u32>,
}

struct FakeSystem(Arc<Mutex<State>>);

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
    /// netlink protocol and a request in hexadecimal digits, then a comment; below it what it holds, answers, or points to,
    /// of netlink a line of digits for each datagram. What stands before the first is a comment.
    pub(crate) fn recorded(text: &str) -> Fake {
        let fake = Fake::new();
        for entry in text.split("=== ").skip(1) {
            let (name, content) = entry.split_once('\n').unwrap();
            match name.split_once(' ') {
                Some(("$", line)) => fake.answer(line, content),
                Some(("@", path)) => fake.link(path, content.trim_end()),
                Some(("~", request)) => fake.datagrams(request, content),
                _ => fake.file(name, content),
            }
        }
        fake
    }

    pub(crate) fn host(&self) -> Host {
        Host::with(Box::new(FakeSystem(self.state.clone())), &self.folder.0)
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        let place = self.folder.0.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, text).unwrap();
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
        let datagrams = content.lines().map(unhex).collect();
        self.state.lock().unwrap().datagrams.insert((protocol, request), datagrams);
    }

    /// The netlink answers that it has.
    pub(crate) fn told(&self) -> Datagrams {
        self.state.lock().unwrap().datagrams.clone()
    }

    /// Has it answer something else.
    pub(crate) fn tell(&self, protocol: Protocol, request: &[u8], datagrams: &[Vec<u8>]) {
        self.state.lock().unwrap().datagrams.insert((protocol, request.to_vec()), datagrams.to_vec());
    }

    pub(crate) fn kernel(&self, kernel: Kernel) {
        self.state.lock().unwrap().kernel = Some(kernel);
    }

    /// Lets it do so many changing operations and then none.
    pub(crate) fn die_after(&self, operations: Option<u32>) {
        self.state.lock().unwrap().left = operations;
    }

    /// All files and all answers.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(&self.folder.0, &mut found);
        let state = self.state.lock().unwrap();
        found.extend(state.answers.iter().map(|(line, text)| (line.clone(), text.clone().into_bytes())));
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
    /// Counts an operation; an error when the machine has died.
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
        Tree.read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        Tree.list(path)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        Tree.link(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        Tree.write(path, bytes)
    }

    /// A kill in the middle leaves half of the file.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.step() {
            Ok(()) => Tree.create(path, bytes),
            Err(error) => {
                Tree.create(path, &bytes[..bytes.len() / 2])?;
                Err(error)
            }
        }
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        Tree.create_folder(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        Tree.sync(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        Tree.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        Tree.remove(path)
    }

    fn run(&self, program: &str, arguments: &[&str], _: &str) -> Result<String, RunError> {
        let line = format!("{program} {}", arguments.join(" "));
        self.0.lock().unwrap().answers.get(&line).cloned().ok_or(RunError::Missing)
    }

    fn ask(&self, protocol: Protocol, request: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
        let known = self.0.lock().unwrap().datagrams.get(&(protocol, request.to_vec())).cloned();
        if let Some(datagrams) = known {
            let _ = datagrams.iter().any(|datagram| take(datagram));
            return Ok(());
        }
        let flags = u16::from_ne_bytes(request[6..8].try_into().unwrap());
        if flags & netlink::ACK != 0 {
            self.step()?;
        }
        let mut state = self.0.lock().unwrap();
        let State { answers, kernel, .. } = &mut *state;
        match kernel.and_then(|kernel| kernel(answers, protocol, request)) {
            Some(datagram) => {
                take(&datagram);
                Ok(())
            }
            // As a kernel that was built without it.
            None => Err(rustix::io::Errno::PROTONOSUPPORT.into()),
        }
    }
}
