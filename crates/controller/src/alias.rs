//! Aliases of Ingresses (`server-alias`), as in ingress-nginx: a host with rules of its own is no alias, and the oldest Ingress has an alias.

use std::collections::{HashMap, HashSet};

use crate::kinds::ObjectKey;

/// Who has which alias.
#[derive(Default)]
pub(crate) struct Aliases {
    /// Hosts with rules of their own.
    hosts: HashSet<String>,
    /// The Ingress of each alias.
    owners: HashMap<String, ObjectKey>,
}

impl Aliases {
    /// Those beside these hosts.
    pub(crate) fn beside(hosts: impl IntoIterator<Item = String>) -> Aliases {
        Aliases { hosts: hosts.into_iter().collect(), owners: HashMap::new() }
    }

    /// Those that an Ingress gets, of the ones that it wants; asked for the oldest first. `notes` say why it does not get the others.
    pub(crate) fn take<'a>(
        &mut self,
        ingress: &ObjectKey,
        wanted: &'a [String],
        notes: &mut Vec<String>,
    ) -> Vec<&'a str> {
        let mut taken = Vec::new();
        for alias in wanted {
            if self.hosts.contains(alias) {
                notes.push(format!("the alias `{alias}` is left out: it is a host with rules of its own"));
                continue;
            }
            match self.owners.entry(alias.clone()).or_insert_with(|| ingress.clone()) {
                owner if owner == ingress => taken.push(alias.as_str()),
                owner => {
                    notes.push(format!("the alias `{alias}` is left out: the older Ingress {owner} has it"));
                }
            }
        }
        taken
    }
}
