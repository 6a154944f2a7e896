//! TLS of a running server: its certificates are opened, and followed when their files change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use flatout_engine::say;
use flatout_engine::tls::Acceptor;

use super::issuing::{self, Issuing};
use super::site::Built;
use crate::Failure;

/// How often the files are looked at: a few system calls. They may be links into folders that are swapped, which no watch on the
/// files themselves would see.
const LOOK: Duration = Duration::from_secs(2);

/// What a running server gets by itself, if anything: looked after by one thread, changed by a reload.
pub(super) type Issued = Arc<Mutex<Option<Issuing>>>;

/// Opens what the plan asks for, with the rights of the moment.
pub(super) fn open(built: &Built) -> Result<Option<Acceptor>, Failure> {
    issuing::examine(built)?;
    if !built.is_secure() {
        let needless = [
            (!built.server.listen_plain.is_empty(), "listen-plain"),
            (built.https_redirect, "https-redirect"),
            (built.secure.clients.is_some(), "tls-client-ca"),
        ];
        return match needless.iter().find(|(is_given, _)| *is_given) {
            Some((_, name)) => {
                Err(Failure::Usage(format!("{name}: there is no certificate; give one: tls CERT KEY")))
            }
            None => Ok(None),
        };
    }
    let acceptor = Acceptor::open(built.secure.clone()).map_err(Failure::Usage)?;
    for certificate in acceptor.certificates() {
        if certificate.days_left(SystemTime::now()) < 0 {
            let names = certificate.names.join(", ");
            say(format_args!("the certificate for {names} has expired; clients will refuse it"));
        }
    }
    Ok(Some(acceptor))
}

/// Follows the files for as long as the process lives.
pub(super) fn follow(acceptor: Acceptor, issued: Issued) -> std::io::Result<()> {
    let watch = move || loop {
        std::thread::sleep(LOOK);
        if let Some(issuing) = &mut *issued.lock().unwrap_or_else(PoisonError::into_inner) {
            issuing.look();
        }
        look(&acceptor);
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
