//! The plan of a whole server, and its checks.
//!
//! ```text
//! file, flags ──> Plan ── check ──> Checked ──┬── start ───> Bound ──> Open ──> Running     (start, upgrade)
//!                                             └── Change ──> applied to a Running server     (reload)
//! ```
//!
//! A [`Checked`] plan is the only input of a start and of a reload, and only [`Plan::check`] makes one. `flatout check`,
//! `explain`, `reload` and `purge` use it too, so they refuse what a start refuses.

use flatout_admin as admin;
use flatout_bus as bus;
use flatout_certify::State;
use flatout_certify::acme::Way;
use flatout_engine::tls::{Acceptor, ServerPlan};
use flatout_engine::{Address, ProxyProtocol};
use flatout_observe::log;
use flatout_observe::observed;
use flatout_push as push;
use flatout_site::plan::{self as site_plan, PathMatch, Route};
use flatout_site::{self as site, Fault};

use crate::acme_plan::Issue;

/// A whole server, as plain data.
#[derive(Default)]
pub struct Plan {
    /// Its listeners, workers and limits. TLS is not set here: see [`Checked::listening`].
    pub server: flatout_engine::Plan,
    /// TLS to clients; unused without certificates.
    pub secure: ServerPlan,
    /// Automatic certificates.
    pub issue: Issue,
    /// The state folder, if anything needs it.
    pub state: Option<State>,
    /// Requests without TLS are redirected to HTTPS.
    pub https_redirect: bool,
    /// What handles requests.
    pub sites: site_plan::Plan,
    /// Limits of channels and subscribers.
    pub push: push::Limits,
    /// The bus to other servers.
    pub bus: Option<bus::Plan>,
    /// The access logs.
    pub logs: Vec<log::Plan>,
    /// Addresses of the admin listener.
    pub admin: Vec<Address>,
    /// The admin listener may have addresses that other machines reach.
    pub admin_public: bool,
    /// It cannot change while the server runs, because there is no file to read again.
    pub is_constant: bool,
    /// What needs a restart, by the names that its configuration uses, each with its value: a reload must not change it.
    pub restart: Vec<(&'static str, String)>,
}

/// Why a plan is invalid. Who made the plan knows what its parts are called where they are configured.
pub enum Invalid {
    /// The sites.
    Sites(Fault),
    /// A value out of its limits, in words.
    Value(String),
    /// The admin listener is not public, but has an address that other machines reach.
    Admin(String),
    /// A part of the ACME plan, without a domain.
    NoDomain(AcmePart),
    /// A challenge by DNS without a program that sets records: for this wildcard, or because it was chosen.
    NoDnsHook(Option<String>),
    /// A part that needs TLS, without a certificate.
    NoCertificate(SecurePart),
}

/// A part of a plan that only serves to get certificates for domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmePart {
    /// [`Issue::contact`].
    Contact,
    /// [`Issue::authorities`].
    Authorities,
    /// [`Issue::ways`].
    Challenge,
    /// [`Issue::hook`].
    DnsHook,
    /// [`Issue::profile`].
    Profile,
}

/// A part of a plan that has no effect without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecurePart {
    /// Listeners without TLS beside those with it.
    PlainListeners,
    /// [`Plan::https_redirect`].
    HttpsRedirect,
    /// Certificates of clients.
    ClientAuthorities,
    /// TLS early data.
    EarlyData,
}

/// Where plans come from: a server reads it again for each reload.
pub trait Source: Send + Sync {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// The first mistake, with its position if it has one.
    fn checked(&self) -> Result<Checked, String>;

    /// What is read, for messages; `None` if it is always the same.
    fn name(&self) -> Option<String>;
}

/// A plan that a server can be made of, unless the machine refuses: files, addresses, users.
pub struct Checked(Plan);

impl Plan {
    /// Whether it uses TLS.
    pub fn is_secure(&self) -> bool {
        !self.secure.identities.is_empty() || self.issue.is_any()
    }

    /// Checks everything that can be known without opening certificates and folders.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(self) -> Result<Checked, Invalid> {
        self.server.check().map_err(Invalid::Value)?;
        self.check_tls()?;
        let admin =
            admin::Plan { listen: self.admin.clone(), public: self.admin_public, actions: Vec::new() };
        admin.check().map_err(Invalid::Admin)?;
        self.logs.iter().try_for_each(log::Plan::check).map_err(Invalid::Value)?;
        self.check_log_sites().map_err(Invalid::Value)?;
        site::check(&self.sites).map_err(Invalid::Sites)?;
        Ok(Checked(self))
    }

    /// Checks that logs of sites name existing ones.
    fn check_log_sites(&self) -> Result<(), String> {
        let count = self.sites.sites.len();
        match self.logs.iter().filter_map(|log| log.site).find(|site| usize::from(*site) >= count) {
            Some(site) => Err(format!("an access log of site {site}: allowed are indexes below {count}")),
            None => Ok(()),
        }
    }

    /// Checks that parts which need others have them.
    fn check_tls(&self) -> Result<(), Invalid> {
        let issue = &self.issue;
        let of_acme = [
            (!issue.contact.is_empty(), AcmePart::Contact),
            (issue.authorities.is_some(), AcmePart::Authorities),
            (!issue.ways.is_empty(), AcmePart::Challenge),
            (issue.hook.is_some(), AcmePart::DnsHook),
            (issue.profile.is_some(), AcmePart::Profile),
        ];
        if let Some((_, part)) = of_acme.iter().find(|(is_set, _)| *is_set && issue.domains.is_empty()) {
            return Err(Invalid::NoDomain(*part));
        }
        let wants_dns = issue.ways.contains(&Way::Dns);
        let wildcard = issue.domains.iter().find(|domain| domain.starts_with("*."));
        if issue.hook.is_none() && (wants_dns || wildcard.is_some()) {
            return Err(Invalid::NoDnsHook(wildcard.cloned()));
        }
        let of_tls = [
            (!self.server.listen_plain.is_empty(), SecurePart::PlainListeners),
            (self.https_redirect, SecurePart::HttpsRedirect),
            (self.secure.clients.is_some(), SecurePart::ClientAuthorities),
            (self.secure.early_data, SecurePart::EarlyData),
        ];
        match of_tls.iter().find(|(is_set, _)| *is_set && !self.is_secure()) {
            Some((_, part)) => Err(Invalid::NoCertificate(*part)),
            None => Ok(()),
        }
    }
}

impl Checked {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0
    }

    /// What the engine is to listen at, for a start as for a reload. The acceptor is that of the running server.
    pub fn listening(&self, acceptor: Option<&Acceptor>) -> flatout_engine::Plan {
        flatout_engine::Plan { tls: acceptor.cloned(), ..self.0.server.clone() }
    }

    /// Gives each site and each log of a site its number, which belongs to the site's name.
    pub fn number(&mut self, numbers: &observed::Sites) {
        for site in &mut self.0.sites.sites {
            site.number = numbers.number(&site.name);
        }
        for log in &mut self.0.logs {
            // A checked plan has the site.
            log.site = log.site.map(|site| self.0.sites.sites[usize::from(site)].number);
        }
    }

    /// Whether it serves one folder and nothing else, so that the site layer can be skipped.
    pub fn is_one_folder(&self) -> bool {
        let Plan { sites, server, is_constant, .. } = &self.0;
        let [site] = &sites.sites[..] else { return false };
        let [route] = &site.routes[..] else { return false };
        let usual = Route::new(PathMatch::prefix("/"), site_plan::Action::Files(0));
        let is_direct = server.proxy_protocol == ProxyProtocol::Nowhere;
        *is_constant && is_direct && site.rewrites.is_empty() && *route == usual
    }

    /// Whether any route caches responses.
    pub fn is_cached(&self) -> bool {
        self.0.sites.sites.iter().flat_map(|site| &site.routes).any(|route| route.rules.cache.is_some())
    }

    /// Checks that a server which was started with `before` can change to this plan while it runs.
    ///
    /// # Errors
    /// What needs a restart, by name.
    pub fn check_change(&self, before: &[(&'static str, String)]) -> Result<(), String> {
        let differs = before.iter().zip(&self.0.restart).filter(|(was, is)| was != is);
        let names: Vec<String> = differs.map(|((name, _), _)| format!("`{name}`")).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(format!("changes to {} need a restart", names.join(", "))),
        }
    }
}
