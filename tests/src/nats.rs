//! The bus between servers, by others: a nats-server that can be ended, stopped and started again at the same port.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::peers::free_port;
use crate::{Folder, until};

/// Where Debian has it.
const PROGRAM: &str = "/usr/sbin/nats-server";

/// A NATS server, ended when it is dropped.
pub struct Nats {
    folder: Folder,
    host: String,
    child: Option<Child>,
    /// Its port.
    pub port: u16,
}

impl Nats {
    /// Starts one for everybody.
    pub fn start() -> Nats {
        Nats::with("")
    }

    /// Starts one with more in its configuration.
    pub fn with(config: &str) -> Nats {
        Nats::at("127.0.0.1", config)
    }

    /// Starts one that can keep messages (JetStream), also while it is ended.
    pub fn keeping() -> Nats {
        Nats::with("jetstream { store_dir: \"FOLDER/kept\" }")
    }

    /// The same at an address of this machine.
    pub fn at(host: &str, config: &str) -> Nats {
        assert!(Path::new(PROGRAM).exists(), "nats-server is missing; `./x test` installs it");
        let (folder, port) = (Folder::new(), free_port());
        let config = config.replace("FOLDER", &folder.0.display().to_string());
        folder.write("nats.conf", format!("listen: \"{host}:{port}\"\n{config}\n"));
        let mut nats = Nats { folder, host: host.to_owned(), child: None, port };
        nats.restart();
        nats
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("nats://{}:{}", self.host, self.port)
    }

    /// Begins again, at the same port.
    pub fn restart(&mut self) {
        self.end();
        let mut command = Command::new(PROGRAM);
        command.arg("-c").arg(self.folder.0.join("nats.conf")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("nats-server starts"));
        let (host, port) = (self.host.clone(), self.port);
        until("nats-server listens", || std::net::TcpStream::connect((host.as_str(), port)).is_ok());
    }

    /// Ends it.
    pub fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        kill_process(pid.expect("it runs"), signal).expect("it is there");
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.end();
    }
}
