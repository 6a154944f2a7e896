//! Paths in the folder of a run.

use std::path::{Path, PathBuf};

/// Where the server listens.
pub(crate) fn listen_path(folder: &Path) -> PathBuf {
    folder.join("server.sock")
}

/// Where it listens with TLS.
pub(crate) fn secure_path(folder: &Path) -> PathBuf {
    folder.join("secure.sock")
}

/// Where it listens for a proxy that announces clients.
pub(crate) fn proxied_path(folder: &Path) -> PathBuf {
    folder.join("proxied.sock")
}

/// Where it listens for TLS connections that it passes on.
pub(crate) fn passed_path(folder: &Path) -> PathBuf {
    folder.join("passed-on.sock")
}

/// Where stored responses are.
pub(crate) fn cache_path(folder: &Path) -> PathBuf {
    folder.join("cache")
}

/// Where an upstream listens.
pub(crate) fn upstream_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}
