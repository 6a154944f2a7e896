//! TLS of a running server: opens its certificates, and reloads files that change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use flatout_engine::say;
use flatout_engine::tls::{self, Acceptor, Certificate, Staple};

use crate::Failure;
use crate::acme_run::{self, AcmeRuntime};
use crate::plan::Plan;
use crate::secure::HttpChallenges;

/// How often to check the files: a few system calls. They may be links into folders that are swapped, which a watch
/// on the files would miss.
const LOOK: Duration = Duration::from_secs(2);

/// TLS of a running server: its acceptor, and what keeps its certificates up to date. Clones share it.
#[derive(Clone)]
pub(crate) struct Secure {
    pub(crate) acceptor: Acceptor,
    /// `None` without a state folder. One thread looks after them, and a reload changes them.
    issuing: Arc<Mutex<Option<AcmeRuntime>>>,
}

/// Other certificates and rules for clients, whose files were read. Dropping it changes nothing.
pub(crate) struct Change<'s> {
    secure: &'s Secure,
    issuing: MutexGuard<'s, Option<AcmeRuntime>>,
    acceptor: tls::Prepared,
    issued: Option<acme_run::Prepared>,
}

impl Secure {
    /// Opens the configured certificates, with the current user's rights. `None` without TLS.
    ///
    /// # Errors
    /// Files that cannot be used, or a mistake in the names of sites.
    pub(crate) fn open(plan: &Plan) -> Result<Option<Secure>, Failure> {
        acme_run::examine(plan).map_err(Failure::Usage)?;
        if !plan.is_secure() {
            return Ok(None);
        }
        let (secure, selector) = plan.tls().map_err(|fault| Failure::Usage(fault.to_string()))?;
        let acceptor = Acceptor::open_with(secure, selector).map_err(Failure::Usage)?;
        warn(&acceptor, &[]);
        Ok(Some(Secure { acceptor, issuing: Arc::default() }))
    }

    /// Starts getting certificates, as the user who serves, if there is a state folder. Returns the responses to CAs,
    /// even without a domain: a reload may add one.
    pub(crate) fn begin(&self, plan: &Plan) -> Result<Option<HttpChallenges>, Failure> {
        let Some(state) = &plan.state else { return Ok(None) };
        let challenges = HttpChallenges::default();
        let mut issuing = AcmeRuntime::open(state, &self.acceptor, &challenges)?;
        let prepared = issuing.prepare(plan).map_err(Failure::Usage)?;
        // This user may not be allowed to read the other files.
        if plan.issue.local {
            self.acceptor.follow().map_err(Failure::Usage)?;
        }
        issuing.replace(prepared);
        *self.issuing() = Some(issuing);
        Ok(Some(challenges))
    }

    /// Reads the certificates of a plan, and prepares to get those that are automatic.
    ///
    /// # Errors
    /// Files that cannot be used, or a mistake in the names of sites; then nothing changes.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Change<'_>, String> {
        let issuing = self.issuing();
        // A local certificate is made first.
        let issued = issuing.as_ref().map(|issuing| issuing.prepare(plan)).transpose()?;
        let (secure, selector) = plan.tls().map_err(|fault| fault.to_string())?;
        let acceptor = self.acceptor.prepare(secure, selector)?;
        Ok(Change { secure: self, issuing, acceptor, issued })
    }

    /// Reloads changed files for as long as the process lives.
    pub(crate) fn follow(self) -> std::io::Result<()> {
        // Those of the start were said there.
        let mut said = warnings(&self.acceptor, SystemTime::now());
        let watch = move || loop {
            std::thread::sleep(LOOK);
            if let Some(issuing) = &mut *self.issuing() {
                issuing.look();
            }
            look(&self.acceptor);
            said = warn(&self.acceptor, &said);
        };
        std::thread::Builder::new().name("flatout-tls".to_owned()).spawn(watch).map(drop)
    }

    fn issuing(&self) -> MutexGuard<'_, Option<AcmeRuntime>> {
        self.issuing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Change<'_> {
    /// The number of the rules of a profile.
    pub(crate) fn rules(&self, profile: usize) -> Option<u16> {
        self.acceptor.rules(profile)
    }

    /// Uses them for new connections.
    pub(crate) fn commit(mut self) {
        self.secure.acceptor.replace(self.acceptor);
        if let (Some(issuing), Some(issued)) = (&mut *self.issuing, self.issued) {
            issuing.replace(issued);
        }
    }
}

fn look(acceptor: &Acceptor) {
    match acceptor.follow() {
        Ok(false) => {}
        Ok(true) => say(format_args!("certificates have changed; new connections get the new ones")),
        Err(why) => flatout_engine::report(
            flatout_engine::Severity::Warning,
            format_args!("certificates were not changed, the old ones stay in use: {why}"),
        ),
    }
}

/// Reports why clients will refuse certificates, without the warnings in `said`. Returns all current
/// warnings.
fn warn(acceptor: &Acceptor, said: &[String]) -> Vec<String> {
    let warnings = warnings(acceptor, SystemTime::now());
    for warning in warnings.iter().filter(|warning| !said.contains(warning)) {
        flatout_engine::report(flatout_engine::Severity::Warning, format_args!("{warning}"));
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
