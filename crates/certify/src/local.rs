//! A local CA for development: created once, it signs a certificate for the names of a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use flatout_tls::Certificate;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

use crate::acme::renewal;
use crate::{Level, Lock, Say, State};

const AUTHORITY: &str = "local/ca.pem";
const AUTHORITY_KEY: &str = "local/ca.key";
const SERVER: &str = "local/server.pem";
const LOCK: &str = "local/lock";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lifetime of the CA's certificate: clients trust it once.
const AUTHORITY_TIME: Duration = DAY.saturating_mul(3650);

/// Lifetime of a server's certificate. Some systems refuse more than 398 days.
const SERVER_TIME: Duration = DAY.saturating_mul(90);

/// The clocks of clients may be behind.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);

/// How long another process may hold the lock: its work takes milliseconds.
const LOCK_TIME_MAX: Duration = Duration::from_secs(10);

/// Names in one certificate.
const NAMES_MAX: usize = 100;

/// Names that every local certificate has.
const ALWAYS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Path of the server's certificate and key.
pub fn certificate_path(state: &State) -> PathBuf {
    state.path(SERVER)
}

/// Path of the CA's certificate, which clients have to trust.
pub fn authority_path(state: &State) -> PathBuf {
    let path = state.path(AUTHORITY);
    fs::canonicalize(&path).unwrap_or(path)
}

/// How to make clients on this machine trust it.
pub fn how_to_trust(state: &State) -> String {
    let path = authority_path(state);
    format!(
        "sudo cp {} /usr/local/share/ca-certificates/flatout-local-ca.crt && sudo update-ca-certificates \
         (Debian; browsers with their own store have to import that file)",
        path.display()
    )
}

/// Makes sure that there is a CA, and a certificate by it for these names and those of this machine that is not due
/// for renewal. Returns whether the certificate is new.
///
/// # Errors
/// Files that cannot be read or written, or that other users may read; names that no certificate can have.
pub fn ensure(state: &State, names: &[String], now: SystemTime, say: Say) -> Result<bool, String> {
    let mut wanted: Vec<String> = ALWAYS.iter().map(|name| (*name).to_owned()).collect();
    for name in names {
        let name = name.to_ascii_lowercase();
        if !wanted.contains(&name) {
            wanted.push(name);
        }
    }
    wanted.truncate(NAMES_MAX);
    let _lock = lock(state)?;
    let (authority, is_new) = authority(state, now, say)?;
    if !is_new && is_good(state, &wanted, now)? {
        return Ok(false);
    }
    let text = sign(&authority, &wanted, now)
        .map_err(|error| format!("cannot create a local certificate: {error}"))?;
    state.write_checked(SERVER, &text, |draft| Certificate::load(draft, draft).map(drop))?;
    Ok(true)
}

fn lock(state: &State) -> Result<Lock, String> {
    let began = Instant::now();
    loop {
        match state.try_lock(LOCK)? {
            Some(lock) => return Ok(lock),
            None if began.elapsed() < LOCK_TIME_MAX => sleep(Duration::from_millis(20)),
            None => return Err(format!("{}: another process holds the lock", state.path(LOCK).display())),
        }
    }
}

/// Whether the server's certificate has these names and need not be renewed yet.
fn is_good(state: &State, names: &[String], now: SystemTime) -> Result<bool, String> {
    if state.read(SERVER)?.is_none() {
        return Ok(false);
    }
    let path = state.path(SERVER);
    // A broken one is signed again.
    let Ok(found) = Certificate::load(&path, &path) else { return Ok(false) };
    let is_in_time = found.not_before <= now && now < renewal(found.not_before, found.not_after);
    Ok(is_in_time && names.iter().all(|name| found.names.contains(name)))
}

/// The CA, and whether it was created just now.
fn authority(state: &State, now: SystemTime, say: Say) -> Result<(Issuer<'static, KeyPair>, bool), String> {
    if let Some(text) = state.read(AUTHORITY_KEY)? {
        match existing(&text, &state.path(AUTHORITY), now) {
            Ok(issuer) => return Ok((issuer, false)),
            Err(why) => {
                let aside = state.put_aside(AUTHORITY_KEY)?;
                say(
                    Level::Warning,
                    format_args!(
                        "the local CA cannot be used: {why}; it is replaced, and clients have to trust the new one (the old key is {})",
                        aside.display()
                    ),
                );
            }
        }
    }
    let key =
        KeyPair::generate().map_err(|error| format!("cannot create the key of the local CA: {error}"))?;
    let params = authority_params(&key, now);
    let made = params.self_signed(&key).map_err(|error| format!("cannot create a local CA: {error}"))?;
    state.write_public(AUTHORITY, &made.pem())?;
    state.write(AUTHORITY_KEY, &key.serialize_pem())?;
    Ok((Issuer::new(params, key), true))
}

fn existing(key: &str, certificate: &Path, now: SystemTime) -> Result<Issuer<'static, KeyPair>, String> {
    let pair = KeyPair::from_pem(key).map_err(|_| "its key is broken".to_owned())?;
    let found = Certificate::load(certificate, &certificate.with_file_name("ca.key"))?;
    if found.not_after < now + SERVER_TIME {
        return Err("it expires soon".to_owned());
    }
    Ok(Issuer::new(authority_params(&pair, now), pair))
}

fn authority_params(key: &KeyPair, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // Each machine's CA gets a name of its own, derived from the key so that it need not be stored.
    let id = digest(&SHA256, key.public_key_raw());
    let id: String = id.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("flatout local CA {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date(now - CLOCK_SLACK);
    params.not_after = date(now + AUTHORITY_TIME);
    params
}

/// A key and a certificate, as PEM.
fn sign(authority: &Issuer<'_, KeyPair>, names: &[String], now: SystemTime) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "flatout local");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date(now - CLOCK_SLACK);
    params.not_after = date(now + SERVER_TIME);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

fn date(time: SystemTime) -> OffsetDateTime {
    OffsetDateTime::from(time)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn silent(_: crate::Level, _: std::fmt::Arguments<'_>) {}

    fn names(state: &State) -> Vec<String> {
        let path = certificate_path(state);
        Certificate::load(&path, &path).unwrap().names
    }

    #[test]
    fn the_authority_stays_and_certificates_follow_names_and_time() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path());
        let now = SystemTime::now();
        assert_eq!(ensure(&state, &[], now, silent), Ok(true));
        assert_eq!(names(&state), ALWAYS);
        let authority = fs::read(authority_path(&state)).unwrap();
        assert_eq!(ensure(&state, &[], now, silent), Ok(false));
        let more = ["Site.Test".to_owned(), "localhost".to_owned()];
        assert_eq!(ensure(&state, &more, now, silent), Ok(true));
        assert_eq!(names(&state)[3..], ["site.test"]);
        assert_eq!(ensure(&state, &more, now + DAY * 59, silent), Ok(false));
        assert_eq!(ensure(&state, &more, now + DAY * 61, silent), Ok(true), "a third is left");
        assert_eq!(fs::read(authority_path(&state)).unwrap(), authority);
    }

    #[test]
    fn a_broken_authority_is_replaced_and_one_that_others_read_is_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path());
        let now = SystemTime::now();
        ensure(&state, &[], now, silent).unwrap();
        let before = fs::read(authority_path(&state)).unwrap();
        state.write(AUTHORITY_KEY, "nonsense").unwrap();
        assert_eq!(ensure(&state, &[], now, silent), Ok(true));
        assert_ne!(fs::read(authority_path(&state)).unwrap(), before);
        assert!(state.path("local/ca.key.broken").exists());
        state.write(SERVER, "nonsense").unwrap();
        assert_eq!(ensure(&state, &[], now, silent), Ok(true));
        fs::set_permissions(state.path(AUTHORITY_KEY), Permissions::from_mode(0o644)).unwrap();
        assert!(ensure(&state, &[], now, silent).unwrap_err().contains("chmod 600"));
    }

    #[test]
    fn names_that_no_certificate_has_are_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let refused = ensure(&State::at(folder.path()), &["ü".to_owned()], SystemTime::now(), silent);
        assert!(refused.unwrap_err().contains("a local certificate"));
    }
}
