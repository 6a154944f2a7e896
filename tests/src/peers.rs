//! Other servers that tests run beside flatout. Each is ended by its process id. If one is not installed, the test
//! reports that and is skipped.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{Folder, until};

/// Another server, on its own port.
pub struct Peer {
    child: Child,
    /// Its port on 127.0.0.1.
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

    /// An nginx with this `http` block, in which `PORT` and `FOLDER` stand for its port and the folder's path. `None`
    /// if nginx is not installed.
    pub fn nginx(folder: &Folder, http: &str) -> Option<Peer> {
        let nginx = installed("nginx", &["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"])?;
        let port = free_port();
        let path = folder.0.display().to_string();
        let http = http.replace("PORT", &port.to_string()).replace("FOLDER", &path);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {path}/{name};\n"))
            .collect();
        // As root its workers would run as nobody, who cannot read the test's folder.
        let user = if geteuid().is_root() { "user root;" } else { "" };
        folder.write(
            "nginx.conf",
            format!("{user} daemon off; pid {path}/pid; error_log {path}/error.log; events {{}}\nhttp {{\n{temporary}{http}\n}}\n"),
        );
        let mut command = Command::new(nginx);
        command.args(["-p", &path, "-c", &format!("{path}/nginx.conf"), "-e", &format!("{path}/error.log")]);
        Some(Peer::start(command, port))
    }

    /// An HAProxy with this configuration, whose first listener is `port`. `None` if HAProxy is not installed.
    pub fn haproxy(folder: &Folder, config: &str, port: u16) -> Option<Peer> {
        let haproxy = installed("haproxy", &["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"])?;
        folder.write("haproxy.cfg", config);
        let mut command = Command::new(haproxy);
        command.arg("-f").arg(folder.0.join("haproxy.cfg")).arg("-db");
        Some(Peer::start(command, port))
    }

    /// A gunicorn with this WSGI module, whose application is `app`. `None` if gunicorn is not installed.
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

    /// Its address.
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

/// A free port on 127.0.0.1.
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
