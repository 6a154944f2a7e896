//! The settings of the renderer.

use std::path::PathBuf;
use std::str::FromStr;
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
    /// Renders for one client; `None`: no limit.
    pub client_budget: Option<RenderRate>,
    /// Renders of one site; `None`: no limit.
    pub site_budget: Option<RenderRate>,
    /// When pages are rendered that nobody waits for; `None`: at any time.
    pub quiet: Option<QuietHours>,
    /// Pages of a warm-up in a time; `None`: one after the other.
    pub warm_rate: Option<RenderRate>,
    /// The most used pages that are rendered again before they expire.
    pub refresh: usize,
    /// Origins that pages may also fetch from, besides their own site.
    pub allow: Vec<AllowedOrigin>,
    /// Whether chromium's sandbox is required. Without it, a page that breaks out of chromium has the rights of its user.
    pub has_sandbox: bool,
}

/// Pages in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderRate {
    /// At least 1.
    pub pages: u32,
    /// Longer than 0.
    pub window: Duration,
}

/// Hours of a day in UTC, in which pages are rendered that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    /// Minutes since midnight.
    begin: u32,
    /// The same; before `begin`: on the next day.
    end: u32,
}

impl QuietHours {
    /// Whether a time is in these hours, as seconds since 1970.
    pub fn has(self, unix_seconds: u64) -> bool {
        let minute = u32::try_from(unix_seconds / 60 % MINUTES_OF_DAY).unwrap_or_default();
        match self.begin <= self.end {
            true => (self.begin..self.end).contains(&minute),
            false => minute >= self.begin || minute < self.end,
        }
    }
}

impl FromStr for QuietHours {
    type Err = String;

    /// Reads `02:00-05:30`; the second time is not included.
    fn from_str(text: &str) -> Result<QuietHours, String> {
        let minute = |text: &str| -> Option<u32> {
            let (hour, minute) = text.split_once(':')?;
            let number = |text: &str, below: u32| {
                let is_two = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u32>().ok().filter(|number| is_two && *number < below)
            };
            Some(number(hour, 24)? * 60 + number(minute, 60)?)
        };
        let times = text.split_once('-').and_then(|(begin, end)| Some((minute(begin)?, minute(end)?)));
        match times {
            Some((begin, end)) if begin != end => Ok(QuietHours { begin, end }),
            _ => Err(format!("got `{text}`, need two different times of a day in UTC, such as 02:00-05:30")),
        }
    }
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
            client_budget: Some(RenderRate { pages: 120, window: Duration::from_secs(60) }),
            site_budget: None,
            quiet: None,
            warm_rate: None,
            refresh: 0,
            allow: Vec::new(),
            has_sandbox: true,
        }
    }
}

/// The most pages at the same time.
pub const PAGES_MAX: usize = 64;

/// The longest queue.
pub const QUEUE_MAX: usize = 10_000;

/// The most pages that are rendered again before they expire.
pub const REFRESH_MAX: usize = 10_000;

const MINUTES_OF_DAY: u64 = 24 * 60;

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
        if self.refresh > REFRESH_MAX {
            return Err(format!(
                "prerender: got {} pages to refresh, need at most {REFRESH_MAX}",
                self.refresh
            ));
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
    fn quiet_hours_may_pass_midnight() {
        let at = |hour: u64, minute: u64| 20_000 * 24 * 3600 + hour * 3600 + minute * 60;
        let hours: QuietHours = "02:00-05:30".parse().unwrap();
        assert!(
            hours.has(at(2, 0)) && hours.has(at(5, 29)) && !hours.has(at(5, 30)) && !hours.has(at(1, 59))
        );
        let hours: QuietHours = "22:30-01:00".parse().unwrap();
        assert!(
            hours.has(at(23, 0)) && hours.has(at(0, 59)) && !hours.has(at(1, 0)) && !hours.has(at(22, 29))
        );
        for wrong in [
            "",
            "2-5",
            "02:00",
            "02:00-02:00",
            "24:00-01:00",
            "02:60-03:00",
            "+2:00-03:00",
            "02:00-03:00-04:00",
        ] {
            assert!(wrong.parse::<QuietHours>().is_err_and(|message| message.contains("need")), "{wrong}");
        }
    }

    #[test]
    fn values_out_of_their_limits_are_refused() {
        assert_eq!(Plan::default().check(), Ok(()));
        let wrong = [
            Plan { pages: 0, ..Plan::default() },
            Plan { pages: 65, ..Plan::default() },
            Plan { queue: 10_001, ..Plan::default() },
            Plan { refresh: 10_001, ..Plan::default() },
            Plan { page_memory_bytes: 1 << 20, ..Plan::default() },
            Plan { page_time: Duration::ZERO, ..Plan::default() },
            Plan { pages_per_browser: 0, ..Plan::default() },
        ];
        for plan in wrong {
            assert!(plan.check().is_err_and(|message| message.contains("need")), "{plan:?}");
        }
    }
}
