//! Certificates for tests, and curl as a client that trusts them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::Folder;

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

/// Writes `cert.pem` and `key.pem` into the folder: a self-signed certificate for `localhost` and 127.0.0.1.
pub fn self_sign(folder: &Folder) {
    let names =
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    openssl(
        folder,
        &format!("req -x509 {NEW_KEY} -keyout key.pem -out cert.pem -days 9 -subj /CN=localhost {names}"),
    );
    fs::set_permissions(folder.0.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
}

/// Runs openssl in the folder.
fn openssl(folder: &Folder, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(&folder.0).output().unwrap();
    assert!(output.status.success(), "{arguments}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// A CA and the certificates it has signed, made by openssl.
pub struct Authority(pub Folder);

impl Authority {
    /// A new CA, whose certificate is `ca.pem`.
    pub fn new() -> Authority {
        let authority = Authority(Folder::new());
        authority.openssl(&format!("req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 9 -subj /CN=ca"));
        authority
    }

    /// Runs openssl in the folder.
    pub fn openssl(&self, arguments: &str) {
        openssl(&self.0, arguments);
    }

    /// Signs a certificate for a name and for 127.0.0.1, as `FILE.pem` and `FILE.key`.
    pub fn sign(&self, file: &str, name: &str) {
        self.sign_with(file, name, "");
    }

    /// The same with more extensions, as lines of openssl's configuration.
    pub fn sign_with(&self, file: &str, name: &str, extensions: &str) {
        self.0.write("ext", format!("subjectAltName=DNS:{name},IP:127.0.0.1\n{extensions}"));
        self.openssl(&format!("req {NEW_KEY} -keyout {file}.key -out {file}.csr -subj /CN={name}"));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -extfile ext -out {file}.new"
        ));
        fs::rename(self.path(&format!("{file}.new")), self.path(&format!("{file}.pem"))).unwrap();
        fs::set_permissions(self.path(&format!("{file}.key")), Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes an OCSP response that says that a certificate is good, to `FILE.pem.ocsp` beside it.
    pub fn staple(&self, file: &str) {
        let output = Command::new("openssl")
            .args(["x509", "-noout", "-serial", "-in", &self.path(&format!("{file}.pem"))])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let serial = text.trim().strip_prefix("serial=").expect("a serial number");
        // The list of openssl's own authority: valid, until, not revoked, number, file, name.
        self.0.write("index", format!("V\t491231235959Z\t\t{serial}\tunknown\t/CN={file}\n"));
        self.openssl(&format!("ocsp -issuer ca.pem -cert {file}.pem -reqout ocsp.req -no_nonce"));
        self.openssl(&format!(
            "ocsp -index index -CA ca.pem -rsigner ca.pem -rkey ca.key -ndays 1 -reqin ocsp.req -respout {file}.new"
        ));
        fs::rename(self.path(&format!("{file}.new")), self.path(&format!("{file}.pem.ocsp"))).unwrap();
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        self.0.0.join(name).display().to_string()
    }

    /// Requests a name that resolves to this machine, with curl. Returns the body, or curl's exit code.
    pub fn curl(&self, name: &str, port: u16, target: &str, more: &[&str]) -> Result<String, i32> {
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "30", "--cacert", &self.path("ca.pem")])
            .args(["--resolve", &format!("{name}:{port}:127.0.0.1")])
            .args(more)
            .arg(format!("https://{name}:{port}{target}"))
            .output()
            .unwrap();
        match output.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            code => Err(code.unwrap_or(-1)),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Authority::new()
    }
}
