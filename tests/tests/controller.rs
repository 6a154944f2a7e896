//! `flatout controller` with a folder of objects: routes, endpoints that change under load, certificates, mistakes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flatout_tests::authority::Authority;
use flatout_tests::peers::free_port;
use flatout_tests::{Answer, Folder, Server, program, until};

const CLASS: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: flatout}\n\
                     spec: {controllerName: flatout.dev/controller}\n";

/// A controller for the objects of a folder.
pub(crate) struct Cluster {
    pub(crate) folder: Folder,
    certificates: Folder,
    port: u16,
    pub(crate) secure_port: u16,
    health: u16,
    server: Option<Server>,
}

impl Cluster {
    /// A gateway with a listener for all hosts, and these further objects.
    pub(crate) fn start(objects: &str) -> Cluster {
        let [port, secure_port, health] = [(); 3].map(|()| free_port());
        let (folder, certificates) = (Folder::new(), Folder::new());
        let mut cluster = Cluster { folder, certificates, port, secure_port, health, server: None };
        cluster.gateway("");
        cluster.folder.write("objects.yaml", objects);
        let mut command = Command::new(program("flatout"));
        command.arg("controller").arg("--dir").arg(&cluster.folder.0).args(["--address", "127.0.0.1"]);
        command.args(["--health", &format!("127.0.0.1:{health}"), "--workers", "2", "--certificates"]);
        command.arg(cluster.state());
        cluster.server = Some(Server::start(command));
        cluster
    }

    fn state(&self) -> PathBuf {
        self.certificates.0.join("state")
    }

    /// Writes the gateway, with further listeners.
    pub(crate) fn gateway(&self, listeners: &str) {
        let port = self.port;
        let text = format!(
            "{CLASS}---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: gw}}\nspec:\n  \
             gatewayClassName: flatout\n  listeners:\n  - {{name: http, port: {port}, protocol: HTTP}}\n{listeners}"
        );
        self.folder.write("gateway.yaml", text);
    }

    fn objects(&self, text: &str) {
        self.folder.write("objects.yaml", text);
    }

    pub(crate) fn get(&self, host: &str, target: &str, fields: &str) -> Answer {
        get(self.port, host, target, fields)
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.server.as_ref().map(Server::said).unwrap_or_default()
    }

    fn reloads(&self) -> usize {
        self.said().iter().filter(|line| line.contains("reloaded the objects")).count()
    }

    /// Sends requests on connections that must stay, until `act` has ended. Returns how many, and how many of them failed.
    fn under_load(&self, act: impl FnOnce(&AtomicU64)) -> (u64, u64) {
        let (is_over, requests, failures) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        let request = b"GET /name HTTP/1.1\r\nHost: h\r\n\r\n";
                        let mut buffer = [0; 1024];
                        let read =
                            stream.write_all(request).and_then(|()| stream.read(&mut buffer)).unwrap_or(0);
                        let is_good = buffer[..read].starts_with(b"HTTP/1.1 200");
                        requests.fetch_add(1, Ordering::Relaxed);
                        failures.fetch_add(u64::from(!is_good), Ordering::Relaxed);
                        if read == 0 {
                            break;
                        }
                    }
                });
            }
            act(&requests);
            is_over.store(true, Ordering::Relaxed);
        });
        (requests.load(Ordering::Relaxed), failures.load(Ordering::Relaxed))
    }
}

pub(crate) fn get(port: u16, host: &str, target: &str, fields: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false).remove(0)
}

/// A server whose `/name` is its name.
pub(crate) struct Backend {
    name: &'static str,
    server: Server,
    _folder: Folder,
}

impl Backend {
    fn port(&self) -> u16 {
        self.server.address.port()
    }
}

pub(crate) fn backend(name: &'static str) -> Backend {
    let folder = Folder::new();
    folder.write("name", name);
    folder.write("x/name", format!("{name} below x"));
    Backend { name, server: Server::site(&folder.0, &["--workers", "1"]), _folder: folder }
}

/// A service of this name with these endpoints.
pub(crate) fn service(name: &str, backends: &[&Backend]) -> String {
    let ports: Vec<u16> = backends.iter().map(|it| it.port()).collect();
    service_at(name, &ports)
}

/// A service of this name with endpoints at these ports.
pub(crate) fn service_at(name: &str, ports: &[u16]) -> String {
    let slice = |(at, port): (usize, &u16)| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-{at}, labels: \
             {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nports: [{{name: '', port: {port}}}]\n\
             endpoints: [{{addresses: [127.0.0.1]}}]\n"
        )
    };
    let slices: String = ports.iter().enumerate().map(slice).collect();
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n{slices}"
    )
}

pub(crate) fn route(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{{name: gw}}]\n{spec}\n"
    )
}

/// A Secret with a certificate of this authority, and its key.
pub(crate) fn secret(authority: &Authority, name: &str, file: &str) -> String {
    let read = |end: &str| std::fs::read_to_string(authority.path(&format!("{file}.{end}"))).unwrap();
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
        indented(&read("pem")),
        indented(&read("key"))
    )
}

/// A ConfigMap with the certificate of this authority.
pub(crate) fn config_map(authority: &Authority, name: &str) -> String {
    let text = std::fs::read_to_string(authority.path("ca.pem")).unwrap();
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  ca.crt: |\n{}",
        indented(&text)
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

pub(crate) const TO_APP: &str = "  rules: [{backendRefs: [{name: app, port: 80}]}]";

#[test]
fn routes_lead_to_services_by_host_path_and_field() {
    let (a, b) = (backend("a"), backend("b"));
    let rules = "  hostnames: [one.test, '*.two.test']\n  rules:\n  - backendRefs: [{name: app, port: 80}]\n  \
                 - matches: [{headers: [{name: to, value: b}]}]\n    backendRefs: [{name: other, port: 80}]\n  \
                 - matches: [{path: {value: /cut}}]\n    filters: [{type: URLRewrite, urlRewrite: {path: {type: \
                 ReplacePrefixMatch, replacePrefixMatch: /x}}}, {type: ResponseHeaderModifier, responseHeaderModifier: \
                 {set: [{name: X-Cut, value: 'yes'}]}}]\n    backendRefs: [{name: app, port: 80}]\n  \
                 - matches: [{path: {value: /away}}]\n    filters: [{type: RequestRedirect, requestRedirect: {scheme: https, \
                 statusCode: 301}}]\n  - matches: [{path: {type: Exact, value: /none}}]\n    backendRefs: [{name: missing, \
                 port: 80}]\n  - matches: [{method: DELETE, path: {value: /name}}]\n    backendRefs: [{name: missing, port: 80}]";
    let cluster = Cluster::start(&(service("app", &[&a]) + &service("other", &[&b]) + &route("r", rules)));
    for (host, target, fields, status, body) in [
        ("one.test", "/name", "", 200, "a"),
        ("ONE.test:80", "/name", "", 200, "a"),
        ("x.two.test", "/name", "", 200, "a"),
        ("one.test", "/name", "To: b\r\n", 200, "b"),
        ("one.test", "/cut/name", "", 200, "a below x"),
    ] {
        let answer = cluster.get(host, target, fields);
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{host} {target} {fields}");
    }
    assert_eq!(cluster.get("one.test", "/cut/name", "").field("x-cut"), Some("yes"));
    let away = cluster.get("one.test", "/away/x?q=1", "");
    assert_eq!((away.status, away.field("location")), (301, Some("https://one.test/away/x?q=1")));
    assert_eq!(cluster.get("one.test", "/none", "").status, 500);
    for host in ["two.test", "three.test"] {
        assert_eq!(cluster.get(host, "/name", "").status, 404, "{host}");
    }
    assert_eq!(get(cluster.health, "any", "/readyz", "").text(), "ok\n");
    assert!(cluster.said().iter().any(|line| line.contains("BackendNotFound")), "{:?}", cluster.said());
}

#[test]
fn weights_share_requests_and_a_missing_service_gets_its_share_of_500() {
    let (a, b) = (backend("a"), backend("b"));
    let rules = "  rules: [{backendRefs: [{name: app, port: 80, weight: 2}, {name: other, port: 80, weight: 1}, \
                 {name: missing, port: 80, weight: 1}]}]";
    let cluster = Cluster::start(&(service("app", &[&a]) + &service("other", &[&b]) + &route("r", rules)));
    const COUNT: usize = 400;
    let answers: Vec<Answer> = (0..COUNT).map(|_| cluster.get("h", "/name", "")).collect();
    let count = |is_it: &dyn Fn(&Answer) -> bool| answers.iter().filter(|it| is_it(it)).count();
    let (to_a, to_b, lost) =
        (count(&|it| it.text() == a.name), count(&|it| it.text() == b.name), count(&|it| it.status == 500));
    assert_eq!(to_a + to_b + lost, COUNT);
    // More than six standard deviations away from the expected 200, 100 and 100.
    assert!(
        (140..=260).contains(&to_a) && (48..=152).contains(&to_b) && (48..=152).contains(&lost),
        "{to_a} {to_b} {lost}"
    );
}

#[test]
fn endpoints_change_under_load_without_a_reload_or_a_lost_request() {
    let backends = [backend("a"), backend("b"), backend("c")];
    let with = |chosen: &[usize]| {
        let chosen: Vec<&Backend> = chosen.iter().map(|at| &backends[*at]).collect();
        service("app", &chosen) + &route("r", TO_APP)
    };
    let cluster = Cluster::start(&with(&[0]));
    let (requests, failures) = cluster.under_load(|requests| {
        for chosen in [&[0, 1][..], &[1], &[1, 2], &[2], &[0, 2], &[0, 1, 2], &[1]] {
            let before = requests.load(Ordering::Relaxed);
            cluster.objects(&with(chosen));
            let names: Vec<&str> = chosen.iter().map(|at| backends[*at].name).collect();
            until("the new endpoints serve", || {
                let seen: Vec<String> = (0..12).map(|_| cluster.get("h", "/name", "").text()).collect();
                names.iter().all(|name| seen.iter().any(|it| it == name))
                    && seen.iter().all(|it| names.contains(&it.as_str()))
            });
            until("requests go on", || requests.load(Ordering::Relaxed) > before + 20);
        }
    });
    assert_eq!((failures, cluster.reloads()), (0, 0), "{:?}", cluster.said());
    assert!(requests > 200);
}

#[test]
fn routes_change_under_load_without_a_lost_request() {
    let (a, b) = (backend("a"), backend("b"));
    let with = |service_name: &str, version: usize, others: usize| {
        let header = format!(
            "{{type: ResponseHeaderModifier, responseHeaderModifier: {{set: [{{name: X-Version, value: '{version}'}}]}}}}"
        );
        let rules =
            format!("  rules: [{{filters: [{header}], backendRefs: [{{name: {service_name}, port: 80}}]}}]");
        let other = |at: usize| route(&format!("o{at}"), &format!("  hostnames: [o{at}.test]\n{TO_APP}"));
        let others: String = (0..others).map(other).collect();
        service("app", &[&a]) + &service("other", &[&b]) + &route("r", &rules) + &others
    };
    let cluster = Cluster::start(&with("app", 0, 1));
    let steps = [("app", 1), ("other", 1), ("app", 3), ("other", 0), ("other", 5)];
    let (requests, failures) = cluster.under_load(|requests| {
        for (version, (name, others)) in steps.iter().enumerate() {
            let before = requests.load(Ordering::Relaxed);
            cluster.objects(&with(name, version + 1, *others));
            let expected = if *name == "app" { a.name } else { b.name };
            until("the new route serves", || {
                let answer = cluster.get("h", "/name", "");
                let version = (version + 1).to_string();
                answer.field("x-version") == Some(version.as_str()) && answer.text() == expected
            });
            until("requests go on", || requests.load(Ordering::Relaxed) > before + 20);
            assert_eq!(
                cluster.get("o0.test", "/name", "").text(),
                if *others > 0 { a.name } else { expected }
            );
        }
    });
    assert_eq!((failures, cluster.reloads()), (0, steps.len()), "{:?}", cluster.said());
    assert!(requests > 100);
}

#[test]
fn a_service_without_endpoints_serves_once_it_has_one() {
    let a = backend("a");
    let cluster = Cluster::start(&(service("app", &[]) + &route("r", TO_APP)));
    assert_eq!(cluster.get("h", "/name", "").status, 503);
    cluster.objects(&(service("app", &[&a]) + &route("r", TO_APP)));
    until("it serves", || cluster.get("h", "/name", "").status == 200);
    cluster.objects(&(service("app", &[]) + &route("r", TO_APP)));
    until("it serves no more", || cluster.get("h", "/name", "").status == 503);
    assert_eq!(cluster.reloads(), 0);
}

#[test]
fn broken_files_and_objects_leave_the_others() {
    let a = backend("a");
    let good = service("app", &[&a]) + &route("r", TO_APP);
    let cluster = Cluster::start(&good);
    cluster.objects("kind: [");
    until("the mistake is reported", || cluster.said().iter().any(|line| line.contains("objects.yaml")));
    assert_eq!(cluster.get("h", "/name", "").text(), "a");
    let odd = "  hostnames: [odd.test]\n  rules:\n  - filters: [{type: ResponseHeaderModifier, responseHeaderModifier: \
               {set: [{name: 'no field', value: x}]}}]\n    backendRefs: [{name: app, port: 80}]";
    let moved = "  hostnames: [moved.test]\n  rules: [{filters: [{type: RequestRedirect, requestRedirect: {hostname: x.test}}]}]";
    let late = "  hostnames: [late.test]\n  rules: []";
    cluster.objects(&(good.clone() + &route("odd", odd) + &route("late", late) + &route("moved", moved)));
    until("the rest is served", || cluster.get("moved.test", "/name", "").status == 302);
    assert_eq!(cluster.get("h", "/name", "").text(), "a");
    // One that is refused is no route, and its status says so.
    assert_eq!(cluster.get("odd.test", "/name", "").text(), "a");
    let is_said = |line: &String| line.contains("odd") && line.contains("Accepted UnsupportedValue");
    assert!(cluster.said().iter().any(is_said), "{:?}", cluster.said());
    // A route without rules takes nothing away from the others.
    assert_eq!(cluster.get("late.test", "/name", "").text(), "a");
    assert_eq!(cluster.reloads(), 1, "{:?}", cluster.said());
}

#[test]
fn a_port_that_is_in_use_leaves_the_other_listeners() {
    let a = backend("a");
    let cluster = Cluster::start(&(service("app", &[&a]) + &route("r", TO_APP)));
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (used, free) = (other.local_addr().unwrap().port(), cluster.secure_port);
    cluster.gateway(&format!(
        "  - {{name: used, port: {used}, protocol: HTTP}}\n  - {{name: free, port: {free}, protocol: HTTP}}\n"
    ));
    until("the free one is served", || TcpStream::connect(("127.0.0.1", free)).is_ok());
    assert_eq!(get(free, "h", "/name", "").text(), "a");
    until("the other one is reported", || cluster.said().iter().any(|line| line.contains("PortUnavailable")));
}

#[test]
fn certificates_of_secrets_arrive_and_change_while_it_serves() {
    let a = backend("a");
    let cluster = Cluster::start(&(service("app", &[&a]) + &route("r", TO_APP)));
    let authority = Authority::new();
    let listeners = format!(
        "  - {{name: s, port: {}, protocol: HTTPS, hostname: a.test, tls: {{certificateRefs: [{{name: cert}}]}}}}\n",
        cluster.secure_port
    );
    cluster.gateway(&listeners);
    until("the missing Secret is reported", || {
        cluster.said().iter().any(|line| line.contains("InvalidCertificateRef"))
    });
    assert_eq!(cluster.get("h", "/name", "").text(), "a");
    let write = |name: &str| {
        authority.sign(name, name);
        cluster.folder.write("secret.yaml", secret(&authority, "cert", name));
    };
    write("a.test");
    until("it is served with TLS", || {
        authority.curl("a.test", cluster.secure_port, "/name", &[]).as_deref() == Ok("a")
    });
    assert!(
        authority.curl("b.test", cluster.secure_port, "/name", &["--insecure"]).is_err(),
        "no listener has it"
    );
    write("b.test");
    until("the other certificate is used", || {
        authority.curl("a.test", cluster.secure_port, "/name", &[]).is_err()
    });
    assert_eq!(authority.curl("a.test", cluster.secure_port, "/name", &["--insecure"]).as_deref(), Ok("a"));
    let keys = std::fs::read_dir(cluster.state()).unwrap().count();
    assert_eq!(keys, 2, "the former ones are removed");
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = Folder::new();
    folder.write("a.yaml", "kind: Service\n");
    for (arguments, status, text) in [
        (vec!["--dir", "/nowhere"], 2, "/nowhere"),
        (vec!["--dir", folder.0.to_str().unwrap()], 2, "without `kind` and `apiVersion`"),
        (vec!["--dir", ".", "--address", "host"], 2, "--address"),
        (vec!["--dir", ".", "--workers", "0"], 2, "--workers"),
        (vec!["--lease", "x"], 2, "NAMESPACE/NAME"),
        (vec![], 2, "no API server is configured"),
    ] {
        let output = Command::new(program("flatout"))
            .arg("controller")
            .args(&arguments)
            .env_remove("KUBECONFIG")
            .env("HOME", "/nowhere")
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?} {shown}");
        assert!(shown.contains(text), "{arguments:?} {shown}");
    }
}

/// A server that keeps what it receives, and never responds.
fn silent() -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut received = vec![0; 100 << 10];
            let mut count = 0;
            // Heads and bodies of this test come at once, but perhaps in pieces; each body ends in a dot.
            while !received[..count].ends_with(b"\r\n\r\n") && !received[..count].ends_with(b".") {
                count += stream.read(&mut received[count..]).unwrap();
            }
            let text = String::from_utf8_lossy(&received[..count]).into_owned();
            if sender.send(text).is_err() {
                return;
            }
            open.push(stream);
        }
    });
    (port, receiver)
}

#[test]
fn mirrors_get_copies_and_no_request_waits_for_them() {
    let (app, (port, copies)) = (backend("app"), silent());
    let shadow = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: shadow}}\nspec: {{ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: shadow-1, labels: \
         {{kubernetes.io/service-name: shadow}}}}\naddressType: IPv4\nports: [{{name: '', port: {port}}}]\n\
         endpoints: [{{addresses: [127.0.0.1]}}]\n"
    );
    let mirror = "{type: RequestMirror, requestMirror: {backendRef: {name: shadow, port: 80}}}";
    let never = "{type: RequestMirror, requestMirror: {percent: 0, backendRef: {name: shadow, port: 80}}}";
    let spec = format!(
        "  rules:\n  - matches: [{{path: {{value: /never}}}}]\n    filters: [{never}]\n    backendRefs: [{{name: app, port: 80}}]\n  \
         - filters: [{mirror}, {{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{{name: X-Stage, value: test}}]}}}}]\n    \
         backendRefs: [{{name: app, port: 80}}]"
    );
    let cluster = Cluster::start(&(service("app", &[&app]) + &shadow + &route("r", &spec)));
    until("the route is served", || cluster.get("a.test", "/name", "").status == 200);
    let copy = copies.recv_timeout(flatout_tests::PATIENCE).unwrap();
    assert!(copy.starts_with("GET /name HTTP/1.1\r\n") && copy.contains("X-Stage: test\r\n"), "{copy}");
    assert_eq!(cluster.get("a.test", "/never", "").status, 404);
    // With a body of some size: the app responds although the copy is never answered.
    let body = "x".repeat(40_000) + ".";
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.port)).unwrap();
    stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    let head = format!(
        "POST /name HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let answer = flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false).remove(0);
    assert_eq!(answer.status, 405, "of a server of files");
    let copy = copies.recv_timeout(flatout_tests::PATIENCE).unwrap();
    assert!(copy.starts_with("POST /name ") && copy.ends_with(&body), "{} bytes", copy.len());
    // A longer one is not copied; the next copy is that of the request after it.
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.port)).unwrap();
    stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    let head = "POST /name HTTP/1.1\r\nHost: a.test\r\nContent-Length: 70000\r\nConnection: close\r\n\r\n";
    let _ = stream.write_all((head.to_owned() + &"x".repeat(70_000)).as_bytes());
    let _ = stream.read(&mut [0; 1000]);
    assert_eq!(cluster.get("a.test", "/name?after", "").status, 200);
    let copy = copies.recv_timeout(flatout_tests::PATIENCE).unwrap();
    assert!(copy.starts_with("GET /name?after "), "{copy}");
}

#[test]
fn tls_routes_pass_connections_on() {
    let authority = Authority::new();
    authority.sign("app", "app.test");
    let app = {
        let folder = Folder::new();
        folder.write("name", "behind");
        let (certificate, key) = (authority.path("app.pem"), authority.path("app.key"));
        let flags = ["--workers", "1", "--tls", certificate.as_str(), key.as_str()];
        let server = Server::site(&folder.0, &flags);
        (server.secure_port.unwrap(), server, folder)
    };
    let objects = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: app}}\nspec: {{ports: [{{port: 443}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: app-1, labels: \
         {{kubernetes.io/service-name: app}}}}\naddressType: IPv4\nports: [{{name: '', port: {}}}]\n\
         endpoints: [{{addresses: [127.0.0.1]}}]\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\n\
         metadata: {{name: r}}\nspec:\n  parentRefs: [{{name: gw}}]\n  hostnames: [app.test]\n  \
         rules: [{{backendRefs: [{{name: app, port: 443}}]}}]\n",
        app.0
    );
    let cluster = Cluster::start(&objects);
    let port = cluster.secure_port;
    cluster.gateway(&format!("  - {{name: tls, port: {port}, protocol: TLS, tls: {{mode: Passthrough}}}}\n"));
    until("the listener serves", || {
        authority.curl("app.test", port, "/name", &[]) == Ok("behind".to_owned())
    });
    let other = authority.curl("other.test", port, "/name", &[]);
    assert!(other.is_err_and(|code| code != 60), "no certificate: disconnected");
}

#[test]
fn ingresses_are_imported_as_objects_of_the_gateway_api() {
    let (app, folder) = (backend("app"), Folder::new());
    let rules = "rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]";
    let ingress = |name: &str, annotation: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, annotations: \
             {{nginx.ingress.kubernetes.io/{annotation}: x}}}}\nspec: {{ingressClassName: nginx, {rules}}}\n"
        )
    };
    let import = |text: &str| {
        folder.write("ingress.yaml", text);
        let output =
            Command::new(program("flatout")).args(["import", "--ingress"]).arg(&folder.0).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, objects, said) = import(&ingress("main", "proxy-body-size"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("proxy-body-size") && objects.starts_with("# Ingress default/main: "), "{said}");
    // The controller serves what was printed, with the port of the test in place of 80.
    let cluster = Cluster::start("");
    let port = cluster.port;
    cluster.folder.write("gateway.yaml", CLASS);
    cluster.objects(
        &(service("app", &[&app])
            + &objects.replace("    port: 80\n    protocol", &format!("    port: {port}\n    protocol"))),
    );
    until("the route is served", || cluster.get("a.test", "/name", "").status == 200);
    // The same requests to both: by the gateway, and to another server.
    let check = |old: u16, new: u16| {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new(program("flatout"));
        let output = command
            .args(["import", "--check", &url(old), &url(new), "--ingress"])
            .arg(&folder.0)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout))
    };
    let own = app.server.address.port();
    assert_eq!(
        check(own, port),
        (Some(0), "3 requests: 3 with equal responses, 0 with different ones\n".to_owned())
    );
    let other = Folder::new();
    other.write("index.html", "another application");
    let another = Server::site(&other.0, &["--workers", "1"]);
    let (code, said) = check(own, another.address.port());
    assert!(code == Some(1) && said.starts_with("GET http://a.test/\n  status "), "{said}");
    // Requests of an Ingress that is left out reach nothing else: neither beside an open one, nor at its own path.
    for (path, served) in [("path: /closed,", 1), ("path: /,", 0)] {
        let closed = ingress("closed", "auth-url").replace("path: /,", path);
        let (code, objects, said) = import(&(ingress("main", "x") + &closed));
        assert!(code == Some(1) && said.contains("left out"), "{said}");
        let backends = objects.matches("backendRefs").count();
        assert!(objects.contains("  name: closed\n") && backends == served, "{path} {objects}");
    }
    assert_eq!(import("kind: [").0, Some(2));
    assert_eq!(import("").0, Some(2), "no Ingress");
    for arguments in
        [&["--check", "http://127.0.0.1:1"][..], &["nginx.conf"], &["--check", "ftp://x", "http://y"]]
    {
        let mut command = Command::new(program("flatout"));
        let output = command.arg("import").args(arguments).arg("--ingress").arg(&folder.0).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
