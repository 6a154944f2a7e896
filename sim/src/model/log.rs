//! What the access log and the metrics must say: one line for each request that the server has read, with the client, the status and about
//! as many bytes as its client has got.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Model;

/// The lines of the log, in nginx's words. Fields that a request does not have are `-`.
pub(crate) const FORMAT: &str =
    "$request_method $request_uri $http_x_request $status $body_bytes_sent $remote_addr";

/// A body may be sent in frames or chunks, each of at least one byte.
const FRAMING_BYTES_MAX: u64 = 9;
const FRAMES_MAX_MORE: u64 = 8;

/// A whole response, as its client has got it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line<'l> {
    method: &'l str,
    status: u16,
    body_bytes: u64,
    address: Option<IpAddr>,
}

impl Model {
    /// Checks all lines of the log, when the server has ended. `counted` are the requests of the metrics.
    pub(crate) fn check_log(&self, log: &str, counted: u64) -> Result<(), String> {
        let mut lines: HashMap<u32, Vec<Line<'_>>> = HashMap::new();
        for text in log.lines() {
            let (named, line) = parsed_line(text).ok_or_else(|| format!("a line of the log: {text}"))?;
            // Subscribers and heads that are no requests have no number.
            if let Some(named) = named {
                lines.entry(named).or_default().push(line);
            }
        }
        let count = log.lines().count() as u64;
        if count != counted {
            return Err(format!("the log has {count} lines, the metrics count {counted} requests"));
        }
        for (named, lines) in &lines {
            let begun = self.alike.get(named).copied().unwrap_or(0) as usize;
            if lines.len() > begun {
                return Err(format!("the log has {} lines for request {named}: {lines:?}", lines.len()));
            }
        }
        let mut whole: Vec<(&u32, &Whole)> = self.whole_responses.iter().collect();
        whole.sort_by_key(|(id, _)| **id);
        for (id, whole) in whole {
            let planned = &self.planned[id];
            let lines = lines.get_mut(&planned.named).map(Vec::as_mut_slice).unwrap_or_default();
            let most = FRAMING_BYTES_MAX * (whole.body_bytes + FRAMES_MAX_MORE) + whole.body_bytes;
            let is_it = |line: &&mut Line<'_>| {
                line.method == planned.method
                    && line.status == whole.status
                    && (whole.body_bytes..=most).contains(&line.body_bytes)
                    && line.address == planned.address
            };
            // Of requests with the same head, each has a line of its own.
            match lines.iter_mut().find(is_it) {
                Some(line) => line.method = "",
                None => {
                    return Err(format!(
                        "request {id} {} of {:?}: its client has {} and {} bytes, but the log says {lines:?}",
                        planned.method, planned.address, whole.status, whole.body_bytes
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The number of the request, and what the line says of it.
fn parsed_line(text: &str) -> Option<(Option<u32>, Line<'_>)> {
    let fields: Vec<&str> = text.split(' ').collect();
    let [method, uri, named, status, body_bytes, address] = fields[..] else { return None };
    let named = match uri.rsplit_once("?id=") {
        Some((_, id)) => id.parse().ok(),
        None => named.parse().ok(),
    };
    let line = Line {
        method,
        status: status.parse().ok()?,
        body_bytes: body_bytes.parse().ok()?,
        address: address.parse().ok(),
    };
    Some((named, line))
}
