//! Which of several processes writes statuses: the holder of a Lease.
//!
//! Clocks of machines differ. So a holder counts as gone if its Lease has not changed for [`EXPIRY`] by the clock of this process,
//! whatever time is in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report, say};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Leadership;
use super::watch::chain;

/// How often the Lease is renewed or looked at.
const RENEWAL: Duration = Duration::from_secs(3);

/// After this time without a renewal, a holder counts as gone.
const EXPIRY: Duration = Duration::from_secs(15);

/// After this time without a renewal, the holder itself stops: before others take over.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Tries to hold the Lease for as long as the process lives. `leads` is whether it does.
pub(super) async fn follow(client: Client, leadership: Leadership, leads: Arc<AtomicBool>) {
    let named = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    let resource = ApiResource::from_gvk_with_plural(&named, "leases");
    let api: Api<DynamicObject> = Api::namespaced_with(client, &leadership.namespace, &resource);
    let mut holder = Holder { seen: None, renewed: None };
    let mut fault = String::new();
    loop {
        match holder.renew(&api, &leadership, &resource).await {
            Ok(is_held) => {
                fault.clear();
                if leads.swap(is_held, Ordering::Relaxed) != is_held {
                    say(format_args!(
                        "this process {}",
                        if is_held { "writes statuses" } else { "writes no statuses any more" }
                    ));
                }
            }
            Err(error) => {
                let text = chain(&error);
                if text != fault {
                    report(
                        Severity::Warning,
                        format_args!("the Lease {}/{}: {text}", leadership.namespace, leadership.name),
                    );
                }
                fault = text;
                if holder.renewed.is_none_or(|at| at.elapsed() > GIVE_UP) {
                    leads.store(false, Ordering::Relaxed);
                }
            }
        }
        tokio::time::sleep(RENEWAL).await;
    }
}

/// What is known about the holder of the Lease.
struct Holder {
    /// The version of the Lease that was seen last, and when it was seen first.
    seen: Option<(String, Instant)>,
    /// When this process has renewed it.
    renewed: Option<Instant>,
}

impl Holder {
    /// Renews the Lease, or takes one that has expired. Returns whether this process holds it.
    async fn renew(
        &mut self,
        api: &Api<DynamicObject>,
        leadership: &Leadership,
        resource: &ApiResource,
    ) -> Result<bool, kube::Error> {
        let now = Instant::now();
        let Some(mut lease) = api.get_opt(&leadership.name).await? else {
            let mut lease = DynamicObject::new(&leadership.name, resource);
            lease.data = spec(&leadership.identity, 0);
            return self.held(api.create(&PostParams::default(), &lease).await, now);
        };
        let spec_of = lease.data.get("spec").cloned().unwrap_or_default();
        let held_by = spec_of.get("holderIdentity").and_then(Value::as_str).unwrap_or_default();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(known, _)| *known != version) {
            self.seen = Some((version, now));
        }
        let has_expired = self.seen.as_ref().is_some_and(|(_, since)| now.duration_since(*since) > EXPIRY);
        if held_by != leadership.identity && !held_by.is_empty() && !has_expired {
            return Ok(false);
        }
        let transitions = spec_of.get("leaseTransitions").and_then(Value::as_u64).unwrap_or_default();
        let transitions = transitions + u64::from(held_by != leadership.identity);
        lease.data = spec(&leadership.identity, transitions);
        self.held(api.replace(&leadership.name, &PostParams::default(), &lease).await, now)
    }

    /// Whether a write has made this process the holder. If another one was faster, it is not.
    fn held(
        &mut self,
        written: Result<DynamicObject, kube::Error>,
        at: Instant,
    ) -> Result<bool, kube::Error> {
        match written {
            Ok(_) => {
                self.renewed = Some(at);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
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
