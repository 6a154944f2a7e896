//! flatout itself, which is configured by flags.

use super::{flag, program};

/// Proposals: more workers, if it was started with fewer than there are CPUs.
pub(super) fn proposals(words: &[String], cpus: usize) -> Vec<(&'static str, String)> {
    let is_server = words
        .windows(2)
        .any(|pair| program(&pair[0]) == "flatout" && ["serve", "json-api"].contains(&pair[1].as_str()));
    let workers: Option<usize> = flag(words, &["--workers"]).and_then(|count| count.parse().ok());
    match workers {
        Some(workers) if is_server && workers < cpus => vec![("workers", format!("--workers {cpus}"))],
        _ => Vec::new(),
    }
}
