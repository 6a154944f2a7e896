//! Site files of tests. `flatout-cli` runs the tests that use them once more, and checks each file as `flatout check` does.

use flatout_config::Source;

use super::{Imported, check_written, nginx, site_file};

/// What is in front of redirects to folders, on usual ports.
const ORIGIN: &str = "redirect-origin \"$scheme://$http_host\"";

pub(super) fn imported(text: &str) -> Imported {
    let source = Source::new("nginx.conf", text.as_bytes().to_vec(), &nginx::FILE).unwrap();
    let imported = site_file(&nginx::parse(&source, "nginx.conf").unwrap());
    check_written(&imported.text);
    imported
}

/// The site file of one server's directives, without the common parts.
pub(super) fn of_server(text: &str) -> String {
    let whole = imported(&format!("http {{ server {{ listen 80; {text} }} }}")).text;
    let (_, site) = whole.split_once("site \"*\" {\n").unwrap_or(("", &whole));
    let (site, _) = site.split_once("\n}\n").unwrap_or((site, ""));
    let is_common = |line: &&str| line.is_empty() || *line == ORIGIN;
    site.lines().map(str::trim).filter(|line| !is_common(line)).collect::<Vec<_>>().join(" | ")
}
