//! The blocks of a site file, what they may contain, and the actions.

use super::setting::{KEY, Key};

/// The scopes of a site file, as indices into the grammar.
pub(super) const TOP: usize = 0;
pub(super) const SITE: usize = 1;
pub(super) const ROUTE: usize = 2;
pub(super) const UPSTREAM: usize = 3;
pub(super) const MAP: usize = 4;
pub(super) const WHEN: usize = 5;

/// The names of the scopes, in this order, and how to refer to them in a sentence.
pub(super) const SCOPES: [(&str, &str); 6] = [
    ("top", "at the top of the file"),
    ("site", "in a site"),
    ("route", "in a route"),
    ("upstream", "in an upstream"),
    ("map", "in a map"),
    ("when", "in a when"),
];

/// A word that is not a setting.
pub(super) struct Block {
    pub(super) name: &'static str,
    pub(super) value: &'static str,
    pub(super) keys: &'static [Key],
    pub(super) help: &'static str,
    /// The scopes that allow it.
    pub(super) within: &'static [usize],
    /// The scope of its braces.
    pub(super) braces: Option<usize>,
    pub(super) is_list: bool,
}

const WORD: Block =
    Block { name: "", value: "", keys: &[], help: "", within: &[], braces: None, is_list: true };

/// Words that handle requests: at most one per level.
pub(super) const ACTIONS: [&str; 8] =
    ["files", "proxy", "push", "redirect", "respond", "reroute", "stub-status", "close"];

const ANSWERING: &[usize] = &[TOP, SITE, ROUTE, WHEN];

const LEVELS: &[usize] = ANSWERING;

pub(super) const BLOCKS: &[Block] = &[
    Block {
        name: "site",
        value: "HOST…",
        help: "a site with its host names: example.org, *.example.org, a regular expression behind ~, \"\" for requests without a host \
               (HTTP/1.0), or * for all others; exact names are used first, then the longest *.name, then the first expression; settings outside of any site \
               also form a site for all other names",
        within: &[TOP],
        braces: Some(SITE),
        ..WORD
    },
    Block {
        name: "route",
        value: "PATH",
        keys: &[
            Key {
                name: "match",
                value: "prefix|exact|starts-with|glob|regex|regex-ignore-case",
                default: "prefix",
                help: "how to match paths: prefix matches this path and everything below it; starts-with ignores segments",
            },
            Key {
                name: "before-patterns",
                value: "on|off",
                default: "off",
                help: "for prefix and starts-with: if it is the longest match, globs and regexes are not tried",
            },
            Key {
                name: "when",
                value: "EXPR",
                help: "use the route only if this is true; otherwise the next route that has the path",
                ..KEY
            },
            Key {
                name: "entry",
                value: "path|internal",
                default: "path",
                help: "internal: only for requests that a rewrite with then=route or a fallback sends here; others get 404",
            },
        ],
        help: "paths with their own settings, or with @NAME a route that only reroute and error-page lead to; an exact match is used first, then the longest with before-patterns, then \
               the first glob or regex, then the longest prefix",
        within: &[TOP, SITE],
        braces: Some(ROUTE),
        ..WORD
    },
    Block {
        name: "when",
        value: "EXPR",
        help: "rules that apply if the expression is true: allow, deny, rate-limit, request-limit, request-header, response-header, response-trailer, expires, log-requests, \
               rewrite, set, cache off, cache-bypass and cache-no-store; an action inside, such as redirect, is used instead of \
               that of the level; in a site it is used before a route is chosen; if the expression uses the response, only \
               response-header, response-trailer, expires and log-requests are possible",
        within: LEVELS,
        braces: Some(WHEN),
        ..WORD
    },
    Block {
        name: "set",
        value: "NAME [TEXT]",
        keys: &[Key { name: "expr", value: "EXPR", help: "an expression in place of TEXT", ..KEY }],
        help: "set the variable $NAME for this level and inner ones; the value is made at its first use in a request; in a when, \
               only if the expression is true",
        within: LEVELS,
        ..WORD
    },
    Block {
        name: "files",
        value: "DIR",
        help: "serve the files of a folder",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "proxy",
        value: "UPSTREAM",
        keys: &[
            Key {
                name: "among",
                value: "UPSTREAMS",
                default: "all; none with others=",
                help: "with variables: the upstreams of the file that requests may name, separated by spaces",
            },
            Key {
                name: "others",
                value: "UPSTREAM",
                default: "",
                help: "with variables: an upstream with named-servers, for all other names and addresses",
            },
        ],
        help: "forward requests to an upstream of this file, or to an address such as http://127.0.0.1:8000, \
               unix:/run/app.sock or srv+http://_http._tcp.example.org; with variables, to the upstream of the file with this name or \
               address; other names get 502, unless others= names an upstream with named-servers",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "push",
        help: "channels: GET PATH/CHANNEL subscribes by Server-Sent Events, WebSocket or long poll (?poll=1), and POST \
               PATH/CHANNEL publishes; see docs/push.md",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "redirect",
        value: "TO",
        keys: &[Key { name: "status", value: "STATUS", default: "302", help: "301, 302, 303, 307 or 308" }],
        help: "respond with a redirect; TO may contain variables such as $host and $request_uri",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "respond",
        value: "STATUS [TEXT]",
        keys: &[Key { name: "type", default: "text/plain; charset=utf-8", help: "the Content-Type", ..KEY }],
        help: "respond with this status and text",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "reroute",
        value: "TO",
        help: "continue at another route of the site, with its rules: @NAME, or a path such as /index.php?$args, whose query \
               replaces the request's; after try-files for requests without a file; limits count a request once",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "stub-status",
        help: "respond with the numbers of connections and requests of this process, in the form of nginx's stub_status, to GET and \
               HEAD; admin has more figures",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "close",
        help: "close the connection without a response; passwords, forward-auth and limits of this place do not apply",
        within: ANSWERING,
        is_list: false,
        ..WORD
    },
    Block {
        name: "upstream",
        value: "NAME",
        help: "a group of servers for the same requests",
        within: &[TOP],
        braces: Some(UPSTREAM),
        ..WORD
    },
    Block {
        name: "server",
        value: "ADDR",
        keys: &[
            Key { name: "weight", value: "N", default: "1", help: "its share relative to the others" },
            Key {
                name: "backup",
                value: "on|off",
                default: "off",
                help: "used only if all others are down or at their max-requests",
            },
            Key {
                name: "max-requests",
                value: "N",
                default: "off",
                help: "requests and tunnels that it may have in progress at a time, over all workers; at that limit it is passed over, and if \
                       no other server can be asked, requests wait in the queue",
            },
        ],
        help: "a server of an upstream: http://HOST:PORT, https://HOST, HOST:PORT or unix:PATH; srv+http://NAME and srv+https://NAME are \
               the servers of a service, such as _http._tcp.example.org, by its SRV records in DNS",
        within: &[UPSTREAM],
        ..WORD
    },
    Block {
        name: "servers-file",
        value: "FILE",
        help: "the servers of an upstream are those in this file, one a line: ADDRESS, then weight=N, max-requests=N, backup and drain as needed; a \
               change of the file is followed without a reload; if it has a mistake or no server, that is logged and the servers \
               read before stay in use; see docs/proxy.md",
        within: &[UPSTREAM],
        ..WORD
    },
    Block {
        name: "map",
        value: "NAME TEXT",
        keys: &[
            Key {
                name: "by",
                value: "text|address|number|share",
                default: "text",
                help: "how keys are written: texts, *.example.org, www.* and regular expressions behind ~ or ~*; addresses and \
                       networks, of which the smallest is used; numbers and ranges such as 100..199; shares such as 10%, which \
                       split requests by a hash of TEXT",
            },
            Key {
                name: "file",
                value: "FILE",
                help: "more entries, one KEY VALUE a line; the file is read again when it changes; if it has a mistake, the \
                       mistake is logged and the former entries stay in use",
                ..KEY
            },
            Key {
                name: "proxies",
                value: "PEERS",
                help: "with by=address: addresses and networks of proxies, separated by blanks; in place of such an address, the last \
                       one of X-Forwarded-For is looked up",
                ..KEY
            },
            Key {
                name: "recursive",
                value: "on|off",
                default: "off",
                help: "an address of X-Forwarded-For that is that of a proxy, too, is skipped",
            },
        ],
        help: "a table that sets the variable $NAME: the value of TEXT for a request is looked up in it",
        within: &[TOP],
        braces: Some(MAP),
        ..WORD
    },
    Block {
        name: "case",
        value: "FROM TO",
        help: "an entry of a map; texts are compared without regard to case; TO may contain variables, and $1 for a group of a \
               regular expression",
        within: &[MAP],
        ..WORD
    },
    Block {
        name: "default",
        value: "TO",
        help: "the result of a map for all other texts; without it, an empty text",
        within: &[MAP],
        is_list: false,
        ..WORD
    },
];
