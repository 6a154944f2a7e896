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

use crate::issue::Issue;

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
    /// The settings that need a restart, each with its value: a reload must not change them.
    pub restart: Vec<(&'static str, String)>,
}

/// Why a plan is invalid.
pub enum Invalid {
    /// The sites.
    Sites(Fault),
    /// A setting, in words.
    Setting(String),
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
        self.server.check().map_err(Invalid::Setting)?;
        self.check_tls().map_err(Invalid::Setting)?;
        let admin =
            admin::Plan { listen: self.admin.clone(), public: self.admin_public, actions: Vec::new() };
        admin.check().map_err(|message| Invalid::Setting(format!("admin: {message} (admin-public)")))?;
        self.logs.iter().try_for_each(log::Plan::check).map_err(Invalid::Setting)?;
        site::check(&self.sites).map_err(Invalid::Sites)?;
        Ok(Checked(self))
    }

    /// Checks that settings which need others have them.
    fn check_tls(&self) -> Result<(), String> {
        let issue = &self.issue;
        let acme = [
            (!issue.contact.is_empty(), "acme-contact"),
            (issue.authorities.is_some(), "acme-ca"),
            (!issue.ways.is_empty(), "acme-challenge"),
            (issue.hook.is_some(), "acme-dns-hook"),
            (issue.profile.is_some(), "acme-profile"),
        ];
        if let Some((_, name)) = acme.iter().find(|(is_set, _)| *is_set && issue.domains.is_empty()) {
            return Err(format!("{name}: there is no domain; name one: domain example.org"));
        }
        let wants_dns = issue.ways.contains(&Way::Dns);
        let wildcard = issue.domains.iter().find(|domain| domain.starts_with("*."));
        if issue.hook.is_none() && (wants_dns || wildcard.is_some()) {
            let what = wildcard.map_or("acme-challenge dns-01", String::as_str);
            return Err(format!("{what}: needs a program that sets DNS records: acme-dns-hook FILE"));
        }
        let of_tls = [
            (!self.server.listen_plain.is_empty(), "listen-plain"),
            (self.https_redirect, "https-redirect"),
            (self.secure.clients.is_some(), "tls-client-ca"),
            (self.secure.early_data, "early-data"),
        ];
        match of_tls.iter().find(|(is_set, _)| *is_set && !self.is_secure()) {
            Some((_, name)) => Err(format!("{name}: there is no certificate; give one: tls CERT KEY")),
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
            let site = log.site.and_then(|site| self.0.sites.sites.get(usize::from(site)));
            log.site = site.map(|site| site.number);
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
    /// The settings that need a restart, by name.
    pub fn check_change(&self, before: &[(&'static str, String)]) -> Result<(), String> {
        let differs = before.iter().zip(&self.0.restart).filter(|(was, is)| was != is);
        let names: Vec<String> = differs.map(|((name, _), _)| format!("`{name}`")).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(format!("changes to {} need a restart", names.join(", "))),
        }
    }
}
