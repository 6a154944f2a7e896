//! Which gateway has which address.

use std::net::IpAddr;

use super::Settings;
use crate::condition::Condition;
use crate::kinds::gateway::Gateway;

/// The address of each gateway: the one it asks for or had before; otherwise the first that no other one has. What was assigned last
/// counts until the status has it: a status arrives later than the next change, and two addresses would take turns.
pub(super) fn assigned(gateways: &[&Gateway], settings: &Settings) -> Vec<Result<IpAddr, Condition>> {
    let pool = &settings.addresses;
    let [first, rest @ ..] = &pool[..] else {
        return gateways
            .iter()
            .map(|_| Err(Condition::bad("Accepted", "Invalid", "there is no address")))
            .collect();
    };
    let wanted = |gateway: &Gateway| -> Result<Option<IpAddr>, Condition> {
        if let Some(address) = requested(gateway, settings)? {
            return Ok(Some(if pool.contains(&address) { address } else { *first }));
        }
        let mut former = gateway.status.addresses.iter().filter_map(|it| it.value.parse().ok());
        let in_status = former.find(|it| pool.contains(it));
        let latest =
            || settings.assigned.get(&gateway.metadata.key()).copied().filter(|it| pool.contains(it));
        Ok(in_status.or_else(latest))
    };
    let mut found: Vec<Option<Result<IpAddr, Condition>>> =
        gateways.iter().map(|gateway| wanted(gateway).transpose()).collect();
    for at in 0..found.len() {
        if found.get(at).is_some_and(Option::is_none) {
            let is_free = |address: &&IpAddr| !found.iter().flatten().any(|it| it.as_ref() == Ok(*address));
            // With a single address, all gateways share it.
            let address = pool.iter().find(is_free).or(rest.last()).unwrap_or(first);
            found[at] = Some(Ok(*address));
        }
    }
    found.into_iter().flatten().collect()
}

/// The first address that a gateway asks for. One that cannot be had refuses all of them.
fn requested(gateway: &Gateway, settings: &Settings) -> Result<Option<IpAddr>, Condition> {
    let mut found = Ok(None);
    for wanted in gateway.spec.addresses.iter().filter(|it| !it.value.is_empty()) {
        let kind = if wanted.kind.is_empty() { "IPAddress" } else { &wanted.kind };
        let Some(address) = wanted.value.parse::<IpAddr>().ok().filter(|_| kind == "IPAddress") else {
            let message = format!("an address of the type {kind}; only IPAddress is supported");
            return Err(Condition::bad("Accepted", "UnsupportedAddress", message));
        };
        let is_ours = settings.addresses.contains(&address) || settings.published.contains(&wanted.value);
        if !is_ours {
            let message = format!("the address {} is not one of this controller", wanted.value);
            found = found.and(Err(Condition::bad("Programmed", "AddressNotUsable", message)));
        }
        found = found.map(|known| known.or(Some(address)));
    }
    found
}
