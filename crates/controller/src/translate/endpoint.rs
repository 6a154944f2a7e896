//! The servers of services: ready endpoints, from all slices of a service.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use flatout_proxy::{Address, SERVERS_MAX, Server};

use crate::kinds::ObjectKey;
use crate::kinds::core::{Endpoint, EndpointSlice};
use crate::objects::{Objects, SERVICE_LABEL};

/// The slices of each service.
pub(super) struct Endpoints<'o> {
    slices: BTreeMap<ObjectKey, Vec<&'o EndpointSlice>>,
}

impl<'o> Endpoints<'o> {
    pub(super) fn new(objects: &'o Objects) -> Endpoints<'o> {
        Endpoints::of(objects, |_| true)
    }

    /// Those of the services that are used.
    pub(super) fn of(objects: &'o Objects, is_used: impl Fn(&ObjectKey) -> bool) -> Endpoints<'o> {
        let mut slices: BTreeMap<ObjectKey, Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in objects.slices.values() {
            let Some(service) = slice.metadata.labels.get(SERVICE_LABEL) else { continue };
            let service = ObjectKey::new(&slice.metadata.namespace, service);
            if is_used(&service) {
                slices.entry(service).or_default().push(slice);
            }
        }
        Endpoints { slices }
    }

    /// The servers for a service's port of this name, in a fixed order. If none is ready, those that end but still serve.
    pub(super) fn servers(&self, service: &ObjectKey, port_name: &str) -> Vec<Server> {
        let all = self.slices.get(service).map(Vec::as_slice).unwrap_or_default();
        let ready = addresses(all, port_name, |it| it.conditions.ready.unwrap_or(true));
        let chosen = match ready.is_empty() {
            false => ready,
            true => addresses(all, port_name, |it| {
                it.conditions.serving.unwrap_or(false) && it.conditions.terminating.unwrap_or(false)
            }),
        };
        chosen.into_iter().take(SERVERS_MAX).map(|at| Server::new(Address::Socket(at))).collect()
    }
}

fn addresses(
    slices: &[&EndpointSlice],
    port_name: &str,
    is_used: impl Fn(&Endpoint) -> bool,
) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for slice in slices.iter().filter(|slice| slice.address_type != "FQDN") {
        let has_name =
            |it: &&crate::kinds::core::EndpointPort| it.name.as_deref().unwrap_or_default() == port_name;
        let Some(port) = slice.ports.iter().find(has_name).and_then(|it| it.port) else { continue };
        for endpoint in slice.endpoints.iter().filter(|it| is_used(it)) {
            let first = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
            found.extend(first.map(|ip| SocketAddr::new(ip, port)));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
