//! One order: prove control of the name, and have the CA sign.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use tokio::time::sleep;

use super::Way;
use super::challenges::{PendingChallenge, Published};
use super::fault::Fault;
use super::hook::{self, Record, Verb};
use super::keep::Shared;
use crate::Level;

/// How to poll the CA for the result of its validation, and for the certificate.
const RESULT: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(300))
    .backoff(1.5)
    .timeout(Duration::from_secs(90));

/// How long to wait until every process that shares the folder has published its challenges: longer than their
/// polling interval.
const SPREAD_TIME: Duration = Duration::from_secs(3);

/// Authorizations that one order may require: it contains one name.
const AUTHORIZATIONS_MAX: usize = 4;

/// What to order.
pub(super) struct Wanted<'w> {
    pub(super) domain: &'w str,
    pub(super) way: Way,
    /// The certificate that the new one replaces.
    pub(super) replaces: Option<CertificateIdentifier<'w>>,
}

/// What to remove after the validation.
#[derive(Default)]
struct Shown {
    published: Vec<Published>,
    records: Vec<Record>,
}

/// Gets a certificate: its key and chain, as PEM.
pub(super) async fn place(shared: &Shared, account: &Account, wanted: &Wanted<'_>) -> Result<String, Fault> {
    let identifiers = [Identifier::Dns(wanted.domain.to_owned())];
    let mut new = NewOrder::new(&identifiers);
    if let Some(replaces) = &wanted.replaces {
        new = new.replaces(replaces.clone());
    }
    if let Some(profile) = &shared.plan.profile {
        new = new.profile(profile);
    }
    let mut order = account.new_order(&new).await?;
    let mut shown = Shown::default();
    let proved = prove(shared, wanted, &mut order, &mut shown).await;
    drop(shown.published);
    for record in &shown.records {
        if let Some(program) = &shared.plan.hook
            && let Err(why) = hook::run(program, Verb::Clear, record).await
        {
            (shared.say)(
                Level::Warning,
                format_args!("the DNS record for {} was not removed: {why}", wanted.domain),
            );
        }
    }
    proved?;
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&RESULT).await?;
    Ok(format!("{key}{chain}"))
}

/// Sets up the challenges, and waits until the CA has validated them.
async fn prove(
    shared: &Shared,
    wanted: &Wanted<'_>,
    order: &mut Order,
    shown: &mut Shown,
) -> Result<(), Fault> {
    let kind = match wanted.way {
        Way::Http => ChallengeType::Http01,
        Way::TlsAlpn => ChallengeType::TlsAlpn01,
        Way::Dns => ChallengeType::Dns01,
    };
    let mut authorizations = order.authorizations();
    let mut count = 0;
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        count += 1;
        if count > AUTHORIZATIONS_MAX {
            return Err(Fault::Refused("it requires validation of more names than requested".to_owned()));
        }
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let challenge = authorization.challenge(kind.clone());
        let Some(mut challenge) = challenge else {
            return Err(Fault::Refused(format!("it does not offer {} for {}", wanted.way, wanted.domain)));
        };
        let expected = challenge.key_authorization();
        if wanted.way == Way::Dns {
            let name = format!("_acme-challenge.{}", wanted.domain.trim_start_matches("*."));
            let record = Record { name, value: expected.dns_value() };
            let Some(program) = &shared.plan.hook else {
                return Err(Fault::Here("dns-01 needs a program that sets records".to_owned()));
            };
            // A program that fails may still have set the record.
            shown.records.push(record.clone());
            hook::run(program, Verb::Set, &record).await?;
        } else {
            let asked = PendingChallenge {
                domain: wanted.domain.to_owned(),
                token: challenge.token.clone(),
                authorization: expected.as_str().to_owned(),
            };
            shown.published.push(shared.challenges.add(&asked).map_err(Fault::Here)?);
            sleep(SPREAD_TIME).await;
        }
        challenge.set_ready().await?;
    }
    match order.poll_ready(&RESULT).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => Err(why_invalid(order).await),
        Err(error) => match Fault::from(error) {
            // The challenge's error says more than the order's.
            Fault::Refused(why) => match why_invalid(order).await {
                Fault::Refused(more) if !more.is_empty() => Err(Fault::Refused(more)),
                _ => Err(Fault::Refused(why)),
            },
            fault => Err(fault),
        },
    }
}

/// Why the CA rejected a challenge.
async fn why_invalid(order: &mut Order) -> Fault {
    let mut authorizations = order.authorizations();
    if let Some(Ok(mut authorization)) = authorizations.next().await
        && let Ok(state) = authorization.refresh().await
        && let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.clone())
    {
        return Fault::from(problem);
    }
    Fault::Refused("the order is invalid".to_owned())
}
