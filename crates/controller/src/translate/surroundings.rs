//! What routes depend on apart from their services: the parts of gateways and policies that matter to routes. A new certificate, or an
//! address in a status, does not affect them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use flatout_tls::Identity;

use super::gateway::GatewayState;
use super::hostname::HostName;
use super::listener::ListenerState;
use super::policy::{CheckedTls, Policies};
use super::route_policy::RoutePolicyShapes;
use crate::kinds::ObjectKey;
use crate::kinds::gateway::Listener;

/// The surroundings of routes in a translation.
#[derive(PartialEq)]
pub(super) struct Surroundings {
    gateways: Vec<GatewayShape>,
    policies: BTreeMap<(ObjectKey, Option<String>), Result<CheckedTls, ObjectKey>>,
    of_routes: RoutePolicyShapes,
}

#[derive(PartialEq)]
struct GatewayShape {
    key: ObjectKey,
    sets: Vec<ObjectKey>,
    client: Option<Identity>,
    listeners: Vec<ListenerShape>,
}

#[derive(PartialEq)]
struct ListenerShape {
    /// As it is in its object, without its certificates.
    listener: Listener,
    is_here: bool,
    set: Option<usize>,
    namespace: String,
    hostname: HostName,
    bind: Option<SocketAddr>,
    kinds: Vec<&'static str>,
}

impl Surroundings {
    pub(super) fn of(
        gateways: &[GatewayState<'_>],
        policies: &Policies<'_>,
        of_routes: RoutePolicyShapes,
    ) -> Surroundings {
        let gateways = gateways.iter().map(GatewayShape::of).collect();
        Surroundings { gateways, policies: policies.by_target(), of_routes }
    }
}

impl GatewayShape {
    fn of(state: &GatewayState<'_>) -> GatewayShape {
        GatewayShape {
            key: state.gateway.metadata.key(),
            sets: state.sets.iter().map(|it| it.set.metadata.key()).collect(),
            client: state.client.clone(),
            listeners: state.listeners.iter().map(ListenerShape::of).collect(),
        }
    }
}

impl ListenerShape {
    fn of(state: &ListenerState<'_>) -> ListenerShape {
        ListenerShape {
            listener: Listener { tls: None, ..state.listener.clone() },
            is_here: state.ending().is_here(),
            set: state.set,
            namespace: state.namespace.to_owned(),
            hostname: state.hostname.clone(),
            bind: state.bind,
            kinds: state.kinds.clone(),
        }
    }
}
