//! The plan of a whole server, and its checks.
//!
//! ```text
//! file, flags ──> Plan ── check ──> Checked ──┬── start ───> Bound ──> Open ──> Running     (start, upgrade)
//!                                             └── Change ──> applied to a Running server     (reload)
//! ```
//!
//! A [`Checked`] plan is the only input of a start and of a reload, and only [`Plan::check`] and
//! [`Plan::check_all_but_sites`] make one. `flatout check`, `explain`, `reload` and `purge` use it too, so they refuse
//! what a start refuses.

use std::collections::HashMap;
use std::sync::Arc;

use flatout_admin as admin;
use flatout_bus as bus;
use flatout_certify::State;
use flatout_certify::acme::Way;
use flatout_engine::tls::{Acceptor, ClientCertificates, Profile, Selector, ServerPlan};
use flatout_engine::{Address, Listen, MessagePlan, ProxyHeader};
use flatout_observe::{log, metrics};
use flatout_push as push;
use flatout_site::plan::{self as site_plan, PathMatch, Route, SharedSite};
use flatout_site::{self as site, Fault, Finder};

use crate::Failure;
use crate::acme_plan::Issue;
use crate::addresses::{self, Addresses, Numbers, SiteListen};
use crate::prerender::PrerenderPlan;

/// A whole server, as plain data.
#[derive(Default)]
pub struct Plan {
    /// Its listeners, workers and limits. TLS is not set here: see [`Checked::listening`].
    pub server: flatout_engine::Plan,
    /// The addresses of sites that have their own, by the index of the site: such a site is not served at the addresses of
    /// `server`.
    pub site_listen: Vec<Vec<SiteListen>>,
    /// TLS to clients; unused without certificates. Its profiles are those of `site_secure`.
    pub secure: ServerPlan,
    /// Certificates and rules for TLS of sites that have their own, by the index of the site.
    pub site_secure: Vec<Option<Profile>>,
    /// Automatic certificates.
    pub issue: Issue,
    /// The state folder, if anything needs it.
    pub state: Option<State>,
    /// Requests without TLS are redirected to HTTPS.
    pub https_redirect: bool,
    /// What handles requests.
    pub sites: site_plan::Plan,
    /// The renderer, if a route has one.
    pub prerender: Option<PrerenderPlan>,
    /// Limits of channels and subscribers.
    pub push: push::Limits,
    /// The bus to other servers.
    pub bus: Option<bus::Plan>,
    /// Messages of the server itself.
    pub messages: MessagePlan,
    /// The access logs.
    pub logs: Vec<log::Plan>,
    /// The names of the routes that have logs of their own, by the number in [`log::Scope::Route`].
    pub route_logs: Vec<String>,
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
    /// An address of the site with this index is also used in another way.
    Address(usize, String),
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

    /// Whether it also changes the servers of running upstreams: its next plan replaces these changes without a message.
    fn owns_servers(&self) -> bool {
        false
    }

    /// Figures of its own, for the admin listener.
    fn metrics(&self) -> Vec<Arc<dyn metrics::Source>> {
        Vec::new()
    }
}

/// A plan that a server can be made of, unless the machine refuses: files, addresses, users.
pub struct Checked {
    plan: Plan,
    /// All listeners, those of sites included.
    listens: Vec<Listen>,
}

impl Plan {
    /// All its listeners; an address may occur several times.
    pub(crate) fn listens(&self) -> impl Iterator<Item = &Listen> {
        self.server.listen.iter().chain(self.site_listen.iter().flatten().map(|own| &own.listen))
    }

    /// All rules for client certificates.
    pub(crate) fn client_rules(&self) -> impl Iterator<Item = &ClientCertificates> {
        let of_sites = self.site_secure.iter().flatten().filter_map(|profile| profile.clients.as_ref());
        self.secure.clients.iter().chain(of_sites)
    }

    /// TLS to clients, and which site's connections get which profile.
    ///
    /// # Errors
    /// A mistake in the names of sites, if those were not checked.
    pub(crate) fn tls(&self) -> Result<(ServerPlan, Selector), Fault> {
        let profiles: Vec<Profile> = self.site_secure.iter().flatten().cloned().collect();
        let secure = ServerPlan { profiles, ..self.secure.clone() };
        if secure.profiles.is_empty() {
            return Ok((secure, Selector::default()));
        }
        let profile_of: Vec<usize> = self.profiles().collect();
        let finder = Finder::new(&self.sites)?;
        let select = move |listener: u16, name: Option<&str>| {
            let site = finder.find(listener, name.unwrap_or_default().as_bytes());
            site.and_then(|site| profile_of.get(site)).copied().unwrap_or_default()
        };
        Ok((secure, Selector::new(select)))
    }

    /// The profile for connections to each site: 0, or the place among those of sites that have one.
    fn profiles(&self) -> impl Iterator<Item = usize> {
        let mut count = 0;
        (0..self.sites.sites.len()).map(move |at| {
            let has_own = self.site_secure.get(at).is_some_and(Option::is_some);
            count += usize::from(has_own);
            if has_own { count } else { 0 }
        })
    }

    /// Whether it uses TLS.
    pub fn is_secure(&self) -> bool {
        let of_sites = self.site_secure.iter().flatten();
        let has_own = |profile: &Profile| profile.refuses || !profile.identities.is_empty();
        // Also without a certificate, if one is awaited: a reload may bring the first.
        let has_usual = !self.secure.identities.is_empty() || !self.secure.awaited.is_empty();
        has_usual || self.issue.is_any() || of_sites.into_iter().any(has_own)
    }

    /// Whether connections with TLS are passed on anywhere, for which no certificate is needed.
    fn passes_tls(&self) -> bool {
        self.sites.sites.iter().any(|site| site.tls_passthrough.is_some())
    }

    /// Checks everything that can be known without opening certificates and folders.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(self) -> Result<Checked, Invalid> {
        let checked = self.check_all_but_sites()?;
        site::check(&checked.plan.sites).map_err(Invalid::Sites)?;
        Ok(checked)
    }

    /// The same without the sites, whose mistakes are found again when they are opened: a controller's plans have thousands of
    /// routes, and were checked where they were made.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check_all_but_sites(mut self) -> Result<Checked, Invalid> {
        let listens = addresses::place(&mut self, &Addresses::default())?;
        self.server.check().map_err(Invalid::Value)?;
        self.check_tls()?;
        let admin =
            admin::Plan { listen: self.admin.clone(), public: self.admin_public, actions: Vec::new() };
        admin.check().map_err(Invalid::Admin)?;
        self.logs.iter().try_for_each(log::Plan::check).map_err(Invalid::Value)?;
        self.check_log_scopes().map_err(Invalid::Value)?;
        self.check_upstream_states().map_err(Invalid::Value)?;
        let renderer = self.prerender.as_ref().map(|prerender| prerender.renderer.check());
        renderer.transpose().map_err(Invalid::Value)?;
        Ok(Checked { plan: self, listens })
    }

    /// Checks that each state file is of one upstream.
    fn check_upstream_states(&self) -> Result<(), String> {
        let files = || self.sites.upstreams.iter().filter_map(|it| Some((it.state_file.as_ref()?, &it.name)));
        for (at, (file, name)) in files().enumerate() {
            if let Some((_, other)) = files().take(at).find(|(earlier, _)| *earlier == file) {
                return Err(format!(
                    "upstream-state {}: of the upstreams {other} and {name}; each needs a file of its own",
                    file.display()
                ));
            }
        }
        Ok(())
    }

    /// Checks that logs of sites and routes name existing ones.
    fn check_log_scopes(&self) -> Result<(), String> {
        let (sites, routes) = (self.sites.sites.len(), self.route_logs.len());
        for log in &self.logs {
            let (what, at, count) = match log.scope {
                log::Scope::Server => continue,
                log::Scope::Site(at) => ("site", at, sites),
                log::Scope::Route(at) => ("route", at, routes),
            };
            if usize::from(at) >= count {
                return Err(format!("an access log of {what} {at}: allowed are indexes below {count}"));
            }
        }
        Ok(())
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
            (self.listens().any(|listen| listen.is_plain) && !self.passes_tls(), SecurePart::PlainListeners),
            (self.https_redirect, SecurePart::HttpsRedirect),
            (self.client_rules().next().is_some(), SecurePart::ClientAuthorities),
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
        &self.plan
    }

    /// The plan, which is not needed here any more.
    pub(crate) fn into_plan(self) -> Plan {
        self.plan
    }

    /// All listeners, those of sites included.
    pub fn listens(&self) -> &[Listen] {
        &self.listens
    }

    /// What the engine is to listen at, for a start as for a reload. The acceptor is that of the running server.
    pub fn listening(&self, acceptor: Option<&Acceptor>) -> flatout_engine::Plan {
        let listen = self.listens.clone();
        flatout_engine::Plan { tls: acceptor.cloned(), listen, ..self.plan.server.clone() }
    }

    /// Gives each address its number, and each site and each log of a site the one that belongs to the site's name.
    ///
    /// # Errors
    /// The process has had too many addresses.
    pub fn number(&mut self, numbers: &Numbers) -> Result<(), Failure> {
        let is_one_folder = self.is_one_folder();
        let Checked { plan, listens } = self;
        *listens = addresses::place(plan, &numbers.addresses).map_err(|invalid| match invalid {
            Invalid::Value(message) | Invalid::Address(_, message) => Failure::Usage(message),
            _ => Failure::Usage("listen: the addresses cannot be used".to_owned()),
        })?;
        if is_one_folder {
            // Its requests are not noted: they have the first number, as those of no site.
            return Ok(());
        }
        for site in &mut plan.sites.sites {
            let number = numbers.sites.number(&site.name);
            if site.number != number {
                site.number = number;
            }
        }
        for log in &mut plan.logs {
            if let log::Scope::Site(at) = &mut log.scope {
                // A checked plan has the site.
                *at = plan.sites.sites[usize::from(*at)].number;
            }
        }
        numbers.route_logs.set(plan);
        Ok(())
    }

    /// Tells each site the number of the rules that its connections must have followed, if there are different ones.
    pub(crate) fn set_tls_rules(&mut self, rules: impl Fn(usize) -> Option<u16>) {
        let count = self.plan.site_secure.iter().flatten().count();
        let differ = (1..=count).any(|profile| rules(profile) != rules(0));
        let profiles: Vec<usize> = self.plan.profiles().collect();
        for (site, profile) in self.plan.sites.sites.iter_mut().zip(profiles) {
            // One that has neither certificates of its own nor routes protects nothing.
            let is_open = profile == 0 && site.routes.is_empty();
            let rules = rules(profile).filter(|_| differ && !is_open);
            if site.tls_rules != rules {
                site.tls_rules = rules;
            }
        }
    }

    /// Takes the sites of the plan before that were made from the same ones: they have their numbers already.
    pub(crate) fn take_numbered(&mut self, known: &NumberedSites) {
        self.plan.sites.sites.iter_mut().for_each(|site| known.substitute(site));
    }

    /// Whether it serves one folder and nothing else, so that the site layer can be skipped.
    pub fn is_one_folder(&self) -> bool {
        let Plan { sites, server, is_constant, .. } = &self.plan;
        let [site] = &sites.sites[..] else { return false };
        let [route] = &site.routes[..] else { return false };
        let usual = Route::new(PathMatch::prefix("/"), site_plan::Action::Files(0));
        let is_direct = server.listen.iter().all(|listen| listen.proxy_header == ProxyHeader::None);
        *is_constant && is_direct && site.rewrites.is_empty() && *route == usual
    }

    /// Whether any route caches responses.
    pub fn is_cached(&self) -> bool {
        self.plan.sites.sites.iter().flat_map(|site| &site.routes).any(|route| route.rules.cache.is_some())
    }

    /// Checks that a server which was started with `before` can change to this plan while it runs.
    ///
    /// # Errors
    /// What needs a restart, by name.
    pub fn check_change(&self, before: &[(&'static str, String)]) -> Result<(), String> {
        let differs = before.iter().zip(&self.plan.restart).filter(|(was, is)| was != is);
        let changes: Vec<String> = differs
            .map(|((name, was), (_, is))| match (shown_value(was), shown_value(is)) {
                (Some(was), Some(is)) => format!("`{name}` ({was} to {is})"),
                _ => format!("`{name}`"),
            })
            .collect();
        match changes.is_empty() {
            true => Ok(()),
            false => Err(format!("changes to {} need a restart", changes.join(", "))),
        }
    }
}

/// Sites as the source gave them, with their numbered copies: a site that the source shares between plans is copied only once.
#[derive(Default)]
pub(crate) struct NumberedSites(HashMap<usize, (SharedSite, SharedSite)>);

impl NumberedSites {
    /// `given` and `numbered` are the same sites.
    pub(crate) fn of(given: Vec<SharedSite>, numbered: &[SharedSite]) -> NumberedSites {
        let pairs = given.into_iter().zip(numbered);
        NumberedSites(pairs.map(|(given, it)| (given.address(), (given, it.clone()))).collect())
    }

    fn substitute(&self, site: &mut SharedSite) {
        if let Some((_, numbered)) = self.0.get(&site.address()) {
            *site = numbered.clone();
        }
    }
}

/// A value of a setting that needs a restart, if it is a number or a word.
fn shown_value(value: &str) -> Option<&str> {
    let inner = value.strip_prefix("Some(").and_then(|value| value.strip_suffix(')')).unwrap_or(value);
    match inner {
        "None" => Some("default"),
        word if word.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !word.is_empty() => Some(word),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_sites_that_were_not_checked_are_found_for_tls() {
        let mut plan = Plan { site_secure: vec![Some(Profile::default()), None], ..Plan::default() };
        plan.sites.sites = ["a", "b"]
            .map(|name| site_plan::Site { name: name.to_owned(), ..Default::default() }.into())
            .into();
        plan.sites
            .sites
            .iter_mut()
            .for_each(|it| it.hosts = vec![site_plan::Host::Exact("h.test".to_owned())]);
        assert!(plan.tls().is_err());
        plan.sites.sites[1].hosts = vec![site_plan::Host::Any];
        assert!(plan.tls().is_ok());
    }

    #[test]
    fn logs_of_missing_sites_and_routes_are_refused() {
        let log = |scope| log::Plan { scope, ..log::Plan::new("access.log") };
        let plan = |scope| Plan { logs: vec![log(scope)], ..Plan::default() };
        assert!(plan(log::Scope::Server).check().is_ok());
        for (scope, name) in [(log::Scope::Site(0), "site 0"), (log::Scope::Route(0), "route 0")] {
            match plan(scope).check() {
                Err(Invalid::Value(why)) => assert!(why.contains(name), "{why}"),
                _ => panic!("a plan without sites has no log of one"),
            }
        }
    }
}
