//! Certificates for tests, and curl as a client that trusts them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::Folder;

/// An authority, and certificates that it has signed, made by openssl.
pub struct Authority(pub Folder);

impl Authority {
    /// A new one, whose certificate is `ca.pem`.
    pub fn new() -> Authority {
        let authority = Authority(Folder::new());
        authority.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 9 -subj /CN=ca");
        authority
    }

    /// Runs openssl in the folder.
    pub fn openssl(&self, arguments: &str) {
        let output =
            Command::new("openssl").args(arguments.split(' ')).current_dir(&self.0.0).output().unwrap();
        assert!(output.status.success(), "{arguments}\n{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Signs a certificate for a name, as `FILE.pem` and `FILE.key`.
    pub fn sign(&self, file: &str, name: &str) {
        self.0.write("ext", format!("subjectAltName=DNS:{name}\n"));
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {file}.key -out {file}.csr -subj /CN={name}"
        ));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -extfile ext -out {file}.new"
        ));
        fs::rename(self.path(&format!("{file}.new")), self.path(&format!("{file}.pem"))).unwrap();
        fs::set_permissions(self.path(&format!("{file}.key")), Permissions::from_mode(0o600)).unwrap();
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        self.0.0.join(name).display().to_string()
    }

    /// What curl gets for a name that stands for this machine: the body, or the status that curl ends with.
    pub fn curl(&self, name: &str, port: u16, target: &str, more: &[&str]) -> Result<String, i32> {
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "10", "--cacert", &self.path("ca.pem")])
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
