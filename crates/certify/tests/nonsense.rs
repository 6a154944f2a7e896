//! A CA that sends an invalid response at one step of an order: this is reported, and has no other effect.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flatout_certify::State;
use flatout_certify::acme::{Keeper, Plan, Publish, Way};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(30);

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn say(_: flatout_certify::Level, message: fmt::Arguments<'_>) {
    SAID.lock().unwrap().push(message.to_string());
}

/// The invalid response, and the path that it is sent for; `head` is the status with more head lines.
#[derive(Clone, Copy)]
struct Wrong {
    path: &'static str,
    head: &'static str,
    body: &'static str,
}

/// A valid response, up to the step at which the CA would connect to us.
fn sense(path: &str, base: &str, domain: &str) -> (String, String) {
    let body = match path {
        "/dir" => format!(
            r#"{{"newNonce":"{base}/nonce","newAccount":"{base}/account","newOrder":"{base}/order","revokeCert":"{base}/x","keyChange":"{base}/x"}}"#
        ),
        "/account" => r#"{"status":"valid"}"#.to_owned(),
        "/order" => format!(
            r#"{{"status":"pending","identifiers":[{{"type":"dns","value":"{domain}"}}],"authorizations":["{base}/proof"],"finalize":"{base}/x"}}"#
        ),
        "/proof" => format!(
            r#"{{"status":"pending","identifier":{{"type":"dns","value":"{domain}"}},"challenges":[{{"type":"http-01","url":"{base}/ready","token":"abc","status":"pending"}}]}}"#
        ),
        _ => String::new(),
    };
    (format!("200 OK\r\nLocation: {base}{path}/1"), body)
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, wrong: Wrong, domain: String) {
    let base = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = tls.accept(socket).await else { continue };
        let mut request = Vec::new();
        let path = loop {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).await.unwrap_or(0);
            request.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&request).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                assert!(count > 0, "{text}");
                continue;
            };
            let length = head.to_ascii_lowercase();
            let length = length.split_once("content-length: ").map_or("0", |(_, rest)| rest);
            let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
            if body.len() >= length {
                break head.split(' ').nth(1).unwrap().to_owned();
            }
        };
        let (head, body) = match path == wrong.path {
            true => (wrong.head.to_owned(), wrong.body.to_owned()),
            false => sense(&path, &base, &domain),
        };
        let nonce = if head.contains("No-Nonce") { "" } else { "Replay-Nonce: bm9uY2U\r\n" };
        // The connection's end is the end of the body, unless the head says otherwise.
        let text = format!("HTTP/1.1 {head}\r\n{nonce}Connection: close\r\n\r\n{body}");
        let _ = stream.write_all(text.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

/// What is reported for a CA that responds like this.
fn message(number: usize, wrong: Wrong) -> String {
    let folder = TempDir::new().unwrap();
    let domain = format!("n{number}.flatout.test");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let authorities = folder.path().join("ca.pem");
    std::fs::write(&authorities, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    let directory = format!("https://localhost:{}/dir", listener.local_addr().unwrap().port());
    runtime.spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), wrong, domain.clone()));
    let plan = Plan {
        directory,
        contact: Vec::new(),
        authorities: Some(authorities),
        profile: None,
        ways: vec![Way::Http],
        hook: None,
    };
    let state = State::at(folder.path().join("state"));
    let publish: Publish = Arc::new(|_| Ok(()));
    let keeper = Keeper::start(plan, vec![domain.clone()], state, publish, say).unwrap();
    let began = Instant::now();
    let start = format!("no certificate for {domain}: ");
    let said = loop {
        let said = SAID.lock().unwrap().iter().find_map(|line| Some(line.strip_prefix(&start)?.to_owned()));
        match said {
            Some(said) => break said,
            None => assert!(began.elapsed() < PATIENCE, "{domain}: nothing is said of {}", wrong.path),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    drop(keeper);
    said
}

#[test]
fn nonsense_is_reported_at_every_step() {
    let huge: &'static str = "x".repeat(2 << 20).leak();
    let many = format!(
        r#"{{"status":"pending","identifiers":[],"authorizations":[{}],"finalize":"https://localhost/x"}}"#,
        vec![r#""https://localhost:1/x""#; 1000].join(",")
    );
    let many: &'static str = many.leak();
    let ok = "200 OK\r\nLocation: https://localhost/1";
    let cases = [
        ("/dir", "200 OK", "nonsense", "invalid response"),
        ("/dir", "200 OK", "{}", "invalid response"),
        ("/dir", "200 OK", huge, "cannot be reached"),
        ("/dir", "200 OK\r\nContent-Length: 100", "{", "cannot be reached"),
        ("/dir", "nonsense", "", "cannot be reached"),
        ("/nonce", "200 OK\r\nNo-Nonce: 1", "", "invalid response"),
        ("/nonce", "500 No", "", "invalid response"),
        ("/account", "200 OK", r#"{"status":"valid"}"#, "invalid response"),
        ("/account", "500 No", "<html>", "invalid response"),
        (
            "/account",
            "429 No",
            r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"x"}"#,
            "rate limit",
        ),
        ("/order", ok, "[]", "invalid response"),
        ("/order", ok, many, "cannot be reached"),
        (
            "/order",
            ok,
            r#"{"status":"pending","authorizations":["http://localhost/x"],"finalize":"y"}"#,
            "not an https address",
        ),
        (
            "/proof",
            "200 OK",
            r#"{"status":"pending","identifier":{"type":"dns","value":"a"},"challenges":[]}"#,
            "does not offer http-01",
        ),
        (
            "/proof",
            "200 OK",
            r#"{"status":"pending","identifier":{"type":"dns","value":"a"},"challenges":[{"type":"http-01","url":"https://localhost/x","token":"../../x","status":"pending"}]}"#,
            "an invalid token",
        ),
        ("/ready", "200 OK\r\nRetry-After: 18446744073709551615", "x", "invalid response"),
    ];
    std::thread::scope(|scope| {
        for (number, (path, head, body, expected)) in cases.into_iter().enumerate() {
            scope.spawn(move || {
                let said = message(number, Wrong { path, head, body });
                assert!(
                    said.contains(expected) && said.contains("next attempt in"),
                    "{number} {path}: {said}"
                );
            });
        }
    });
}
