//! Servers that are not ours, which tests run beside flatout. Each is ended by its id. Where one is not installed, the test is
//! left out and says so.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{Folder, until};

/// A server of somebody else on a port of its own.
pub struct Peer {
    child: Child,
    /// The port of 127.0.0.1 that it listens on.
    pub port: u16,
}

impl Peer {
    /// Starts `command` and waits until `port` is open.
    pub fn start(mut command: Command, port: u16) -> Peer {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("an installed program starts");
        let peer = Peer { child, port };
        until("the server listens", || TcpStream::connect(peer.address()).is_ok());
        peer
    }

    /// An nginx with this `http` block, in which `PORT` and `FOLDER` stand for its port and the folder's path. `None` where there
    /// is no nginx.
    pub fn nginx(folder: &Folder, http: &str) -> Option<Peer> {
        let nginx = installed("nginx", &["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"])?;
        let port = free_port();
        let path = folder.0.display().to_string();
        let http = http.replace("PORT", &port.to_string()).replace("FOLDER", &path);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {path}/{name};\n"))
            .collect();
        // As root its workers would be nobody, who may not read the test's folder.
        let user = if geteuid().is_root() { "user root;" } else { "" };
        folder.write(
            "nginx.conf",
            format!("{user} daemon off; pid {path}/pid; error_log {path}/error.log; events {{}}\nhttp {{\n{temporary}{http}\n}}\n"),
        );
        let mut command = Command::new(nginx);
        command.args(["-p", &path, "-c", &format!("{path}/nginx.conf"), "-e", &format!("{path}/error.log")]);
        Some(Peer::start(command, port))
    }

    /// An HAProxy with this configuration, whose first listener is `port`. `None` where there is no HAProxy.
    pub fn haproxy(folder: &Folder, config: &str, port: u16) -> Option<Peer> {
        let haproxy = installed("haproxy", &["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"])?;
        folder.write("haproxy.cfg", config);
        let mut command = Command::new(haproxy);
        command.arg("-f").arg(folder.0.join("haproxy.cfg")).arg("-db");
        Some(Peer::start(command, port))
    }

    /// A gunicorn with this WSGI module, whose application is `app`. `None` where there is no gunicorn.
    pub fn gunicorn(folder: &Folder, module: &str) -> Option<Peer> {
        installed("gunicorn", &["/usr/lib/python3/dist-packages/gunicorn"])?;
        folder.write("module.py", module);
        let port = free_port();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-m", "gunicorn.app.wsgiapp", "module:app", "--bind", &format!("127.0.0.1:{port}")]);
        command
            .args(["--worker-class", "gthread", "--threads", "4", "--keep-alive", "60", "--chdir"])
            .arg(&folder.0);
        Some(Peer::start(command, port))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SIGTERM ends its workers too.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// A port of 127.0.0.1 that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

#[expect(clippy::print_stderr, reason = "said past what the test harness keeps to itself")]
fn installed<'a>(name: &str, paths: &[&'a str]) -> Option<&'a Path> {
    let found = paths.iter().copied().map(Path::new).find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: there is no {name} here; ./x test installs it");
    }
    found
}
