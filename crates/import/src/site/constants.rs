//! Variables with one value in their place: they are replaced by it, so that the site file has texts in place of variables.
//!
//! These are `$server_name`, `$server_port` and `$server_addr` of a server, `$document_root` of a block, in places where upstreams
//! and folders are named, and in rates, what `set` gave to a variable, and fields of an auth service that `auth_request_set` gave to one.

use crate::nginx::{Directive, Word};

use super::values;

/// Directives in which the variables of `set` are replaced.
const PLACES: [&str; 9] = [
    "proxy_pass",
    "grpc_pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "root",
    "alias",
    "limit_rate",
    "limit_rate_after",
];

/// Names and values. The last one of a name applies.
type Known = Vec<(String, String)>;

/// The same configuration with these variables replaced, and the servers that were named by variables: nginx looks up their names while it
/// runs.
pub(super) fn replaced(main: &[Directive]) -> (Vec<Directive>, Vec<String>) {
    let mut main = main.to_vec();
    let mut named = Vec::new();
    for http in main.iter_mut().filter(|directive| directive.name == "http") {
        let Some(block) = &mut http.block else { continue };
        let of_auth = auth_fields(block);
        replace_auth_fields(block, &of_auth);
        let root = root_of(block);
        let http_redirects = block.iter().any(|it| it.name == "proxy_redirect");
        for server in block.iter_mut().filter(|directive| directive.name == "server") {
            if let Some(inner) = &mut server.block {
                settle_folders(inner);
                let mut fixed = of_server(inner);
                fixed.extend(root.clone());
                let once: Vec<String> = sets(inner, true).into_iter().map(|(name, _)| name).collect();
                let outer: Known =
                    constants(inner).into_iter().filter(|(name, _)| is_single(&once, name)).collect();
                replace(inner, &fixed, &outer, http_redirects, &mut named);
                name_script_parts(inner);
            }
        }
    }
    (main, named)
}

/// `set $root /a; if (!-d /a) { set $root /b; }`: where a server begins, this chooses the folder that is on its machine. It is chosen now.
fn settle_folders(block: &mut Vec<Directive>) {
    let names: Vec<String> = sets(block, false).into_iter().map(|(name, _)| name).collect();
    let Some(at) = block.iter().position(|directive| settled(directive).is_some()) else { return };
    let Some((is_true, name, value)) = settled(&block[at]) else { return };
    let is_set = |directive: &Directive| directive.name == "set" && directive.word(0) == name;
    let is_twice = names.iter().filter(|other| *other == name.trim_start_matches('$')).count() == 2;
    let Some(set) = block[..at].iter_mut().find(|directive| is_set(directive)).filter(|_| is_twice) else {
        return;
    };
    let chosen = if is_true { value } else { set.word(1).to_owned() };
    // A folder that is not there would keep the server from starting.
    if !std::path::Path::new(&chosen).is_dir() {
        return;
    }
    if let Some(word) = set.words.get_mut(1) {
        word.text = chosen;
    }
    block.remove(at);
}

/// Whether the condition of an `if` about a folder is true, the variable that it sets, and the value.
fn settled(directive: &Directive) -> Option<(bool, String, String)> {
    let condition = directive.texts().join(" ");
    let (operator, folder) = condition.trim_matches(['(', ')']).trim().split_once(' ')?;
    let [set] = directive.inner() else { return None };
    let is_plain = !folder.contains('$') && !set.word(1).contains('$');
    if directive.name != "if" || set.name != "set" || set.words.len() != 2 || !is_plain {
        return None;
    }
    let is_there = std::path::Path::new(folder.trim()).is_dir();
    let is_true = match operator {
        "-d" => is_there,
        "!-d" => !is_there,
        _ => return None,
    };
    Some((is_true, set.word(0).to_owned(), set.word(1).to_owned()))
}

/// The server that a directive such as `proxy_pass` names.
pub(super) fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

/// Parts of a path that only parameters of FastCGI have.
const SCRIPT_PARTS: [&str; 2] = ["$fastcgi_path_info", "$fastcgi_script_name"];

/// `set $path_info $fastcgi_path_info`, which keeps the part from being lost by `try_files`: parameters get the part itself, and
/// the `set` is removed if nothing else needs it.
fn name_script_parts(block: &mut Vec<Directive>) {
    block.iter_mut().filter_map(|directive| directive.block.as_mut()).for_each(name_script_parts);
    let names: Vec<String> = sets(block, false).into_iter().map(|(name, _)| name).collect();
    let mut parts = Known::new();
    for directive in block.iter().filter(|it| it.name == "set" && SCRIPT_PARTS.contains(&it.word(1))) {
        let name = directive.word(0).trim_start_matches('$');
        if is_single(&names, name) {
            // Its value stays when `try_files` makes the script the whole path.
            let kept = directive.word(1).replace("$fastcgi_path_info", "$path_info");
            parts.push((name.to_owned(), kept));
        }
    }
    if parts.is_empty() {
        return;
    }
    for directive in block.iter_mut().filter(|directive| directive.name == "fastcgi_param") {
        directive.words.iter_mut().for_each(|word| word.text = substituted(&word.text, &parts));
    }
    let is_needed = |name: &str| {
        let mut others = block.iter().filter(|it| !["set", "fastcgi_param"].contains(&&*it.name));
        others.any(|directive| is_used(directive, name))
    };
    parts.retain(|(name, _)| !is_needed(name));
    let is_unused = |directive: &Directive| {
        let name = directive.word(0).trim_start_matches('$');
        directive.name == "set" && parts.iter().any(|(known, _)| known == name)
    };
    block.retain(|directive| !is_unused(directive));
}

/// Whether a directive, or one inside it, has this variable.
pub(super) fn is_used(directive: &Directive, name: &str) -> bool {
    directive.texts().iter().any(|text| values::variables(text).contains(&name))
        || directive.inner().iter().any(|inner| is_used(inner, name))
}

fn is_single(names: &[String], name: &str) -> bool {
    names.iter().filter(|other| *other == name).count() == 1
}

/// The name, the port and the address of a server, where there is one of each.
fn of_server(server: &[Directive]) -> Known {
    let mut known = Known::new();
    let name = server.iter().find(|directive| directive.name == "server_name").map_or("", |it| it.word(0));
    if !name.contains('$') {
        known.push(("server_name".to_owned(), name.strip_prefix('.').unwrap_or(name).to_owned()));
    }
    let parts = listens(server);
    let Some((address, port)) = parts.first() else { return known };
    if parts.iter().all(|(_, other)| other == port) && port.parse::<u16>().is_ok() {
        known.push(("server_port".to_owned(), port.clone()));
    }
    let ip = address.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    if let Ok(ip) = ip
        && !ip.is_unspecified()
        && parts.iter().all(|(other, _)| other == address)
    {
        known.push(("server_addr".to_owned(), ip.to_string()));
    }
    known
}

/// Whether none of a server's listeners has several addresses, so that it is known which one a connection was made to.
pub(super) fn has_single_addresses(server: &[Directive]) -> bool {
    let single = |address: &str| {
        let ip = address.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        ip.is_ok_and(|ip| !ip.is_unspecified())
    };
    let listens = listens(server);
    !listens.is_empty() && listens.iter().all(|(address, _)| single(address))
}

/// The addresses and ports of a server; none if it has a Unix socket.
fn listens(server: &[Directive]) -> Vec<(String, String)> {
    let listens = server.iter().filter(|directive| directive.name == "listen").map(|it| it.word(0));
    if listens.clone().any(|text| text.starts_with("unix:")) {
        return Vec::new();
    }
    let parts = |text: &str| match text.rsplit_once(':') {
        Some((address, port)) if !port.ends_with(']') => (address.to_owned(), port.to_owned()),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => (String::new(), text.to_owned()),
        _ => (text.to_owned(), "80".to_owned()),
    };
    listens.map(parts).collect()
}

/// Whether none of a server's ports is one that URLs leave out.
pub(super) fn has_only_unusual_ports(server: &[Directive]) -> bool {
    let listens = listens(server);
    !listens.is_empty() && !listens.iter().any(|(_, port)| ["80", "443"].contains(&port.as_str()))
}

/// The variables to which `auth_request_set` gives a field of the auth service's response, the same one in all places.
fn auth_fields(http: &[Directive]) -> Known {
    let mut all = Known::new();
    collect_auth_sets(http, &mut all);
    let is_same = |name: &str, value: &str| {
        let mut others = all.iter().filter(|(other, _)| other == name);
        others.all(|(_, other)| other == value)
    };
    let of_field = |(name, value): &(String, String)| {
        let field = value.strip_prefix("$upstream_http_")?;
        let is_name = field.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (is_name && !field.is_empty() && is_same(name, value))
            .then(|| (name.clone(), format!("$auth_http_{field}")))
    };
    all.iter().filter_map(of_field).collect()
}

fn collect_auth_sets(block: &[Directive], all: &mut Known) {
    for directive in block {
        match directive.name.as_str() {
            "auth_request_set" | "set" => {
                all.push((
                    directive.word(0).trim_start_matches('$').to_owned(),
                    directive.word(1).to_owned(),
                ));
            }
            _ => {}
        }
        collect_auth_sets(directive.inner(), all);
    }
}

fn replace_auth_fields(block: &mut [Directive], known: &Known) {
    if known.is_empty() {
        return;
    }
    for directive in block {
        let is_set = directive.name == "auth_request_set";
        let name = directive.word(0).trim_start_matches('$').to_owned();
        match known.iter().find(|(this, _)| is_set && *this == name) {
            // This is what marks it as converted.
            Some((_, field)) => {
                directive.words.iter_mut().skip(1).for_each(|word| word.text.clone_from(field))
            }
            None => {
                for word in &mut directive.words {
                    word.text = substituted(&word.text, known);
                }
            }
        }
        if let Some(inner) = &mut directive.block {
            replace_auth_fields(inner, known);
        }
    }
}

/// `$proxy_host` and `$proxy_port` where requests go to one place.
fn of_pass(block: &[Directive]) -> Known {
    let pass = block.iter().find(|directive| directive.name == "proxy_pass").map_or("", |it| it.word(0));
    let Some((scheme, rest)) = pass.split_once("://").filter(|_| !pass.contains('$')) else {
        return Known::new();
    };
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || host.starts_with("unix:") {
        return Known::new();
    }
    let usual = if scheme == "https" { "443" } else { "80" };
    let port = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let port = port.map_or(usual, |(_, port)| port);
    let host = super::proxy::host_field(host, scheme == "https");
    vec![("proxy_host".to_owned(), host.to_owned()), ("proxy_port".to_owned(), port.to_owned())]
}

/// A text with the name, the port and the address of a server.
pub(super) fn of_server_in(text: &str, server: &[Directive]) -> String {
    substituted(text, &of_server(server))
}

/// The port of a server, if it has one.
pub(super) fn port(server: &[Directive]) -> Option<String> {
    of_server(server).into_iter().find(|(name, _)| name == "server_port").map(|(_, port)| port)
}

/// `$document_root` where `root` is a plain folder.
fn root_of(block: &[Directive]) -> Option<(String, String)> {
    let root = block.iter().rev().find(|directive| directive.name == "root")?;
    Some(("document_root".to_owned(), root.word(0).to_owned())).filter(|(_, value)| !value.contains('$'))
}

/// The variables that `set` makes in a block; with inner blocks if `is_deep`.
fn sets(block: &[Directive], is_deep: bool) -> Known {
    let mut found = Known::new();
    for directive in block {
        if directive.name == "set" {
            found.push((directive.word(0).trim_start_matches('$').to_owned(), directive.word(1).to_owned()));
        }
        if is_deep || directive.name == "if" {
            found.extend(sets(directive.inner(), is_deep));
        }
    }
    found
}

/// Those of the block's own that are set once, to a text without variables.
fn constants(block: &[Directive]) -> Known {
    let all: Vec<String> = sets(block, false).into_iter().map(|(name, _)| name).collect();
    let own = block
        .iter()
        .filter(|directive| directive.name == "set")
        .map(|set| (set.word(0).trim_start_matches('$').to_owned(), set.word(1).to_owned()));
    own.filter(|(name, value)| is_single(&all, name) && !value.contains('$')).collect()
}

/// Replaces in a block: `fixed` everywhere, `outer` and the block's own constants in [`PLACES`].
fn replace(
    block: &mut Vec<Directive>,
    fixed: &Known,
    outer: &Known,
    has_redirect: bool,
    named: &mut Vec<String>,
) {
    let has_redirect = has_redirect || block.iter().any(|it| it.name == "proxy_redirect");
    let mut fixed = fixed.clone();
    if block.iter().any(|directive| directive.name == "alias" || directive.name == "root") {
        fixed.retain(|(name, _)| name != "document_root");
        fixed.extend(root_of(block).filter(|_| !block.iter().any(|directive| directive.name == "alias")));
    }
    fixed.extend(of_pass(block));
    let shadowed = sets(block, false);
    let mut here: Known =
        outer.iter().filter(|(name, _)| shadowed.iter().all(|(other, _)| other != name)).cloned().collect();
    here.extend(constants(block));
    let (mut whole, mut unchanged) = (None, None);
    for (at, directive) in block.iter_mut().enumerate() {
        // An `if` needs a variable, and keys are the same for all servers.
        if directive.name != "if" && directive.name != "set" {
            let had_variables = directive.word(0).contains('$');
            let names_server =
                directive.name.ends_with("_pass") && authority(directive.word(0)).contains('$');
            let is_place = PLACES.contains(&directive.name.as_str()) || is_host(directive);
            for word in &mut directive.words {
                word.text = substituted(&word.text, &fixed);
                if is_place {
                    word.text = substituted(&word.text, &here);
                }
            }
            if names_server && !directive.word(0).contains('$') {
                named.push(authority(directive.word(0)).to_owned());
            }
            if names_server && directive.name == "proxy_pass" && !directive.word(0).contains('$') {
                unchanged = Some(directive.clone()).filter(|_| !has_redirect);
            }
            if had_variables && directive.name == "proxy_pass" && !directive.word(0).contains('$') {
                whole = Some(at);
            }
        }
        if let Some(inner) = &mut directive.block {
            // An `if` has what its location has set.
            let outer = if directive.name == "if" { &here } else { outer };
            replace(inner, &fixed, outer, has_redirect, named);
        }
    }
    if let Some(at) = whole {
        rewrite_whole(block, at);
    }
    block.extend(unchanged.as_ref().map(no_redirects));
}

/// Behind a variable, nginx changes no redirects by default.
pub(super) fn no_redirects(pass: &Directive) -> Directive {
    let off = Word { text: "off".to_owned(), is_quoted: false };
    let name = "proxy_redirect".to_owned();
    Directive { name, words: vec![off], comments: Vec::new(), block: None, ..pass.clone() }
}

/// The path of a `proxy_pass` with variables replaces the whole path and query, not only that of its location: it becomes a `rewrite`.
fn rewrite_whole(block: &mut Vec<Directive>, at: usize) {
    let rewrites = || block.iter().enumerate().filter(|(_, directive)| directive.name == "rewrite");
    // What those with `break` make of the path is not in the URL.
    let ends = |rewrite: &Directive| rewrite.word(2) == "break" && rewrite.word(1).starts_with(['/', '$']);
    let has_rewrite = rewrites().any(|(_, rewrite)| !ends(rewrite));
    let first = rewrites().map(|(first, _)| first).next().unwrap_or(at).min(at);
    let pass = &mut block[at];
    let Some((scheme, rest)) = pass.word(0).split_once("://") else { return };
    let Some((authority, path)) = rest.split_once('/').filter(|_| !rest.starts_with("unix:") && !has_rewrite)
    else {
        return;
    };
    let (url, path) = (format!("{scheme}://{authority}"), format!("/{path}?"));
    let mut rewrite = pass.clone();
    pass.words[0].text = url;
    rewrite.name = "rewrite".to_owned();
    rewrite.comments.clear();
    rewrite.words = ["^", &path, "break"].map(|text| Word { text: text.to_owned(), is_quoted: false }).into();
    block.insert(first, rewrite);
}

/// Whether it sets the Host of requests to an upstream.
fn is_host(directive: &Directive) -> bool {
    directive.name == "proxy_set_header" && directive.word(0).eq_ignore_ascii_case("host")
}

/// A text with the values of these variables.
fn substituted(text: &str, known: &Known) -> String {
    if !text.contains('$') {
        return text.to_owned();
    }
    let mut out = text.to_owned();
    let mut names = values::variables(text);
    // The longest first: a name may be the beginning of another.
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in names {
        if let Some((_, value)) = known.iter().rev().find(|(other, _)| other == name) {
            out = out.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
        }
    }
    out
}
