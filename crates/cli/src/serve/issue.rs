//! The plan for automatic certificates: which, from which CA, and where they are kept.

use std::env;
use std::path::PathBuf;

use flatout_certify::acme::{self, Way};
use flatout_certify::{State, local};
use flatout_engine::Address;
use flatout_serve::site::plan::Host;

use super::settings::LISTEN_DEFAULT;
use super::site::Built;

/// Where servers started by root keep their state.
const STATE_OF_ROOT: &str = "/var/lib/flatout/serve";

/// The ports of HTTPS and HTTP if domains are served and no address was given.
const LISTEN_SECURE: &str = ":443";
const LISTEN_PLAIN: &str = ":80";

/// Which certificates to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    /// A local CA signs a certificate.
    pub(super) local: bool,
    pub(super) domains: Vec<String>,
    pub(super) directory: String,
    pub(super) contact: Vec<String>,
    pub(super) authorities: Option<PathBuf>,
    pub(super) ways: Vec<Way>,
    pub(super) hook: Option<PathBuf>,
    pub(super) profile: Option<String>,
    pub(super) state: Option<PathBuf>,
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
    pub(super) fn is_any(&self) -> bool {
        self.local || !self.domains.is_empty()
    }

    /// The state folder: the configured one, or the default. `None` if nothing needs it.
    pub(super) fn state(&self) -> Result<Option<State>, String> {
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
                let home = home.ok_or("state: there is no home folder; name a folder with --state")?;
                Ok(Some(State::at(home.join("flatout"))))
            }
        }
    }

    /// The plan for the ACME CA.
    pub(super) fn acme(&self, built: &Built) -> acme::Plan {
        acme::Plan {
            directory: self.directory.clone(),
            contact: self.contact.clone(),
            authorities: self.authorities.clone(),
            profile: self.profile.clone(),
            ways: self.ways_of(built),
            hook: self.hook.clone(),
        }
    }

    fn ways_of(&self, built: &Built) -> Vec<Way> {
        if !self.ways.is_empty() {
            return self.ways.clone();
        }
        if self.hook.is_some() {
            return vec![Way::Dns];
        }
        let has_plain = built.server.listen_plain.iter().any(|address| matches!(address, Address::Tcp(_)));
        // A CA that validates by TLS presents no client certificate.
        let is_open = built.secure.clients.as_ref().is_none_or(|clients| !clients.required);
        let mut ways = Vec::new();
        ways.extend(has_plain.then_some(Way::Http));
        ways.extend((is_open || !has_plain).then_some(Way::TlsAlpn));
        ways
    }
}

impl Built {
    /// Whether it uses TLS.
    pub(super) fn is_secure(&self) -> bool {
        !self.secure.identities.is_empty() || self.issue.is_any()
    }

    /// Fills in defaults: where to listen, and the paths of certificates that do not exist yet.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        if self.server.listen.is_empty() {
            let is_public = !self.issue.domains.is_empty();
            self.server.listen.extend((if is_public { LISTEN_SECURE } else { LISTEN_DEFAULT }).parse());
            if is_public && self.server.listen_plain.is_empty() {
                self.server.listen_plain.extend(LISTEN_PLAIN.parse());
            }
        }
        let Some(state) = self.issue.state()? else { return Ok(()) };
        let domains = self.issue.domains.iter();
        let paths = domains.map(|domain| acme::certificate_path(&state, &self.issue.directory, domain));
        self.secure.awaited = paths.collect();
        if self.issue.local {
            self.secure.awaited.push(local::certificate_path(&state));
        }
        self.secure.proves_names = !self.issue.domains.is_empty();
        Ok(())
    }

    /// The names of a local certificate besides those of this machine: host names of sites, and addresses of
    /// listeners.
    pub(super) fn local_names(&self) -> Vec<String> {
        let hosts = self.sites.sites.iter().flat_map(|site| &site.hosts).filter_map(|host| match host {
            Host::Exact(name) => Some(name.clone()),
            Host::Below(name) => Some(format!("*.{name}")),
            Host::Pattern(_) | Host::Any => None,
        });
        let addresses = self.server.listen.iter().filter_map(|address| match address {
            Address::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip().to_string()),
            _ => None,
        });
        hosts.chain(addresses).collect()
    }
}
