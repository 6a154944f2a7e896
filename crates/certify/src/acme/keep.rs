//! Keeps certificates valid: orders those that are due, one order at a time among all processes that share the
//! folder.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use flatout_tls::Certificate;
use instant_acme::{Account, CertificateIdentifier};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::challenges::Challenges;
use super::client::Http;
use super::fault::Fault;
use super::order::{self, Wanted};
use super::{Plan, Way, account, certificate_name, domain, folder, schedule};
use crate::{Level, Lock, Say, State};

/// Time limit of an order, with all its requests.
const ORDER_TIME_MAX: Duration = Duration::from_secs(900);

/// How often to try the lock, and for how long: its holder may have many domains.
const LOCK_LOOK: Duration = Duration::from_secs(1);
const LOCK_TIME_MAX: Duration = Duration::from_secs(3600);

/// The longest sleep: clocks are set, and machines are suspended.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// How often to ask a CA when to renew, whatever its `Retry-After` says.
const ADVICE_MIN: Duration = Duration::from_secs(60);
const ADVICE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The same if it did not respond, or has no advice.
const NO_ADVICE: Duration = Duration::from_secs(6 * 3600);

/// State shared by all domains.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) state: State,
    pub(super) http: Http,
    pub(super) challenges: Arc<Challenges>,
    pub(super) say: Say,
    /// Held during an order: one at a time in this process.
    pub(super) turn: Mutex<()>,
    /// Loaded once, and again after a failure.
    pub(super) account: Mutex<Option<Account>>,
}

/// A CA's renewal information for a certificate (ARI).
struct Advice {
    /// The certificate it is for.
    of: (Vec<u8>, Vec<u8>),
    /// When to renew; `None` leaves it to us.
    at: Option<SystemTime>,
    /// When to ask again.
    until: SystemTime,
}

/// Who got the certificate.
#[derive(Debug, PartialEq, Eq)]
enum By {
    Us,
    Another,
}

/// Keeps the certificates of all domains, until the sender of the list is dropped.
pub(super) async fn all(shared: Arc<Shared>, mut domains: watch::Receiver<Vec<String>>) {
    let mut tasks: HashMap<String, JoinHandle<()>> = HashMap::new();
    loop {
        let wanted = domains.borrow_and_update().clone();
        tasks.retain(|domain, task| {
            let stays = wanted.contains(domain);
            if !stays {
                task.abort();
            }
            stays
        });
        for domain in wanted {
            let keep = || tokio::spawn(keep(shared.clone(), domain.clone()));
            tasks.entry(domain.clone()).or_insert_with(keep);
        }
        if domains.changed().await.is_err() {
            return;
        }
    }
}

async fn keep(shared: Arc<Shared>, domain: String) {
    warn(&shared, &domain).await;
    let mut failures = 0_u32;
    let mut advice = None;
    loop {
        let found = shared.stored(&domain);
        let now = SystemTime::now();
        let due = match &found {
            None => now,
            Some(certificate) => shared.due(certificate, &mut advice, now).await,
        };
        if let Ok(left) = due.duration_since(now)
            && !left.is_zero()
        {
            sleep(left.min(SLEEP_MAX)).await;
            continue;
        }
        let renewing = tokio::spawn(renew(shared.clone(), domain.clone(), found, failures));
        match renewing.await.unwrap_or_else(|_| Err(Fault::Here("internal error".to_owned()))) {
            Ok((by, certificate)) => {
                failures = 0;
                if by == By::Us {
                    let days = certificate.days_left(SystemTime::now());
                    (shared.say)(
                        Level::Info,
                        format_args!("got a certificate for {domain}, valid for {days} days"),
                    );
                    sleep(schedule::between(certificate.not_before, certificate.not_after)).await;
                }
            }
            Err(fault) => {
                failures = failures.saturating_add(1);
                let pause = schedule::pause(fault.pause(), failures, random());
                (shared.say)(
                    Level::Warning,
                    format_args!(
                        "no certificate for {domain}: {fault}; next attempt in {} s{}",
                        pause.as_secs(),
                        if shared.stored(&domain).is_some() {
                            ", the old certificate stays in use"
                        } else {
                            ""
                        }
                    ),
                );
                sleep(pause).await;
            }
        }
    }
}

/// Warns that no public CA will issue a certificate for a name.
async fn warn(shared: &Shared, domain: &str) {
    if shared.plan.authorities.is_some() {
        // A private CA has its own idea of which names are public.
        return;
    }
    let why = match domain::why_private(domain) {
        Some(why) => Some(why),
        None if shared.plan.ways.contains(&Way::Dns) => None,
        None => {
            let found = tokio::net::lookup_host((domain, 443)).await;
            let addresses: Vec<IpAddr> =
                found.map(|all| all.map(|one| one.ip()).collect()).unwrap_or_default();
            domain::why_unreachable(&addresses)
        }
    };
    if let Some(why) = why {
        (shared.say)(
            Level::Warning,
            format_args!(
                "{domain}: public CAs do not issue a certificate for it: {why}; for development use the local CA, for a private CA \
             its directory and its certificates"
            ),
        );
    }
}

/// Gets a certificate, unless another process that shares the folder has already done so.
async fn renew(
    shared: Arc<Shared>,
    domain: String,
    had: Option<Certificate>,
    failures: u32,
) -> Result<(By, Certificate), Fault> {
    let _turn = shared.turn.lock().await;
    let _lock = shared.lock().await?;
    let serial =
        |certificate: &Option<Certificate>| certificate.as_ref().map(|it| (it.not_before, it.not_after));
    let found = shared.stored(&domain);
    if let Some(certificate) = &found
        && serial(&found) != serial(&had)
    {
        return Ok((By::Another, certificate.clone()));
    }
    let issued = timeout(ORDER_TIME_MAX, issue(&shared, &domain, had.as_ref(), failures)).await;
    let text = match issued {
        Ok(Ok(text)) => text,
        Ok(Err(fault)) => {
            // The cause may be the cached account or directory.
            shared.account.lock().await.take();
            if matches!(fault, Fault::Stranger(_)) {
                account::forget(&shared);
            }
            return Err(fault);
        }
        Err(_) => return Err(Fault::Unreachable(format!("no result in {} s", ORDER_TIME_MAX.as_secs()))),
    };
    let name = certificate_name(&shared.plan.directory, &domain);
    let check = |draft: &std::path::Path| {
        let certificate = Certificate::load(draft, draft)?;
        if !certificate.names.contains(&domain) {
            return Err(format!(
                "the CA issued a certificate for other names: {}",
                certificate.names.join(", ")
            ));
        }
        if certificate.not_after <= SystemTime::now() {
            return Err("the CA issued an expired certificate; check the clocks".to_owned());
        }
        Ok(certificate)
    };
    let certificate = shared.state.write_checked(&name, &text, check).map_err(Fault::Here)?;
    Ok((By::Us, certificate))
}

async fn issue(
    shared: &Shared,
    domain: &str,
    had: Option<&Certificate>,
    failures: u32,
) -> Result<String, Fault> {
    let account = shared.account().await?;
    let is_wildcard = domain.starts_with("*.");
    let ways: Vec<Way> =
        shared.plan.ways.iter().copied().filter(|way| !is_wildcard || *way == Way::Dns).collect();
    let way = ways.get(failures as usize % ways.len().max(1)).copied();
    let way = way.ok_or_else(|| Fault::Here("a wildcard can only be proved by dns-01".to_owned()))?;
    // The replacement may be why the CA refused.
    let had = had.filter(|_| failures == 0);
    let replaces = had.and_then(|had| had.issued_as.as_ref()).map(identifier);
    let wanted = Wanted { domain, way, replaces };
    match order::place(shared, &account, &wanted).await {
        // The CA replaces a certificate only once, or has no ARI. Neither is a reason to go without a new one.
        Err(Fault::NotReplaced(_)) => {
            order::place(shared, &account, &Wanted { replaces: None, ..wanted }).await
        }
        placed => placed,
    }
}

impl Shared {
    fn stored(&self, domain: &str) -> Option<Certificate> {
        let path = self.state.path(&certificate_name(&self.plan.directory, domain));
        Certificate::load(&path, &path).ok()
    }

    async fn account(&self) -> Result<Account, Fault> {
        let mut known = self.account.lock().await;
        if let Some(account) = &*known {
            return Ok(account.clone());
        }
        let account = account::open(self).await?;
        *known = Some(account.clone());
        Ok(account)
    }

    async fn lock(&self) -> Result<Lock, Fault> {
        let name = format!("{}/LOCK", folder(&self.plan.directory));
        let locked = async {
            loop {
                match self.state.try_lock(&name) {
                    Ok(None) => sleep(LOCK_LOOK).await,
                    Ok(Some(lock)) => return Ok(lock),
                    Err(why) => return Err(Fault::Here(why)),
                }
            }
        };
        let late = || {
            Fault::Here(
                "another process that shares the state folder has held its lock for an hour".to_owned(),
            )
        };
        timeout(LOCK_TIME_MAX, locked).await.unwrap_or_else(|_| Err(late()))
    }

    /// When to renew a certificate: when its CA suggests, or when a third of its lifetime is left.
    async fn due(
        &self,
        certificate: &Certificate,
        advice: &mut Option<Advice>,
        now: SystemTime,
    ) -> SystemTime {
        let usual = schedule::usual(certificate.not_before, certificate.not_after);
        let Some(of) = &certificate.issued_as else { return usual };
        let is_fresh = |advice: &Advice| advice.of == *of && now < advice.until;
        if !advice.as_ref().is_some_and(is_fresh) {
            let before = advice.take().filter(|advice| advice.of == *of);
            *advice = Some(self.advice(certificate, of, before, now).await);
        }
        advice.as_ref().and_then(|advice| advice.at).unwrap_or(usual)
    }

    async fn advice(
        &self,
        certificate: &Certificate,
        of: &(Vec<u8>, Vec<u8>),
        before: Option<Advice>,
        now: SystemTime,
    ) -> Advice {
        let id = identifier(of);
        let said = async { Ok::<_, Fault>(self.known_account().await?.renewal_info(&id).await?) };
        let Ok((said, again)) = said.await else {
            let at = before.and_then(|before| before.at);
            return Advice { of: of.clone(), at, until: now + NO_ADVICE };
        };
        let window = said.suggested_window;
        let (start, end) = (SystemTime::from(window.start), SystemTime::from(window.end));
        let chosen = schedule::suggested(start, end, certificate.not_after, random());
        // A time chosen in the same window stays. Otherwise a server that asks often would always renew early.
        let stays = before.and_then(|before| before.at).filter(|at| (start..=end).contains(at));
        Advice { of: of.clone(), at: stays.or(chosen), until: now + again.clamp(ADVICE_MIN, ADVICE_MAX) }
    }

    /// The account for requests that do not need one: it is not worth creating one, which takes the lock.
    async fn known_account(&self) -> Result<Account, Fault> {
        let is_kept =
            self.state.read(&super::account_name(&self.plan.directory)).map_err(Fault::Here)?.is_some();
        if is_kept { self.account().await } else { Err(Fault::Here("there is no account".to_owned())) }
    }
}

/// The CA's identifier of a certificate.
fn identifier((authority, serial): &(Vec<u8>, Vec<u8>)) -> CertificateIdentifier<'static> {
    CertificateIdentifier {
        authority_key_identifier: BASE64_URL_SAFE_NO_PAD.encode(authority).into(),
        serial: BASE64_URL_SAFE_NO_PAD.encode(serial).into(),
    }
}

/// From 0 to 1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers there is no TLS either.
    let _ = rand::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}
