//! Which of several processes writes statuses: the holder of a Lease.
//!
//! Clocks of machines differ. So a holder counts as gone if its Lease has not changed for [`EXPIRY`] by the clock of this process,
//! whatever time is in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report, say};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::watch::chain;
use super::{Leadership, in_time};
use crate::leader::{LEAD_TIME_MAX, Leader, LeaderTerm};

/// How often the Lease is renewed or looked at.
const RENEWAL: Duration = Duration::from_secs(3);

/// How often it checks whether this process has stopped leading.
const LOOK: Duration = Duration::from_millis(50);

/// The timeout of a request for the Lease. The next request may reach an API server that is back.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(5);

/// After this time without a renewal, a holder counts as gone.
const EXPIRY: Duration = Duration::from_secs(15);

// The holder itself stops before others take over.
const _: () = assert!(LEAD_TIME_MAX.as_secs() + RENEWAL.as_secs() < EXPIRY.as_secs());

/// Tries to hold the Lease for as long as the process lives. `leader` is whether it does.
pub(super) async fn follow(client: Client, leadership: Leadership, leader: Arc<Leader>) {
    let named = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    let resource = ApiResource::from_gvk_with_plural(&named, "leases");
    let api: Api<DynamicObject> = Api::namespaced_with(client, &leadership.namespace, &resource);
    let mut holder = Holder { seen: None };
    let mut led = false;
    let mut fault = String::new();
    while !leader.is_retired() {
        let asked_at = Instant::now();
        match in_time(RESPONSE_TIME_MAX, holder.renew(&api, &leadership, &resource)).await {
            Ok(Some(term)) => {
                fault.clear();
                leader.renewed(term, asked_at);
            }
            Ok(None) => {
                fault.clear();
                leader.lost();
            }
            Err(error) => {
                let text = chain(&error);
                if text != fault {
                    report(
                        Severity::Warning,
                        format_args!("the Lease {}/{}: {text}", leadership.namespace, leadership.name),
                    );
                }
                // It leads on for a while, if it did.
                fault = text;
            }
        }
        let leads = leader.leads();
        if leads != led {
            say(format_args!(
                "this process {}",
                if leads { "writes statuses" } else { "writes no statuses any more" }
            ));
        }
        led = leads;
        wait(&leader).await;
    }
    if let Err(error) = in_time(RESPONSE_TIME_MAX, release(&api, &leadership)).await {
        // It expires.
        report(Severity::Warning, format_args!("the Lease was not given back: {}", chain(&error)));
    }
    leader.released();
}

/// Waits until it is time to renew the Lease or to give it back.
async fn wait(leader: &Leader) {
    let began = Instant::now();
    while began.elapsed() < RENEWAL && !leader.is_retired() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Gives the Lease back if this process holds it, so that another one can take it at once.
async fn release(api: &Api<DynamicObject>, leadership: &Leadership) -> Result<(), kube::Error> {
    let Some(mut lease) = api.get_opt(&leadership.name).await? else { return Ok(()) };
    let former = lease.data.get("spec").cloned().unwrap_or_default();
    if former.get("holderIdentity").and_then(Value::as_str) == Some(&*leadership.identity) {
        lease.data = spec("", former.get("leaseTransitions").and_then(Value::as_u64).unwrap_or_default());
        api.replace(&leadership.name, &PostParams::default(), &lease).await?;
    }
    Ok(())
}

/// What is known about the holder of the Lease.
struct Holder {
    /// The version of the Lease that was seen last, and when it was seen first.
    seen: Option<(String, Instant)>,
}

impl Holder {
    /// Renews the Lease, or takes one that has expired. Returns the term of this process, if it holds it.
    async fn renew(
        &mut self,
        api: &Api<DynamicObject>,
        leadership: &Leadership,
        resource: &ApiResource,
    ) -> Result<Option<LeaderTerm>, kube::Error> {
        let now = Instant::now();
        let Some(mut lease) = api.get_opt(&leadership.name).await? else {
            let mut lease = DynamicObject::new(&leadership.name, resource);
            lease.data = spec(&leadership.identity, 0);
            return held(leadership, 0, api.create(&PostParams::default(), &lease).await);
        };
        let spec_of = lease.data.get("spec").cloned().unwrap_or_default();
        let held_by = spec_of.get("holderIdentity").and_then(Value::as_str).unwrap_or_default();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(known, _)| *known != version) {
            self.seen = Some((version, now));
        }
        let has_expired = self.seen.as_ref().is_some_and(|(_, since)| now.duration_since(*since) > EXPIRY);
        if held_by != leadership.identity && !held_by.is_empty() && !has_expired {
            return Ok(None);
        }
        let transitions = spec_of.get("leaseTransitions").and_then(Value::as_u64).unwrap_or_default();
        let transitions = transitions + u64::from(held_by != leadership.identity);
        lease.data = spec(&leadership.identity, transitions);
        held(leadership, transitions, api.replace(&leadership.name, &PostParams::default(), &lease).await)
    }
}

/// The term, if a write has made this process the holder. If another one was faster, it is not.
fn held(
    leadership: &Leadership,
    number: u64,
    written: Result<DynamicObject, kube::Error>,
) -> Result<Option<LeaderTerm>, kube::Error> {
    match written {
        Ok(lease) => {
            let Leadership { namespace, name, .. } = leadership;
            let id = lease.metadata.uid.unwrap_or_default();
            Ok(Some(LeaderTerm { lease: format!("{namespace}/{name} {id}"), number }))
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

fn spec(identity: &str, transitions: u64) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    json!({"spec": {
        "holderIdentity": identity,
        "leaseDurationSeconds": EXPIRY.as_secs(),
        "acquireTime": now,
        "renewTime": now,
        "leaseTransitions": transitions,
    }})
}
