//! Finds a request's site by its listener and its `Host`.

use std::collections::HashMap;
use std::sync::Arc;

use flatout_expression::Regex;
use foldhash::fast::RandomState;

use super::fault::{Fault, Place};
use super::pattern::expression;
use super::plan::{Host, SharedSite};

/// The longest DNS name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The sites by listener and host name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts {
    /// By the listener's number; listeners with the same sites share a table.
    listeners: Vec<Arc<Names>>,
}

/// The sites of a listener by host name.
#[derive(Debug, Default)]
struct Names {
    exact: HashMap<Box<[u8]>, usize, RandomState>,
    /// Keyed by the name after the first dot.
    below: HashMap<Box<[u8]>, usize, RandomState>,
    /// In the order of the sites.
    patterns: Vec<(Regex, usize)>,
    /// For requests without a host.
    unnamed: Option<usize>,
    any: Option<usize>,
    /// The first site, for requests without a host if there is no site for all others.
    first: Option<usize>,
}

impl Hosts {
    /// # Errors
    /// A host name is invalid, or used by two sites at the same listener.
    pub(crate) fn new(sites: &[SharedSite]) -> Result<Hosts, Fault> {
        let number_max = sites.iter().flat_map(|site| &site.listeners).map(|at| at.number).max();
        // The sites of a listener, and which of them is for other hosts, with the table that was made for them.
        let mut made: HashMap<Vec<(usize, bool)>, Arc<Names>> = HashMap::new();
        let mut listeners = Vec::new();
        for number in 0..=number_max.unwrap_or_default() {
            let here: Vec<(usize, bool)> =
                sites.iter().enumerate().filter_map(|(at, site)| Some((at, site.is_at(number)?))).collect();
            let names = match (made.get(&here), listeners.first()) {
                // No site is there: the address was removed.
                (_, Some(first)) if here.is_empty() => Arc::clone(first),
                (Some(names), _) => names.clone(),
                (None, _) => {
                    let names = Arc::new(Names::new(sites, &here)?);
                    made.insert(here, names.clone());
                    names
                }
            };
            listeners.push(names);
        }
        Ok(Hosts { listeners })
    }

    /// The site for the name in a ClientHello; without one, only that for all other names.
    pub(crate) fn find_name(&self, listener: u16, name: Option<&[u8]>) -> Option<usize> {
        let names = self.listeners.get(usize::from(listener)).or_else(|| self.listeners.first())?;
        name.and_then(|name| names.named(name_of(name))).or(names.any)
    }

    /// The site of an authority (`host[:port]`) at a listener. It is empty in requests of HTTP/1.0 without `Host`, which
    /// old health checkers send: they go to the site for all other hosts, or to the first site. The last connections
    /// of a listener that was removed get to the sites of number 0.
    #[inline]
    pub(crate) fn find(&self, listener: u16, authority: &[u8]) -> Option<usize> {
        let names = self.listeners.get(usize::from(listener)).or_else(|| self.listeners.first())?;
        names.find(authority)
    }
}

impl Names {
    fn new(sites: &[SharedSite], here: &[(usize, bool)]) -> Result<Names, Fault> {
        let mut names = Names { first: here.first().map(|(at, _)| *at), ..Names::default() };
        for &(at, is_default) in here {
            let (place, site) = (Place::Site(at), &sites[at]);
            let other = is_default.then_some(&Host::Any).filter(|any| !site.hosts.contains(any));
            for host in site.hosts.iter().chain(other) {
                let former = match host {
                    Host::Exact(name) => names.exact.insert(key(name, place)?, at),
                    Host::Below(name) => names.below.insert(key(name, place)?, at),
                    Host::Pattern(pattern) => {
                        names.patterns.push((expression(pattern, true, place)?, at));
                        None
                    }
                    Host::Unnamed => names.unnamed.replace(at),
                    Host::Any => names.any.replace(at),
                };
                if former.is_some_and(|former| former != at) {
                    return Err(place.fault(format!("{} belongs to another site already", written(host))));
                }
            }
        }
        Ok(names)
    }

    #[inline]
    fn find(&self, authority: &[u8]) -> Option<usize> {
        let has_names = !(self.exact.is_empty() && self.below.is_empty() && self.patterns.is_empty());
        if !has_names && self.unnamed.is_none() {
            return self.any;
        }
        if authority.is_empty() && self.unnamed.is_some() {
            return self.unnamed;
        }
        let first = || self.first.filter(|_| authority.is_empty());
        self.named(name_of(authority)).or(self.any).or_else(first)
    }

    fn named(&self, name: &[u8]) -> Option<usize> {
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        if let Some(&site) = self.exact.get(&*lower) {
            return Some(site);
        }
        if self.below.is_empty() && self.patterns.is_empty() {
            return None;
        }
        let mut rest = &*lower;
        while let Some(dot) = rest.iter().position(|&byte| byte == b'.') {
            rest = rest.get(dot + 1..).unwrap_or_default();
            if let Some(&site) = self.below.get(rest) {
                return Some(site);
            }
        }
        self.patterns.iter().find(|(pattern, _)| pattern.is_match(lower)).map(|(_, site)| *site)
    }
}

/// The name in an authority, without the port and without the trailing dot of a full name.
pub(crate) fn name_of(authority: &[u8]) -> &[u8] {
    let end = match authority.first() {
        Some(b'[') => authority.iter().position(|&byte| byte == b']').map(|at| at + 1),
        _ => authority.iter().position(|&byte| byte == b':'),
    };
    let name = authority.get(..end.unwrap_or(authority.len())).unwrap_or(authority);
    name.strip_suffix(b".").unwrap_or(name)
}

fn key(name: &str, place: Place) -> Result<Box<[u8]>, Fault> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_address = name.starts_with('[') && name.ends_with(']');
    let is_name = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if !is_name && !is_address {
        return Err(
            place.fault(format!("got `{name}`, need a host name such as example.org, without a port"))
        );
    }
    Ok(name.to_ascii_lowercase().into_bytes().into())
}

fn written(host: &Host) -> String {
    match host {
        Host::Exact(name) => format!("the host `{name}`"),
        Host::Below(name) => format!("the host `*.{name}`"),
        Host::Pattern(pattern) => format!("the host `~{pattern}`"),
        Host::Unnamed => "a request without a host".to_owned(),
        Host::Any => "any other host".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Site, SiteListener};

    fn hosts(sites: &[&[Host]]) -> Result<Hosts, Fault> {
        let site = |hosts: &&[Host]| Site { hosts: hosts.to_vec(), ..Site::default() }.into();
        let sites: Vec<SharedSite> = sites.iter().map(site).collect();
        Hosts::new(&sites)
    }

    fn exact(name: &str) -> Host {
        Host::Exact(name.to_owned())
    }

    fn below(name: &str) -> Host {
        Host::Below(name.to_owned())
    }

    #[test]
    fn exact_host_precedes_the_longest_wildcard() {
        let hosts = hosts(&[
            &[exact("example.org"), exact("[::1]")],
            &[below("example.org")],
            &[below("api.example.org")],
            &[exact("www.EXAMPLE.org.")],
        ])
        .unwrap();
        for (authority, site) in [
            ("example.org", Some(0)),
            ("EXAMPLE.ORG:8080", Some(0)),
            ("example.org.", Some(0)),
            ("example.org.:80", Some(0)),
            ("[::1]:80", Some(0)),
            ("a.example.org", Some(1)),
            ("a.b.example.org", Some(1)),
            ("a.api.example.org", Some(2)),
            ("api.example.org", Some(1)),
            ("www.example.org", Some(3)),
            ("notexample.org", None),
            ("org", None),
            ("", Some(0)),
        ] {
            assert_eq!(hosts.find(0, authority.as_bytes()), site, "{authority}");
        }
        assert_eq!(hosts.find(0, &[b'a'; 300]), None);
    }

    #[test]
    fn requests_without_a_host_may_have_a_site() {
        let with = |others: &[Host]| hosts(&[others, &[exact("a.test"), Host::Unnamed]]).unwrap();
        for (others, other) in [(vec![exact("b.test")], None), (vec![Host::Any], Some(0))] {
            let hosts = with(&others);
            for (authority, site) in
                [("", Some(1)), ("a.test", Some(1)), (".", other), (":80", other), ("c.test", other)]
            {
                assert_eq!(hosts.find(0, authority.as_bytes()), site, "{authority} {others:?}");
            }
            assert_eq!(hosts.find_name(0, None), other, "a handshake has no request");
        }
        let alone = hosts(&[&[Host::Unnamed]]).unwrap();
        assert_eq!((alone.find(0, b""), alone.find(0, b"a.test")), (Some(0), None));
        let twice = hosts(&[&[Host::Unnamed], &[Host::Unnamed]]).unwrap_err().to_string();
        assert!(twice.contains("a request without a host belongs to another site"), "{twice}");
    }

    #[test]
    fn host_expressions_are_tried_after_names_in_order() {
        let pattern = |text: &str| Host::Pattern(text.to_owned());
        let hosts = hosts(&[
            &[pattern(r"^www\d+\.example\.org$")],
            &[pattern(r"^www")],
            &[below("example.org")],
            &[exact("www1.example.org")],
            &[Host::Any],
        ])
        .unwrap();
        for (authority, site) in [
            ("www1.example.org", 3),
            ("www2.example.org", 2),
            ("WWW2.example.net:80", 1),
            ("www.example.net", 1),
            ("a.www.net", 4),
            ("", 4),
        ] {
            assert_eq!(hosts.find(0, authority.as_bytes()), Some(site), "{authority}");
        }
        assert!(super::Hosts::new(&[Site { hosts: vec![pattern("(")], ..Site::default() }.into()]).is_err());
    }

    #[test]
    fn wildcard_host_matches_unlisted_names() {
        let only = hosts(&[&[Host::Any]]).unwrap();
        assert_eq!((only.find(0, b"x"), only.find(0, b"")), (Some(0), Some(0)));
        let both = hosts(&[&[exact("a")], &[Host::Any]]).unwrap();
        assert_eq!(
            (both.find(0, b"a"), both.find(0, b"b"), both.find(0, &[b'a'; 300])),
            (Some(0), Some(1), Some(1))
        );
    }

    #[test]
    fn names_that_lead_to_two_sites_are_refused() {
        for sites in [[[exact("a")], [exact("A.")]], [[below("a")], [below("a")]], [[Host::Any], [Host::Any]]]
        {
            let fault = hosts(&[&sites[0], &sites[1]]).unwrap_err();
            assert_eq!(fault.place, Place::Site(1));
            assert!(fault.reason.contains("another site"), "{fault}");
        }
        for name in ["", "a b", "a:80", "http://a", "*.a"] {
            assert!(hosts(&[&[exact(name)]]).is_err(), "{name}");
        }
    }

    #[test]
    fn sites_are_found_only_at_their_listeners() {
        let site = |host: Host, listeners: &[(u16, bool)]| -> SharedSite {
            let at = |&(number, is_default): &(u16, bool)| SiteListener { number, is_default };
            let listeners = listeners.iter().map(at).collect();
            Site { hosts: vec![host], listeners, ..Site::default() }.into()
        };
        let hosts = Hosts::new(&[
            site(exact("a"), &[(0, false), (1, false)]),
            site(exact("a"), &[(2, false), (3, true)]),
            site(exact("b"), &[(2, true), (5, false)]),
        ])
        .unwrap();
        for (listener, host, site) in [
            (0, "a", Some(0)),
            (1, "a", Some(0)),
            (1, "b", None),
            (2, "a", Some(1)),
            (2, "c", Some(2)),
            (3, "c", Some(1)),
            (4, "a", Some(0)),
            (4, "b", None),
            (9, "a", Some(0)),
        ] {
            assert_eq!(hosts.find(listener, host.as_bytes()), site, "{listener} {host}");
        }
        let twice = [site(exact("a"), &[(1, true)]), site(exact("b"), &[(1, true)])];
        assert_eq!(Hosts::new(&twice).unwrap_err().place, Place::Site(1));
    }
}
