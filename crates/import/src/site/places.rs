//! Names of files and sockets as nginx reads them, and variables that a server sets in place of a table.

use std::path::Path;

use crate::nginx::{Directive, Word};

use super::values;

/// Directives whose files are relative to the folder of the configuration.
const FILES: [&str; 7] = [
    "auth_basic_user_file",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_client_certificate",
    "ssl_crl",
    "ssl_password_file",
    "ssl_trusted_certificate",
];

/// What the names of the same directives for upstreams begin with.
const FAMILIES: [&str; 3] = ["grpc_", "proxy_", "uwsgi_"];

/// Folders that nginx is built with, for names that are relative to it; the first one that has its pages is taken.
const PREFIXES: [&str; 3] = ["/usr/share/nginx", "/usr/local/nginx", "/etc/nginx"];

/// The same configuration with absolute names of these files, if its own folder is known, and with such variables renamed.
pub(super) fn absolute(main: &[Directive]) -> Vec<Directive> {
    let mut main = main.to_vec();
    let http = main.iter().find(|directive| directive.name == "http");
    let file = http.map(|http| Path::new(&*http.file).to_owned()).filter(|file| file.is_absolute());
    let folder = file.as_deref().and_then(Path::parent);
    let prefix = PREFIXES.iter().map(Path::new).find(|prefix| prefix.join("html").is_dir());
    let prefix = prefix.filter(|_| folder.is_some());
    main.iter_mut().for_each(|directive| name_files(directive, folder, prefix));
    for http in main.iter_mut().filter(|directive| directive.name == "http") {
        rename_shadows(http.block.as_deref_mut().unwrap_or_default());
    }
    main
}

fn name_files(directive: &mut Directive, folder: Option<&Path>, prefix: Option<&Path>) {
    let is_address = directive.name == "server" || directive.name.ends_with("_pass");
    if let Some(word) = directive.words.first_mut() {
        let is_name = !word.text.starts_with('/')
            && !["off", ""].contains(&word.text.as_str())
            && !word.text.contains(['$', ':']);
        let of_upstream = FAMILIES.iter().find_map(|family| directive.name.strip_prefix(family));
        let names_file = FILES.contains(&of_upstream.unwrap_or(&directive.name));
        if let Some(folder) = folder.filter(|_| is_name && names_file) {
            word.text = folder.join(&word.text).display().to_string();
        }
        if let Some(prefix) = prefix.filter(|_| is_name && ["root", "alias"].contains(&&*directive.name)) {
            word.text = prefix.join(&word.text).display().to_string();
        }
        // `unix:///run/x.sock`.
        while is_address && word.text.contains("unix://") {
            word.text = word.text.replacen("unix://", "unix:/", 1);
        }
    }
    let Some(block) = &mut directive.block else { return };
    block.iter_mut().for_each(|inner| name_files(inner, folder, prefix));
    // nginx's default.
    if let Some(prefix) = prefix
        && directive.name == "http"
        && !block.iter().any(|inner| inner.name == "root")
    {
        let text = prefix.join("html").display().to_string();
        let word = Word { text, is_quoted: false };
        let (file, line) = (directive.file.clone(), directive.line);
        block.push(Directive {
            name: "root".to_owned(),
            words: vec![word],
            block: None,
            comments: Vec::new(),
            file,
            line,
        });
    }
}

/// The directives that define a variable as a table, which is their last word.
const TABLES: [&str; 3] = ["map", "geo", "split_clients"];

/// A variable of `set` with the name of a table has a name of its own in its server, if it never has the table's value there, and
/// nothing outside of servers depends on it.
fn rename_shadows(http: &mut [Directive]) {
    let tables: Vec<String> = http
        .iter()
        .filter(|it| TABLES.contains(&&*it.name))
        .filter_map(|table| table.texts().last().map(|name| name.trim_start_matches('$').to_owned()))
        .collect();
    let mut outside = Vec::new();
    for directive in http.iter().filter(|it| it.name != "server") {
        let words = directive.words.len() - usize::from(TABLES.contains(&&*directive.name));
        outside.extend(directive.texts().into_iter().take(words).map(str::to_owned));
        directive.inner().iter().for_each(|inner| words_of(inner, &mut outside));
    }
    for server in http.iter_mut().filter(|directive| directive.name == "server") {
        for name in tables.iter().filter(|name| !outside.iter().any(|text| uses(text, name))) {
            if begins_with_set(server.inner(), name) {
                rename(server, name, &format!("{name}_of_server"));
            }
        }
    }
}

fn words_of(directive: &Directive, found: &mut Vec<String>) {
    found.extend(directive.texts().into_iter().map(str::to_owned));
    directive.inner().iter().for_each(|inner| words_of(inner, found));
}

fn uses(text: &str, name: &str) -> bool {
    values::variables(text).contains(&name)
}

/// Whether all requests of a server set this variable before anything depends on it. Until then, it has the value of its table.
fn begins_with_set(server: &[Directive], name: &str) -> bool {
    let is_rule = |it: &&Directive| {
        ["set", "if", "rewrite", "return", "break"].contains(&&*it.name) || it.name.contains("_by_lua")
    };
    for rule in server.iter().filter(is_rule) {
        if rule.name != "set" || uses(rule.word(1), name) {
            return false;
        }
        if rule.word(0).trim_start_matches('$') == name {
            return true;
        }
    }
    false
}

fn rename(directive: &mut Directive, name: &str, to: &str) {
    for word in &mut directive.words {
        let is_whole =
            |rest: &str| !rest.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
        let mut text = word.text.replace(&format!("${{{name}}}"), &format!("${{{to}}}"));
        let plain = format!("${name}");
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.find(&plain)).map(|at| at + from) {
            let end = at + plain.len();
            if text.get(end..).is_some_and(is_whole) {
                text.replace_range(at..end, &format!("${to}"));
            }
            from = end;
        }
        word.text = text;
    }
    directive.block.iter_mut().flatten().for_each(|inner| rename(inner, name, to));
}

#[cfg(test)]
mod tests {
    use flatout_config::Source;

    use super::super::written::imported;
    use crate::nginx::{FILE, parse};

    #[test]
    fn sockets_may_have_more_slashes() {
        let text = "http { server { listen 80; location / { uwsgi_pass unix:///run/app.sock; } } }";
        let site = imported(text).text;
        assert!(site.contains("server \"unix:/run/app.sock\""), "{site}");
    }

    #[test]
    fn files_for_upstreams_are_relative_to_the_folder_of_the_configuration() {
        let names =
            ["ssl_certificate", "proxy_ssl_crl", "grpc_ssl_password_file", "uwsgi_ssl_certificate_key"];
        for name in names {
            let source =
                Source::new("/etc/a/b.conf", format!("http {{ {name} x.pem; }}").into_bytes(), &FILE);
            let parsed = parse(&source.unwrap(), "/etc/a/b.conf").unwrap();
            assert_eq!(super::absolute(&parsed)[0].inner()[0].word(0), "/etc/a/x.pem", "{name}");
        }
    }

    #[test]
    fn a_set_variable_is_not_a_table_of_the_same_name() {
        let text = "http { map $host $kind { default a; b.test b; } \
                    server { listen 80; server_name a.test; set $kind c; if ($arg_x) { set $kind d; } return 200 \"$kind ${kind}s $kinds\"; } \
                    server { listen 80; server_name b.test; return 200 $kind; } }";
        let text = imported(text).text;
        assert!(text.contains("map kind \"$host\"") && text.contains("respond 200 \"$kind\""), "{text}");
        assert!(
            text.contains("set \"kind_of_server\" \"c\"") && text.contains("${kind_of_server}s"),
            "{text}"
        );
    }

    #[test]
    fn a_variable_has_the_value_of_its_table_until_it_is_set() {
        let table = "map $remote_addr $block { default 1; 10.0.0.1 0; }";
        let refuses = "if ($block) { return 403; } root /r;";
        for (outside, server) in [
            ("", format!("if ($arg_debug) {{ set $block 0; }} {refuses}")),
            ("", format!("if ($arg_debug) {{ break; }} set $block 0; {refuses}")),
            ("", format!("set $block \"$block\"; {refuses}")),
            ("", format!("set $x $block; set $block 0; {refuses}")),
            ("", format!("location /a {{ root /r; set $block 0; }} location /b {{ {refuses} }}")),
            ("limit_req_zone $host$block zone=z:1m rate=1r/s;", format!("set $block 0; {refuses}")),
            ("log_format l a $block;", format!("set $block 0; {refuses}")),
            ("upstream u { hash a$block; server a:1; }", format!("set $block 0; {refuses}")),
        ] {
            let text =
                imported(&format!("http {{ {table} {outside} server {{ listen 80; {server} }} }}")).text;
            assert!(!text.contains("block_of_server"), "{text}");
            let is_refused = text.contains("respond 403") || text.contains("respond 501");
            assert!(is_refused, "{text}");
        }
        let server = format!("set $x 1; set $block 0; {refuses}");
        let text = imported(&format!("http {{ {table} server {{ listen 80; {server} }} }}")).text;
        assert!(text.contains("block_of_server"), "{text}");
    }
}
