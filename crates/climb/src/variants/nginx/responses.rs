//! What nginx does with responses of the application: store them, compress them.

use super::super::Facts;
use super::super::files::Files;
use super::super::syntax::{parse, walk};
use super::{has, into_http};

/// The folder of the cache in a proposed configuration; nginx creates its last part.
pub(in super::super) const CACHE_FOLDER: &str = "/var/cache/flatout-nginx";

/// Types of responses that become much smaller. `text/html` is always compressed.
const COMPRESSED_TYPES: &str = "application/json application/javascript application/xml image/svg+xml text/css text/javascript text/plain text/xml";

/// Whether it passes requests to an application over HTTP and stores no responses yet.
pub(in super::super) fn is_cacheable(files: &Files) -> bool {
    has(files, "proxy_pass", &[]) && !has(files, "proxy_cache", &[]) && !has(files, "proxy_cache_path", &[])
}

/// Stores responses for as long as the author allows. Requests with cookies or credentials go to the application, and what the
/// response says about caching is respected, as nginx always does.
pub(super) fn cache(files: &mut Files, facts: &Facts) -> bool {
    let Some(time) = facts.cache_time.filter(|_| is_cacheable(files)) else { return false };
    let time = time.as_secs().max(1);
    let lines = [
        format!(
            "proxy_cache_path {CACHE_FOLDER} levels=1:2 keys_zone=flatout_responses:10m max_size=256m inactive={time}s use_temp_path=off;"
        ),
        "proxy_cache flatout_responses;".to_owned(),
        "proxy_cache_key $scheme$host$request_uri;".to_owned(),
        format!("proxy_cache_valid 200 {time}s;"),
        "proxy_cache_lock on;".to_owned(),
        "proxy_cache_bypass $http_cookie $http_authorization;".to_owned(),
        "proxy_no_cache $http_cookie $http_authorization;".to_owned(),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    into_http(files, &lines)
}

pub(super) fn compression(files: &mut Files, _: &Facts) -> bool {
    let lines = [
        "gzip on;",
        "gzip_comp_level 2;",
        "gzip_min_length 256;",
        "gzip_proxied any;",
        &format!("gzip_types {COMPRESSED_TYPES};"),
    ];
    !has_word(files, &["gzip", "brotli", "zstd"]) && into_http(files, &lines)
}

/// Whether any file has a directive that begins like this.
fn has_word(files: &Files, words: &[&str]) -> bool {
    let mut is_there = false;
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |_, directive| {
            is_there |= words.iter().any(|word| directive.name().starts_with(word));
        });
    }
    is_there
}
