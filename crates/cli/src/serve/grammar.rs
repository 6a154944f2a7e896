//! Builds the grammar of site files from the table.

use flatout_config::{Grammar, Scope, SiteWord};

use super::blocks::{BLOCKS, ROUTE, SCOPES, SITE, TOP, UPSTREAM, WHEN};
use super::setting::{Key, ServeSetting, SettingScope};
use super::settings::all;

/// The grammar of site files.
pub(super) fn grammar() -> Grammar<'static> {
    let scopes =
        SCOPES.iter().enumerate().map(|(scope, (_, name))| Scope { name, words: words(scope) }).collect();
    Grammar {
        scopes,
        elsewhere: ELSEWHERE,
        manual: "docs/site-file.md lists all settings; see also flatout help serve",
    }
}

/// Settings that a `when` may contain: those of which several can apply to a request.
const UNDER_CONDITIONS: [&str; 14] = [
    "allow",
    "deny",
    "expires",
    "log-requests",
    "rate-limit",
    "request-limit",
    "request-header",
    "response-header",
    "response-trailer",
    "rewrite",
    "rewrite-prefix",
    "cache",
    "cache-bypass",
    "cache-no-store",
];

/// The scopes that allow a setting.
pub(super) fn scopes_of(setting: &ServeSetting) -> &'static [usize] {
    match setting.stands {
        SettingScope::Top => &[TOP],
        SettingScope::Site => &[TOP, SITE],
        SettingScope::Route if UNDER_CONDITIONS.contains(&setting.name) => &[TOP, SITE, ROUTE, WHEN],
        SettingScope::Route => &[TOP, SITE, ROUTE],
        SettingScope::Upstream => &[TOP, UPSTREAM],
    }
}

fn words(scope: usize) -> Vec<SiteWord<'static>> {
    let keys = |keys: &'static [Key]| keys.iter().map(|key| (key.name, key.value)).collect();
    let blocks = BLOCKS.iter().filter(|block| block.within.contains(&scope)).map(|block| SiteWord {
        name: block.name,
        values: block.value,
        keys: keys(block.keys),
        braces: block.braces,
        is_list: block.is_list,
    });
    let settings = all().filter(|setting| scopes_of(setting).contains(&scope)).map(|setting| SiteWord {
        name: setting.name,
        values: setting.value,
        keys: keys(setting.keys),
        braces: None,
        is_list: setting.is_list,
    });
    blocks.chain(settings).collect()
}

/// Words of nginx, Caddy, HAProxy and Traefik that have another name here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("if", "when"),
    ("geo", "map"),
    ("split_clients", "map"),
    ("location", "route"),
    ("handle", "route"),
    ("server", "site"),
    ("server_name", "site"),
    ("host", "site"),
    ("root", "files"),
    ("alias", "files"),
    ("file_server", "files"),
    ("proxy_pass", "proxy"),
    ("reverse_proxy", "proxy"),
    ("return", "respond"),
    ("stub_status", "stub-status"),
    ("redir", "redirect"),
    ("worker_processes", "workers"),
    ("threads", "workers"),
    ("keepalive_timeout", "idle-time"),
    ("keepalive", "pool"),
    ("client_max_body_size", "body-bytes"),
    ("gzip", "compress"),
    ("encode", "compress"),
    ("autoindex", "listing"),
    ("proxy_redirect", "proxy-redirect"),
    ("proxy_cookie_domain", "proxy-cookie-domain"),
    ("proxy_cookie_path", "proxy-cookie-path"),
    ("proxy_cookie_flags", "proxy-cookie-flags"),
    ("add_header", "response-header"),
    ("add_trailer", "response-trailer"),
    ("header", "response-header"),
    ("proxy_set_header", "request-header"),
    ("header_up", "request-header"),
    ("access_log", "access-log"),
    ("log", "access-log"),
    ("error_page", "error-page"),
    ("limit_req", "rate-limit"),
    ("limit_conn", "request-limit"),
    ("auth_basic", "basic-auth"),
    ("auth_request", "forward-auth"),
    ("try_files", "try-files"),
    ("set_real_ip_from", "trusted-proxies"),
    ("real_ip_header", "client-address"),
    ("proxy_connect_timeout", "connect-time"),
    ("proxy_read_timeout", "read-time"),
    ("proxy_send_timeout", "send-time"),
    ("least_conn", "balance"),
    ("ip_hash", "balance"),
    ("lb_policy", "balance"),
    ("bind", "listen"),
];
