//! Crawlers of requests: whether they are who they claim to be, and how many there were.

use std::net::IpAddr;
use std::sync::OnceLock;

use flatout_engine::Request;
use flatout_lane::names;
use flatout_prerender::{Dns, Verification, Verifier, count_request, crawler};

use super::maps::Tables;
use flatout_gateway::Client;

/// One for the process: what it knows does not depend on the configuration. Its threads start with the first request that needs it;
/// without them no crawler is verified.
static VERIFIER: OnceLock<Option<Verifier>> = OnceLock::new();

/// The system's resolver.
struct SystemDns;

impl Dns for SystemDns {
    fn name_of(&self, address: IpAddr) -> Result<Option<String>, String> {
        names::name_of(address).map_err(|error| error.to_string())
    }

    fn addresses_of(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        names::addresses_of(name).map_err(|error| error.to_string())
    }
}

/// What is known about the identity of a crawler; nothing for all others.
pub(crate) fn verification(
    user_agent: Option<&[u8]>,
    address: Option<IpAddr>,
    tables: &Tables,
) -> &'static [u8] {
    let found = user_agent.and_then(|user_agent| {
        let crawler = crawler(user_agent)?;
        match address.and_then(|address| tables.is_of_crawler(crawler.name, address)) {
            Some(true) => Some(Verification::Verified),
            Some(false) if crawler.domains.is_empty() => Some(Verification::Forged),
            // Also for an address that is not in a file: it may be newer than that.
            _ => match VERIFIER.get_or_init(|| Verifier::start(SystemDns).ok()) {
                Some(verifier) => verifier.verification(user_agent, address),
                None => Some(Verification::Unknown),
            },
        }
    });
    found.map_or(b"", |verification| verification.name().as_bytes())
}

/// Counts a request on a route with rendered pages.
pub(crate) fn count(request: &Request<'_>, client: &Client) {
    let head = &request.head;
    count_request(head.field("user-agent"), |url| {
        url.extend_from_slice(if client.is_https { b"https://" } else { b"http://" });
        let at = url.len();
        url.extend_from_slice(head.authority());
        url.get_mut(at..).unwrap_or_default().make_ascii_lowercase();
        head.write_origin_form(url);
    });
}

/// The results of all checks of crawlers so far, by the name of the crawler.
pub fn verified_crawlers() -> Vec<(&'static str, Verification, u64)> {
    // Without a request that needs it there is none, and none is started here.
    VERIFIER.get().and_then(Option::as_ref).map(Verifier::counts).unwrap_or_default()
}
