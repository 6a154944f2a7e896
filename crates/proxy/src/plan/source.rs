//! Where servers of an upstream come from while it is in use, besides its own list.

use std::fmt;
use std::path::PathBuf;

use super::Tls;

/// A list of servers that changes without a reload. It owns its servers: operators can drain them and set them down, but not add, remove or
/// weight servers of an upstream that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSource {
    /// Where the list is.
    pub place: SourcePlace,
    /// The settings of TLS to servers that have it.
    pub tls: Tls,
}

/// Where a list of servers is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePlace {
    /// A file with a server on each line.
    File(PathBuf),
    /// The SRV records of a service.
    Service {
        /// Its name in DNS, such as `_http._tcp.example.org`.
        name: String,
        /// Its servers have TLS.
        is_tls: bool,
    },
}

/// As it is written in a site file.
impl fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourcePlace::File(path) => write!(f, "servers-file {}", path.display()),
            SourcePlace::Service { name, is_tls } => {
                write!(f, "srv+http{}://{name}", if *is_tls { "s" } else { "" })
            }
        }
    }
}
