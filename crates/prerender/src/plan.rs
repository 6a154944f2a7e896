//! The settings of the renderer.

use std::path::PathBuf;
use std::time::Duration;

use crate::origins::AllowedOrigin;

/// A renderer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Chromium, as a path or as a name in `PATH`.
    pub program: PathBuf,
    /// Pages that are rendered at the same time.
    pub pages: usize,
    /// Requests that wait for a page; others get the plain page.
    pub queue: usize,
    /// How long a render may take, from the first request of the page; then the page is taken as it is.
    pub page_time: Duration,
    /// How long no request may be in progress until a page counts as finished.
    pub idle_time: Duration,
    /// Memory of the process of a page; above, it is killed.
    pub page_memory_bytes: u64,
    /// Renders after which the browser is replaced by a new one.
    pub pages_per_browser: u64,
    /// Origins that pages may also fetch from, besides their own site.
    pub allow: Vec<AllowedOrigin>,
    /// Whether chromium's sandbox is required. Without it, a page that breaks out of chromium has the rights of its user.
    pub has_sandbox: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            program: "chromium".into(),
            pages: 2,
            queue: 32,
            page_time: Duration::from_secs(10),
            idle_time: Duration::from_millis(500),
            page_memory_bytes: 512 << 20,
            pages_per_browser: 500,
            allow: Vec::new(),
            has_sandbox: true,
        }
    }
}

/// The most pages at the same time.
pub const PAGES_MAX: usize = 64;

/// The longest queue.
pub const QUEUE_MAX: usize = 10_000;

/// The least memory of a page: chromium's own part of it is about half of this.
pub const PAGE_MEMORY_BYTES_MIN: u64 = 128 << 20;

impl Plan {
    /// Checks what can be known without starting a browser.
    ///
    /// # Errors
    /// The first value out of its limits.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=PAGES_MAX).contains(&self.pages) {
            return Err(format!("prerender: got {} pages, need 1 to {PAGES_MAX}", self.pages));
        }
        if self.queue > QUEUE_MAX {
            return Err(format!("prerender: got a queue of {}, need at most {QUEUE_MAX}", self.queue));
        }
        if self.page_memory_bytes < PAGE_MEMORY_BYTES_MIN {
            let (bytes, min) = (self.page_memory_bytes >> 20, PAGE_MEMORY_BYTES_MIN >> 20);
            return Err(format!("prerender: got {bytes} MiB of memory for a page, need at least {min} MiB"));
        }
        if self.page_time.is_zero() || self.page_time > Duration::from_secs(120) {
            return Err(format!("prerender: got {:?} for a page, need 1 ms to 2 minutes", self.page_time));
        }
        if self.pages_per_browser == 0 {
            return Err("prerender: got 0 pages for each browser, need at least 1".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_their_limits_are_refused() {
        assert_eq!(Plan::default().check(), Ok(()));
        let wrong = [
            Plan { pages: 0, ..Plan::default() },
            Plan { pages: 65, ..Plan::default() },
            Plan { queue: 10_001, ..Plan::default() },
            Plan { page_memory_bytes: 1 << 20, ..Plan::default() },
            Plan { page_time: Duration::ZERO, ..Plan::default() },
            Plan { pages_per_browser: 0, ..Plan::default() },
        ];
        for plan in wrong {
            assert!(plan.check().is_err_and(|message| message.contains("need")), "{plan:?}");
        }
    }
}
