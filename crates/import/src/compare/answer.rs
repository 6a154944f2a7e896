//! What a server answered, and how that differs from what another did.

use std::hash::{DefaultHasher, Hasher};

/// How nginx ends the pages that it makes itself.
const NGINX_PAGE: &[u8] = b"<hr><center>nginx";

/// The beginning of a body that is kept to be looked at.
const KEPT_BYTES: usize = 4096;

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    fields: Vec<(String, String)>,
    body_bytes: usize,
    hash: DefaultHasher,
    kept: Vec<u8>,
}

impl Answer {
    /// One without a body so far; names of fields are in lower case.
    pub(super) fn new(status: u16, fields: Vec<(String, String)>) -> Answer {
        Answer { status, fields, body_bytes: 0, hash: DefaultHasher::new(), kept: Vec::new() }
    }

    /// More of its body. What is behind `bytes_max` is counted only.
    pub(super) fn take(&mut self, data: &[u8], bytes_max: usize) {
        let room = bytes_max.saturating_sub(self.body_bytes);
        self.hash.write(&data[..data.len().min(room)]);
        let kept = KEPT_BYTES.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&data[..data.len().min(kept)]);
        self.body_bytes += data.len();
    }

    /// What differs: its name, and what each said.
    pub(super) fn differs(&self, other: &Answer, names: &[String]) -> Vec<(String, String, String)> {
        let mut what = Vec::new();
        if self.status != other.status {
            what.push(("status".to_owned(), self.status.to_string(), other.status.to_string()));
        }
        // A page that a server makes itself says the same in its own words.
        let is_own = self.is_page_of_nginx() && other.status == self.status;
        for name in names {
            let (one, two) = (self.field(name), other.field(name));
            if one != two && !(is_own && name == "content-type") {
                what.push((name.clone(), one, two));
            }
        }
        let same_body = self.body_bytes == other.body_bytes && self.hash.finish() == other.hash.finish();
        if !same_body && !is_own {
            what.push(("body".to_owned(), self.body(), other.body()));
        }
        what
    }

    /// All values of a field; of a type its parameters are written alike.
    fn field(&self, name: &str) -> String {
        let values = self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| match name {
            "content-type" => value.to_ascii_lowercase().replace("; ", ";"),
            _ => value.clone(),
        });
        let values: Vec<String> = values.collect();
        if values.is_empty() { "-".to_owned() } else { values.join(", ") }
    }

    fn is_page_of_nginx(&self) -> bool {
        self.status >= 300 && self.kept.windows(NGINX_PAGE.len()).any(|window| window == NGINX_PAGE)
    }

    fn body(&self) -> String {
        format!("{} bytes, {:016x}", self.body_bytes, self.hash.finish())
    }
}
