//! flatout itself, which is configured by flags.

use super::{CACHE, Facts, flag, program};

/// Proposals: a cache in front of an upstream, and more workers, if it was started with fewer than there are CPUs.
pub(super) fn proposals(words: &[String], facts: &Facts) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if let Some(time) = facts.cache_time.filter(|_| is_cacheable(words)) {
        found.push((CACHE, format!("--cache {}s", time.as_secs().max(1))));
    }
    let workers: Option<usize> = flag(words, &["--workers"]).and_then(|count| count.parse().ok());
    match workers {
        Some(workers) if is_server(words, &["serve", "json-api"]) && workers < facts.cpus => {
            found.push(("workers", format!("--workers {}", facts.cpus)));
        }
        _ => {}
    }
    found
}

/// Whether it passes requests on and has no cache yet.
pub(super) fn is_cacheable(words: &[String]) -> bool {
    is_server(words, &["serve"]) && flag(words, &["--to"]).is_some() && flag(words, &["--cache"]).is_none()
}

fn is_server(words: &[String], commands: &[&str]) -> bool {
    words.windows(2).any(|pair| program(&pair[0]) == "flatout" && commands.contains(&pair[1].as_str()))
}
