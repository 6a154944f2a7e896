//! Certificates by ACME (RFC 8555): one for each domain, kept in the state folder and renewed while the server runs.
//!
//! ```text
//! for each domain:  due? ── no ──> sleep ──┐
//!                     ^ yes: lock, order, write <── pause that grows, where it fails
//!                     └─────────────────────┘
//! ```
//!
//! It has its own thread and runtime. Workers see only changed files, and what was passed to [`Publish`].

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

pub use challenges::PendingChallenge;
pub use domain::parse as parse_domain;
pub use schedule::usual as renewal;

use crate::{Level, Say, State};
use challenges::Challenges;
use client::Http;
use keep::Shared;

/// Let's Encrypt.
pub const DIRECTORY_DEFAULT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Domains of one server: each has its own order, and CAs have rate limits.
pub const DOMAINS_MAX: usize = 100;

/// Which certificates to get, and from which CA.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// URL of the CA's directory.
    pub directory: String,
    /// E-mail addresses to which the CA reports problems.
    pub contact: Vec<String>,
    /// Root certificates to verify the CA's server (PEM); `None`: the system's.
    pub authorities: Option<PathBuf>,
    /// The certificate profile, if the CA offers several.
    pub profile: Option<String>,
    /// Challenge types, in the order in which they are tried; at least one.
    pub ways: Vec<Way>,
    /// The program that sets DNS records.
    pub hook: Option<PathBuf>,
}

/// A challenge type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A file that the CA fetches over HTTP, on port 80.
    Http,
    /// A certificate presented in a TLS handshake, on port 443.
    TlsAlpn,
    /// A DNS record.
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

/// Makes the pending challenges available to the CA.
pub type Publish = Arc<dyn Fn(&[PendingChallenge]) -> Result<(), String> + Send + Sync>;

/// Gets certificates until it is dropped.
pub struct Keeper {
    domains: watch::Sender<Vec<String>>,
    challenges: Arc<Challenges>,
}

/// Path of a domain's certificate and key, which need not exist yet.
pub fn certificate_path(state: &State, directory: &str, domain: &str) -> PathBuf {
    state.path(&certificate_name(directory, domain))
}

/// Moves broken certificates out of the way, so that they are ordered again.
///
/// # Errors
/// Files that cannot be read, or that other users may read.
pub fn examine(state: &State, directory: &str, domains: &[String], say: Say) -> Result<(), String> {
    for domain in domains {
        let name = certificate_name(directory, domain);
        if state.read(&name)?.is_none() {
            continue;
        }
        let path = state.path(&name);
        if let Err(why) = Certificate::load(&path, &path) {
            let aside = state.put_aside(&name)?;
            say(
                Level::Warning,
                format_args!("{why}; it was renamed to {}, and a new one is requested", aside.display()),
            );
        }
    }
    Ok(())
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// A file of root certificates that cannot be used, or a thread that cannot be started.
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
        let failed = |error: io::Error| format!("cannot start the ACME thread: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let run = move || runtime.block_on(keep::all(Arc::new(shared), receiver));
        std::thread::Builder::new().name("flatout-acme".to_owned()).spawn(run).map_err(failed)?;
        Ok(Keeper { domains: sender, challenges })
    }

    /// Changes the list of domains. Certificates of removed domains stay in the folder.
    pub fn replace(&self, domains: Vec<String>) {
        self.domains.send_if_modified(|now| {
            let is_other = *now != domains;
            *now = domains;
            is_other
        });
    }

    /// Publishes the challenges of other processes that share the folder: the CA may connect to any of them. Call
    /// this every few seconds.
    pub fn look(&self) {
        self.challenges.look();
    }
}

/// The folder of a CA, by the URL of its directory.
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
    // No domain can have this name: domains have a dot, or are at least lower case.
    format!("{}/ACCOUNT.json", folder(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cas_and_domains_have_separate_files() {
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
