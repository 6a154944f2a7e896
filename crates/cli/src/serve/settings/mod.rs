//! All settings of a server. A new one is one entry in one of these tables.

mod access;
mod acme;
mod answers;
mod bus;
mod cache;
mod files;
mod health;
mod limits;
mod listeners;
mod logs;
mod prerender;
mod proxy;
mod push;
mod sockets;
mod tls;
mod upstream;

use super::setting::{ServeGroup, ServeSetting};

/// The tables, in the order of the help text and the reference page.
pub(super) const GROUPS: &[ServeGroup] = &[
    ("Listening", listeners::LISTENERS),
    ("TLS", tls::TLS),
    ("Automatic certificates", acme::ACME),
    ("Files", files::FILES),
    ("Requests and responses", answers::ANSWERS),
    ("Access", access::ACCESS),
    ("Proxying", proxy::FORWARDING),
    ("Caching", cache::CACHING),
    ("Prerendering", prerender::PRERENDER),
    ("Upstreams", upstream::UPSTREAM),
    ("Push", push::PUSH),
    ("Other servers", bus::BUS),
    ("Logs and metrics", logs::LOGS),
    ("Limits", limits::LIMITS),
    ("Sockets", sockets::SOCKETS),
];

/// Every setting.
pub(super) fn all() -> impl Iterator<Item = &'static ServeSetting> {
    GROUPS.iter().flat_map(|(_, settings)| settings.iter())
}

/// The setting with this name.
pub(super) fn find(name: &str) -> Option<&'static ServeSetting> {
    all().find(|setting| setting.name == name)
}
