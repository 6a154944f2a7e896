//! `flatout import` of TLS settings, compared with the imported nginx.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use flatout_tests::authority::Authority;
use flatout_tests::peers::{Peer, free_port};
use flatout_tests::{Server, program};

const HTTP: &str = r#"
    ssl_password_file FOLDER/passwords;
    ssl_certificate FOLDER/a.pem;
    ssl_certificate_key FOLDER/a.key;
    ssl_client_certificate FOLDER/ca.pem;
    server {
        listen 127.0.0.1:SECURE ssl;
        server_name optional.test;
        ssl_verify_client optional;
        location / { return 200 "$ssl_client_verify $ssl_client_s_dn"; }
    }
    server {
        listen 127.0.0.1:SECURE ssl;
        server_name unknown.test;
        ssl_verify_client optional_no_ca;
        location / { return 200 "$ssl_client_verify $ssl_client_s_dn"; }
    }
    server {
        listen 127.0.0.1:SECURE ssl;
        server_name listed.test;
        ssl_verify_client on;
        ssl_crl FOLDER/crl.pem;
        location / { return 200 "$ssl_client_verify $ssl_client_s_dn"; }
    }
    server { listen 127.0.0.1:PORT; return 204; }
"#;

/// A CA, its client that is revoked, another one, and a client of another CA.
fn clients(authority: &Authority) -> Authority {
    authority.sign("good", "good");
    authority.sign("bad", "bad");
    let options = "-keyfile ca.key -cert ca.pem -config ca.conf";
    authority.0.write("index.txt", "");
    authority.0.write("ca.conf", "[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\ndefault_md=sha256\ncrl_extensions=list\n[list]\nauthorityKeyIdentifier=keyid\n");
    authority.openssl(&format!("ca {options} -revoke bad.pem"));
    authority.openssl(&format!("ca {options} -gencrl -crldays 1 -out crl.pem"));
    let other = Authority::new();
    other.sign("other", "other");
    other
}

#[test]
fn certificates_of_clients_are_judged_as_by_nginx() {
    let authority = Authority::new();
    authority.sign("a", "optional.test");
    authority.openssl("pkcs8 -topk8 -v2 aes-256-cbc -in a.key -out a.encrypted -passout pass:secret");
    let key = authority.0.0.join("a.key");
    std::fs::rename(authority.0.0.join("a.encrypted"), &key).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    authority.0.write("passwords", "wrong\nsecret\n");
    let other = clients(&authority);
    let secure = free_port();
    let http = HTTP.replace("SECURE", &secure.to_string());
    let Some(nginx) = Peer::nginx(&authority.0, &http) else { return };
    let ask = |port: u16| {
        let mut responses = Vec::new();
        for name in ["optional.test", "unknown.test", "listed.test"] {
            for (folder, client) in
                [(&authority, ""), (&authority, "good"), (&authority, "bad"), (&other, "other")]
            {
                let (certificate, key) =
                    (folder.path(&format!("{client}.pem")), folder.path(&format!("{client}.key")));
                let mut more = vec!["--insecure"];
                if !client.is_empty() {
                    more.extend(["--cert", &certificate, "--key", &key]);
                }
                let said = authority.curl(name, port, "/", &more);
                // nginx responds with 400 to those that are refused in their handshake here.
                let said = said.ok().filter(|text| !text.contains("400")).unwrap_or("refused".to_owned());
                // The reasons have other words.
                let said = said.replace("unable to verify the first certificate", "unknown issuer");
                let said = said.replace("unable to get local issuer certificate", "unknown issuer");
                responses.push(format!("{name} {client}: {said}"));
            }
        }
        responses
    };
    let old = ask(secure);
    drop(nginx);
    let mut command = Command::new(program("flatout"));
    command.args(["import", "nginx.conf"]).current_dir(&authority.0.0).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    authority.0.write("site.kdl", output.stdout);
    let site = authority.path("site.kdl");
    let check =
        Command::new(program("flatout")).args(["check", &site]).stdin(Stdio::null()).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let mut command = Command::new(program("flatout"));
    let _server = Server::start({
        command.args(["serve", "-c", &site, "--workers", "1"]);
        command
    });
    assert_eq!(ask(secure), old);
    assert!(old.contains(&"unknown.test other: FAILED:unknown issuer CN=other".to_owned()), "{old:#?}");
    assert!(old.contains(&"listed.test bad: refused".to_owned()), "{old:#?}");
}
