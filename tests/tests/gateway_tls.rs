//! TLS of gateways: what is inside TLS for TLSRoutes, certificates of clients and for backends, listeners that share a port.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use flatout_tests::authority::Authority;
use flatout_tests::{Folder, Server, until};

use super::controller::{Cluster, TO_APP, backend, config_map, route, secret, service, service_at};

/// A policy for the service `app`, whose servers have certificates of the authority in the ConfigMap `ca`.
fn policy(names: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: p}}\nspec:\n  \
         targetRefs: [{{group: '', kind: Service, name: app}}]\n  validation: {{hostname: other.test, caCertificateRefs: \
         [{{group: '', kind: ConfigMap, name: ca}}]{names}}}\n"
    )
}

/// An HTTPS listener for this host at the port for TLS.
fn https(cluster: &Cluster, host: &str, more: &str) -> String {
    let port = cluster.secure_port;
    format!(
        "  - {{name: {host}, port: {port}, protocol: HTTPS, hostname: {host}, tls: {{certificateRefs: [{{name: cert}}]}}{more}}}\n"
    )
}

/// TLS of the gateway, behind its listeners.
fn tls(text: &str) -> String {
    format!("  tls: {text}\n")
}

fn at_listener(name: &str, listener: &str) -> String {
    route(name, TO_APP).replace("[{name: gw}]", &format!("[{{name: gw, sectionName: {listener}}}]"))
}

/// A client of `in.test` whose standard input and output are what is inside TLS.
fn client_inside(authority: &Authority, port: u16, more: &[&str]) -> Child {
    Command::new("openssl")
        .args(["s_client", "-quiet", "-servername", "in.test", "-CAfile", &authority.path("ca.pem")])
        .args(["-verify_return_error", "-connect", &format!("127.0.0.1:{port}")])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn connections_of_tls_routes_are_passed_on_behind_the_end_of_tls() {
    let (authority, a) = (Authority::new(), backend("inside"));
    for name in ["in.test", "db.test"] {
        authority.sign(name, name);
    }
    let folder = Folder::new();
    folder.write("name", "as it is");
    let (certificate, key) = (authority.path("db.test.pem"), authority.path("db.test.key"));
    let behind = Server::site(&folder.0, &["--workers", "1", "--tls", certificate.as_str(), key.as_str()]);
    let tls_route = |name: &str, host: &str, service: &str| {
        let rules = TO_APP.replace("name: app", &format!("name: {service}"));
        route(name, &format!("  hostnames: [{host}]\n{rules}")).replace("HTTPRoute", "TLSRoute")
    };
    let objects = service("app", &[&a])
        + &service_at("db", &[behind.secure_port.unwrap()])
        + &tls_route("r", "in.test", "app")
        + &tls_route("s", "db.test", "db");
    let cluster = Cluster::start(&objects);
    cluster.folder.write("secret.yaml", secret(&authority, "cert", "in.test"));
    let port = cluster.secure_port;
    let listeners = format!(
        "  - {{name: in, port: {port}, protocol: TLS, hostname: in.test, tls: {{mode: Terminate, certificateRefs: [{{name: cert}}]}}}}\n  \
         - {{name: db, port: {port}, protocol: TLS, hostname: db.test, tls: {{mode: Passthrough}}}}\n"
    );
    cluster.gateway(&listeners);
    until("the listener serves", || authority.curl("in.test", port, "/name", &[]).as_deref() == Ok("inside"));
    assert_eq!(authority.curl("db.test", port, "/name", &[]).as_deref(), Ok("as it is"), "both at one port");
    assert!(authority.curl("other.test", port, "/name", &[]).is_err(), "a name that no listener has");
    // A client that speaks another protocol inside, and offers only that.
    let mut client = client_inside(&authority, port, &["-alpn", "mqtt"]);
    let mut get = |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let mut received = [0; 4096];
        let count = client.stdout.as_mut().unwrap().read(&mut received).unwrap();
        String::from_utf8_lossy(&received[..count]).into_owned()
    };
    let response = get("/name");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    // A reload leaves its connection alone.
    cluster.gateway(&(listeners + "  - {name: new, port: 1, protocol: HTTP, hostname: new.test}\n"));
    until("it is reloaded", || {
        cluster.said().iter().any(|line| {
            line.contains("at 127.0.0.1:1 are not served") || line.contains("reloaded the objects")
        })
    });
    let response = get("/x/name");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    client.kill().unwrap();
    client.wait().unwrap();
    // This port serves no text without TLS.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(b"GET /name HTTP/1.1\r\nHost: in.test\r\n\r\n").unwrap();
    let mut text = String::new();
    let _ = plain.read_to_string(&mut text);
    assert!(!text.contains("inside"), "{text}");
}

#[test]
fn large_amounts_go_through_the_end_of_tls_in_both_directions() {
    let authority = Authority::new();
    authority.sign("in.test", "in.test");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let echo = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut back);
            });
        }
    });
    let objects = service_at("app", &[echo]) + &route("r", TO_APP).replace("HTTPRoute", "TLSRoute");
    let cluster = Cluster::start(&(objects + "---\n" + &secret(&authority, "cert", "in.test")));
    let port = cluster.secure_port;
    cluster.gateway(&format!(
        "  - {{name: in, port: {port}, protocol: TLS, tls: {{certificateRefs: [{{name: cert}}]}}}}\n"
    ));
    until("the listener serves", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut client = client_inside(&authority, port, &[]);
    let large: Vec<u8> = (0..2_000_003_u32).map(|at| (at * 7 % 251) as u8).collect();
    let (mut into, mut received) = (client.stdin.take().unwrap(), vec![0; large.len()]);
    let sent = large.clone();
    let sending = std::thread::spawn(move || {
        into.write_all(&sent).unwrap();
        into
    });
    client.stdout.as_mut().unwrap().read_exact(&mut received).unwrap();
    drop(sending.join().unwrap());
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(received == large);
}

#[test]
fn clients_need_a_certificate_where_the_gateway_says_so() {
    let (authority, stranger, a) = (Authority::new(), Authority::new(), backend("a"));
    authority.sign("a.test", "a.test");
    authority.sign("me", "me");
    stranger.sign("me", "me");
    let cluster = Cluster::start(&(service("app", &[&a]) + &route("r", TO_APP)));
    cluster.folder.write("secret.yaml", secret(&authority, "cert", "a.test") + &config_map(&authority, "ca"));
    let validation = "validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}";
    let listener = https(&cluster, "a.test", "");
    cluster.gateway(&(listener.clone() + &tls(&format!("{{frontend: {{default: {{{validation}}}}}}}"))));
    let port = cluster.secure_port;
    let get = |of: Option<&Authority>| {
        let files = of.map(|of| [of.path("me.pem"), of.path("me.key")]);
        let more: Vec<&str> =
            files.iter().flat_map(|[pem, key]| ["--cert", pem.as_str(), "--key", key.as_str()]).collect();
        authority.curl("a.test", port, "/name", &more)
    };
    until("clients with a certificate are served", || get(Some(&authority)).as_deref() == Ok("a"));
    assert!(get(None).is_err() && get(Some(&stranger)).is_err());
    assert_eq!(cluster.get("a.test", "/name", "").text(), "a", "without TLS there are no certificates");
    // Both ways, while it serves.
    let insecure = validation.replace("{caC", "{mode: AllowInsecureFallback, caC");
    cluster.gateway(&(listener.clone() + &tls(&format!("{{frontend: {{default: {{{insecure}}}}}}}"))));
    until("all are served", || get(None).is_ok() && get(Some(&stranger)).is_ok());
    assert!(cluster.said().iter().any(|line| line.contains("InsecureFrontendValidationMode")));
    let missing = validation.replace("name: ca", "name: none");
    cluster.gateway(&(listener + &tls(&format!("{{frontend: {{default: {{{missing}}}}}}}"))));
    until("nobody is", || get(None).is_err() && get(Some(&authority)).is_err());
    assert!(cluster.said().iter().any(|line| line.contains("NoValidCACertificate")));
}

#[test]
fn connections_to_one_listener_are_no_way_to_the_sites_of_another() {
    let (authority, a) = (Authority::new(), backend("a"));
    authority.sign_with("both", "a.test", "");
    let objects = service("app", &[&a]) + &at_listener("r", "a.test") + &at_listener("s", "b.test");
    let cluster = Cluster::start(&(objects + &secret(&authority, "cert", "both")));
    cluster.gateway(&(https(&cluster, "a.test", "") + &https(&cluster, "b.test", "")));
    let port = cluster.secure_port;
    let status = |name: &str, host: &str| {
        let field = format!("Host: {host}");
        let more = ["--insecure", "-H", &field, "--output", "/dev/null", "--write-out", "%{http_code}"];
        authority.curl(name, port, "/name", &more)
    };
    until("both are served", || {
        status("a.test", "a.test").as_deref() == Ok("200")
            && status("b.test", "b.test").as_deref() == Ok("200")
    });
    assert_eq!(status("a.test", "b.test").as_deref(), Ok("421"));
    assert_eq!(status("b.test", "a.test").as_deref(), Ok("421"));
    assert_eq!(status("a.test", "nobody.test").as_deref(), Ok("404"), "no listener has it");
    // Another listener at the port changes nothing for the connections and sites of the first ones.
    cluster.gateway(
        &(https(&cluster, "a.test", "") + &https(&cluster, "b.test", "") + &https(&cluster, "c.test", "")),
    );
    until("the third is served", || status("c.test", "c.test").as_deref() == Ok("404"));
    assert_eq!(status("a.test", "a.test").as_deref(), Ok("200"));
    assert_eq!(status("a.test", "c.test").as_deref(), Ok("421"));
}

#[test]
fn backends_are_known_by_other_names_and_see_the_certificate_of_the_gateway() {
    let authority = Authority::new();
    authority.sign_with("app", "app.test", "");
    authority.0.write("ext", "subjectAltName=DNS:app.test,URI:spiffe://test/app\n");
    authority.openssl(
        "x509 -req -in app.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -extfile ext -out app.pem",
    );
    authority.sign("gateway", "gateway");
    let folder = Folder::new();
    folder.write("name", "checked");
    let [certificate, key, ca] = ["app.pem", "app.key", "ca.pem"].map(|it| authority.path(it));
    let flags =
        ["--workers", "1", "--tls", certificate.as_str(), key.as_str(), "--tls-client-ca", ca.as_str()];
    let app = Server::site(&folder.0, &flags);
    let of_app = service_at("app", &[app.secure_port.unwrap()]);
    let cluster = Cluster::start(&(of_app + &route("r", TO_APP)));
    let write = |names: &str| {
        cluster.folder.write(
            "tls.yaml",
            secret(&authority, "shown", "gateway") + &config_map(&authority, "ca") + &policy(names),
        );
    };
    let shown = tls("{backend: {clientCertificateRef: {name: shown}}}");
    let status = || cluster.get("h", "/name", "").status;
    write(", subjectAltNames: [{type: URI, uri: 'spiffe://test/app'}]");
    until("it needs a certificate", || status() == 502);
    cluster.gateway(&shown);
    until("the gateway shows one", || status() == 200);
    for (names, expected) in [
        (", subjectAltNames: [{type: URI, uri: 'spiffe://test/other'}]", 502),
        (
            ", subjectAltNames: [{type: Hostname, hostname: other.test}, {type: Hostname, hostname: app.test}]",
            200,
        ),
        (", subjectAltNames: [{type: Hostname, hostname: other.test}]", 502),
        (
            ", subjectAltNames: [{type: URI, uri: 'spiffe://test/app'}, {type: Hostname, hostname: other.test}]",
            200,
        ),
        ("", 502),
    ] {
        write(names);
        until(names, || status() == expected);
    }
}
