//! Listeners: which are valid, where they are bound, which certificates they have.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use flatout_tls::{ClientCertificates, Identity, Profile};
use serde_json::{Value, json};

use super::Settings;
use super::certificate::Files;
use super::certificate_refs::identity;
use super::client_validation::ClientRules;
use super::gateway::GatewayState;
use super::grant::Referrer;
use super::hostname::HostName;
use super::listener_set::SetState;
use crate::condition::Condition;
use crate::kinds::GATEWAY_GROUP;
use crate::kinds::gateway::{AllowedKind, Gateway, Listener};
use crate::objects::Objects;

/// The kinds of routes that attach to listeners for HTTP.
const ROUTE_KINDS: &[&str] = &["HTTPRoute", "GRPCRoute"];

/// The same for TLS.
const TLS_ROUTE_KINDS: &[&str] = &["TLSRoute"];

/// The protocols of listeners, each with the kinds of its routes.
const PROTOCOLS: [(&str, &[&str]); 3] =
    [("HTTP", ROUTE_KINDS), ("HTTPS", ROUTE_KINDS), ("TLS", TLS_ROUTE_KINDS)];

/// Listeners of one object, as the standard limits them.
const LISTENERS_MAX: usize = 64;

/// Where the TLS of a listener's connections ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsEnding {
    /// There is none.
    None,
    /// Here.
    Here,
    /// Here, and what is inside is passed on as it is.
    Inside,
    /// At the servers: connections are passed on as they are.
    Behind,
}

impl TlsEnding {
    /// Whether clients are shown a certificate.
    pub(super) fn is_here(self) -> bool {
        matches!(self, TlsEnding::Here | TlsEnding::Inside)
    }

    /// Whether connections are passed on, and have no requests.
    pub(super) fn passes_on(self) -> bool {
        matches!(self, TlsEnding::Inside | TlsEnding::Behind)
    }
}

/// A listener of a gateway.
pub(super) struct ListenerState<'o> {
    pub(super) listener: &'o Listener,
    /// The ListenerSet that it is of, among those of the gateway; none: it is the gateway's own.
    pub(super) set: Option<usize>,
    /// The namespace of the object that it is of.
    pub(super) namespace: &'o str,
    pub(super) hostname: HostName,
    /// Where it is bound; none if it is not served.
    pub(super) bind: Option<SocketAddr>,
    identities: Vec<Identity>,
    clients: Option<ClientCertificates>,
    /// The kinds of routes that may attach.
    pub(super) kinds: Vec<&'static str>,
    pub(super) attached: usize,
    faults: Vec<Condition>,
}

impl ListenerState<'_> {
    pub(super) fn is_https(&self) -> bool {
        self.ending() == TlsEnding::Here
    }

    /// What becomes of its connections.
    pub(super) fn ending(&self) -> TlsEnding {
        ending(self.listener)
    }

    /// What its clients are shown, and what is required of them. Connections to another listener at its port are no way to its sites.
    pub(super) fn profile(&self) -> Profile {
        Profile {
            identities: self.identities.clone(),
            clients: self.clients.clone(),
            realm: self.hostname.to_string(),
            is_opaque: self.ending() == TlsEnding::Inside,
            ..Profile::default()
        }
    }

    pub(super) fn is_accepted(&self) -> bool {
        !self.has_fault("Accepted")
    }

    fn has_fault(&self, name: &str) -> bool {
        self.faults.iter().any(|fault| fault.name == name)
    }

    /// Notes a fault, unless there is one with the same condition.
    fn add_fault(&mut self, fault: Condition) {
        if !self.has_fault(fault.name) {
            self.faults.push(fault);
        }
    }

    /// Another listener has its place.
    fn conflict(&mut self, reason: &'static str, message: String) {
        self.faults.retain(|it| !["Accepted", "Programmed", "Conflicted"].contains(&it.name));
        for name in ["Accepted", "Programmed"] {
            self.faults.push(Condition::bad(name, reason, message.clone()));
        }
        self.faults.push(Condition { is_true: true, ..Condition::bad("Conflicted", reason, message) });
        self.bind = None;
    }

    pub(super) fn status(&self, generation: i64) -> Value {
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

/// What the listeners of a gateway are made of.
pub(super) struct Listening<'l, 'o> {
    pub(super) objects: &'o Objects,
    pub(super) settings: &'l Settings,
    pub(super) files: &'l mut Files,
    pub(super) address: Option<IpAddr>,
    pub(super) rules: &'l ClientRules,
}

impl<'o> Listening<'_, 'o> {
    /// The listeners of a gateway, and those of its ListenerSets: of two for the same, the first is served.
    pub(super) fn of_gateway(
        mut self,
        gateway: &'o Gateway,
        sets: &[SetState<'o>],
    ) -> Vec<ListenerState<'o>> {
        let mut states: Vec<ListenerState<'o>> = Vec::new();
        let own = Owner { kind: "Gateway", set: None, namespace: &gateway.metadata.namespace };
        self.add(own, &gateway.spec.listeners, &mut states);
        for (at, SetState { set, refusal }) in sets.iter().enumerate() {
            if refusal.is_none() {
                let owner = Owner { kind: "ListenerSet", set: Some(at), namespace: &set.metadata.namespace };
                self.add(owner, &set.spec.listeners, &mut states);
            }
        }
        states
    }

    fn add(&mut self, owner: Owner<'o>, listeners: &'o [Listener], states: &mut Vec<ListenerState<'o>>) {
        for listener in listeners.iter().take(LISTENERS_MAX) {
            let mut state = self.checked(owner, listener);
            match conflict(&state, states) {
                Some((reason, message)) => state.conflict(reason, message),
                None => self.bind(&mut state),
            }
            states.push(state);
        }
    }

    /// A listener with its faults, apart from others.
    fn checked(
        &mut self,
        Owner { kind, set, namespace }: Owner<'o>,
        listener: &'o Listener,
    ) -> ListenerState<'o> {
        let mut state = ListenerState {
            listener,
            set,
            namespace,
            hostname: HostName::Any,
            bind: None,
            identities: Vec::new(),
            clients: None,
            kinds: Vec::new(),
            attached: 0,
            faults: Vec::new(),
        };
        match HostName::parse(listener.hostname.as_deref()) {
            Ok(hostname) => state.hostname = hostname,
            Err(why) => state.add_fault(Condition::bad("Accepted", "UnsupportedValue", why)),
        }
        if kinds_of(&listener.protocol).is_none() {
            let message =
                format!("the protocol {} is not supported; there are HTTP, HTTPS and TLS", listener.protocol);
            state.add_fault(Condition::bad("Accepted", "UnsupportedProtocol", message));
        }
        if listener.port == 0 {
            let message = "the port 0; need 1 to 65535";
            state.add_fault(Condition::bad("Accepted", "PortUnavailable", message));
        }
        allow_kinds(&mut state);
        let ending = state.ending();
        if ending.is_here() {
            self.find_certificates(Referrer::of_gateway_api(kind, namespace), &mut state);
        }
        if ending == TlsEnding::Here {
            let rule = self.rules.at(listener.port).clone();
            rule.faults.into_iter().for_each(|fault| state.add_fault(fault));
            state.clients = rule.clients;
        }
        state
    }

    /// Finds the certificates of a listener.
    fn find_certificates(&mut self, from: Referrer<'_>, state: &mut ListenerState<'_>) {
        let mode = tls_mode(state.listener);
        if mode != "Terminate" {
            let protocol = &state.listener.protocol;
            let message = format!("got the TLS mode {mode} of a listener for {protocol}, need Terminate");
            return state.add_fault(Condition::bad("Accepted", "UnsupportedValue", message));
        }
        let references = state.listener.tls.as_ref().map(|tls| &tls.certificate_refs[..]).unwrap_or_default();
        if references.is_empty() {
            let message = "the listener has no certificate";
            state.add_fault(Condition::bad("ResolvedRefs", "InvalidCertificateRef", message));
        }
        for reference in references {
            match identity(from, reference, "InvalidCertificateRef", self.objects, self.files) {
                Ok(identity) => state.identities.push(identity),
                Err((reason, message)) => state.add_fault(Condition::bad("ResolvedRefs", reason, message)),
            }
        }
    }

    /// Binds a listener, if it can be served. Routes of kinds that are not supported attach to nothing, but the others do; and one
    /// certificate is enough.
    fn bind(&self, state: &mut ListenerState<'_>) {
        let bind = self.address.map(|address| SocketAddr::new(address, state.listener.port));
        if bind.is_some_and(|bind| self.settings.refused.contains(&bind)) {
            let message = "the machine refuses the address and port; it is tried again";
            state.add_fault(Condition::bad("Accepted", "PortUnavailable", message));
        }
        let has_certificate = !state.ending().is_here() || !state.identities.is_empty();
        state.bind = bind.filter(|_| state.is_accepted() && has_certificate && !state.kinds.is_empty());
        if state.bind.is_none() {
            state.add_fault(Condition::bad("Programmed", "Invalid", "the listener is not served"));
        }
    }
}

/// The object that listeners are of.
#[derive(Clone, Copy)]
struct Owner<'o> {
    kind: &'static str,
    set: Option<usize>,
    namespace: &'o str,
}

/// Whether an older listener of the gateway has the place of this one.
fn conflict(state: &ListenerState<'_>, older: &[ListenerState<'_>]) -> Option<(&'static str, String)> {
    let Listener { port, protocol, .. } = state.listener;
    let here = older.iter().filter(|it| it.listener.port == *port && !it.has_fault("Conflicted"));
    for other in here {
        let name = &other.listener.name;
        if !fit_together(&other.listener.protocol, protocol) {
            return Some((
                "ProtocolConflict",
                format!("the listener {name} has another protocol at this port"),
            ));
        }
        if other.hostname == state.hostname {
            return Some((
                "HostnameConflict",
                format!("the listener {name} has the same port and host name"),
            ));
        }
    }
    None
}

/// Listeners of different gateways at one address: with another protocol, or other rules for clients, only the older one is served.
pub(super) fn across(states: &mut [GatewayState<'_>]) {
    let mut protocols: BTreeMap<SocketAddr, String> = BTreeMap::new();
    let mut of_names = BTreeMap::new();
    for state in states.iter_mut().flat_map(|gateway| &mut gateway.listeners) {
        let Some(bind) = state.bind else { continue };
        let own = &state.listener.protocol;
        let known = protocols.entry(bind).or_insert_with(|| own.clone());
        let rules = (state.ending(), state.clients.clone());
        let of_name = of_names.entry((bind, state.hostname.clone())).or_insert_with(|| rules.clone());
        if !fit_together(known, own) {
            state.conflict("ProtocolConflict", format!("an older gateway has {known} at {bind}"));
        } else if *of_name != rules {
            let message = format!(
                "an older gateway has this host name at {bind}, with another end of TLS or other client certificates"
            );
            state.conflict("ProtocolConflict", message);
        }
    }
}

/// What becomes of the connections of a listener.
fn ending(listener: &Listener) -> TlsEnding {
    match listener.protocol.as_str() {
        "HTTPS" => TlsEnding::Here,
        "TLS" if tls_mode(listener) == "Passthrough" => TlsEnding::Behind,
        "TLS" => TlsEnding::Inside,
        _ => TlsEnding::None,
    }
}

/// The kinds of routes that fit a protocol; `None` if it is not supported.
fn kinds_of(protocol: &str) -> Option<&'static [&'static str]> {
    PROTOCOLS.iter().find(|(known, _)| *known == protocol).map(|(_, kinds)| *kinds)
}

/// Whether listeners with these protocols can share an address and port: names tell what becomes of connections with TLS.
fn fit_together(one: &str, other: &str) -> bool {
    one == other || [one, other].iter().all(|it| ["HTTPS", "TLS"].contains(it))
}

/// The TLS mode of a listener.
fn tls_mode(listener: &Listener) -> &str {
    listener.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate")
}

/// Finds the kinds of routes that may attach to a listener.
fn allow_kinds(state: &mut ListenerState<'_>) {
    let Some(kinds) = kinds_of(&state.listener.protocol) else { return };
    let given = state.listener.allowed_routes.as_ref().map(|allowed| &allowed.kinds[..]).unwrap_or_default();
    if given.is_empty() {
        state.kinds = kinds.to_vec();
        return;
    }
    let known = |it: &AllowedKind| {
        let is_ours = it.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP);
        kinds.iter().copied().find(|kind| is_ours && *kind == it.kind)
    };
    if let Some(unknown) = given.iter().find(|it| known(it).is_none()) {
        let message = format!("routes of the kind {} do not fit the protocol", unknown.kind);
        state.add_fault(Condition::bad("ResolvedRefs", "InvalidRouteKinds", message));
    }
    state.kinds = given.iter().filter_map(known).collect();
}
