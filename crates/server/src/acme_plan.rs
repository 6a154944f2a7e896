//! The plan for automatic certificates: which, from which CA, and where they are kept.

use std::env;
use std::path::PathBuf;

use flatout_certify::acme::{self, Way};
use flatout_certify::{State, local};
use flatout_engine::tls::Awaited;
use flatout_engine::{Address, Listen, ProxyHeader};
use flatout_site::plan::Host;

use crate::plan::Plan;

/// Where servers started by root keep their state.
const STATE_OF_ROOT: &str = "/var/lib/flatout/serve";

/// Where a server listens that has no address and no domain.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:8080";

/// The ports of HTTPS and HTTP if domains are served and no address was given.
const LISTEN_SECURE: &str = ":443";
const LISTEN_PLAIN: &str = ":80";

/// Which certificates to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// A local CA signs a certificate.
    pub local: bool,
    /// The names of the certificates from the ACME CA.
    pub domains: Vec<String>,
    /// The URL of the CA's directory.
    pub directory: String,
    /// Where the CA may write to, as URLs.
    pub contact: Vec<String>,
    /// Certificates that the CA's own server is trusted by; `None` for those of the system.
    pub authorities: Option<PathBuf>,
    /// How to prove a name; empty for what the other settings allow.
    pub ways: Vec<Way>,
    /// The program that sets DNS records.
    pub hook: Option<PathBuf>,
    /// The profile of certificates that the CA is asked for.
    pub profile: Option<String>,
    /// The state folder; `None` for the default.
    pub state: Option<PathBuf>,
}

impl Default for Issue {
    fn default() -> Self {
        Issue {
            local: false,
            domains: Vec::new(),
            directory: acme::DIRECTORY_DEFAULT.to_owned(),
            contact: Vec::new(),
            authorities: None,
            ways: Vec::new(),
            hook: None,
            profile: None,
            state: None,
        }
    }
}

impl Issue {
    /// Whether any certificate is automatic.
    pub fn is_any(&self) -> bool {
        self.local || !self.domains.is_empty()
    }

    /// The state folder: the configured one, or the default. `None` if nothing needs it.
    fn state(&self) -> Result<Option<State>, String> {
        let named = self.state.clone().or_else(|| {
            // systemd separates several folders by colons.
            let of_systemd = env::var("STATE_DIRECTORY").ok()?;
            of_systemd.split(':').next().filter(|folder| !folder.is_empty()).map(PathBuf::from)
        });
        match named {
            Some(folder) => Ok(Some(State::at(folder))),
            None if !self.is_any() => Ok(None),
            None if rustix::process::geteuid().is_root() => Ok(Some(State::at(STATE_OF_ROOT))),
            None => {
                let of = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
                let home = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")));
                let home = home.ok_or("there is no home folder")?;
                Ok(Some(State::at(home.join("flatout"))))
            }
        }
    }

    /// The plan for the ACME CA.
    pub fn acme(&self, plan: &Plan) -> acme::Plan {
        acme::Plan {
            directory: self.directory.clone(),
            contact: self.contact.clone(),
            authorities: self.authorities.clone(),
            profile: self.profile.clone(),
            ways: self.ways_of(plan),
            hook: self.hook.clone(),
        }
    }

    fn ways_of(&self, plan: &Plan) -> Vec<Way> {
        if !self.ways.is_empty() {
            return self.ways.clone();
        }
        if self.hook.is_some() {
            return vec![Way::Dns];
        }
        let is_plain = |it: &Listen| it.is_plain && matches!(it.address, Address::Tcp(_));
        let has_plain = plan.listens().any(is_plain);
        // A CA that validates by TLS presents no client certificate.
        let is_open = plan.client_rules().all(|clients| !clients.required);
        let mut ways = Vec::new();
        ways.extend(has_plain.then_some(Way::Http));
        ways.extend((is_open || !has_plain).then_some(Way::TlsAlpn));
        ways
    }
}

impl Plan {
    /// Fills in defaults: where to listen, the state folder, and the paths of certificates that do not exist yet.
    ///
    /// # Errors
    /// There is no place for the state.
    pub fn complete(&mut self) -> Result<(), String> {
        let has_own = |at: usize| self.site_listen.get(at).is_some_and(|own| !own.is_empty());
        let is_shared = (0..self.sites.sites.len().max(1)).any(|at| !has_own(at));
        if is_shared && self.server.listen.iter().all(|listen| listen.is_plain) {
            let is_public = !self.issue.domains.is_empty();
            let has_plain = !self.server.listen.is_empty();
            let proxy_header = match self.server.handed_over_proxy_header {
                true => ProxyHeader::Trusted,
                false => ProxyHeader::None,
            };
            let listen = |text: &str| text.parse().map(|listen| Listen { proxy_header, ..listen });
            let secure = listen(if is_public { LISTEN_SECURE } else { LISTEN_DEFAULT });
            self.server.listen.splice(0..0, secure);
            if is_public && !has_plain {
                let plain = listen(LISTEN_PLAIN).map(|listen| Listen { is_plain: true, ..listen });
                self.server.listen.extend(plain);
            }
        }
        self.state = self.issue.state()?;
        let Some(state) = &self.state else { return Ok(()) };
        let domains = self.issue.domains.iter();
        let awaited = domains.map(|domain| Awaited {
            path: acme::certificate_path(state, &self.issue.directory, domain),
            names: vec![domain.clone()],
        });
        self.secure.awaited = awaited.collect();
        if self.issue.local {
            // It is made before anything is served, so no name waits for it.
            self.secure.awaited.push(Awaited { path: local::certificate_path(state), names: Vec::new() });
        }
        self.secure.proves_names = !self.issue.domains.is_empty();
        Ok(())
    }

    /// The names of a local certificate besides those of this machine: host names of sites, and addresses of
    /// listeners.
    pub fn local_names(&self) -> Vec<String> {
        let hosts = self.sites.sites.iter().flat_map(|site| &site.hosts).filter_map(|host| match host {
            Host::Exact(name) => Some(name.clone()),
            Host::Below(name) => Some(format!("*.{name}")),
            Host::Pattern(_) | Host::Unnamed | Host::Any => None,
        });
        let addresses = self.listens().filter_map(|listen| match &listen.address {
            Address::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip().to_string()),
            _ => None,
        });
        hosts.chain(addresses).collect()
    }
}
