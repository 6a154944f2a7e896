//! Automatic certificates of a running server, and session keys that survive a restart.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flatout_certify::acme::{self, Keeper, PendingChallenge, Publish};
use flatout_certify::{KeptTickets, Level, State, local};
use flatout_engine::tls::Acceptor;
use flatout_engine::{Severity, report, say, user_ids};

use crate::Failure;
use crate::plan::Plan;
use crate::secure::HttpChallenges;

/// How often to check the local certificate: it is renewed weeks before it expires.
const LOCAL_LOOK: Duration = Duration::from_secs(3600);

/// What keeps certificates and keys up to date.
pub(crate) struct AcmeRuntime {
    state: State,
    acceptor: Acceptor,
    challenges: HttpChallenges,
    tickets: KeptTickets,
    keeper: Option<(acme::Plan, Keeper)>,
    /// The names of the local certificate, if there is one.
    local: Option<Vec<String>>,
    /// When it was last checked.
    looked: Instant,
}

/// Other certificates that are ready to be kept up to date. Dropping it changes nothing.
pub(crate) struct Prepared {
    domains: Vec<String>,
    /// Domains whose certificate does not exist yet.
    missing: Vec<String>,
    /// A new keeper without domains; `None` if the present one stays.
    keeper: Option<(acme::Plan, Keeper)>,
    local: Option<Vec<String>>,
}

/// Checks the state folder before anything is bound, and creates it for the user who will serve.
pub(crate) fn examine(plan: &Plan) -> Result<(), String> {
    let Some(state) = &plan.state else { return Ok(()) };
    if let Some(user) = &plan.server.user
        && !state.folder().exists()
    {
        // If this fails, the first write to the folder reports it.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(state.folder());
        let _ = user_ids(user).and_then(|(uid, gid)| chown(state.folder(), Some(uid), Some(gid)));
    }
    acme::examine(state, &plan.issue.directory, &plan.issue.domains, note)
}

impl AcmeRuntime {
    /// Opens the state folder, as the user who serves. No certificate is kept up to date yet.
    pub(crate) fn open(
        state: &State,
        acceptor: &Acceptor,
        challenges: &HttpChallenges,
    ) -> Result<AcmeRuntime, Failure> {
        state.open().map_err(Failure::Run)?;
        Ok(AcmeRuntime {
            state: state.clone(),
            acceptor: acceptor.clone(),
            challenges: challenges.clone(),
            tickets: KeptTickets::open(state.clone(), acceptor.tickets().clone(), note),
            keeper: None,
            local: None,
            looked: Instant::now(),
        })
    }

    /// Prepares for the certificates of a plan: a local one is made, so that the acceptor can read it.
    ///
    /// # Errors
    /// Files that cannot be read or written, or a thread that cannot be started.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Prepared, String> {
        acme::examine(&self.state, &plan.issue.directory, &plan.issue.domains, note)?;
        let local = plan.issue.local.then(|| plan.local_names());
        if let Some(names) = &local {
            local::ensure(&self.state, names, SystemTime::now(), note)?;
        }
        let is_there =
            |domain: &&String| acme::certificate_path(&self.state, &plan.issue.directory, domain).exists();
        let domains = plan.issue.domains.clone();
        let missing = domains.iter().filter(|domain| !is_there(domain)).cloned().collect();
        let acme = plan.issue.acme(plan);
        let keeper = match &self.keeper {
            Some((present, _)) if *present == acme => None,
            None if domains.is_empty() => None,
            _ => {
                let keeper =
                    Keeper::start(acme.clone(), Vec::new(), self.state.clone(), self.publish(), note)?;
                Some((acme, keeper))
            }
        };
        Ok(Prepared { domains, missing, keeper, local })
    }

    /// Keeps these certificates up to date. The acceptor has them already.
    pub(crate) fn replace(&mut self, prepared: Prepared) {
        let Prepared { domains, missing, keeper, local } = prepared;
        for domain in missing {
            note(
                Level::Warning,
                format_args!(
                    "there is no certificate for {domain} yet; TLS connections to it are refused until the CA has issued one"
                ),
            );
        }
        if local.is_some() && self.local.is_none() {
            let how = local::how_to_trust(&self.state);
            say(format_args!("the certificate is from a local CA; to trust it: {how}"));
        }
        self.local = local;
        if keeper.is_some() {
            self.keeper = keeper;
        }
        if let Some((_, keeper)) = &self.keeper {
            keeper.replace(domains);
        }
    }

    /// Renews what is due, and loads what other processes have written. Call this every few seconds.
    pub(crate) fn look(&mut self) {
        self.tickets.look();
        if let Some((_, keeper)) = &self.keeper {
            keeper.look();
        }
        let Some(names) = self.local.as_ref().filter(|_| self.looked.elapsed() > LOCAL_LOOK) else { return };
        self.looked = Instant::now();
        if let Err(why) = local::ensure(&self.state, names, SystemTime::now(), note) {
            flatout_engine::report(
                flatout_engine::Severity::Warning,
                format_args!("the local certificate is not renewed: {why}"),
            );
        }
    }

    /// Makes pending challenges available to the CA, over HTTP and in TLS handshakes.
    fn publish(&self) -> Publish {
        let (proofs, challenges) = (self.acceptor.proofs().clone(), self.challenges.clone());
        Arc::new(move |asked: &[PendingChallenge]| {
            challenges.set(asked.iter().map(|asked| (asked.token.clone(), asked.authorization.clone())));
            let made = asked.iter().map(PendingChallenge::proof).collect::<Result<Vec<_>, _>>()?;
            proofs.set(&made)
        })
    }
}

/// A message of `certify`.
fn note(level: Level, message: std::fmt::Arguments<'_>) {
    let severity = match level {
        Level::Info => Severity::Info,
        Level::Warning => Severity::Warning,
    };
    report(severity, message);
}
