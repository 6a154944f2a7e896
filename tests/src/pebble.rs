//! A third-party ACME CA: pebble, with a DNS server that resolves every name to this machine.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::authority::Authority;
use crate::{Folder, until};

/// A running CA, stopped when it is dropped.
pub struct Pebble {
    /// Signed the certificate of the CA's own server.
    authority: Authority,
    folder: Folder,
    ports: Ports,
    children: Vec<Child>,
}

/// The ports of a CA, and those at which it validates names.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    directory: u16,
    management: u16,
    dns: u16,
    records: u16,
    /// For validation over HTTP.
    pub http: u16,
    /// For validation in TLS handshakes.
    pub tls: u16,
}

impl Ports {
    /// Ports that are free now.
    pub fn free() -> Ports {
        // All bound at once, so that they differ.
        let listeners: Vec<TcpListener> =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().expect("an address").port()).collect();
        let [directory, management, dns, records, http, tls] = ports[..] else { unreachable!("six ports") };
        Ports { directory, management, dns, records, http, tls }
    }
}

fn tool(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin").join(name);
    assert!(built.exists(), "{name} is missing; `./x test` builds it");
    built
}

impl Pebble {
    /// Starts a CA whose certificates are valid for this many seconds.
    pub fn start(ports: Ports, lifetime_s: u32) -> Pebble {
        let pebble = Pebble::prepare(ports, lifetime_s);
        pebble.run()
    }

    /// Everything that [`Pebble::run`] needs, and that clients need too.
    pub fn prepare(ports: Ports, lifetime_s: u32) -> Pebble {
        let (authority, folder) = (Authority::new(), Folder::new());
        authority.sign("pebble", "localhost");
        let config = format!(
            r#"{{"pebble": {{
                "listenAddress": "127.0.0.1:{}", "managementListenAddress": "127.0.0.1:{}",
                "certificate": "{}", "privateKey": "{}", "httpPort": {}, "tlsPort": {},
                "ocspResponderURL": "", "externalAccountBindingRequired": false,
                "retryAfter": {{"authz": 1, "order": 1}}, "keyAlgorithm": "ecdsa",
                "profiles": {{"default": {{"description": "for tests", "validityPeriod": {lifetime_s}}}}}
            }}}}"#,
            ports.directory,
            ports.management,
            authority.path("pebble.pem"),
            authority.path("pebble.key"),
            ports.http,
            ports.tls,
        );
        folder.write("config.json", config);
        Pebble { authority, folder, ports, children: Vec::new() }
    }

    /// Starts the CA, and waits until it responds.
    pub fn run(mut self) -> Pebble {
        let Ports { dns, records, directory, .. } = self.ports;
        let dns = format!("127.0.0.1:{dns}");
        let silent = |command: &mut Command| {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts")
        };
        let names = silent(
            Command::new(tool("pebble-challtestsrv"))
                .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", &dns])
                .args(["-management", &format!("127.0.0.1:{records}")])
                .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]),
        );
        let ca = silent(
            Command::new(tool("pebble"))
                .args([
                    "-config",
                    &self.folder.0.join("config.json").display().to_string(),
                    "-dnsserver",
                    &dns,
                ])
                // Without this it delays validation by some seconds, like a real CA.
                .env("PEBBLE_VA_NOSLEEP", "1")
                // Without this it rejects one in twenty requests, to test retries.
                .env("PEBBLE_WFE_NONCEREJECT", "0")
                .env("PEBBLE_AUTHZREUSE", "0"),
        );
        self.children.extend([names, ca]);
        let answers = || self.get(&format!("https://localhost:{directory}/dir")).is_some();
        until("the CA answers", answers);
        until("the DNS server answers", || TcpStream::connect(("127.0.0.1", records)).is_ok());
        self
    }

    /// Flags for a server that gets its certificates from this Pebble.
    pub fn flags(&self, state: &Path) -> Vec<String> {
        let directory = format!("https://localhost:{}/dir", self.ports.directory);
        let flags = ["--acme-directory", &directory, "--acme-ca", &self.authority.path("ca.pem"), "--state"];
        flags.iter().map(ToString::to_string).chain([state.display().to_string()]).collect()
    }

    /// A program that sets DNS records in this Pebble.
    pub fn hook(&self) -> PathBuf {
        let records = format!("http://127.0.0.1:{}", self.ports.records);
        let text = format!(
            "#!/bin/sh\necho \"$1 $2\" >> {log}\ncurl -s -d \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" {records}/$1-txt\n",
            log = self.folder.0.join("hook.log").display(),
        );
        self.folder.write("hook", text);
        let path = self.folder.0.join("hook");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        path
    }

    /// The commands that the program was called with.
    pub fn hooked(&self) -> String {
        fs::read_to_string(self.folder.0.join("hook.log")).unwrap_or_default()
    }

    /// Requests a server that has a certificate by this CA, with curl over TLS.
    pub fn curl(&self, name: &str, port: u16, target: &str) -> Result<String, i32> {
        let root =
            self.get(&format!("https://localhost:{}/roots/0", self.ports.management)).expect("the root");
        let client = Folder::new();
        client.write("ca.pem", root);
        Authority(client).curl(name, port, target, &[])
    }

    fn get(&self, url: &str) -> Option<String> {
        let output = Command::new("curl")
            .args(["--silent", "--fail", "--max-time", "30", "--cacert", &self.authority.path("ca.pem"), url])
            .output()
            .expect("curl");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
