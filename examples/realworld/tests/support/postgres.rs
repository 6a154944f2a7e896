//! A PostgreSQL server for tests, with its own folder and socket; stopped and removed on drop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A wait that only a broken server makes a test go through.
const TIME_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Postgres {
    folder: PathBuf,
    binaries: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Postgres {
    /// # Panics
    /// It is not installed. A test that was left out would pass.
    pub(crate) fn new() -> Postgres {
        let binaries = binaries().expect("PostgreSQL is missing; `./x test` installs it");
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("realworld-{}-{number}", std::process::id()));
        // Left by an earlier process with the same id that was killed.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        if is_root() {
            assert!(run(Command::new("chown").arg("postgres").arg(&folder)));
        }
        let port = free_port();
        let postgres = Postgres { folder, binaries, port, child: None };
        let data = postgres.folder.join("data");
        let mut init = postgres.command("initdb");
        assert!(run(init.args(["-A", "trust", "-U", "conduit", "-E", "UTF8", "-N", "-D"]).arg(data)));
        postgres
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://conduit@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn start(&mut self) {
        let data = self.folder.join("data");
        let mut command = self.command("postgres");
        command.arg("-D").arg(data).args(["-c", "fsync=off", "-c", "max_connections=30", "-h", "127.0.0.1"]);
        command.arg("-k").arg(&self.folder).args(["-p", &self.port.to_string()]);
        let log = std::fs::File::create(self.folder.with_extension("log")).unwrap();
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        let began = Instant::now();
        while !run(self.command("pg_isready").args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])) {
            assert!(began.elapsed() < TIME_MAX, "PostgreSQL does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it at once, as a machine that dies: all connections break.
    pub(crate) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let data = self.folder.join("data");
        run(self.command("pg_ctl").args(["stop", "-m", "immediate", "-D"]).arg(data));
        child.wait().unwrap();
    }

    /// The result of a query, as text.
    pub(crate) fn ask(&self, sql: &str) -> String {
        let port = self.port.to_string();
        let mut command = self.command("psql");
        command.args(["-h", "127.0.0.1", "-U", "conduit", "-p", &port, "-At", "-c", sql, "postgres"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// PostgreSQL does not run as root.
    fn command(&self, name: &str) -> Command {
        let path = self.binaries.join(name);
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
                command
            }
            false => Command::new(path),
        };
        command.current_dir("/");
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = std::fs::remove_file(self.folder.with_extension("log"));
    }
}

fn run(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Of the newest version that Debian has installed.
fn binaries() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|folder: &PathBuf| Path::new(folder).join("initdb").exists());
    found.sort();
    found.pop()
}
