//! What a visit of a page is about, and what comes of it.

use std::time::Duration;

use super::inspect::Inspected;
use crate::browser::DevtoolsFault;
use crate::walls::Fetched;

/// What a page is made of: its URL, and the document that we have fetched already.
pub(crate) struct Document {
    pub(crate) url: String,
    pub(crate) fetched: Fetched,
    /// With its pictures, and [`Rendered::inspected`].
    pub(crate) is_preview: bool,
}

/// When a page is finished.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) page: Duration,
    pub(crate) idle: Duration,
}

/// The HTML of a page.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) html: String,
    /// The status that the page asks for; 0 if it asks for none.
    pub(crate) status: u16,
    /// Field lines that the page asks for.
    pub(crate) fields: Vec<String>,
    /// It was not finished at its deadline.
    pub(crate) is_late: bool,
    pub(crate) requests: u32,
    pub(crate) refused: u32,
    /// Errors of its scripts.
    pub(crate) errors: Vec<String>,
    /// Its requests without a good response; a limited number.
    pub(crate) failed: Vec<FailedRequest>,
    /// For a preview.
    pub(crate) inspected: Option<Box<Inspected>>,
}

/// A request of a page without a good response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedRequest {
    pub(crate) url: String,
    /// Its status, or why it was refused.
    pub(crate) reason: String,
    /// It was not allowed.
    pub(crate) is_walled: bool,
}

/// The result of a visit.
#[derive(Debug)]
pub(crate) enum PageResult {
    Rendered(Rendered),
    /// The page has gone to this URL.
    Moved(String),
}

/// Why a page has no HTML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageFault {
    /// The browser has ended, or does not respond.
    Browser,
    /// The page has crashed, or was killed for its memory.
    Crashed,
    /// It has caused more than it may.
    Flooded,
    /// Its scripts do not return.
    Hung,
    /// Its HTML is larger than allowed.
    Large,
    /// It has loaded itself too often.
    Reloads,
    /// The site did not serve a request of the page: what could be shown would be a part.
    Lost,
    /// The browser refuses a command, in its words.
    Refused(String),
}

impl From<DevtoolsFault> for PageFault {
    fn from(fault: DevtoolsFault) -> PageFault {
        match fault {
            DevtoolsFault::Closed | DevtoolsFault::Late => PageFault::Browser,
            DevtoolsFault::Refused(why) => PageFault::Refused(why),
        }
    }
}

impl PageFault {
    /// Its name in metrics and in `X-Prerender`.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            PageFault::Browser => "browser",
            PageFault::Crashed => "crashed",
            PageFault::Flooded => "flooded",
            PageFault::Hung => "hung",
            PageFault::Large => "large",
            PageFault::Reloads => "reloads",
            PageFault::Lost => "lost",
            PageFault::Refused(_) => "refused",
        }
    }
}
