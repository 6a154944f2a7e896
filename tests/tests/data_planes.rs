//! `flatout controller --plans` and `flatout data-plane`: plans that travel, are kept, acknowledged and refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flatout_tests::api_server::ApiServer;
use flatout_tests::authority::{Authority, self_sign};
use flatout_tests::peers::free_port;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Answer, Folder, Server, metric, program, until};
use serde_json::{Value, json};

use super::upgrade_tunnels::{HANDSHAKE, echo, echoed, head};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Objects, a controller, and what data planes need.
struct Fleet {
    objects: Folder,
    /// Certificate, token, and the folders of all processes.
    state: Folder,
    /// The port of the gateway; each data plane has an address of its own.
    port: u16,
    plans: u16,
}

impl Fleet {
    fn new() -> Fleet {
        let (objects, state) = (Folder::new(), Folder::new());
        self_sign(&state);
        state.write("token", TOKEN);
        let fleet = Fleet { objects, state, port: free_port(), plans: free_port() };
        fleet.gateway("");
        fleet
    }

    fn gateway(&self, listeners: &str) {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: flatout}}\n\
             spec: {{controllerName: flatout.dev/controller}}\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
             metadata: {{name: gw}}\nspec:\n  gatewayClassName: flatout\n  listeners:\n  - {{name: http, port: {}, protocol: \
             HTTP}}\n{listeners}",
            self.port
        );
        self.objects.write("gateway.yaml", text);
    }

    /// A route to the path, and a service with these endpoints.
    fn route(&self, path: &str, ports: &[u16]) {
        let slices: String = ports
            .iter()
            .map(|port| {
                format!(
                    "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: app-{port}, labels: \
                     {{kubernetes.io/service-name: app}}}}\naddressType: IPv4\nports: [{{name: '', port: {port}}}]\n\
                     endpoints: [{{addresses: [127.0.0.1]}}]\n"
                )
            })
            .collect();
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r}}\nspec:\n  parentRefs: [{{name: \
             gw}}]\n  rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: app, port: 80}}]}}]\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {{name: app}}\nspec: {{ports: [{{port: 80}}]}}\n{slices}"
        );
        self.objects.write("objects.yaml", text);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.state.0.join(name)
    }

    /// The flags of a controller at this port, without its objects.
    fn controller_command(&self, plans: u16) -> Command {
        let mut command = Command::new(program("flatout"));
        command.args(["controller", "--address", "127.0.0.1", "--workers", "1", "--plans"]);
        command.arg(format!("127.0.0.1:{plans}")).arg("--plans-certificate").arg(self.path("cert.pem"));
        command.arg("--plans-key").arg(self.path("key.pem")).arg("--token-file").arg(self.path("token"));
        command.args(["--health", &format!("127.0.0.1:{}", free_port())]).arg("--certificates");
        command.arg(self.path(&format!("controller-{plans}")));
        command
    }

    fn controller(&self) -> Server {
        let mut command = self.controller_command(self.plans);
        command.arg("--dir").arg(&self.objects.0);
        Server::start(command)
    }

    fn plane_command(&self, address: &str, token: &str, controllers: &[u16]) -> (Command, u16) {
        let health = free_port();
        let mut command = Command::new(program("flatout"));
        command.args(["data-plane", "--address", address, "--workers", "1", "--name", address]);
        for port in controllers {
            command.args(["--controller", &format!("127.0.0.1:{port}")]);
        }
        command.arg("--ca").arg(self.path("cert.pem")).arg("--token-file").arg(self.path(token));
        command.args(["--health", &format!("{address}:{health}")]).arg("--state").arg(self.path(address));
        command.arg("--admin").arg(format!("unix:{}", self.path(&format!("{address}.sock")).display()));
        (command, health)
    }

    fn plane(&self, address: &'static str) -> Plane<'_> {
        self.plane_of(address, &[self.plans])
    }

    fn plane_of(&self, address: &'static str, controllers: &[u16]) -> Plane<'_> {
        let (command, health) = self.plane_command(address, "token", controllers);
        Plane { fleet: self, address, health, server: Server::start(command) }
    }
}

/// A data plane that serves.
struct Plane<'f> {
    fleet: &'f Fleet,
    address: &'static str,
    health: u16,
    server: Server,
}

impl Plane<'_> {
    fn status(&self, target: &str) -> u16 {
        get(self.address, self.fleet.port, target).status
    }

    fn readiness(&self) -> String {
        get(self.address, self.health, "/readyz").text()
    }

    fn has_line(&self, text: &str) -> bool {
        self.server.said().iter().any(|line| line.contains(text))
    }

    fn reloads(&self) -> usize {
        self.server.said().iter().filter(|line| line.contains("reloaded the plan")).count()
    }

    fn metric(&self, name: &str) -> Option<u64> {
        metric(&self.fleet.path(&format!("{}.sock", self.address)), name)
    }
}

fn get(address: &str, port: u16, target: &str) -> Answer {
    let mut stream = TcpStream::connect((address, port)).unwrap();
    stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false).remove(0)
}

#[test]
fn all_data_planes_follow_routes_and_endpoints() {
    let (fleet, one, other) = (Fleet::new(), Server::json(), Server::json());
    fleet.route("/", &[]);
    let controller = fleet.controller();
    let planes = ["127.0.0.2", "127.0.0.3"].map(|address| fleet.plane(address));
    for plane in &planes {
        assert_eq!((plane.status("/json"), plane.readiness().as_str()), (503, "ok\n"), "no endpoint");
    }
    for ports in
        [&[one.address.port()][..], &[one.address.port(), other.address.port()], &[other.address.port()]]
    {
        fleet.route("/", ports);
        for plane in &planes {
            until("the endpoints serve", || {
                let servers = plane.server.said();
                plane.status("/json") == 200
                    && servers.iter().any(|line| line.contains("upstream default/app:80"))
            });
        }
    }
    drop(one);
    for plane in &planes {
        until("the endpoint that is gone gets nothing", || (0..8).all(|_| plane.status("/json") == 200));
        assert_eq!(plane.reloads(), 0, "{:?}", plane.server.said());
    }
    fleet.route("/only", &[other.address.port()]);
    for plane in &planes {
        until("the other route is served", || plane.status("/json") == 404);
        assert_eq!(plane.metric("flatout_plan_controller_connected "), Some(1));
        assert!(plane.metric("flatout_plans_applied_total ") >= Some(2));
    }
    fleet.route("/", &[other.address.port()]);
    for plane in &planes {
        until("the first route is served again", || plane.status("/json") == 200);
    }
    // The controller has no requests.
    assert!(TcpStream::connect(("127.0.0.1", fleet.port)).is_err());
    assert!(
        controller.said().iter().any(|line| line.contains("data plane 127.0.0.2")),
        "{:?}",
        controller.said()
    );
}

#[test]
fn a_data_plane_goes_on_without_a_controller_and_starts_from_its_disk() {
    let (fleet, app) = (Fleet::new(), Server::json());
    let authority = Authority::new();
    authority.sign("a.test", "a.test");
    let secure = free_port();
    fleet.gateway(&format!(
        "  - {{name: s, port: {secure}, protocol: HTTPS, hostname: a.test, tls: {{certificateRefs: [{{name: cert}}]}}}}\n"
    ));
    let [certificate, key] = ["pem", "key"].map(|end| {
        let text = std::fs::read_to_string(authority.path(&format!("a.test.{end}"))).unwrap();
        text.lines().map(|line| format!("    {line}\n")).collect::<String>()
    });
    fleet.objects.write(
        "secret.yaml",
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: cert}}\nstringData:\n  tls.crt: |\n{certificate}  tls.key: |\n{key}"
        ),
    );
    fleet.route("/", &[]);
    let controller = fleet.controller();
    let plane = fleet.plane("127.0.0.2");
    // A change of endpoints is on the disk as soon as the controller is gone.
    fleet.route("/", &[app.address.port()]);
    until("the endpoint serves", || plane.status("/json") == 200);
    drop(controller);
    until("that is reported", || plane.has_line("stays in use"));
    assert_eq!(plane.status("/json"), 200);
    assert_eq!(plane.metric("flatout_plan_controller_connected "), Some(0));
    until("/readyz says so", || plane.readiness().contains("ok: no controller for more than 10 seconds"));
    let mode = |name: &str| std::fs::metadata(fleet.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("127.0.0.2/plan.json"), mode("127.0.0.2")), (0o600, 0o700));
    // It is killed, as the controller was.
    drop(plane);
    let plane = fleet.plane("127.0.0.2");
    assert!(plane.has_line("from the disk"), "{:?}", plane.server.said());
    assert_eq!(plane.status("/json"), 200);
    let secured = Command::new("curl")
        .args(["--silent", "--cacert"])
        .arg(authority.path("ca.pem"))
        .args(["--connect-to", &format!("::127.0.0.2:{secure}"), "https://a.test/json"])
        .output()
        .unwrap();
    assert!(secured.status.success(), "{secured:?}");
    // A controller that is back is followed.
    fleet.route("/late", &[app.address.port()]);
    let _controller = fleet.controller();
    until("the new plan is served", || plane.status("/json") == 404);
    assert_eq!(plane.readiness(), "ok\n");
}

/// The process that was replaced still carries a WebSocket. It must neither refuse the next plans nor write older ones to the disk.
#[test]
fn a_data_plane_that_was_upgraded_leaves_plans_to_its_successor() {
    let (fleet, app, sockets) = (Fleet::new(), Server::json(), echo());
    fleet.route("/echo", &[sockets.port()]);
    let controller = fleet.controller();
    let mut plane = fleet.plane("127.0.0.2");
    let mut socket = TcpStream::connect(("127.0.0.2", fleet.port)).unwrap();
    socket.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    socket.write_all(HANDSHAKE.as_bytes()).unwrap();
    assert!(head(&mut socket).starts_with("HTTP/1.1 101 "));
    let (is_over, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    let successor = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    lost.fetch_add(usize::from(plane.status("/none") != 404), Ordering::Relaxed);
                }
            });
        }
        let successor = orphan(&upgrade(&fleet.path("127.0.0.2.sock")).unwrap());
        is_over.store(true, Ordering::Relaxed);
        successor
    });
    assert_eq!(lost.into_inner(), 0);
    let echo = |socket: &mut TcpStream| echoed(&mut socket.try_clone().unwrap(), socket, "text");
    assert_eq!(echo(&mut socket), "text");
    for path in ["/other", "/json"] {
        fleet.route(path, &[app.address.port()]);
        until("the new plan is served", || {
            plane.status("/json") == if path == "/json" { 200 } else { 404 } && plane.status("/echo") == 404
        });
    }
    until("the former process leaves the controller", || plane.has_line("leaves plans to its successor"));
    let refusals = [plane.server.said(), controller.said()].concat();
    assert!(!refusals.iter().any(|line| line.contains("refuse")), "{refusals:?}");
    assert_eq!(echo(&mut socket), "text", "the former process carries it");
    until("the newest plan is on the disk", || {
        std::fs::read_to_string(fleet.path("127.0.0.2/plan.json")).unwrap().contains("/json")
    });
    drop(socket);
    assert!(plane.server.wait().success());
    assert!(successor.is_there());
}

/// Endpoints must reach the former process while the other one takes over, and that one as soon as it serves.
#[test]
fn endpoints_change_while_data_planes_are_upgraded() {
    let (fleet, apps) = (Fleet::new(), [Server::json(), Server::json()]);
    let ports = apps.each_ref().map(|app| app.address.port());
    fleet.route("/", &ports);
    let controller = fleet.controller();
    let plane = fleet.plane("127.0.0.2");
    let is_over = AtomicBool::new(false);
    let mut successors = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for port in ports.iter().cycle() {
                fleet.route("/", &[*port]);
                std::thread::sleep(Duration::from_millis(20));
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..3 {
            successors.push(orphan(&upgrade(&fleet.path("127.0.0.2.sock")).unwrap()));
            assert_eq!(plane.status("/json"), 200);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let refusals = [plane.server.said(), controller.said()].concat();
    assert!(!refusals.iter().any(|line| line.contains("refuse")), "{refusals:?}");
    let [first, last] = apps;
    fleet.route("/", &[first.address.port()]);
    drop(last);
    until("the last endpoint serves alone", || (0..8).all(|_| plane.status("/json") == 200));
}

#[test]
fn damaged_plans_on_the_disk_are_reported_and_replaced() {
    let (fleet, app) = (Fleet::new(), Server::json());
    fleet.route("/", &[app.address.port()]);
    for (text, reason) in [
        ("{\"number\": 3, \"pl", "damaged"),
        (r#"{"number": 3, "plan": {"format": 9}}"#, "has the format 9; this version knows 3"),
    ] {
        fleet.state.write("127.0.0.2/plan.json", text);
        let _controller = fleet.controller();
        let plane = fleet.plane("127.0.0.2");
        assert!(plane.has_line(reason), "{:?}", plane.server.said());
        assert_eq!(plane.status("/json"), 200);
        until("the new one is on the disk", || {
            let kept = std::fs::read_to_string(fleet.path("127.0.0.2/plan.json")).unwrap();
            serde_json::from_str::<Value>(&kept).is_ok_and(|kept| kept["plan"]["format"] == 3)
        });
    }
}

/// A process whose stderr is read until it has a text.
struct Talking(Child);

impl Drop for Talking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn runs_until(mut command: Command, text: &str) {
    let mut child = Talking(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut lines = Vec::new();
    for line in BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok) {
        if line.contains(text) {
            return;
        }
        lines.push(line);
    }
    panic!("it ended without `{text}`: {lines:?}");
}

#[test]
fn wrong_tokens_and_certificates_get_no_plan() {
    let fleet = Fleet::new();
    let controller = fleet.controller();
    fleet.state.write("wrong", "0123456789abcdefwrong");
    runs_until(fleet.plane_command("127.0.0.2", "wrong", &[fleet.plans]).0, "the token is wrong");
    let is_reported = |line: &String| line.contains("no data plane: the token is wrong");
    until("the controller reports it too", || controller.said().iter().any(is_reported));
    assert!(!controller.said().iter().any(|line| line.contains(TOKEN)), "tokens are never shown");
    // A controller that is not trusted gets no token.
    let authority = Authority::new();
    let (command, _) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
    let trusted = |it: &std::ffi::OsStr| {
        if it == fleet.path("cert.pem") { authority.path("ca.pem").into() } else { it.to_owned() }
    };
    let mut distrusting = Command::new(program("flatout"));
    distrusting.args(command.get_args().map(trusted));
    runs_until(distrusting, "invalid peer certificate");
    // Something else than a data plane.
    let mut plain = TcpStream::connect(("127.0.0.1", fleet.plans)).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(fleet.plane("127.0.0.2").readiness(), "ok\n", "a right one is served still");
}

#[test]
fn wrong_arguments_of_controllers_and_data_planes_are_refused() {
    let fleet = Fleet::new();
    fleet.state.write("short", "secret");
    let short = fleet.path("short").display().to_string();
    let plane = |flags: &[&str]| {
        let mut command = Command::new(program("flatout"));
        command.arg("data-plane").args(flags);
        command
    };
    for (mut command, text) in [
        (plane(&["--token-file", "x"]), "--controller"),
        (plane(&["--controller", "h:1"]), "--token-file"),
        (plane(&["--controller", "h", "--token-file", "x"]), "need HOST:PORT"),
        (plane(&["--controller", ":1", "--token-file", "x"]), "need HOST:PORT"),
        (plane(&["--controller", "h:0", "--token-file", "x"]), "need HOST:PORT"),
        (plane(&["--controller", "h:1", "--token-file", "/nowhere"]), "the token /nowhere"),
        (plane(&["--controller", "h:1", "--token-file", &short]), "6 bytes; need 16 to 4096"),
        (plane(&["--controller", "h:1", "--token-file", &short, "--ca", "/nowhere"]), "/nowhere"),
        (
            {
                let mut command = Command::new(program("flatout"));
                command.args(["controller", "--dir", ".", "--plans", "127.0.0.1:1"]);
                command
            },
            "--plans-certificate",
        ),
    ] {
        let output = command.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?} {shown}");
        assert!(shown.contains(text), "{command:?} {shown}");
    }
}

/// A controller or a data plane that sends what it is asked to, behind `openssl`.
struct FakePeer(Child);

impl FakePeer {
    fn controller(fleet: &Fleet) -> FakePeer {
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{}", fleet.plans), "-cert"]);
        command.arg(fleet.path("cert.pem")).arg("-key").arg(fleet.path("key.pem"));
        FakePeer::start(command)
    }

    /// A data plane that has applied its first plan.
    fn plane(fleet: &Fleet) -> FakePeer {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{}", fleet.plans)]);
        let mut plane = FakePeer::start(command);
        plane.send(&json!({"formats": [3], "name": "fake", "token": TOKEN}));
        for message in ["welcome", "plan"] {
            assert!(plane.receive()[message].is_object());
            plane.send(&json!({}));
        }
        plane
    }

    fn start(mut command: Command) -> FakePeer {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        FakePeer(command.spawn().unwrap())
    }

    /// The next message to a data plane that is no ping.
    fn receive_news(&mut self) -> Value {
        loop {
            let message = self.receive();
            if message != "ping" {
                return message;
            }
            self.send(&json!({}));
        }
    }

    fn receive(&mut self) -> Value {
        let out = self.0.stdout.as_mut().unwrap();
        let mut length = [0; 4];
        out.read_exact(&mut length).unwrap();
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        out.read_exact(&mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Something was applied; it may be on its way to the disk.
    fn receive_good(&mut self) {
        let result = self.receive();
        assert!(result["refusal"].is_null() && result["notes"].is_null(), "{result}");
    }

    /// Begins with this term of a leader.
    fn welcome(&mut self, number: u64) {
        self.receive();
        self.send(&json!({"welcome": {"term": {"lease": "a/b 1", "number": number}}}));
    }

    fn send(&mut self, message: &Value) {
        let text = message.to_string();
        self.send_bytes(&[&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat());
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        let into = self.0.stdin.as_mut().unwrap();
        into.write_all(bytes).and_then(|()| into.flush()).unwrap();
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A plan with a page.
fn page(port: u16, body: &str, status: u16) -> Value {
    json!({"format": 3, "upstreams": [], "sites": [{
        "name": "s", "host": "any", "listen": {"address": 0, "port": port, "is_plain": true},
        "routes": [{"name": "r", "path": {"exact": "/"}, "action": {"respond": {
            "status": status, "content_type": "text/plain", "body": [{"text": body}]}}}]}]})
}

#[test]
fn plans_that_are_wrong_leave_the_last_good_one() {
    let fleet = Fleet::new();
    let mut controller = FakePeer::controller(&fleet);
    let (command, health) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
    let started = std::thread::spawn(move || Server::start(command));
    let hello = controller.receive();
    assert_eq!(
        (&hello["token"], &hello["formats"], &hello["name"]),
        (&json!(TOKEN), &json!([3]), &json!("127.0.0.2"))
    );
    controller.send(&json!({"welcome": {"term": null}}));
    controller.receive_good();
    // Servers before there is a plan.
    controller.send(&json!({"servers": {"number": 1, "upstreams": {}}}));
    assert_eq!(controller.receive(), json!({"refusal": "there is no plan yet"}));
    controller.send(&json!({"plan": {"number": 1, "plan": page(fleet.port, "first", 200)}}));
    controller.receive_good();
    let plane = Plane { fleet: &fleet, address: "127.0.0.2", health, server: started.join().unwrap() };
    let body = || get("127.0.0.2", fleet.port, "/").text();
    assert_eq!(body(), "first");
    let used = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let mut two_sites = page(fleet.port, "half", 200);
    two_sites["sites"].as_array_mut().unwrap().push(page(fleet.port, "other", 200)["sites"][0].clone());
    for (plan, reason) in [
        (json!({"format": 1, "sites": []}), "the plan has the format 1; this version knows 3"),
        (json!({}), "without the number of its format"),
        (json!({"format": 3, "sites": 3, "upstreams": []}), "malformed"),
        (page(fleet.port, "odd", 999), "999"),
        (two_sites, "s"),
    ] {
        controller.send(&json!({"plan": {"number": 2, "plan": plan}}));
        let result = controller.receive();
        assert!(result["refusal"].as_str().is_some_and(|why| why.contains(reason)), "{result} {reason}");
        assert_eq!(body(), "first");
    }
    assert_eq!(plane.metric("flatout_plans_refused_total "), Some(6));
    assert!(plane.has_line("the plan before stays in use"), "{:?}", plane.server.said());
    until("/readyz says so", || {
        plane.readiness().starts_with("ok: the last plan is refused, plan 1 stays in use: ")
    });
    controller.send(&json!({"servers": {"number": 3, "upstreams": {"none": []}}}));
    assert_eq!(controller.receive()["refusal"], "the plan has no upstream none");
    // A port that is in use: the rest is served.
    let mut plan = page(fleet.port, "second", 200);
    let mut unavailable = page(used.local_addr().unwrap().port(), "no", 200)["sites"][0].clone();
    unavailable["name"] = json!("unavailable");
    plan["sites"].as_array_mut().unwrap().push(unavailable);
    controller.send(&json!({"plan": {"number": 4, "plan": plan}}));
    let result = controller.receive();
    assert!(result["notes"][0].as_str().is_some_and(|note| note.contains("are not served")), "{result}");
    assert_eq!((body().as_str(), plane.readiness().as_str()), ("second", "ok\n"));
    // Half a plan, and the end.
    let text = json!({"plan": {"number": 5, "plan": page(fleet.port, "third", 200)}}).to_string();
    let half = [&(text.len() as u32).to_be_bytes()[..], &text.as_bytes()[..text.len() / 2]].concat();
    controller.send_bytes(&half);
    drop(controller);
    until("the end is reported", || plane.has_line("plan 4 stays in use"));
    assert_eq!(body(), "second");
    // The next one sends something else.
    let mut controller = FakePeer::controller(&fleet);
    controller.receive();
    controller.send(&json!({"unknown": 1}));
    until("that is reported", || plane.has_line("a malformed message"));
    assert_eq!(body(), "second");
}

#[test]
fn changes_are_those_of_the_plan_that_a_data_plane_has() {
    let fleet = Fleet::new();
    let mut controller = FakePeer::controller(&fleet);
    let (command, health) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
    let started = std::thread::spawn(move || Server::start(command));
    controller.welcome(1);
    controller.receive_good();
    controller.send(&json!({"changes": {"number": 1, "since": 0, "changes": {}}}));
    assert_eq!(controller.receive()["refusal"], "there is no plan yet");
    controller.send(&json!({"plan": {"number": 1, "plan": page(fleet.port, "first", 200)}}));
    controller.receive_good();
    let plane = Plane { fleet: &fleet, address: "127.0.0.2", health, server: started.join().unwrap() };
    let body = || get("127.0.0.2", fleet.port, "/").text();
    let site = page(fleet.port, "second", 200)["sites"][0].clone();
    let change = |number: u64, since: u64, steps: Value| json!({"changes": {"number": number, "since": since, "changes": {"sites": steps}}});
    for (message, reason) in [
        (change(2, 7, json!([{"drop": 1}, {"put": site}])), "changes since plan 7, and this is plan 1"),
        (change(2, 1, json!([{"keep": 2}])), "changes of another plan"),
        (change(2, 1, json!([{"keep": 1}, {"put": site}])), "s"),
    ] {
        controller.send(&message);
        let result = controller.receive();
        assert!(result["refusal"].as_str().is_some_and(|why| why.contains(reason)), "{result} {reason}");
        assert_eq!(body(), "first");
    }
    controller.send(&change(2, 1, json!([{"drop": 1}, {"put": site}])));
    controller.receive_good();
    assert_eq!(body(), "second");
    controller.send(&change(3, 2, json!([])));
    controller.receive_good();
    assert_eq!((body().as_str(), plane.metric("flatout_plan_number ")), ("second", Some(3)));
    until("the plan is on the disk", || {
        controller.send(&json!("ping"));
        controller.receive() == json!({})
    });
}

#[test]
fn servers_that_are_refused_change_nothing() {
    let fleet = Fleet::new();
    let mut controller = FakePeer::controller(&fleet);
    let (command, health) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
    let started = std::thread::spawn(move || Server::start(command));
    controller.welcome(1);
    controller.receive_good();
    let mut plan = page(fleet.port, "first", 200);
    plan["upstreams"] = ["a", "b"]
        .map(|name| json!({"name": name, "servers": [], "read_ms": 1, "connect_ms": 1, "send_ms": 1, "retries_max": 0}))
        .into();
    controller.send(&json!({"plan": {"number": 1, "plan": plan}}));
    controller.receive_good();
    let plane = Plane { fleet: &fleet, address: "127.0.0.2", health, server: started.join().unwrap() };
    let upstreams = json!({
        "a": [{"at": "127.0.0.1:1"}],
        "b": [{"at": "127.0.0.1:1", "tls": {"authorities": "../b.ca", "verify": true}}],
    });
    controller.send(&json!({"servers": {"number": 2, "upstreams": upstreams}}));
    assert_eq!(controller.receive()["refusal"], "a file of the name `../b.ca`");
    assert_eq!(plane.metric("flatout_plan_number "), Some(1));
    // What has changed since is still based on the plan before.
    let site = page(fleet.port, "second", 200)["sites"][0].clone();
    let changes = json!({"sites": [{"drop": 1}, {"put": site}]});
    controller.send(&json!({"changes": {"number": 3, "since": 1, "changes": changes}}));
    controller.receive_good();
    assert_eq!(get("127.0.0.2", fleet.port, "/").text(), "second");
    assert!(!plane.has_line("upstream a:"), "{:?}", plane.server.said());
}

#[test]
fn controllers_begin_with_their_terms() {
    let fleet = Fleet::new();
    let mut controller = FakePeer::controller(&fleet);
    let (command, health) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
    let started = std::thread::spawn(move || Server::start(command));
    controller.welcome(1);
    controller.receive_good();
    controller.send(&json!({"plan": {"number": 1, "plan": page(fleet.port, "first", 200)}}));
    controller.receive_good();
    let plane = Plane { fleet: &fleet, address: "127.0.0.2", health, server: started.join().unwrap() };
    drop(controller);
    // One that does not.
    let mut controller = FakePeer::controller(&fleet);
    controller.receive();
    controller.send(&json!({"plan": {"number": 2, "plan": page(fleet.port, "second", 200)}}));
    until("that is reported", || plane.has_line("its first message has no term"));
    assert_eq!(get("127.0.0.2", fleet.port, "/").text(), "first");
    drop(controller);
    // One that does, and is followed once it sends more.
    let mut controller = FakePeer::controller(&fleet);
    controller.welcome(1);
    assert_eq!(controller.receive(), json!({}));
    assert_eq!(plane.metric("flatout_plan_controller_connected "), Some(0));
    controller.send(&json!("ping"));
    controller.receive_good();
    assert_eq!(plane.metric("flatout_plan_controller_connected "), Some(1));
}

#[test]
fn changes_that_are_refused_are_followed_by_the_whole_plan_at_once() {
    let (fleet, one, other) = (Fleet::new(), free_port(), free_port());
    fleet.route("/", &[one]);
    let _controller = fleet.controller();
    let mut plane = FakePeer::plane(&fleet);
    let mut check = |change: &str, is_new: &dyn Fn(&Value) -> bool| {
        assert!(plane.receive_news()[change].is_object(), "{change}");
        let refused_at = std::time::Instant::now();
        plane.send(&json!({"refusal": "a mistake"}));
        assert!(is_new(&plane.receive()["plan"]["plan"]), "{change}");
        // A whole plan that is refused is repeated after 10 seconds.
        assert!(refused_at.elapsed().as_secs() < 8, "{change}");
        plane.send(&json!({}));
    };
    fleet.route("/", &[one, other]);
    check("servers", &|plan| plan["upstreams"][0]["servers"].as_array().is_some_and(|list| list.len() == 2));
    fleet.route("/other", &[one, other]);
    check("changes", &|plan| plan.to_string().contains("/other"));
}

#[test]
fn a_leader_that_was_replaced_gives_no_plans() {
    let fleet = Fleet::new();
    let mut controller = FakePeer::controller(&fleet);
    let (command, health) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
    let started = std::thread::spawn(move || Server::start(command));
    controller.welcome(5);
    controller.receive_good();
    controller.send(&json!({"plan": {"number": 1, "plan": page(fleet.port, "of the fifth", 200)}}));
    controller.receive_good();
    let mut plane = Plane { fleet: &fleet, address: "127.0.0.2", health, server: started.join().unwrap() };
    let body = || get("127.0.0.2", fleet.port, "/").text();
    until("the plan is on the disk", || {
        controller.send(&json!("ping"));
        controller.receive() == json!({})
    });
    // The one before it was paused, and goes on.
    let why = "its term 4 is older than term 5 of another leader";
    for is_restarted in [false, true] {
        drop(controller);
        if is_restarted {
            let (command, health) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
            drop(plane);
            plane = Plane { fleet: &fleet, address: "127.0.0.2", health, server: Server::start(command) };
        }
        controller = FakePeer::controller(&fleet);
        controller.welcome(4);
        assert_eq!(controller.receive()["refusal"], why);
        until("that is reported", || plane.has_line(why));
        assert_eq!(body(), "of the fifth");
        assert_eq!(plane.metric("flatout_plan_controller_connected "), Some(0));
    }
    drop(controller);
    let mut controller = FakePeer::controller(&fleet);
    controller.welcome(6);
    controller.receive_good();
    controller.send(&json!({"plan": {"number": 1, "plan": page(fleet.port, "of the sixth", 200)}}));
    controller.receive_good();
    assert_eq!(body(), "of the sixth");
}

#[test]
fn the_term_of_a_leader_outlives_restarts_and_damaged_plans() {
    let fleet = Fleet::new();
    let start = || {
        let (mut command, _) = fleet.plane_command("127.0.0.2", "token", &[fleet.plans]);
        let plane = Talking(command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        (FakePeer::controller(&fleet), plane)
    };
    let is_refused = |former: u64, latest: u64| {
        let (mut controller, _plane) = start();
        controller.welcome(former);
        let why = format!("its term {former} is older than term {latest} of another leader");
        assert_eq!(controller.receive()["refusal"], why);
    };
    // Without a plan.
    let (mut controller, plane) = start();
    controller.welcome(5);
    controller.receive_good();
    drop((plane, controller));
    is_refused(4, 5);
    // The plan is of another version.
    let (mut controller, plane) = start();
    controller.welcome(6);
    controller.receive_good();
    controller.send(&json!({"plan": {"number": 1, "plan": page(fleet.port, "of the sixth", 200)}}));
    controller.receive_good();
    until("the plan is on the disk", || {
        controller.send(&json!("ping"));
        controller.receive() == json!({})
    });
    drop((plane, controller));
    let plan = std::fs::read_to_string(fleet.path("127.0.0.2/plan.json")).unwrap();
    fleet.state.write("127.0.0.2/plan.json", plan.replace("\"format\":3", "\"format\":9"));
    is_refused(5, 6);
    fleet.state.write("127.0.0.2/plan.json", plan);
    // The plan on the disk is of an earlier leader: the one of the latest was refused.
    let (mut controller, plane) = start();
    controller.welcome(7);
    controller.receive_good();
    controller.send(&json!({"plan": {"number": 2, "plan": page(fleet.port, "odd", 999)}}));
    assert!(controller.receive()["refusal"].is_string());
    drop((plane, controller));
    is_refused(6, 7);
}

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";

/// An API server with a gateway.
fn api_server(port: u16) -> ApiServer {
    let api = ApiServer::start();
    api.put(
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "flatout"},
               "spec": {"controllerName": "flatout.dev/controller"}}),
    );
    api.put(GATEWAYS, gateway(port, 1, &[]));
    api
}

fn gateway(port: u16, generation: u64, others: &[u16]) -> Value {
    let listener = |port: &u16| json!({"name": format!("p{port}"), "port": port, "protocol": "HTTP"});
    let listeners: Vec<Value> = std::iter::once(&port).chain(others).map(listener).collect();
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
           "metadata": {"name": "gw", "namespace": "default", "generation": generation},
           "spec": {"gatewayClassName": "flatout", "listeners": listeners}})
}

/// `Programmed` of the gateway.
fn programmed(api: &ApiServer) -> String {
    let status = api.object(GATEWAYS, "default", "gw").unwrap()["status"].clone();
    let list = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = list.iter().find(|it| it["type"] == "Programmed").cloned().unwrap_or_default();
    let text = |name: &str| found[name].as_str().unwrap_or("-").to_owned();
    format!("{} {} {} {}", text("status"), text("reason"), found["observedGeneration"], text("message"))
}

#[test]
fn gateways_are_programmed_once_data_planes_have_applied_the_plan() {
    let fleet = Fleet::new();
    let api = api_server(fleet.port);
    let mut command = fleet.controller_command(fleet.plans);
    command.env("KUBECONFIG", api.config(&fleet.state));
    let _controller = Server::start(command);
    until("it is pending", || programmed(&api) == "False Pending 1 no data plane is connected");
    let plane = fleet.plane("127.0.0.2");
    until("it is programmed", || programmed(&api) == "True Programmed 1 ");
    assert_eq!(plane.status("/"), 404);
    // One whose addresses do not suffice.
    let used = std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
    let _used = std::net::TcpListener::bind(("127.0.0.2", used)).unwrap();
    api.put(GATEWAYS, gateway(fleet.port, 2, &[used]));
    until("the part that is not served is named", || {
        let state = programmed(&api);
        state.starts_with("True Programmed 2 ") && state.contains("are not served")
    });
}

#[test]
fn of_two_controllers_the_leader_gives_plans_until_it_is_gone() {
    let fleet = Fleet::new();
    let api = api_server(fleet.port);
    let ports = [fleet.plans, free_port()];
    let config = api.config(&fleet.state);
    let start = |port: u16| {
        let mut command = fleet.controller_command(port);
        Server::start({
            command.env("KUBECONFIG", &config);
            command
        })
    };
    let mut controllers = ports.map(|port| Some(start(port)));
    let plane = fleet.plane_of("127.0.0.2", &ports);
    until("it is programmed", || programmed(&api).starts_with("True Programmed 1"));
    let gives_plans = |server: &Server| {
        server.said().iter().any(|line| line.contains("127.0.0.2") && line.contains("connected"))
    };
    let leader = controllers.iter().position(|it| gives_plans(it.as_ref().unwrap())).unwrap();
    assert!(!gives_plans(controllers[1 - leader].as_ref().unwrap()));
    let late = free_port();
    controllers[leader] = None;
    api.put(GATEWAYS, gateway(fleet.port, 2, &[late]));
    assert_eq!(plane.status("/"), 404, "it serves on");
    until("the other one gives plans", || TcpStream::connect(("127.0.0.2", late)).is_ok());
    until("and writes statuses", || programmed(&api).starts_with("True Programmed 2"));
}
