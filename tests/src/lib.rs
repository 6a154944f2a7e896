//! Helpers of the black-box tests: a real server process, and a raw client.

pub mod api_server;
pub mod authority;
pub mod browser;
pub mod cached;
pub mod faulty_volume;
pub mod guide;
pub mod nats;
pub mod pebble;
pub mod peers;
pub mod terminal;
pub mod upgrading;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// The timeout of everything in a test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server process, killed when it is dropped.
pub struct Server {
    child: Child,
    /// The first TCP address in its start message.
    pub address: SocketAddr,
    /// Its TLS port, if any.
    pub secure_port: Option<u16>,
    said: Arc<Mutex<Vec<String>>>,
}

/// One HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and field lines.
    pub head: String,
    /// The decoded body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of the first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The path of a program of this workspace, built if it does not exist.
pub fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let mut folder = std::env::current_exe().expect("the test's own path");
    while folder.file_name().is_some_and(|name| name != "debug" && name != "release") {
        folder.pop();
    }
    BUILT.get_or_init(|| {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        // What `./x test` has built: for another selection of packages, dependencies with other features would be built again.
        build.args(["build", "--quiet", "--workspace", "--all-features", "--bins", "--examples"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the programs under test build");
    });
    folder.join(name)
}

impl Server {
    /// `flatout serve FOLDER` with more flags, on its own port.
    pub fn site(folder: &Path, flags: &[&str]) -> Server {
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg(folder).args(["--listen", "127.0.0.1:0"]).args(flags);
        Server::start(command)
    }

    /// The JSON API of `examples/hello-json`.
    pub fn json() -> Server {
        let mut command = Command::new(program("hello-json"));
        command.args(["--listen", "127.0.0.1:0", "--workers", "1"]);
        Server::start(command)
    }

    /// Starts a server and waits for the message with its addresses.
    pub fn start(mut command: Command) -> Server {
        let mut child =
            command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the server starts");
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut first = String::new();
        // It may print messages about its files before.
        while !first.contains("listening on ") {
            first.clear();
            let read = stderr.read_line(&mut first).expect("a line");
            assert!(read > 0, "it ended: {:?}", said.lock().unwrap());
            said.lock().unwrap().push(first.trim_end().to_owned());
        }
        said.lock().unwrap().pop();
        let keep = said.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                keep.lock().unwrap().push(line);
            }
        });
        let words = || first.split_whitespace().map(|word| word.trim_end_matches(['"', '}']));
        let address = words().find_map(|word| word.strip_prefix("http://")?.parse().ok());
        let secure = words().find_map(|word| word.strip_prefix("https://")?.parse().ok());
        let address = address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        Server { child, address, secure_port: secure.map(|address: SocketAddr| address.port()), said }
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its stderr so far, except the line with its addresses.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// A connection to it.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    /// Sends bytes and returns all responses until the server closes.
    ///
    /// # Panics
    /// It does not close, it resets the connection, or its response is not HTTP.
    pub fn exchange(&self, bytes: impl AsRef<[u8]>) -> Vec<Answer> {
        let mut stream = self.connect();
        // It may refuse the start and close before it has read the end.
        let _ = stream.write_all(bytes.as_ref());
        answers(&read_to_close(&mut stream), false)
    }

    /// The only response to a GET.
    pub fn get(&self, target: &str, fields: &str) -> Answer {
        self.one(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}Connection: close\r\n\r\n"))
    }

    /// The only response to a request that ends its connection.
    pub fn one(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        let _ = stream.write_all(request.as_bytes());
        let mut found = answers(&read_to_close(&mut stream), request.starts_with("HEAD"));
        assert_eq!(found.len(), 1, "{request}");
        found.remove(0)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process's id");
        kill_process(pid, signal).expect("the server is there");
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads until the server closes its side.
///
/// # Panics
/// A reset or a timeout.
pub fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            panic!("still open after {:?}", String::from_utf8_lossy(&bytes))
        }
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
    }
}

/// Parses a stream of responses; interim responses are skipped.
///
/// # Panics
/// It is not a stream of complete HTTP responses.
pub fn answers(bytes: &[u8], to_head: bool) -> Vec<Answer> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = find(rest, b"\r\n\r\n")
            .unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(rest)));
        let head = String::from_utf8(rest[..end + 2].to_vec()).expect("a head in ASCII");
        rest = &rest[end + 4..];
        let status: u16 = head[9..12].parse().expect("a status code");
        if (100..200).contains(&status) && status != 101 {
            continue;
        }
        let mut answer = Answer { status, head, body: Vec::new() };
        let bodyless = to_head || matches!(status, 204 | 304);
        if answer.field("transfer-encoding") == Some("chunked") {
            (answer.body, rest) = chunked(rest);
        } else if let Some(length) = answer.field("content-length").filter(|_| !bodyless) {
            let length: usize = length.parse().expect("a length");
            answer.body = rest[..length].to_vec();
            rest = &rest[length..];
        } else if !bodyless {
            answer.body = std::mem::take(&mut rest).to_vec();
        }
        found.push(answer);
    }
    found
}

fn chunked(mut rest: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut body = Vec::new();
    loop {
        let end = find(rest, b"\r\n").expect("a chunk size");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).expect("ASCII"), 16).expect("hex");
        rest = &rest[end + 2..];
        if size == 0 {
            let end =
                if rest.starts_with(b"\r\n") { 0 } else { find(rest, b"\r\n\r\n").expect("trailers") + 2 };
            return (body, &rest[end + 2..]);
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// A folder that is removed with its test.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder.
    pub fn new() -> Folder {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("flatout-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// Writes a file in it, atomically: under another name first.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        let draft = self.0.join(".draft");
        std::fs::write(&draft, content).expect("a file");
        std::fs::rename(draft, path).expect("its name");
    }
}

impl Default for Folder {
    fn default() -> Self {
        Folder::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Polls until it is so.
///
/// # Panics
/// It does not become so in time.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The value of a metric at the admin listener with this Unix socket; `name` with its labels. `None` if there is none yet.
///
/// # Panics
/// If the listener does not respond, or with something else.
pub fn metric(admin: &Path, name: &str) -> Option<u64> {
    let output = Command::new("curl")
        .args(["--silent", "--unix-socket", &admin.display().to_string(), "http://a/metrics"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().parse().unwrap())
}
