//! Which routes have the same channels, and whether they give the same access to them.

use std::collections::BTreeMap;

use flatout_push as push;
use flatout_server::Plan;
use flatout_site::plan::Action;

use super::site::Built;

/// Bytes of the group that a route has by itself.
const OWN_GROUP_BYTES_MAX: usize = 1024;

/// Bytes of a name given with `push-group`.
const NAME_BYTES_MAX: usize = 64;

/// The group of a route without `push-group`: its site and its path. It is no valid name for `push-group`, which has no spaces.
///
/// # Errors
/// The path is too long for the bus.
pub(super) fn own_group(site: &str, path: &str) -> Result<String, String> {
    let group = format!("{} {path}", site.to_ascii_lowercase());
    match group.len() <= OWN_GROUP_BYTES_MAX {
        true => Ok(group),
        false => Err(format!(
            "the site and the path of this route name its channels, and have {} bytes, of which {OWN_GROUP_BYTES_MAX} are allowed; \
             give the channels a name with push-group",
            group.len()
        )),
    }
}

/// The name of a group.
///
/// # Errors
/// It is not valid.
pub(super) fn group(text: &str) -> Result<String, String> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match is_name {
        true => Ok(text.to_owned()),
        false => Err(format!("got `{text}`, need 1 to {NAME_BYTES_MAX} letters, digits or any of -_.")),
    }
}

/// Routes of one group through which clients have different access to the same channels.
pub(super) fn warnings(built: &Built, plan: &Plan) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<(usize, &push::Plan)>> = BTreeMap::new();
    for (site, places) in plan.sites.sites.iter().zip(&built.places.routes) {
        for (route, at) in site.routes.iter().zip(places) {
            if let Action::Push(plan) = &route.action {
                groups.entry(&plan.group).or_default().push((built.tree.line(at), &**plan));
            }
        }
    }
    let mut found = Vec::new();
    for (group, routes) in &groups {
        let Some(((first_line, first), others)) = routes.split_first() else { continue };
        for (line, other) in others {
            let names = differences(first, other);
            if !names.is_empty() {
                found.push(format!(
                    "line {line}: this route has the channels of the route on line {first_line} (group `{group}`), but another {}; each of \
                     the two gives access to all of them",
                    names.join(", ")
                ));
            }
        }
    }
    found
}

/// The settings by which two routes give different access. A route without `push-token` only lets nobody publish.
fn differences(one: &push::Plan, other: &push::Plan) -> Vec<&'static str> {
    let origins = |plan: &push::Plan| {
        let mut origins = plan.origins.clone();
        origins.sort();
        origins.dedup();
        origins
    };
    let has_other_token = match (&one.publish_token, &other.publish_token) {
        (Some(one), Some(other)) => one != other,
        _ => false,
    };
    let all = [
        ("push-secret", one.subscribe_secret != other.subscribe_secret),
        ("push-token", has_other_token),
        ("push-origin", origins(one) != origins(other)),
        ("push-kind", one.history.kind != other.history.kind),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_are_checked() {
        for name in ["scores", "a.b-c_1"] {
            assert_eq!(group(name), Ok(name.to_owned()));
        }
        for bad in ["", "a b", "*", "a/b", &own_group("a.example", "/live").unwrap(), &"a".repeat(65)] {
            assert!(group(bad).unwrap_err().contains("need 1 to 64"), "{bad}");
        }
        assert_eq!(own_group("A.Example", "/Live").unwrap(), "a.example /Live");
        assert!(own_group("a", &"/a".repeat(600)).unwrap_err().contains("push-group"));
    }
}
