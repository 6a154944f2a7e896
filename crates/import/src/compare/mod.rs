//! Sends the same requests to two servers, and reports where their responses differ.
//!
//! ```text
//! access log, or configurations ── requests, each once ──> old server ─┐
//!                                              └─> new server ─┴─ status, fields, body ──> differences
//! ```
//!
//! Requests are sent one after the other, so that neither server is loaded. Only GET, HEAD and OPTIONS are sent, which change nothing.

mod answer;
mod ask;
mod log;
mod requests;
mod server;

use std::collections::HashSet;
use std::time::{Duration, Instant};

pub use answer::Answer;
pub use log::{Line, line};
pub use requests::Vocabulary;
pub use server::Server;

/// Limits of the comparison.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Number of requests; further ones are skipped.
    pub requests_max: usize,
    /// Total time.
    pub time_max: Duration,
    /// Time of one response.
    pub answer_time_max: Duration,
    /// Bytes of one body; of larger ones, only the start is compared.
    pub body_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            requests_max: 1000,
            time_max: Duration::from_secs(120),
            answer_time_max: Duration::from_secs(10),
            body_bytes_max: 16 << 20,
        }
    }
}

/// A request that is sent to both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ask {
    /// GET, HEAD or OPTIONS.
    pub method: String,
    /// The value of `Host`.
    pub host: String,
    /// Path and query.
    pub target: String,
    /// Further fields, which are valid ones.
    pub fields: Vec<(String, String)>,
}

/// A request with different responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The request.
    pub ask: Ask,
    /// The differences: the name, and both values.
    pub what: Vec<Part>,
}

/// The name of what differs, and both values.
type Part = (String, String, String);

/// Why responses differ on purpose. docs/import.md has the reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// nginx serves a file whose name is in the lists of `hide`.
    HiddenFile,
    /// A folder without an index has 404, in nginx 403.
    FolderWithoutIndex,
    /// An application repeats a field of a client that is no trusted proxy, such as `X-Forwarded-For`.
    ForwardedField,
}

/// The result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Requests that were sent to both.
    pub asked: usize,
    /// Requests with different responses.
    pub differences: Vec<Difference>,
    /// Requests with responses that differ on purpose.
    pub policies: Vec<(Ask, Policy)>,
    /// Requests that were skipped because they are not safe.
    pub unsafe_count: usize,
    /// Requests that were skipped because of the limits.
    pub left_count: usize,
}

/// Fields that are compared. Others may differ without meaning anything: `Server`, `Date`, `ETag`, `Vary`.
pub const FIELDS: &[&str] = &[
    "content-type",
    "content-encoding",
    "content-range",
    "location",
    "cache-control",
    "www-authenticate",
    "allow",
    "x-frame-options",
    "x-content-type-options",
    "strict-transport-security",
    "content-security-policy",
    "access-control-allow-origin",
];

/// Sends all safe requests to both servers, each once.
pub fn compare(
    old: &Server,
    new: &Server,
    asks: impl IntoIterator<Item = Ask>,
    fields: &[String],
    bounds: &Bounds,
) -> Compared {
    let begun = Instant::now();
    let mut compared = Compared::default();
    let mut seen = HashSet::new();
    for ask in asks {
        if !["GET", "HEAD", "OPTIONS"].contains(&ask.method.as_str()) {
            compared.unsafe_count += 1;
            continue;
        }
        if compared.asked >= bounds.requests_max || begun.elapsed() >= bounds.time_max {
            compared.left_count += 1;
            continue;
        }
        if !seen.insert(ask.clone()) {
            continue;
        }
        compared.asked += 1;
        let (one, other) = (ask::ask(old, &ask, bounds), ask::ask(new, &ask, bounds));
        let what = match (&one, &other) {
            (Ok(one), Ok(other)) => one.differs(other, fields, old.scheme(), &ask),
            (Err(one), Err(other)) if one == other => Vec::new(),
            _ => {
                let told = |side: &Result<Answer, String>| match side {
                    Ok(answer) => answer.status.to_string(),
                    Err(error) => error.clone(),
                };
                vec![("response".to_owned(), told(&one), told(&other))]
            }
        };
        let policy = match (&one, &other) {
            (Ok(one), Ok(other)) if !what.is_empty() => one.policy(other, &ask, &what),
            _ => None,
        };
        if let Some(policy) = policy {
            compared.policies.push((ask, policy));
        } else if !what.is_empty() {
            compared.differences.push(Difference { ask, what });
        }
    }
    compared
}

#[cfg(test)]
mod tests;
