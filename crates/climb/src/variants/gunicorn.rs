//! gunicorn, whose flags override its file.

use super::{Facts, flag, program};

/// Threads per worker: enough for an application that waits.
const THREADS: usize = 4;

/// Proposals: as many workers as its documentation recommends, and threads if each worker serves one request at a
/// time.
pub(super) fn proposals(words: &[String], facts: &Facts) -> Vec<(&'static str, String)> {
    let is_meant = words.iter().any(|word| program(word) == "gunicorn" || word.starts_with("gunicorn.app"));
    if !is_meant {
        return Vec::new();
    }
    let mut found = Vec::new();
    let wanted = 2 * facts.cpus + 1;
    let workers = flag(words, &["-w", "--workers"]).and_then(|count| count.parse().ok()).unwrap_or(1);
    if workers < wanted {
        found.push(("workers", format!("--workers {wanted}")));
    }
    let class = flag(words, &["-k", "--worker-class"]).unwrap_or("sync");
    if class == "sync" && flag(words, &["--threads"]).is_none() {
        found.push(("threads", format!("--worker-class gthread --threads {THREADS}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_settings_are_not_proposed() {
        let told = |command: &str| {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            proposals(&words, &Facts { cpus: 2, cache_time: None })
        };
        let (workers, threads) = (
            ("workers", "--workers 5".to_owned()),
            ("threads", "--worker-class gthread --threads 4".to_owned()),
        );
        assert_eq!(told("/usr/bin/gunicorn app:app"), [workers.clone(), threads.clone()]);
        assert_eq!(told("python3 -m gunicorn.app.wsgiapp --workers=9 app:app"), [threads]);
        assert_eq!(told("gunicorn -w 2 -k gevent app:app"), [workers]);
        assert_eq!(told("gunicorn -w5 --threads 8 app:app"), []);
        assert_eq!(told("uvicorn app:app"), []);
    }
}
