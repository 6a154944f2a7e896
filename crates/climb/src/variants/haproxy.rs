//! HAProxy: sections of lines, without braces.

use super::files::Files;
use super::{Edit, Facts};

/// Whether a file is HAProxy's.
pub(super) fn is_meant(text: &str) -> bool {
    let has = |names: &[&str]| sections(text).iter().any(|section| names.contains(&section.name.as_str()));
    has(&["frontend", "listen"]) && has(&["global", "defaults"])
}

pub(super) const EDITS: &[Edit] = &[
    Edit { name: "nbthread", what: "global: nbthread, a thread for each CPU", make: threads },
    Edit { name: "http-reuse", what: "defaults: http-reuse aggressive", make: reuse },
    Edit { name: "backlog", what: "frontends: backlog 4096", make: backlog },
];

/// Connections that wait to be accepted.
const BACKLOG: usize = 4096;

/// A section: its name, its heading's line, and the line after its last.
struct Section {
    name: String,
    lines: std::ops::Range<usize>,
}

const NAMES: [&str; 12] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "resolvers",
    "userlist",
    "mailers",
    "program",
    "cache",
    "ring",
];

fn sections(text: &str) -> Vec<Section> {
    let mut found: Vec<Section> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(section) = found.last_mut() {
            section.lines.end = at + 1;
        }
        let name = line.split_whitespace().next().unwrap_or_default();
        if NAMES.contains(&name) {
            if let Some(section) = found.last_mut() {
                section.lines.end = at;
            }
            found.push(Section { name: name.to_owned(), lines: at..at + 1 });
        }
    }
    found
}

/// Edits the lines of the main file. Returns whether `make` changed anything.
fn edit(files: &mut Files, make: impl Fn(&[Section], &mut Vec<String>) -> bool) -> bool {
    let Some(file) = files.0.first_mut() else { return false };
    let mut lines: Vec<String> = file.text.lines().map(str::to_owned).collect();
    let is_made = make(&sections(&file.text), &mut lines);
    if is_made {
        file.text = lines.join("\n") + "\n";
    }
    is_made
}

/// The line of a keyword in a section, and its value.
fn setting(lines: &[String], section: &Section, keyword: &str) -> Option<(usize, String)> {
    section.lines.clone().skip(1).find_map(|at| {
        let mut words = lines.get(at)?.split_whitespace();
        (words.next()? == keyword).then(|| (at, words.collect::<Vec<_>>().join(" ")))
    })
}

/// Since 2.5 there is one thread per CPU by default.
fn threads(files: &mut Files, facts: &Facts) -> bool {
    edit(files, |sections, lines| {
        let global = sections.iter().find(|section| section.name == "global");
        let Some((at, count)) = global.and_then(|global| setting(lines, global, "nbthread")) else {
            return false;
        };
        let is_short = count.parse::<usize>().is_ok_and(|count| count < facts.cpus);
        if is_short {
            lines[at] = format!("    nbthread {}", facts.cpus);
        }
        is_short
    })
}

/// Connections to servers are reused for other requests, except for the first request of each client.
fn reuse(files: &mut Files, _: &Facts) -> bool {
    edit(files, |sections, lines| {
        if sections.iter().any(|section| setting(lines, section, "http-reuse").is_some()) {
            return false;
        }
        let defaults = sections.iter().find(|section| section.name == "defaults");
        let Some(defaults) = defaults.filter(|defaults| is_http(lines, defaults)) else { return false };
        lines.insert(defaults.lines.start + 1, "    http-reuse aggressive".to_owned());
        true
    })
}

fn is_http(lines: &[String], section: &Section) -> bool {
    setting(lines, section, "mode").is_some_and(|(_, mode)| mode == "http")
}

fn backlog(files: &mut Files, _: &Facts) -> bool {
    edit(files, |sections, lines| {
        let takes = |section: &&Section| {
            ["frontend", "listen"].contains(&section.name.as_str())
                && setting(lines, section, "backlog").is_none()
        };
        let at: Vec<usize> = sections.iter().filter(takes).map(|section| section.lines.start + 1).collect();
        let in_defaults = sections.iter().filter(|section| section.name == "defaults");
        let is_set = in_defaults.clone().any(|section| setting(lines, section, "backlog").is_some());
        if is_set || at.is_empty() {
            return false;
        }
        at.iter().rev().for_each(|at| lines.insert(*at, format!("    backlog {BACKLOG}")));
        true
    })
}

#[cfg(test)]
mod tests {
    use super::super::files::File;
    use super::*;

    const FACTS: Facts = Facts { cpus: 4, cache_time: None };

    const CONFIG: &str = "# ours\nglobal\n    nbthread 1\n\ndefaults\n    mode http\n    timeout client 5s\n\nfrontend in\n    bind :80\n    \
                          default_backend out\n\nbackend out\n    server a 127.0.0.1:8080\n";

    fn files() -> Files {
        Files(vec![File { path: "/etc/haproxy/haproxy.cfg".into(), text: CONFIG.to_owned(), included: None }])
    }

    #[test]
    fn each_edit_is_made_once() {
        assert!(is_meant(CONFIG) && !is_meant("events {}\nhttp {}\n") && !is_meant("listen 80"));
        let mut all = files();
        for edit in EDITS {
            assert!((edit.make)(&mut all, &FACTS), "{}", edit.name);
            assert!(!(edit.make)(&mut all, &FACTS), "{} again", edit.name);
        }
        let text = all.main();
        for expected in [
            "# ours\nglobal\n    nbthread 4\n",
            "defaults\n    http-reuse aggressive\n    mode http",
            "frontend in\n    backlog 4096\n    bind :80",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(!threads(&mut files(), &Facts { cpus: 1, ..FACTS }), "as many as there are CPUs");
    }
}
