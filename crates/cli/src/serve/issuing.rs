//! Automatic certificates of a running server, and session keys that survive a restart.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flatout_certify::acme::{self, Asked, Keeper, Publish, Way};
use flatout_certify::{KeptTickets, State, local};
use flatout_engine::tls::Acceptor;
use flatout_engine::{say, user_ids};
use flatout_serve::secure::HttpChallenges;

use super::site::Built;
use crate::Failure;

/// How often to check the local certificate: it is renewed weeks before it expires.
const LOCAL_LOOK: Duration = Duration::from_secs(3600);

/// What keeps certificates and keys up to date.
pub(super) struct Issuing {
    state: State,
    acceptor: Acceptor,
    challenges: HttpChallenges,
    tickets: KeptTickets,
    keeper: Option<Keeper>,
    /// The names of the local certificate, if there is one.
    local: Option<Vec<String>>,
    /// When it was last checked.
    looked: Instant,
}

/// Checks the state folder before anything is bound, and creates it for the user who will serve.
pub(super) fn examine(built: &Built) -> Result<(), Failure> {
    let issue = &built.issue;
    let needless = [
        (!issue.contact.is_empty(), "acme-contact"),
        (issue.authorities.is_some(), "acme-ca"),
        (!issue.ways.is_empty(), "acme-challenge"),
        (issue.hook.is_some(), "acme-dns-hook"),
        (issue.profile.is_some(), "acme-profile"),
    ];
    if let Some((_, name)) = needless.iter().find(|(is_given, _)| *is_given && issue.domains.is_empty()) {
        return Err(Failure::Usage(format!("{name}: there is no domain; name one: domain example.org")));
    }
    let wants_dns = issue.ways.contains(&Way::Dns);
    let wildcard = issue.domains.iter().find(|domain| domain.starts_with("*."));
    if issue.hook.is_none() && (wants_dns || wildcard.is_some()) {
        let what = wildcard.map_or("acme-challenge dns-01", String::as_str);
        return Err(Failure::Usage(format!(
            "{what}: needs a program that sets DNS records: acme-dns-hook FILE"
        )));
    }
    let Some(state) = issue.state().map_err(Failure::Usage)? else { return Ok(()) };
    if let Some(user) = &built.server.user
        && !state.folder().exists()
    {
        // If this fails, the first write to the folder reports it.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(state.folder());
        let _ = user_ids(user).and_then(|(uid, gid)| chown(state.folder(), Some(uid), Some(gid)));
    }
    acme::examine(&state, &issue.directory, &issue.domains, say).map_err(Failure::Usage)
}

impl Issuing {
    /// Starts, as the user who serves. `None` without a state folder.
    pub(super) fn begin(
        built: &Built,
        acceptor: &Acceptor,
        challenges: &HttpChallenges,
    ) -> Result<Option<Issuing>, Failure> {
        let Some(state) = built.issue.state().map_err(Failure::Usage)? else { return Ok(None) };
        state.open().map_err(Failure::Run)?;
        let tickets = KeptTickets::open(state.clone(), acceptor.tickets().clone(), say);
        let mut issuing = Issuing {
            state,
            acceptor: acceptor.clone(),
            challenges: challenges.clone(),
            tickets,
            keeper: None,
            local: None,
            looked: Instant::now(),
        };
        issuing.replace(built).map_err(Failure::Usage)?;
        if issuing.local.is_some() {
            say(format_args!(
                "the certificate is from a local CA; to trust it: {}",
                local::how_to_trust(&issuing.state)
            ));
        }
        Ok(Some(issuing))
    }

    /// Continues with another plan, whose certificates the acceptor already has.
    pub(super) fn replace(&mut self, built: &Built) -> Result<(), String> {
        let names = built.issue.local.then(|| built.local_names());
        if let Some(names) = &names {
            local::ensure(&self.state, names, SystemTime::now(), say)?;
            self.acceptor.follow()?;
        }
        self.local = names;
        for domain in &built.issue.domains {
            if !acme::certificate_path(&self.state, &built.issue.directory, domain).exists() {
                say(format_args!(
                    "there is no certificate for {domain} yet; TLS connections to it are refused until the CA has issued one"
                ));
            }
        }
        match &self.keeper {
            Some(keeper) => keeper.replace(built.issue.domains.clone()),
            None if built.issue.domains.is_empty() => {}
            None => {
                let plan = built.issue.acme(built);
                let (domains, state) = (built.issue.domains.clone(), self.state.clone());
                self.keeper = Some(Keeper::start(plan, domains, state, self.publish(), say)?);
            }
        }
        Ok(())
    }

    /// Renews what is due, and loads what other processes have written. Call this every few seconds.
    pub(super) fn look(&mut self) {
        self.tickets.look();
        if let Some(keeper) = &self.keeper {
            keeper.look();
        }
        let Some(names) = self.local.as_ref().filter(|_| self.looked.elapsed() > LOCAL_LOOK) else { return };
        self.looked = Instant::now();
        if let Err(why) = local::ensure(&self.state, names, SystemTime::now(), say) {
            say(format_args!("the local certificate is not renewed: {why}"));
        }
    }

    /// Makes pending challenges available to the CA, over HTTP and in TLS handshakes.
    fn publish(&self) -> Publish {
        let (proofs, challenges) = (self.acceptor.proofs().clone(), self.challenges.clone());
        Arc::new(move |asked: &[Asked]| {
            challenges.set(asked.iter().map(|asked| (asked.token.clone(), asked.authorization.clone())));
            let made = asked.iter().map(Asked::proof).collect::<Result<Vec<_>, _>>()?;
            proofs.set(&made)
        })
    }
}
