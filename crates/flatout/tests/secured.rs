//! TLS of an application.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use flatout::engine::Address;
use flatout::{App, Error};

/// Writes a certificate for `localhost` and its key.
fn certify(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    let key = folder.join("key.pem");
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn an_app_serves_tls_and_follows_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    certify(folder.path());
    let app = App::new().get("/", || "hello").tls(&cert, &key).listen("127.0.0.1:0").workers(1);
    let server = app.start().unwrap();
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("no address") };
    let ask = |version: &str| {
        let url = format!("https://localhost:{}/", address.port());
        let resolve = format!("localhost:{}:127.0.0.1", address.port());
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "--max-time",
            "20",
            version,
            "--resolve",
            &resolve,
            "-w",
            " %{http_version}",
            "--cacert",
        ]);
        let output = curl.arg(&cert).arg(url).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(ask("--http2").as_deref(), Some("hello 2"));
    assert_eq!(ask("--http1.1").as_deref(), Some("hello 1.1"));
    // The other certificate is trusted only once it is served.
    certify(folder.path());
    let until = Instant::now() + Duration::from_secs(60);
    while ask("--http2").is_none() {
        assert!(Instant::now() < until, "the new certificate is never served");
        std::thread::sleep(Duration::from_millis(200));
    }
    // A broken one changes nothing.
    let good = std::fs::read(&cert).unwrap();
    std::fs::write(&cert, "no certificate").unwrap();
    std::thread::sleep(Duration::from_secs(11));
    std::fs::write(&cert, good).unwrap();
    assert_eq!(ask("--http2").as_deref(), Some("hello 2"));
    server.handle().drain();
    server.wait().unwrap();
}

#[test]
fn certificates_that_cannot_be_used_are_errors_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    certify(folder.path());
    certify(other.path());
    std::fs::write(folder.path().join("text.pem"), "no certificate").unwrap();
    let key = folder.path().join("key.pem");
    for (cert, key, why) in [
        (folder.path().join("none.pem"), key.clone(), "none.pem"),
        (folder.path().join("text.pem"), key.clone(), "text.pem"),
        (folder.path().join("cert.pem"), folder.path().join("no.key"), "no.key"),
        (folder.path().join("cert.pem"), other.path().join("key.pem"), "key.pem"),
    ] {
        let started = App::new().get("/", || "hello").tls(cert, key).listen("127.0.0.1:0").start();
        match started.map(|_| ()) {
            Err(Error::Start(message)) => assert!(message.contains(why), "{message}"),
            other => panic!("{other:?}"),
        }
    }
}
