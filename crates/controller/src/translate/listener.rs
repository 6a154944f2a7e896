//! Listeners of gateways: which are valid, where they are bound, which certificates they have.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_tls::{Certificate, Identity};
use serde_json::{Value, json};

use super::Settings;
use super::address::assigned;
use super::certificate::Files;
use super::grant::{Referrer, is_granted};
use super::hostname::HostName;
use crate::condition::{Condition, StatusUpdate};
use crate::kinds::gateway::{AllowedKind, Gateway, Listener, SecretRef};
use crate::kinds::{GATEWAY_GROUP, ObjectKey};
use crate::objects::{Objects, find_kind};

/// The kinds of routes that attach to listeners for HTTP.
const ROUTE_KINDS: &[&str] = &["HTTPRoute", "GRPCRoute"];

/// The same for TLS.
const TLS_ROUTE_KINDS: &[&str] = &["TLSRoute"];

/// The protocols of listeners, each with the kinds of its routes.
const PROTOCOLS: [(&str, &[&str]); 3] =
    [("HTTP", ROUTE_KINDS), ("HTTPS", ROUTE_KINDS), ("TLS", TLS_ROUTE_KINDS)];

/// Listeners of one gateway, as the standard limits them.
const LISTENERS_MAX: usize = 64;

/// A gateway of this controller.
pub(super) struct GatewayState<'o> {
    pub(super) gateway: &'o Gateway,
    pub(super) listeners: Vec<ListenerState<'o>>,
    pub(super) address: Option<IpAddr>,
    /// Why none of its listeners is served.
    refusal: Option<Condition>,
}

/// Where the TLS of a listener's connections ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsEnding {
    /// There is none.
    None,
    /// Here.
    Here,
    /// At the servers: connections are passed on as they are.
    Behind,
}

/// A listener of a gateway.
pub(super) struct ListenerState<'o> {
    pub(super) listener: &'o Listener,
    pub(super) hostname: HostName,
    /// Where it is bound; none if it is not served.
    pub(super) bind: Option<SocketAddr>,
    pub(super) identities: Vec<Identity>,
    /// The kinds of routes that may attach.
    pub(super) kinds: Vec<&'static str>,
    pub(super) attached: usize,
    faults: Vec<Condition>,
}

impl ListenerState<'_> {
    pub(super) fn is_https(&self) -> bool {
        self.listener.protocol == "HTTPS"
    }

    /// What becomes of its connections.
    pub(super) fn ending(&self) -> TlsEnding {
        match self.listener.protocol.as_str() {
            "HTTPS" => TlsEnding::Here,
            "TLS" => TlsEnding::Behind,
            _ => TlsEnding::None,
        }
    }

    fn has_fault(&self, name: &str) -> bool {
        self.faults.iter().any(|fault| fault.name == name)
    }

    fn status(&self, generation: i64) -> Value {
        let usual = ["Accepted", "ResolvedRefs", "Programmed"].into_iter();
        let good = usual.filter(|name| !self.has_fault(name)).map(Condition::good);
        let conflicted =
            (!self.has_fault("Conflicted")).then(|| Condition::bad("Conflicted", "NoConflicts", ""));
        let all: Vec<Value> =
            good.chain(conflicted).chain(self.faults.iter().cloned()).map(|it| it.json(generation)).collect();
        let kinds: Vec<Value> =
            self.kinds.iter().map(|kind| json!({"group": GATEWAY_GROUP, "kind": kind})).collect();
        json!({
            "name": self.listener.name,
            "attachedRoutes": self.attached,
            "supportedKinds": kinds,
            "conditions": all,
        })
    }
}

impl GatewayState<'_> {
    /// Its status, once routes are attached.
    pub(super) fn status(&self, settings: &Settings) -> Option<Arc<StatusUpdate>> {
        let metadata = &self.gateway.metadata;
        let generation = metadata.generation;
        let is_bad = self.listeners.iter().any(|it| it.bind.is_none());
        let is_any_accepted = self.listeners.iter().any(|it| !it.has_fault("Accepted"));
        let message = "some listeners are not served".to_owned();
        let conditions = match &self.refusal {
            Some(refusal) if refusal.name == "Programmed" => {
                vec![Condition::good("Accepted"), refusal.clone()]
            }
            Some(refusal) => {
                vec![refusal.clone(), Condition::bad("Programmed", "Invalid", refusal.message.clone())]
            }
            None if !is_any_accepted && is_bad => {
                let message = "no listener is accepted";
                vec![
                    Condition::bad("Accepted", "ListenersNotValid", message),
                    Condition::bad("Programmed", "Invalid", message),
                ]
            }
            None if is_bad => vec![
                Condition { reason: "ListenersNotValid", message, ..Condition::good("Accepted") },
                Condition::good("Programmed"),
            ],
            None => vec![Condition::good("Accepted"), Condition::good("Programmed")],
        };
        let published = match self.address {
            _ if !settings.published.is_empty() => settings.published.clone(),
            Some(address) if !address.is_unspecified() => vec![address.to_string()],
            _ => Vec::new(),
        };
        let kind_of = |text: &str| if text.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
        let addresses: Vec<Value> =
            published.iter().map(|text| json!({"type": kind_of(text), "value": text})).collect();
        let conditions: Vec<Value> = conditions.iter().map(|it| it.json(generation)).collect();
        let listeners: Vec<Value> = self.listeners.iter().map(|it| it.status(generation)).collect();
        let mut status = json!({"conditions": conditions, "listeners": listeners});
        if !addresses.is_empty() {
            status["addresses"] = Value::Array(addresses);
        }
        let kind = find_kind(&format!("{GATEWAY_GROUP}/v1"), "Gateway")?;
        Some(Arc::new(StatusUpdate { kind, key: metadata.key(), status, notes: Vec::new() }))
    }
}

/// The gateways of this controller, the oldest first.
pub(super) fn gateways<'o>(
    objects: &'o Objects,
    settings: &Settings,
    files: &mut Files,
) -> Vec<GatewayState<'o>> {
    let is_ours = |it: &&Gateway| {
        let class = objects.gateway_classes.get(&ObjectKey::new("", &it.spec.gateway_class_name));
        class.is_some_and(|class| class.spec.controller_name == settings.controller_name)
    };
    let mut ours: Vec<&Gateway> = objects.gateways.values().filter(is_ours).collect();
    ours.sort_by_key(|gateway| gateway.metadata.age());
    let addresses = assigned(&ours, settings);
    let mut states = Vec::new();
    for (gateway, address) in ours.into_iter().zip(addresses) {
        let (address, refusal) = match address {
            Ok(address) => (Some(address), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let listeners = listeners(gateway, address, (objects, settings), files);
        states.push(GatewayState { gateway, listeners, address, refusal });
    }
    across(&mut states);
    states
}

fn listeners<'o>(
    gateway: &'o Gateway,
    address: Option<IpAddr>,
    (objects, settings): (&Objects, &Settings),
    files: &mut Files,
) -> Vec<ListenerState<'o>> {
    let mut states: Vec<ListenerState<'o>> = Vec::new();
    for listener in gateway.spec.listeners.iter().take(LISTENERS_MAX) {
        let mut faults = Vec::new();
        let hostname = HostName::parse(listener.hostname.as_deref()).unwrap_or_else(|why| {
            faults.push(Condition::bad("Accepted", "UnsupportedValue", why));
            HostName::Any
        });
        if kinds_of(&listener.protocol).is_none() {
            let message =
                format!("the protocol {} is not supported; there are HTTP, HTTPS and TLS", listener.protocol);
            faults.push(Condition::bad("Accepted", "UnsupportedProtocol", message));
        }
        if listener.port == 0 {
            faults.push(Condition::bad("Accepted", "PortUnavailable", "the port 0; need 1 to 65535"));
        }
        let kinds = allowed_kinds(listener, &mut faults);
        let identities = match listener.protocol.as_str() {
            "HTTPS" => identities(gateway, listener, objects, files, &mut faults),
            "TLS" => {
                check_passthrough(listener, &mut faults);
                Vec::new()
            }
            _ => Vec::new(),
        };
        for other in states.iter().filter(|it| it.listener.port == listener.port) {
            if !fit_together(&other.listener.protocol, &listener.protocol) {
                let message =
                    format!("the listener {} has another protocol at this port", other.listener.name);
                faults.push(Condition {
                    is_true: true,
                    ..Condition::bad("Conflicted", "ProtocolConflict", message)
                });
            } else if other.hostname == hostname {
                let message = format!("the listener {} has the same port and host name", other.listener.name);
                faults.push(Condition {
                    is_true: true,
                    ..Condition::bad("Conflicted", "HostnameConflict", message)
                });
            } else {
                continue;
            }
            break;
        }
        states.push(ListenerState { listener, hostname, bind: None, identities, kinds, attached: 0, faults });
    }
    for state in &mut states {
        let bind = address.map(|address| SocketAddr::new(address, state.listener.port));
        if bind.is_some_and(|bind| settings.refused.contains(&bind)) {
            let message = "the machine refuses the address and port; it is tried again";
            state.faults.push(Condition::bad("Accepted", "PortUnavailable", message));
        }
        // Routes of kinds that are not supported attach to nothing, but the others do.
        let is_served = !state.faults.iter().any(|fault| fault.reason != "InvalidRouteKinds")
            || (state.is_https()
                && !state.identities.is_empty()
                && !state.has_fault("Accepted")
                && !state.has_fault("Conflicted"));
        match address.filter(|_| is_served && !state.kinds.is_empty()) {
            Some(_) => state.bind = bind,
            None => state.faults.push(Condition::bad("Programmed", "Invalid", "the listener is not served")),
        }
    }
    states
}

/// Listeners of different gateways at one address: with another protocol, only the older one is served.
fn across(states: &mut [GatewayState<'_>]) {
    let mut protocols: BTreeMap<SocketAddr, String> = BTreeMap::new();
    let mut of_names: BTreeMap<(SocketAddr, HostName), String> = BTreeMap::new();
    for state in states.iter_mut().flat_map(|gateway| &mut gateway.listeners) {
        let Some(bind) = state.bind else { continue };
        let own = &state.listener.protocol;
        let known = protocols.entry(bind).or_insert_with(|| own.clone());
        let of_name = of_names.entry((bind, state.hostname.clone())).or_insert_with(|| own.clone());
        let other = (!fit_together(known, own)).then_some(&*known).or((of_name != own).then_some(of_name));
        if let Some(other) = other {
            let message = format!("an older gateway has {other} at {bind}");
            state.faults.push(Condition {
                is_true: true,
                ..Condition::bad("Conflicted", "ProtocolConflict", message)
            });
            state.faults.push(Condition::bad("Programmed", "Invalid", "the listener is not served"));
            state.bind = None;
        }
    }
}

/// The kinds of routes that fit a protocol; `None` if it is not supported.
fn kinds_of(protocol: &str) -> Option<&'static [&'static str]> {
    PROTOCOLS.iter().find(|(known, _)| *known == protocol).map(|(_, kinds)| *kinds)
}

/// Whether listeners with these protocols can share an address and port: names tell TLS that ends here from TLS that is passed on.
fn fit_together(one: &str, other: &str) -> bool {
    one == other || [one, other].iter().all(|it| ["HTTPS", "TLS"].contains(it))
}

/// The TLS mode of a listener.
fn tls_mode(listener: &Listener) -> &str {
    listener.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate")
}

fn passes_on(listener: &Listener) -> bool {
    tls_mode(listener) == "Passthrough"
}

/// Checks a listener for TLS: connections are passed on, and never end here.
fn check_passthrough(listener: &Listener, faults: &mut Vec<Condition>) {
    if !passes_on(listener) {
        let mode = tls_mode(listener);
        let message = format!(
            "a listener for TLS needs the TLS mode Passthrough, got {mode}; use HTTPS to end it here"
        );
        faults.push(Condition::bad("Accepted", "UnsupportedValue", message));
    }
}

fn allowed_kinds(listener: &Listener, faults: &mut Vec<Condition>) -> Vec<&'static str> {
    let given = listener.allowed_routes.as_ref().map(|allowed| &allowed.kinds[..]).unwrap_or_default();
    let kinds = kinds_of(&listener.protocol).filter(|_| listener.protocol != "TLS" || passes_on(listener));
    let Some(kinds) = kinds else { return Vec::new() };
    if given.is_empty() {
        return kinds.to_vec();
    }
    let known = |it: &AllowedKind| {
        let is_ours = it.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP);
        kinds.iter().copied().find(|kind| is_ours && *kind == it.kind)
    };
    if let Some(unknown) = given.iter().find(|it| known(it).is_none()) {
        let message = format!("routes of the kind {} do not fit the protocol", unknown.kind);
        faults.push(Condition::bad("ResolvedRefs", "InvalidRouteKinds", message));
    }
    given.iter().filter_map(known).collect()
}

/// The certificates of a listener, as files that are written before the plan is applied.
fn identities(
    gateway: &Gateway,
    listener: &Listener,
    objects: &Objects,
    files: &mut Files,
    faults: &mut Vec<Condition>,
) -> Vec<Identity> {
    let tls = listener.tls.clone().unwrap_or_default();
    if tls.mode.as_deref().is_some_and(|mode| mode != "Terminate") {
        let message = "a listener for HTTPS needs the TLS mode Terminate";
        faults.push(Condition::bad("Accepted", "UnsupportedValue", message));
        return Vec::new();
    }
    if tls.certificate_refs.is_empty() {
        faults.push(Condition::bad(
            "ResolvedRefs",
            "InvalidCertificateRef",
            "the listener has no certificate",
        ));
        return Vec::new();
    }
    let from = Referrer { group: GATEWAY_GROUP, kind: "Gateway", namespace: &gateway.metadata.namespace };
    let mut found = Vec::new();
    for reference in &tls.certificate_refs {
        match identity(from, reference, objects, files) {
            Ok(identity) => found.push(identity),
            Err((reason, message)) => faults.push(Condition::bad("ResolvedRefs", reason, message)),
        }
    }
    // One condition of each type.
    let mut is_first = true;
    faults.retain(|fault| fault.name != "ResolvedRefs" || std::mem::take(&mut is_first));
    found
}

/// The certificate in a Secret.
pub(super) fn identity(
    from: Referrer<'_>,
    reference: &SecretRef,
    objects: &Objects,
    files: &mut Files,
) -> Result<Identity, (&'static str, String)> {
    const INVALID: &str = "InvalidCertificateRef";
    let kind = reference.kind.as_deref().unwrap_or("Secret");
    if kind != "Secret" || reference.group.as_deref().is_some_and(|group| !group.is_empty()) {
        return Err((INVALID, format!("a certificate of the kind {kind}; only Secrets are supported")));
    }
    let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(from.namespace), &reference.name);
    if !is_granted(objects, from, "Secret", &key) {
        let message =
            format!("the Secret {key} is in another namespace, and no ReferenceGrant there allows it");
        return Err(("RefNotPermitted", message));
    }
    let secret = objects.secrets.get(&key).ok_or_else(|| (INVALID, format!("there is no Secret {key}")))?;
    let value = |name: &str| -> Result<Vec<u8>, (&'static str, String)> {
        if let Some(text) = secret.string_data.get(name) {
            return Ok(text.clone().into_bytes());
        }
        let text =
            secret.data.get(name).ok_or_else(|| (INVALID, format!("the Secret {key} has no {name}")))?;
        let decoded = STANDARD.decode(text.split_whitespace().collect::<String>());
        decoded.map_err(|_| (INVALID, format!("the Secret {key}: {name} is not Base64")))
    };
    let (certificate, key_pem) = (value("tls.crt")?, value("tls.key")?);
    Certificate::check(&certificate, &key_pem)
        .map_err(|why| (INVALID, format!("the Secret {key}: {why}")))?;
    Ok(Identity::new(files.add("crt", certificate), files.add("key", key_pem)))
}
