//! Private keys in PEM files, plain or encrypted with a password.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pkcs8::{EncryptedPrivateKeyInfo, SecretDocument};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::certificate::{contains, read};

/// The permissions of a key that others must not have; its group may read it.
const KEY_MODE_REFUSED: u32 = 0o027;

/// The most passwords in a file: each wrong one costs the time that the key's encryption demands.
const PASSWORDS_MAX: usize = 32;

/// Reads a key. Those of the file of passwords are tried in order, one a line, if it is encrypted.
pub(crate) fn private_key(path: &Path, passwords: Option<&Path>) -> Result<PrivateKeyDer<'static>, String> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| format!("key {shown}: cannot be read: {error}"))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & KEY_MODE_REFUSED != 0 {
        return Err(format!(
            "key {shown}: others may read or write it (mode {mode:04o}); make it private: chmod 600 {shown}"
        ));
    }
    let bytes = read(path, "key")?;
    if contains(&bytes, b"Proc-Type: 4,ENCRYPTED") {
        return Err(format!(
            "key {shown}: its old form of encryption is not supported; convert it: openssl pkey -aes256 -in {shown} -out NEW_FILE"
        ));
    }
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if contains(&bytes, b"ENCRYPTED PRIVATE KEY") => {
            let passwords = passwords.ok_or_else(|| {
                format!("key {shown}: it is encrypted; name the file with its password, as in `tls CERT KEY passwords=FILE`")
            })?;
            decrypted(&bytes, passwords).map_err(|why| format!("key {shown}: {why}"))
        }
        Err(pem::Error::NoItemsFound) => {
            Err(format!("key {shown}: no private key in it; need PEM with `BEGIN PRIVATE KEY`"))
        }
        Err(error) => Err(format!("key {shown}: not PEM: {error}")),
    }
}

fn decrypted(bytes: &[u8], passwords: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let malformed =
        |error: &dyn std::fmt::Display| format!("its encryption is malformed or not supported: {error}");
    let pem = std::str::from_utf8(bytes).map_err(|error| malformed(&error))?;
    let (_, document) = SecretDocument::from_pem(encrypted_block(pem)).map_err(|error| malformed(&error))?;
    let key = EncryptedPrivateKeyInfo::try_from(document.as_bytes()).map_err(|error| malformed(&error))?;
    let given = read(passwords, "passwords")?;
    let lines = given.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let plain =
        lines.filter(|line| !line.is_empty()).take(PASSWORDS_MAX).find_map(|line| key.decrypt(line).ok());
    let plain = plain.ok_or_else(|| format!("no password in {} decrypts it", passwords.display()))?;
    Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into())
}

/// The PEM block of an encrypted key: the certificate may be in the same file.
fn encrypted_block(pem: &str) -> &str {
    let (begin, end) = ("-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----");
    let block = pem.find(begin).and_then(|at| pem.get(at..));
    let block = block.and_then(|block| block.get(..block.find(end)? + end.len()));
    block.unwrap_or(pem)
}
