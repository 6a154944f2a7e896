//! nginx: the edits recommended by its documentation and the published climb, if the configuration lacks them.

mod responses;

use std::ops::Range;
use std::path::Path;

use super::files::{FILES_MAX, File, Files, matching, text};
use super::syntax::{Directive, first_in, parse, replaced, walk};
use super::{CACHE, COMPRESSION, UPSTREAM_KEEPALIVE};
use super::{Edit, Facts};
pub(super) use responses::{CACHE_FOLDER, is_cacheable};

/// nginx's default file, as built by Debian and most others.
pub(super) const DEFAULT: &str = "/etc/nginx/nginx.conf";

/// Whether a file is nginx's main file.
pub(super) fn is_meant(text: &str) -> bool {
    let names = parse(text).unwrap_or_default();
    let has =
        |name: &str| names.iter().any(|directive| directive.name() == name && directive.block.is_some());
    has("events") && has("http")
}

/// What gains most comes first: next to an application that takes nearly all the time, nothing else is significant.
pub(super) const EDITS: &[Edit] = &[
    Edit {
        name: CACHE,
        what: "proxy_cache for responses, except of requests with cookies or credentials",
        make: responses::cache,
    },
    Edit { name: "worker-processes", what: "worker_processes auto;", make: workers },
    Edit { name: UPSTREAM_KEEPALIVE, what: "upstream { keepalive 64; } with HTTP/1.1 to it", make: upstream },
    Edit { name: "access-log-buffer", what: "access_log … buffer=256k flush=10s;", make: log },
    Edit { name: "reuseport", what: "listen … reuseport;", make: reuseport },
    Edit { name: "keepalive-requests", what: "keepalive_requests 100000;", make: keepalive },
    Edit { name: "sendfile", what: "sendfile on; tcp_nopush on;", make: sendfile },
    Edit { name: "open-file-cache", what: "open_file_cache max=10000 inactive=60s;", make: file_cache },
    Edit { name: "backlog", what: "listen … backlog=4096;", make: backlog },
    Edit { name: COMPRESSION, what: "gzip on; for JSON and text", make: responses::compression },
];

/// Requests per connection; with the default of 1000, a client reconnects every second at a thousand requests per
/// second.
const KEEPALIVE_REQUESTS: u64 = 100_000;

/// The main file with everything it includes; `None` if one of them cannot be parsed.
pub(super) fn with_includes(mut files: Files) -> Option<Files> {
    let folder = files.0.first()?.path.parent()?.to_owned();
    let mut at = 0;
    while at < files.0.len() {
        let mut words: Vec<String> = Vec::new();
        walk(&parse(&files.0[at].text)?, &mut Vec::new(), &mut |_, directive| {
            let word = directive.argument(1).to_owned();
            if directive.name() == "include" && !words.contains(&word) {
                words.push(word);
            }
        });
        for word in words {
            for path in matching(&folder.join(Path::new(&word))) {
                let text = text(&path)?;
                files.0.push(File { path, text, included: Some((at, word.clone())) });
                if files.0.len() > FILES_MAX {
                    return None;
                }
            }
        }
        at += 1;
    }
    Some(files)
}

/// A replacement in a file: where, and the new text.
type Replacement = (Range<usize>, String);

/// Calls `each` with every directive of every file and the names of its enclosing blocks within that file, and makes
/// the changes that it returns. Returns whether there were any.
fn edit(files: &mut Files, mut each: impl FnMut(&str, &[&str], &Directive) -> Vec<Replacement>) -> bool {
    let mut is_made = false;
    for file in &mut files.0 {
        let Some(directives) = parse(&file.text) else { continue };
        let mut changes = Vec::new();
        walk(&directives, &mut Vec::new(), &mut |within, directive| {
            changes.extend(each(&file.text, within, directive));
        });
        is_made |= !changes.is_empty();
        file.text = replaced(&file.text, changes);
    }
    is_made
}

/// Whether any file has a directive of this name outside these blocks.
fn has(files: &Files, name: &str, outside: &[&str]) -> bool {
    let mut is_there = false;
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |within, directive| {
            is_there |= directive.name() == name && !within.iter().any(|block| outside.contains(block));
        });
    }
    is_there
}

/// Adds lines to the `http` block, which is in one file.
fn into_http(files: &mut Files, lines: &[&str]) -> bool {
    edit(files, |text, within, directive| {
        let is_http = within.is_empty() && directive.name() == "http" && directive.block.is_some();
        let lines = lines.iter().filter(|_| is_http);
        lines.filter_map(|line| first_in(text, directive, line)).collect()
    })
}

fn workers(files: &mut Files, facts: &Facts) -> bool {
    let Some(main) = files.0.first_mut() else { return false };
    let Some(directives) = parse(&main.text) else { return false };
    let set = directives.iter().find(|directive| directive.name() == "worker_processes");
    let change = match set {
        Some(set) if set.argument(1).parse::<usize>().is_ok_and(|count| count < facts.cpus) => {
            (set.span.clone(), "worker_processes auto;".to_owned())
        }
        Some(_) => return false,
        // The default is one.
        None if facts.cpus > 1 => {
            let start = directives.first().map_or(0, |first| first.span.start);
            (start..start, "worker_processes auto;\n".to_owned())
        }
        None => return false,
    };
    main.text = replaced(&main.text, vec![change]);
    true
}

fn keepalive(files: &mut Files, _: &Facts) -> bool {
    if !has(files, "keepalive_requests", &["upstream"]) {
        return into_http(files, &[&format!("keepalive_requests {KEEPALIVE_REQUESTS};")]);
    }
    edit(files, |_, within, directive| {
        let is_less = directive.argument(1).parse::<u64>().is_ok_and(|count| count < KEEPALIVE_REQUESTS);
        match directive.name() == "keepalive_requests" && !within.contains(&"upstream") && is_less {
            true => vec![(directive.span.clone(), format!("keepalive_requests {KEEPALIVE_REQUESTS};"))],
            false => Vec::new(),
        }
    })
}

fn sendfile(files: &mut Files, _: &Facts) -> bool {
    !has(files, "sendfile", &[]) && has_files(files) && into_http(files, &["sendfile on;", "tcp_nopush on;"])
}

fn file_cache(files: &mut Files, _: &Facts) -> bool {
    let lines = ["open_file_cache max=10000 inactive=60s;", "open_file_cache_valid 60s;"];
    !has(files, "open_file_cache", &[]) && has_files(files) && into_http(files, &lines)
}

/// Whether it serves files.
fn has_files(files: &Files) -> bool {
    ["root", "alias", "try_files"].iter().any(|name| has(files, name, &[]))
}

/// Buffers logs that are written line by line.
fn log(files: &mut Files, _: &Facts) -> bool {
    edit(files, |_, _, directive| {
        let path = directive.argument(1);
        let words = &directive.words;
        let is_file =
            !path.is_empty() && path != "off" && !path.starts_with("syslog:") && !path.starts_with("/dev/");
        let is_buffered = words.iter().any(|word| word.starts_with("buffer=") || word.starts_with("gzip"));
        // nginx cannot buffer a log whose file name contains a variable.
        if directive.name() != "access_log" || !is_file || is_buffered || path.contains('$') {
            return Vec::new();
        }
        let format = words.get(2).filter(|word| !word.contains('=')).map_or("combined", String::as_str);
        let rest: Vec<&str> =
            words.iter().skip(2).map(String::as_str).filter(|word| *word != format).collect();
        let rest: String = rest.iter().map(|word| format!(" {word}")).collect();
        vec![(directive.span.clone(), format!("access_log {path} {format} buffer=256k flush=10s{rest};"))]
    })
}

fn reuseport(files: &mut Files, facts: &Facts) -> bool {
    facts.cpus > 1 && listen(files, "reuseport", "reuseport")
}

fn backlog(files: &mut Files, _: &Facts) -> bool {
    listen(files, "backlog=", "backlog=4096")
}

/// Adds a parameter to the first `listen` of each address: nginx accepts socket parameters once per address.
fn listen(files: &mut Files, prefix: &str, parameter: &str) -> bool {
    let mut done: Vec<String> = Vec::new();
    let of = |directive: &Directive| {
        let is_tcp = !directive.argument(1).starts_with("unix:")
            && !directive.words.iter().any(|word| word == "quic" || word == "udp");
        (directive.name() == "listen" && is_tcp).then(|| directive.argument(1).to_owned())
    };
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |_, directive| {
            let is_set = directive.words.iter().any(|word| word.starts_with(prefix));
            done.extend(of(directive).filter(|_| is_set));
        });
    }
    edit(files, |text, within, directive| {
        let Some(address) = of(directive).filter(|address| !done.contains(address)) else {
            return Vec::new();
        };
        // In a mail or stream server this is a different directive.
        if within.iter().any(|block| ["mail", "stream"].contains(block)) {
            return Vec::new();
        }
        done.push(address);
        let end = directive.span.end - 1;
        let end = text[..end].trim_end().len();
        vec![(end..end, format!(" {parameter}"))]
    })
}

/// The upstream that replaces the address in a `proxy_pass`.
const UPSTREAM: &str = "flatout_upstream";

/// Keeps connections to an upstream open, which needs HTTP/1.1 and no `Connection: close`.
fn upstream(files: &mut Files, _: &Facts) -> bool {
    let kept = named_upstreams(files);
    let direct = match kept.is_empty() {
        true => direct_pass(files),
        false => None,
    };
    let mut names = kept;
    if let Some(Pass { url, server }) = &direct {
        let block = format!("upstream {UPSTREAM} {{ server {server}; keepalive 64; }}");
        if !into_http(files, &[&block]) {
            return false;
        }
        edit(files, |_, _, directive| {
            if directive.name() != "proxy_pass" || directive.argument(1) != url {
                return Vec::new();
            }
            vec![(directive.span.clone(), format!("proxy_pass http://{UPSTREAM};"))]
        });
        names.push(UPSTREAM.to_owned());
    }
    let host = direct.as_ref().map(|pass| pass.host());
    let is_made = edit(files, |text, _, directive| {
        if directive.name() == "upstream" && names.iter().any(|name| name == directive.argument(1)) {
            let is_kept = directive.children().iter().any(|child| child.name() == "keepalive");
            // `keepalive` has to follow the balancing method.
            let last = directive.children().last().filter(|_| !is_kept);
            return last
                .map(|last| vec![(last.span.end..last.span.end, "\n        keepalive 64;".to_owned())])
                .unwrap_or_default();
        }
        let passes = directive.children().iter().find(|child| {
            child.name() == "proxy_pass" && names.iter().any(|name| is_to(child.argument(1), name))
        });
        let Some(pass) = passes else { return Vec::new() };
        let set = |name: &str| directive.children().iter().any(|child| child.name() == name);
        let header = |name: &str| {
            let is_it = |child: &Directive| {
                child.name() == "proxy_set_header" && child.argument(1).eq_ignore_ascii_case(name)
            };
            directive.children().iter().any(is_it)
        };
        let mut lines = Vec::new();
        if !set("proxy_http_version") {
            lines.push("proxy_http_version 1.1;".to_owned());
        }
        if !header("Connection") {
            lines.push("proxy_set_header Connection \"\";".to_owned());
        }
        // Otherwise the name of the upstream would be sent.
        if let Some(host) = host.as_ref().filter(|_| !header("Host")) {
            lines.push(format!("proxy_set_header Host {host};"));
        }
        let start = text[..pass.span.start].rfind('\n').map_or(0, |at| at + 1);
        let blanks =
            text[start..pass.span.start].trim_end_matches(|char: char| !char.is_whitespace()).to_owned();
        let blanks = if blanks.trim().is_empty() { blanks } else { " ".to_owned() };
        lines.iter().map(|line| (pass.span.end..pass.span.end, format!("\n{blanks}{line}"))).collect()
    });
    is_made || direct.is_some()
}

/// Upstreams without kept connections that requests are passed to, if setting a header there does not drop headers
/// inherited from an outer level.
fn named_upstreams(files: &Files) -> Vec<String> {
    let (mut found, mut is_inherited) = (Vec::new(), false);
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |within, directive| {
            let is_kept = directive.children().iter().any(|child| child.name() == "keepalive");
            if directive.name() == "upstream" && !is_kept && !directive.children().is_empty() {
                found.push(directive.argument(1).to_owned());
            }
            is_inherited |= directive.name() == "proxy_set_header" && !within.contains(&"location");
        });
    }
    if is_inherited { Vec::new() } else { found }
}

/// The one server that requests are passed to: `unix:PATH` or an address.
pub(super) fn upstream_server(files: &Files) -> Option<String> {
    if let Some(pass) = direct_pass(files) {
        return Some(pass.server);
    }
    let mut servers: Vec<String> = Vec::new();
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |within, directive| {
            if directive.name() == "server" && within.last() == Some(&"upstream") {
                servers.push(directive.argument(1).to_owned());
            }
        });
    }
    match servers.as_slice() {
        [server] => Some(server.clone()),
        _ => None,
    }
}

/// A `proxy_pass` whose URL contains the server.
struct Pass {
    url: String,
    server: String,
}

impl Pass {
    /// The Host that nginx would send.
    fn host(&self) -> String {
        if self.server.starts_with("unix:") { "localhost".to_owned() } else { self.server.clone() }
    }
}

/// The single server that requests are passed to by address, without a path.
fn direct_pass(files: &Files) -> Option<Pass> {
    let mut urls: Vec<String> = Vec::new();
    let mut is_inherited = false;
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |within, directive| {
            if directive.name() == "proxy_pass" && !urls.contains(&directive.argument(1).to_owned()) {
                urls.push(directive.argument(1).to_owned());
            }
            is_inherited |= directive.name() == "proxy_set_header" && !within.contains(&"location");
        });
    }
    let [url] = urls.as_slice() else { return None };
    let rest = url.strip_prefix("http://").filter(|rest| !rest.contains('$') && !is_inherited)?;
    let server = match rest.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", path.strip_suffix(':').filter(|path| !path.contains(':'))?),
        None if rest.contains('/') || has_upstream(files, rest) => return None,
        None => rest.to_owned(),
    };
    Some(Pass { url: url.clone(), server })
}

fn has_upstream(files: &Files, name: &str) -> bool {
    let mut is_there = false;
    for file in &files.0 {
        walk(&parse(&file.text).unwrap_or_default(), &mut Vec::new(), &mut |_, directive| {
            is_there |= directive.name() == "upstream" && directive.argument(1) == name;
        });
    }
    is_there
}

/// Whether a URL names this upstream.
fn is_to(url: &str, name: &str) -> bool {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    rest.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts { cpus: 4, cache_time: Some(std::time::Duration::from_secs(60)) };

    fn files(text: &str) -> Files {
        Files(vec![File { path: "/etc/nginx/nginx.conf".into(), text: text.to_owned(), included: None }])
    }

    fn made(text: &str, name: &str) -> Option<String> {
        let mut files = files(text);
        let edit = EDITS.iter().find(|edit| edit.name == name).unwrap();
        let is_made = (edit.make)(&mut files, &FACTS);
        assert!(parse(files.main()).is_some(), "{}", files.main());
        assert_eq!(is_made, files.main() != text, "{name}");
        assert!(!(edit.make)(&mut files, &FACTS), "{name} is made once: {}", files.main());
        is_made.then(|| files.main().to_owned())
    }

    const PLAIN: &str = "# ours\nevents {}\nhttp {\n    access_log a.log;\n    server {\n        listen 80;\n        listen [::]:80;\n        \
                         location / {\n            proxy_pass http://unix:app.sock:;\n            proxy_set_header Host $host;\n        \
                         }\n    }\n}\n";

    #[test]
    fn each_edit_is_made_where_it_is_missing() {
        for (name, expected) in [
            ("worker-processes", "# ours\nworker_processes auto;\nevents {}"),
            ("upstream-keepalive", "upstream flatout_upstream { server unix:app.sock; keepalive 64; }"),
            (
                "upstream-keepalive",
                "proxy_pass http://flatout_upstream;\n            proxy_http_version 1.1;\n            proxy_set_header Connection \"\";\n            proxy_set_header Host $host;",
            ),
            ("access-log-buffer", "access_log a.log combined buffer=256k flush=10s;"),
            ("reuseport", "listen 80 reuseport;\n        listen [::]:80 reuseport;"),
            ("keepalive-requests", "http {\n    keepalive_requests 100000;\n    access_log"),
            ("backlog", "listen 80 backlog=4096;"),
            ("response-cache", "proxy_cache_valid 200 60s;"),
            ("response-cache", "proxy_no_cache $http_cookie $http_authorization;"),
            ("compression", "gzip_proxied any;"),
        ] {
            let text = made(PLAIN, name).unwrap();
            assert!(text.contains(expected), "{name}: {text}");
        }
        assert_eq!(
            (made(PLAIN, "sendfile"), made(PLAIN, "open-file-cache")),
            (None, None),
            "it serves no files"
        );
        let with_files = PLAIN.replace("location / {", "root /srv; location / {");
        assert!(made(&with_files, "sendfile").unwrap().contains("    sendfile on;\n    tcp_nopush on;\n"));
        assert!(made(&with_files, "open-file-cache").unwrap().contains("open_file_cache max=10000"));
    }

    /// Fragments of the syntax in any order: whatever parses as a configuration is edited into one that parses.
    #[test]
    fn any_text_is_survived() {
        const PIECES: [&str; 24] = [
            "http",
            "server",
            "location",
            "listen",
            " ",
            "\n",
            ";",
            "{",
            "}",
            "\"",
            "'",
            "\\",
            "#",
            "${",
            "$",
            "é",
            "80",
            "proxy_pass http://a",
            "upstream",
            "access_log a",
            "root /",
            "include x",
            "events",
            "=",
        ];
        let mut random = flatout_trial::Random::new(17);
        let mut read = 0;
        for _ in 0..20_000 {
            let count = random.below(30);
            let text: String =
                (0..count).map(|_| PIECES[random.below(PIECES.len() as u64) as usize]).collect();
            let is_whole = parse(&text).is_some();
            read += usize::from(is_whole);
            for edit in EDITS {
                let mut files = files(&text);
                (edit.make)(&mut files, &FACTS);
                assert_eq!(
                    parse(files.main()).is_some(),
                    is_whole,
                    "{}: {text:?} {:?}",
                    edit.name,
                    files.main()
                );
            }
        }
        assert!(read > 100, "{read}");
    }

    #[test]
    fn the_one_server_behind_is_known() {
        assert_eq!(upstream_server(&files(PLAIN)).as_deref(), Some("unix:app.sock"));
        let with = |servers: &str| {
            let text = "events {}\nhttp { upstream app { SERVERS } server { location / { proxy_pass http://app; } } }\n";
            upstream_server(&files(&text.replace("SERVERS", servers)))
        };
        assert_eq!(
            with("server 127.0.0.1:3000 max_fails=2; keepalive 3;").as_deref(),
            Some("127.0.0.1:3000")
        );
        assert_eq!(with("server a; server b;"), None);
    }

    #[test]
    fn existing_settings_are_not_changed() {
        let set = "worker_processes 8;\nevents {}\nhttp { gzip off; proxy_cache a; sendfile off; root /a; keepalive_requests 1000000; open_file_cache off;\n access_log \
                   /var/log/$host.log; access_log syslog:server=a; access_log off; access_log b main buffer=1k;\n upstream u { server a; \
                   keepalive 2; }\n server { listen 80 reuseport backlog=10; location / { proxy_pass http://u; } }\n server { listen 80; \
                   listen unix:/a; } }\n";
        for edit in EDITS {
            assert_eq!(made(set, edit.name), None, "{}", edit.name);
        }
    }

    #[test]
    fn an_upstream_is_kept_and_headers_are_not_lost() {
        let with = |above: &str, here: &str| {
            format!(
                "events {{}}\nhttp {{\n    upstream app {{\n        server a:1;\n    }}\n    {above}\n    server {{\n        location / {{\n            proxy_pass http://app/x;\n            {here}\n        }}\n    }}\n}}\n"
            )
        };
        let text = made(&with("", ""), "upstream-keepalive").unwrap();
        assert!(
            text.contains("server a:1;\n        keepalive 64;")
                && text.contains("proxy_set_header Connection \"\";"),
            "{text}"
        );
        assert!(!text.contains("Host"), "the upstream's name was sent before too: {text}");
        assert_eq!(made(&with("proxy_set_header Host $host;", ""), "upstream-keepalive"), None);
        let text = made(&with("", "proxy_http_version 1.1;"), "upstream-keepalive").unwrap();
        assert_eq!(text.matches("proxy_http_version").count(), 1);
        let direct = PLAIN
            .replace("unix:app.sock:", "127.0.0.1:3000")
            .replace("            proxy_set_header Host $host;\n", "");
        let text = made(&direct, "upstream-keepalive").unwrap();
        assert!(
            text.contains("server 127.0.0.1:3000;") && text.contains("proxy_set_header Host 127.0.0.1:3000;"),
            "{text}"
        );
        for url in ["http://127.0.0.1:3000/path", "https://a", "http://$backend"] {
            assert_eq!(
                made(&PLAIN.replace("http://unix:app.sock:", url), "upstream-keepalive"),
                None,
                "{url}"
            );
        }
    }
}
