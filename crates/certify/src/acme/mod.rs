//! Certificates by ACME (RFC 8555): one for each domain, kept in the state folder and renewed for as long as the server lives.
//!
//! ```text
//! for each domain:  due? ── no ──> sleep ──┐
//!                     ^ yes: lock, order, write <── pause that grows, where it fails
//!                     └─────────────────────┘
//! ```
//!
//! It runs on a thread of its own, with a runtime of its own; workers see only files that have changed, and what
//! [`Publish`] was given.

mod account;
mod challenges;
mod client;
mod domain;
mod fault;
mod hook;
mod keep;
mod order;
mod schedule;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use flatout_tls::Certificate;
use tokio::sync::{Mutex, watch};

pub use challenges::Asked;
pub use domain::parse as parse_domain;
pub use schedule::usual as renewal;

use crate::{Say, State};
use challenges::Challenges;
use client::Http;
use keep::Shared;

/// Let's Encrypt.
pub const DIRECTORY_DEFAULT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Domains of one server: each has an order of its own, and authorities have limits.
pub const DOMAINS_MAX: usize = 100;

/// What is asked for, and of whom.
#[derive(Clone)]
pub struct Plan {
    /// The authority's directory.
    pub directory: String,
    /// Whom the authority tells of problems: addresses of e-mail.
    pub contact: Vec<String>,
    /// Certificates that the authority's own server is checked against (PEM); `None` are the system's.
    pub authorities: Option<PathBuf>,
    /// The kind of certificate, where the authority has several.
    pub profile: Option<String>,
    /// How names are proved, in the order in which it is tried; at least one.
    pub ways: Vec<Way>,
    /// The program that sets records in the DNS.
    pub hook: Option<PathBuf>,
}

/// How a name is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A file that the authority reads over HTTP, on port 80.
    Http,
    /// A certificate that it is shown in a TLS handshake, on port 443.
    TlsAlpn,
    /// A record in the DNS.
    Dns,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Http => "http-01",
            Way::TlsAlpn => "tls-alpn-01",
            Way::Dns => "dns-01",
        })
    }
}

/// Has what authorities ask for now be given to them.
pub type Publish = Arc<dyn Fn(&[Asked]) -> Result<(), String> + Send + Sync>;

/// Gets certificates for as long as it lives.
pub struct Keeper {
    domains: watch::Sender<Vec<String>>,
    challenges: Arc<Challenges>,
}

/// Where the certificate of a domain is, or will be, with its key.
pub fn certificate_path(state: &State, directory: &str, domain: &str) -> PathBuf {
    state.path(&certificate_name(directory, domain))
}

/// Puts certificates that are broken out of the way: they are asked for again.
///
/// # Errors
/// Files that cannot be read, or that others may read.
pub fn examine(state: &State, directory: &str, domains: &[String], say: Say) -> Result<(), String> {
    for domain in domains {
        let name = certificate_name(directory, domain);
        if state.read(&name)?.is_none() {
            continue;
        }
        let path = state.path(&name);
        if let Err(why) = Certificate::load(&path, &path) {
            let aside = state.put_aside(&name)?;
            say(format_args!("{why}; it is now {}, and a new one is asked for", aside.display()));
        }
    }
    Ok(())
}

impl Keeper {
    /// Begins, on a thread of its own.
    ///
    /// # Errors
    /// A file of authorities that cannot be used, or a thread that cannot be started.
    pub fn start(
        plan: Plan,
        domains: Vec<String>,
        state: State,
        publish: Publish,
        say: Say,
    ) -> Result<Keeper, String> {
        let http = Http::open(plan.authorities.as_deref())?;
        let challenges = Arc::new(Challenges::new(state.clone(), publish));
        let shared = Shared {
            plan,
            state,
            http,
            challenges: challenges.clone(),
            say,
            turn: Mutex::default(),
            account: Mutex::default(),
        };
        let (sender, receiver) = watch::channel(domains);
        let failed = |error: io::Error| format!("a thread for ACME: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let run = move || runtime.block_on(keep::all(Arc::new(shared), receiver));
        std::thread::Builder::new().name("flatout-acme".to_owned()).spawn(run).map_err(failed)?;
        Ok(Keeper { domains: sender, challenges })
    }

    /// Keeps the certificates of other domains from now on. Those of domains that are gone stay in the folder.
    pub fn replace(&self, domains: Vec<String>) {
        self.domains.send_if_modified(|now| {
            let is_other = *now != domains;
            *now = domains;
            is_other
        });
    }

    /// Publishes what other processes that share the folder are asked for: an authority may come to any of them. To be called
    /// every few seconds.
    pub fn look(&self) {
        self.challenges.look();
    }
}

/// The folder of an authority, by the address of its directory.
fn folder(directory: &str) -> String {
    let name = directory.trim_start_matches("https://").trim_end_matches('/');
    let safe = |char: char| if char.is_ascii_alphanumeric() || char == '.' { char } else { '-' };
    let name: String = name.chars().take(100).map(safe).collect();
    format!("acme/{}", name.trim_start_matches('.'))
}

fn certificate_name(directory: &str, domain: &str) -> String {
    format!("{}/{}.pem", folder(directory), domain.replace('*', "_"))
}

fn account_name(directory: &str) -> String {
    // No domain is called so: it would need a dot, or at least lower case.
    format!("{}/ACCOUNT.json", folder(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_and_domains_have_files_of_their_own() {
        let state = State::at("/s");
        let path =
            |directory: &str, domain: &str| certificate_path(&state, directory, domain).display().to_string();
        assert_eq!(
            path(DIRECTORY_DEFAULT, "a.test"),
            "/s/acme/acme-v02.api.letsencrypt.org-directory/a.test.pem"
        );
        assert_eq!(
            path("https://127.0.0.1:14000/dir/", "*.a.test"),
            "/s/acme/127.0.0.1-14000-dir/_.a.test.pem"
        );
        assert_eq!(path("https://../../x", "a"), "/s/acme/-..-x/a.pem");
    }
}
