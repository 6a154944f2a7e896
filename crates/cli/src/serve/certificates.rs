//! TLS of a running server: opens its certificates, and reloads files that change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use flatout_engine::say;
use flatout_engine::tls::{Acceptor, Certificate, Staple};

use super::issuing::{self, Issuing};
use super::site::Built;
use crate::Failure;

/// How often to check the files: a few system calls. They may be links into folders that are swapped, which a watch
/// on the files would miss.
const LOOK: Duration = Duration::from_secs(2);

/// The automatic certificates of a running server, if any: one thread looks after them, and a reload changes them.
pub(super) type Issued = Arc<Mutex<Option<Issuing>>>;

/// Opens the configured certificates, with the current user's rights.
pub(super) fn open(built: &Built) -> Result<Option<Acceptor>, Failure> {
    issuing::examine(built)?;
    if !built.is_secure() {
        let needless = [
            (!built.server.listen_plain.is_empty(), "listen-plain"),
            (built.https_redirect, "https-redirect"),
            (built.secure.clients.is_some(), "tls-client-ca"),
            (built.secure.early_data, "early-data"),
        ];
        return match needless.iter().find(|(is_given, _)| *is_given) {
            Some((_, name)) => {
                Err(Failure::Usage(format!("{name}: there is no certificate; give one: tls CERT KEY")))
            }
            None => Ok(None),
        };
    }
    let acceptor = Acceptor::open(built.secure.clone()).map_err(Failure::Usage)?;
    warn(&acceptor, &[]);
    Ok(Some(acceptor))
}

/// Reloads changed files for as long as the process lives.
pub(super) fn follow(acceptor: Acceptor, issued: Issued) -> std::io::Result<()> {
    // Those of the start were said there.
    let mut said = warnings(&acceptor, SystemTime::now());
    let watch = move || loop {
        std::thread::sleep(LOOK);
        if let Some(issuing) = &mut *issued.lock().unwrap_or_else(PoisonError::into_inner) {
            issuing.look();
        }
        look(&acceptor);
        said = warn(&acceptor, &said);
    };
    std::thread::Builder::new().name("flatout-tls".to_owned()).spawn(watch).map(drop)
}

fn look(acceptor: &Acceptor) {
    match acceptor.follow() {
        Ok(false) => {}
        Ok(true) => say(format_args!("certificates have changed; new connections get the new ones")),
        Err(why) => say(format_args!("certificates were not changed, the old ones stay in use: {why}")),
    }
}

/// Reports why clients will refuse certificates, without the warnings in `said`. Returns all current
/// warnings.
fn warn(acceptor: &Acceptor, said: &[String]) -> Vec<String> {
    let warnings = warnings(acceptor, SystemTime::now());
    for warning in warnings.iter().filter(|warning| !said.contains(warning)) {
        say(format_args!("{warning}"));
    }
    warnings
}

fn warnings(acceptor: &Acceptor, now: SystemTime) -> Vec<String> {
    acceptor.certificates().iter().flat_map(|certificate| warnings_of(certificate, now)).collect()
}

fn warnings_of(certificate: &Certificate, now: SystemTime) -> Vec<String> {
    let names = certificate.names.join(", ");
    let mut found = Vec::new();
    if certificate.days_left(now) < 0 {
        found.push(format!("the certificate for {names} has expired; clients will refuse it"));
    }
    let wanted = format!(
        "the certificate for {names} requires a stapled OCSP response (must-staple); some clients will refuse it without one"
    );
    match &certificate.staple {
        Staple::Missing(why) => found.push(format!("{wanted}: {why}")),
        Staple::Until(Some(until)) if *until <= now => {
            found.push(format!("{wanted}: the response has expired"));
        }
        Staple::Until(_) | Staple::NotAsked => {}
    }
    found
}
