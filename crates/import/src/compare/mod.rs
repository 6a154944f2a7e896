//! Asks two servers the same, and says where they answer differently.
//!
//! ```text
//! access log, or routes ── requests, each once ──> old server ─┐
//!                                              └─> new server ─┴─ status, fields, body ──> differences
//! ```
//!
//! Requests follow each other, so that neither server is loaded by it. Only safe methods are sent: GET and HEAD.

mod answer;
mod ask;
mod log;
mod server;

use std::collections::HashSet;
use std::time::{Duration, Instant};

pub use answer::Answer;
pub use log::{Line, line};
pub use server::Server;

/// How many requests are made, and how long it may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Requests; what is more is not asked.
    pub requests_max: usize,
    /// All of them together.
    pub time_max: Duration,
    /// One response.
    pub answer_time_max: Duration,
    /// Bytes of one body; of what is larger the beginnings are compared.
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

/// A request that both are asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ask {
    /// GET or HEAD.
    pub method: String,
    /// The value of `Host`.
    pub host: String,
    /// Path and query.
    pub target: String,
}

/// Where both answer differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What was asked.
    pub ask: Ask,
    /// What differs: its name, and what each of them said.
    pub what: Vec<(String, String, String)>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Requests that both were asked.
    pub asked: usize,
    /// Those that were answered differently.
    pub differences: Vec<Difference>,
    /// Requests that were not asked, since they change something.
    pub unsafe_count: usize,
    /// Requests that were not asked, since there were enough or the time was over.
    pub left_count: usize,
}

/// Fields that are compared. Others differ between servers that mean the same: `Server`, `Date`, `ETag`, `Vary`.
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

/// Asks both servers everything that changes nothing, each once.
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
        if !["GET", "HEAD"].contains(&ask.method.as_str()) {
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
            (Ok(one), Ok(other)) => one.differs(other, fields, &ask.host),
            (Err(one), Err(other)) if one == other => Vec::new(),
            _ => {
                let told = |side: &Result<Answer, String>| match side {
                    Ok(answer) => answer.status.to_string(),
                    Err(error) => error.clone(),
                };
                vec![("response".to_owned(), told(&one), told(&other))]
            }
        };
        if !what.is_empty() {
            compared.differences.push(Difference { ask, what });
        }
    }
    compared
}

#[cfg(test)]
mod tests;
