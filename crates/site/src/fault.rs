//! Errors in a plan.

use std::fmt;
use std::path::{Path, PathBuf};

/// An error in a plan, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where it is.
    pub place: Place,
    /// The error, in one line.
    pub reason: String,
    /// The file at fault, if it is one that the plan names.
    pub file: Option<PathBuf>,
}

/// A place in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// No particular place.
    Plan,
    /// The site of this index.
    Site(usize),
    /// The route of this index, of the site of this index.
    Route(usize, usize),
    /// The folder of this index.
    Folder(usize),
    /// The rate of this index.
    Rate(usize),
    /// The concurrency limit of this index.
    Concurrency(usize),
    /// The map of this index.
    Map(usize),
    /// The file with addresses of a crawler of this index.
    CrawlerAddresses(usize),
}

impl Place {
    /// A fault at this place.
    pub fn fault(self, reason: impl Into<String>) -> Fault {
        Fault { place: self, reason: reason.into(), file: None }
    }

    /// A fault of a file that is named at this place.
    pub fn fault_of_file(self, file: &Path, reason: impl Into<String>) -> Fault {
        Fault { file: Some(file.to_owned()), ..self.fault(reason) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Plan => {}
            Place::Site(site) => write!(f, "site {}: ", site + 1)?,
            Place::Route(site, route) => write!(f, "site {}, route {}: ", site + 1, route + 1)?,
            Place::Folder(folder) => write!(f, "folder {}: ", folder + 1)?,
            Place::Rate(rate) => write!(f, "rate {}: ", rate + 1)?,
            Place::Concurrency(limit) => write!(f, "concurrency limit {}: ", limit + 1)?,
            Place::Map(map) => write!(f, "map {}: ", map + 1)?,
            Place::CrawlerAddresses(_) => {}
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Fault {}
