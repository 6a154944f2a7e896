//! Flags and files as they are parsed, and each mistake as it is shown.

use std::path::Path;

use flatout_config::{SITE_FILE, Source, formatted, read_tree};
use flatout_engine::ProxyHeader;
use flatout_observe::log::Scope;
use flatout_site::explain::{Question, explain};
use flatout_site::plan::{Action, AddressFrom, PathMatch, PathPolicy, RouteEntry};

use super::grammar::grammar;
use super::options::ServeOptions;
use super::settings::{GROUPS, all};
use super::site::{Built, build, build_all};
use super::{COMMAND, flags_of, source};
use crate::Failure;

/// The complete example in docs/.
const EXAMPLE: &str = include_str!("../../../../docs/site.kdl");

fn read(text: &str) -> Result<Built, String> {
    let source = Source::new("a.kdl", text.as_bytes().to_vec(), &SITE_FILE);
    let source = source.map_err(|mistake| mistake.to_string())?;
    build(read_tree(source, &grammar()), Path::new("/srv"), &[])
}

fn flags(arguments: &[&str]) -> Result<Built, String> {
    let matches =
        COMMAND.parse(arguments.iter().map(ToString::to_string)).map_err(|failure| failure.to_string())?;
    let origin = source::of(&matches).map_err(|failure: Failure| failure.to_string())?;
    origin.read()
}

#[test]
fn copies_of_requests_have_an_upstream_and_a_share() {
    let text = "upstream app { server \"127.0.0.1:1\" }\nupstream staging { server \"127.0.0.1:2\" }\nmirror staging share=\"2.5%\"\n\
                proxy app\nroute \"/none\" { mirror off; proxy app }\nroute \"/all\" { mirror \"http://127.0.0.1:3\"; mirror app; proxy app }\n";
    let built = read(text).unwrap();
    let mut found: Vec<_> = built.plan.sites.sites[0]
        .routes
        .iter()
        .map(|route| {
            let Action::Proxy(forward) = &route.action else { panic!() };
            let name = |upstream: usize| built.plan.sites.upstreams[upstream].name.clone();
            forward
                .mirrors
                .iter()
                .map(|it| (name(it.upstream), it.numerator, it.denominator))
                .collect::<Vec<_>>()
        })
        .collect();
    found.sort();
    let all = ("http://127.0.0.1:3".to_owned(), 100_000, 100_000);
    let too = ("app".to_owned(), 100_000, 100_000);
    assert_eq!(found, [vec![], vec![all, too], vec![("staging".to_owned(), 2500, 100_000)]]);
    for (line, why) in [
        (&*"mirror app\n".repeat(9), "at most 8 upstreams can get copies of a request"),
        ("mirror nobody", "mirror: there is no upstream `nobody`"),
        ("mirror app share=\"0%\"", "share="),
        ("mirror app share=\"101%\"", "need a share from 0.001% to 100%"),
        ("mirror app share=\"1\"", "need a share such as 3%"),
    ] {
        let message =
            read(&format!("upstream app {{ server \"127.0.0.1:1\" }}\n{line}\nproxy app\n")).err().unwrap();
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn the_example_has_everything() {
    let built = read(EXAMPLE).unwrap();
    for block in super::blocks::BLOCKS {
        let has = |end| EXAMPLE.contains(&format!("{}{end}", block.name));
        assert!(has(" ") || has("\n"), "{}", block.name);
    }
    let [org, com, shop, rest] = &built.plan.sites.sites[..] else { panic!() };
    assert_eq!((org.routes.len(), com.routes.len(), rest.name.as_str()), (14, 1, "*"));
    assert_eq!(org.rules.error_pages.len(), 3);
    let api = &org.routes[3];
    assert_eq!((api.paths, api.rules.body.bytes_max), (PathPolicy::Forward, Some(64 << 20)));
    assert_eq!((api.rules.response_fields.len(), api.rules.error_pages.len()), (3, 3), "both levels");
    assert_eq!(
        (org.routes[0].entry, org.routes[1].when.len(), api.rules.when.len()),
        (RouteEntry::BeforePaths, 1, 2)
    );
    let Action::Proxy(forward) = &api.action else { panic!() };
    let upstream = &built.plan.sites.upstreams[forward.upstream];
    assert_eq!((upstream.name.as_str(), upstream.servers.len(), upstream.idle_max), ("api", 3, 64));
    assert_eq!(upstream.connect_time_max.as_secs(), 2, "from the top");
    assert_eq!(org.routes[4].paths, PathPolicy::Strict);
    assert_eq!(built.plan.sites.upstreams.len(), 5, "one has no name of its own");
    let Action::Files(folder) = org.routes[13].action else { panic!() };
    let folder = &built.plan.sites.folders[folder];
    assert_eq!(folder.root, Path::new("/srv/public"));
    assert_eq!(folder.cache_control.as_deref(), Some("max-age=60"), "inherited");
    assert!(shop.routes[0].rules.maintenance.is_none());
    assert_eq!(built.plan.logs.len(), 2);
    assert_eq!((built.plan.logs[0].scope, built.plan.logs[1].scope), (Scope::Server, Scope::Site(0)));
    assert_eq!(built.plan.logs[1].path, Path::new("/srv/log/example.org.log"));
    let source = Source::new("a.kdl", EXAMPLE.as_bytes().to_vec(), &SITE_FILE).unwrap();
    assert_eq!(formatted(&source).unwrap(), EXAMPLE, "flatout fmt docs/site.kdl");
}

#[test]
fn flags_are_a_short_file() {
    let built =
        flags(&["--head-bytes=1KiB", "--listen", ":1", "--listen", "unix:/a", "--spa", "a b"]).unwrap();
    assert_eq!((built.plan.server.limits.head_bytes_max, built.plan.server.listen.len()), (1024, 2));
    assert!(built.plan.sites.folders[0].spa && built.plan.sites.folders[0].root == Path::new("a b"));
    assert_eq!(built.plan.sites.sites[0].routes[0].path, PathMatch::prefix("/"));
    assert!(!flags(&["--spa=off"]).unwrap().plan.sites.folders[0].spa);

    let built =
        flags(&["--to", "unix:/a", "--to", "http://b:80", "--balance", "hash key=path", "--retries", "0"])
            .unwrap();
    let upstream = &built.plan.sites.upstreams[0];
    assert_eq!((upstream.servers.len(), upstream.retries_max), (2, 0));
    assert_eq!(format!("{:?}", upstream.balance), "Hash(Path)");
    assert!(built.plan.sites.folders.is_empty());

    let built =
        flags(&["./public", "--to", "127.0.0.1:1", "--rate-limit", "5/s burst=2 key=everyone"]).unwrap();
    assert_eq!(built.plan.sites.sites[0].routes[0].try_files, Some(0));
    assert_eq!(
        (built.plan.sites.rates[0].requests, built.plan.sites.sites[0].routes[0].rules.rates[0].burst),
        (5, 2)
    );
    let built =
        flags(&["--response-header", "set X-A \"b c\"", "--trusted-proxies", "10.0.0.0/8 unix"]).unwrap();
    assert_eq!(built.plan.sites.trust.proxies.len(), 2);
    assert_eq!(
        format!("{:?}", built.plan.sites.sites[0].rules.response_fields[0].change),
        "Set(Template([Text(\"b c\")]))"
    );
}

#[test]
fn flags_override_the_file() {
    let folder = std::env::temp_dir().join(format!("flatout-site-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("site.kdl");
    std::fs::write(&file, "workers 2\nlisten 1\nindex a\nbasic-auth X file=users\nsite a { files public; }\nsite b { files public; index b d; }").unwrap();
    let name = file.display().to_string();
    let built = flags(&["-c", &name, "--workers", "3", "--listen", "2", "--index", "c"]).unwrap();
    assert_eq!((built.plan.server.workers, built.plan.server.listen.len()), (Some(3), 1));
    let folders: Vec<_> =
        built.plan.sites.folders.iter().map(|plan| (plan.root.clone(), plan.index.join(" "))).collect();
    assert_eq!(folders, [(folder.join("public"), "c".to_owned()), (folder.join("public"), "b d".to_owned())]);
    let auth = built.plan.sites.sites[0].routes[0].rules.basic_auth.as_ref().unwrap();
    assert_eq!(auth.user_file.as_deref(), Some(folder.join("users").as_path()));
    for (arguments, expected) in [
        (&["-c", &name, "x"][..], "leave out DIR, --to, --php and --push"),
        (&["-c", "/nowhere/x.kdl"], "cannot read `/nowhere/x.kdl`"),
    ] {
        let message = flags(arguments).err().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn mistakes_in_flags_are_reported() {
    for (arguments, expected) in [
        (&["--lisen", "x"][..], "similar argument exists: '--listen'"),
        (&["--listen", "x"], "--listen: got `x`"),
        (&["--head-bytes", "many"], "--head-bytes: got `many`"),
        (&["--changes", "sweep=5"], "need a time"),
        (&["--workers"], "a value is required for '--workers <N>'"),
        (&["--tls", "cert.pem"], "2 values required for '--tls <CERT> <KEY>'"),
        (&["-x"], "unexpected argument '-x'"),
        (&["--to", "ftp://a"], "--to: got `ftp://a`, need http://HOST:PORT"),
        (&["--rate-limit", "5/s burst=x"], "--rate-limit: got `x`, need a whole number"),
        (&["--rate-limit", "5/s brst=1"], "--rate-limit: got 2 values, need `RATE [key=TEXT]"),
        (
            &["--response-header", "put A b"],
            "--response-header: got `put`, need one of set, add, default, remove",
        ),
        (&["--balance", "hash key=\"x"], "which has an unclosed quote"),
    ] {
        let message = flags(arguments).err().unwrap();
        assert!(message.contains(expected), "{message}");
    }
}

/// The defaults in the table are the real ones, if they can be written as a value.
#[test]
fn defaults_match_the_help() {
    let prose = [
        "one for each CPU",
        "all that the process may use",
        "as the descriptor limit allows",
        "no limit",
        "the system's",
        "everyone",
        "none",
        "all",
        "strict for files and channels, otherwise forward",
        "the server's",
        "the CA's",
        "on with domain, else off",
        "http-01 where a listener has no TLS, then tls-alpn-01; dns-01 with acme-dns-hook",
        "systemd's StateDirectory; with domain or tls local /var/lib/flatout/serve for root, else ~/.local/state/flatout",
    ];
    for setting in all().filter(|setting| !setting.default.is_empty() && !prose.contains(&setting.default)) {
        if setting.name == "listen" {
            continue;
        }
        let (fresh, mut options) = (ServeOptions::new(Path::new("")), ServeOptions::new(Path::new("")));
        let given = super::values::Values::of_flag(setting, setting.default).unwrap();
        (setting.set)(&mut options, &given)
            .unwrap_or_else(|refused| panic!("{}: {}", setting.name, refused.message));
        let told = |options: &ServeOptions| {
            format!(
                "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
                options.server,
                options.secure,
                options.https_redirect,
                options.issue,
                options.files,
                options.upstream,
                options.tls,
                options.forward,
                options.rules,
                options.trust,
                options.logs,
                options.push,
                options.push_limits
            )
        };
        assert_eq!(told(&options), told(&fresh), "{} {}", setting.name, setting.default);
    }
}

#[test]
fn listeners_expect_the_proxy_protocol_if_configured() {
    let both = "listen \":80\" proxy-protocol=on\nlisten \":81\" proxy-protocol=off\nlisten \":82\"\ntrusted-proxies all\nfiles x\n";
    let with_header = |built: &Built| -> Vec<bool> {
        built.plan.server.listen.iter().map(|listen| listen.proxy_header == ProxyHeader::Trusted).collect()
    };
    for (text, expected, is_usual) in [
        ("files x".to_owned(), vec![false], false),
        (both.to_owned(), vec![true, false, false], false),
        (format!("{both}client-address proxy-protocol\n"), vec![true, false, true], true),
        // The default listener.
        ("client-address proxy-protocol\ntrusted-proxies unix\nfiles x".to_owned(), vec![true], true),
    ] {
        let built = read(&text).unwrap();
        assert_eq!(with_header(&built), expected, "{text}");
        assert_eq!(built.plan.server.handed_over_proxy_header, is_usual, "{text}");
        let is_from_header = built.plan.sites.trust.from == AddressFrom::ProxyProtocol;
        assert_eq!(is_from_header, expected.contains(&true), "no field is believed beside it: {text}");
        assert_eq!(built.plan.sites.sites[0].trust, built.plan.sites.trust, "{text}");
    }
    let given = flags(&["--listen", ":80 proxy-protocol=on", "--trusted-proxies", "10.0.0.0/8"]).unwrap();
    assert_eq!(with_header(&given), [true]);
}

#[test]
fn sites_have_addresses_of_their_own() {
    let text = "listen \":80\"\ntrusted-proxies \"10.0.0.0/8\"\n\
                site a { listen \":81\"; listen \":80\" default=on; files x; }\n\
                site a { listen \"127.0.0.1:82\" proxy-protocol=on; trusted-proxies unix; files x; }\n\
                site b { files x; }\n";
    let mut built = read(text).unwrap();
    let checked = built.check().unwrap();
    let listens: Vec<(String, u16, bool)> = checked
        .listens()
        .iter()
        .map(|listen| {
            (listen.address.to_string(), listen.number, listen.proxy_header == ProxyHeader::Trusted)
        })
        .collect();
    let expected =
        [("http://0.0.0.0:80", 1, false), ("http://0.0.0.0:81", 2, false), ("http://127.0.0.1:82", 3, true)];
    assert_eq!(listens, expected.map(|(address, number, is_on)| (address.to_owned(), number, is_on)));
    let sites = &checked.plan().sites.sites;
    let at = |site: usize| -> Vec<(u16, bool)> {
        sites[site].listeners.iter().map(|at| (at.number, at.is_default)).collect()
    };
    assert_eq!(
        (at(0), at(1), at(2)),
        (vec![(2, false), (1, true)], vec![(3, false)], vec![(0, false), (1, false)])
    );
    let names: Vec<&str> = sites.iter().map(|site| site.name.as_str()).collect();
    assert_eq!(names, ["a", "a (127.0.0.1:82)", "b"]);
    assert_eq!((sites[1].trust.proxies.len(), &sites[1].trust.from), (1, &AddressFrom::ProxyProtocol));
    assert_eq!(sites[2].trust.from, AddressFrom::XForwardedFor);
}

#[test]
fn addresses_that_exclude_each_other_are_mistakes() {
    for (text, expected) in [
        ("site a { files x; }\nsite a { files x; }", "another site has `a`, on line 1"),
        (
            "site a { listen \":81\"; files x; }\nsite a { listen \":81\"; files x; }",
            "another site has `a`, on line 1",
        ),
        (
            "listen \":81\"\nsite a { listen \":81\"; files x; }\nsite a { files x; }",
            "the host `a` belongs to another site already",
        ),
        (
            "site a { listen \":81\" default=on; files x; }\nsite b { listen \":81\" default=on; files x; }",
            "any other host belongs to another site already",
        ),
        (
            "trusted-proxies all\nsite a { listen \":81\" proxy-protocol=on; files x; }\nsite b { listen \":81\"; files x; }",
            "the address 0.0.0.0:81 is used without the PROXY protocol here, and with the PROXY protocol before",
        ),
        ("listen \":80\" default=on\nfiles x", "default=on belongs into a site"),
        ("site a { listen-plain \":80\"; files x; }", "listen-plain: there is no certificate"),
    ] {
        let message = read(text).and_then(|mut built| built.check().map(drop)).unwrap_err();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// No two settings have the same name, and no setting has the name of a block.
#[test]
fn setting_names_are_unique() {
    let mut names: Vec<&str> = all().map(|setting| setting.name).collect();
    names.extend(super::blocks::BLOCKS.iter().map(|block| block.name));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(GROUPS.iter().all(|(_, settings)| !settings.is_empty()));
}

#[test]
fn mistakes_have_a_position() {
    let site = |inner: &str| format!("site a {{ {inner}; files x }}");
    let upstream = |inner: &str| format!("upstream u {{ {inner} }}\nproxy u");
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("lisen 80", "1:1: unknown setting `lisen` at the top of the file; did you mean `listen`?\n  1 | lisen 80\n    | ^^^^^".to_owned()),
        ("listen 80\nserver_name a", "2:1: unknown setting `server_name` at the top of the file; here it is `site`\n  2 | server_name a\n    | ^^^^^^^^^^^".to_owned()),
        ("files x\nlisten \"host:80\"", "2:8: listen: got `host:80`, need an address: IP:PORT, [IPv6]:PORT, :PORT (all addresses), PORT (this machine only) or unix:PATH\n  2 | listen \"host:80\"\n    |        ^^^^^^^^^".to_owned()),
        ("files x\nworkers 0", "2:9: workers: got 0, need at least 1; leave it out for one worker per CPU\n  2 | workers 0\n    |         ^".to_owned()),
        ("head-bytes \"1MiB\"\nfiles x", "1:12: head bytes: got 1048576, allowed 64 to 49152".to_owned()),
        ("listen \":80\" proxy-protocol=on\nfiles x", "1:8: the PROXY protocol is accepted from `trusted-proxies` only, and there are none: every connection would be closed\n  1 | listen \":80\" proxy-protocol=on\n    |        ^^^^^".to_owned()),
        ("listen \":80\" proxy-protocol=on\ntrusted-proxies all\nclient-address x-forwarded-for\nfiles x", "3:16: a listener has proxy-protocol=on, so this must be proxy-protocol or be left out: only one source of the client's address is trusted".to_owned()),
        ("listen \":80\" proxy-protocol=maybe\nfiles x", "1:14: proxy-protocol=: got `maybe`, need on, off or untrusted".to_owned()),
        ("drain-time 30s\nfiles x", "1:12: this needs quotes: \"30s\"".to_owned()),
        ("drain-time \"30 sec\"\nfiles x", "1:12: drain-time: got `30 sec`, need a time such as 500ms, 10s, 5m or 1h".to_owned()),
        ("trusted-proxies \"10.1.2.3/8\"", "1:17: trusted-proxies: got `10.1.2.3/8`: the address has bits set after the prefix".to_owned()),
        ("workers 4", "1:1: nothing is served; add files, proxy, push, redirect, respond, a route or a site".to_owned()),
        ("site a { spa; }", "1:1: this site serves nothing; add files".to_owned()),
        ("site a { files x; proxy \"http://b\"; }", "1:19: there is `files` on line 1 already; use one of them\n  1 | site a { files x; proxy \"http://b\"; }\n    |                   ^^^^^".to_owned()),
        ("site a { files x; }\nsite b a { files y; }", "2:8: another site has `a`, on line 1".to_owned()),
        ("site a a { files y; }", "1:8: `a` occurs twice".to_owned()),
        ("files x\nsite \"*\" { files y; }", "1:1: another site has `*`, on line 2".to_owned()),
        ("site \"a:80\" { files y; }", "1:6: got `a:80`, need a host name without a port".to_owned()),
        ("route \"api\" { files x; }", "1:7: got `api`, need a path that begins with /".to_owned()),
        ("route \"/a\" { spa; }", "1:1: this route serves nothing".to_owned()),
        ("route \"/a\" { files x; }\nroute \"/a\" { files y; }", "2:7: this route occurs twice; first on line 1".to_owned()),
        ("route \"/\" { files x; }\nfiles y", "2:7: the route \"/\" on line 1 handles this already".to_owned()),
        ("route \"/a(\" match=regex { files x; }", "1:7: got `/a(`, which is not a valid regular expression: unclosed group".to_owned()),
        ("route \"/a\" match=regx { files x; }", "1:12: match=: got `regx`, need prefix, exact, starts-with, glob, regex or regex-ignore-case; did you mean `regex`?".to_owned()),
        ("route \"/a\" match=exact before-patterns=on { files x; }", "1:7: before-patterns= is for prefix and starts-with only".to_owned()),
        ("upstream api { server \"a:1\"; }\nproxy apo", "2:7: there is no upstream `apo`; did you mean `api`?\n  2 | proxy apo\n    |       ^^^".to_owned()),
        ("proxy \"http://a/b\"", "1:7: got `http://a/b`: an upstream cannot have a path; use rewrite-prefix to change paths".to_owned()),
        ("upstream u { }\nproxy u", "1:1: upstream `u` needs a server".to_owned()),
        ("upstream u { server \"a:1\"; }\nupstream u { server \"a:1\"; }", "2:10: there is another upstream `u`".to_owned()),
        (&upstream("server \"a:1\" backup=on"), "1:1: all servers of `u` are backups; at least one must not be".to_owned()),
        (&upstream("server \"a:1\" weight=0"), "1:27: got `0`, need at least 1".to_owned()),
        (&upstream("server \"a:1\" wieght=1"), "1:27: `server` has no `wieght=`; did you mean `weight=`?".to_owned()),
        (&upstream("server \"a:1\"; balance least-conn"), "1:36: balance: got `least-conn`, need round-robin, least-connections, least-time, two-choices, hash or sticky; did you mean `least-connections`?".to_owned()),
        (&upstream("server \"a:1\"; protocol h2"), "1:1: protocol h2 is over TLS: servers must be https://; without TLS use h2c".to_owned()),
        (&upstream("server \"a:1\"; protocol \"http/1.1\" streams=5"), "1:48: streams=: `streams=` is for h2c and h2 only".to_owned()),
        (&upstream("server \"a:1\"; protocol h2c streams=5000"), "1:41: streams=: got 5000, allowed 1 to 1024".to_owned()),
        ("protocol h2c\nproxy \"https://a:1\"", "2:7: protocol h2c is without TLS: servers cannot be https://; with TLS use h2".to_owned()),
        (&upstream("server \"a:1\"; balance hash cookie=b"), "1:41: cookie=: `cookie=` is for sticky only".to_owned()),
        (&upstream("server \"a:1\"; health-check health"), "1:41: health-check: got `health`, need a path such as /health, tcp, grpc, or off".to_owned()),
        (&upstream("server \"a:1\"; retry-budget \"2\""), "1:41: retry-budget: got `2`, need a share such as 3%".to_owned()),
        (&site("rate-limit \"100\""), "1:21: rate-limit: got `100`, need a rate such as 100/s, 30/m or 5/10s".to_owned()),
        (&site("rate-limit \"1/s\" key=clint"), "1:27: key=: got `clint`, need client, everyone, or a text with variables".to_owned()),
        (&site("rate-limit \"1/s\" key=\"$http_x\" burst=many"), "1:41: `burst=` needs a whole number, not a text".to_owned()),
        (&site("allow \"10.0.0.1\" everybody"), "1:27: allow: got `everybody`: expected an IP address".to_owned()),
        (&site("auth-user a \"$2y$x\""), "1:20: auth-user: it needs a basic-auth before it".to_owned()),
        (&site("cors \"app.example\""), "1:15: cors: got `app.example`, need origins such as https://app.example.org, or *".to_owned()),
        (&site("cors \"*\" credentials=on"), "1:19: credentials=: browsers refuse credentials with `*`; list the origins".to_owned()),
        (&site("response-header set A \"$hots\""), "1:32: response-header: unknown variable `$hots`; did you mean `$host`?".to_owned()),
        (&site("response-header remove A b"), "1:26: response-header: remove takes a name and no value".to_owned()),
        (&site("response-header set \"A b\" c"), "1:30: response-header: got `A b`, need the name of a header field".to_owned()),
        (&site("error-page 200 text=x"), "1:21: error-page: got `200`, need a status from 300 to 599, or a range such as 300-599".to_owned()),
        (&site("error-page 404"), "1:21: error-page: need file=, text= or to=".to_owned()),
        (&site("workers 4"), "1:10: `workers` is not allowed in a site, only at the top of the file".to_owned()),
        ("redirect \"/x\" status=200", "1:15: got `200`, need 301, 302, 303, 307 or 308".to_owned()),
        ("respond 99", "1:9: got `99`, need a status from 200 to 599".to_owned()),
        ("map \"a b\" \"$host\" { }\nfiles x", "1:5: got `a b`, need a name of letters, digits and _".to_owned()),
        ("reroute b", "1:9: got `b`, need @NAME of a route, or a path that begins with /".to_owned()),
        ("route \"@a\" when=\"has(header.x)\" { files x; }\nfiles x", "1:12: a named route has".to_owned()),
        ("route \"@a\" { files x; }\nroute \"@a\" { files x; }\nfiles x", "2:7: this route occurs twice; first on line 1".to_owned()),
        (&site("error-page 404 to=\"/x\" status=200"), "1:33: status=: got `200`, need own".to_owned()),
        ("map host \"$uri\" { }\nfiles x", "1:5: `$host` is a variable of every request; choose another name".to_owned()),
        ("map a \"$uri\" by=share { case \"10\" x; }\nfiles x", "1:30: got `10`, need a share such as 0.5%".to_owned()),
        ("set a b\nmap a \"$uri\" { }\nfiles x", "1:5: there is a map `a`".to_owned()),
        ("set a b expr=\"path\"\nfiles x", "1:1: need a text, or an expression".to_owned()),
        ("set a expr=\"pth\"\nfiles x", "1:13: unknown name `pth`; did you mean `path`?\n  1 | set a expr=\"pth\"\n    |             ^^^".to_owned()),
        ("when \"metod == 'GET'\" { deny all; }\nfiles x", "1:7: unknown name `metod`; did you mean `method`?\n  1 | when \"metod == 'GET'\" { deny all; }\n    |       ^^^^^".to_owned()),
        ("when \"path.matches('\\\\.x$') && $later == ''\" { deny all; }\nset later a\nfiles x", "1:21: unknown escape `\\.`; a backslash is written".to_owned()),
        ("when \"path.matches('[\\\"]x$') && $later == ''\" { deny all; }\nset later a\nfiles x", "1:33: unknown name `$later`".to_owned()),
        ("when #\"path == \"a\" && pth == '\"'\"# { deny all; }\nfiles x", "1:23: unknown name `pth`".to_owned()),
        ("when \"true\" { deny all; }\nfiles x", "1:7: this is always true".to_owned()),
        ("when \"method == 'A'\" { spa; }\nfiles x", "1:24: `spa` is not allowed in a when, only at the top of the file or in a site or in a route".to_owned()),
        ("when \"method == 'A'\" { cache \"1m\"; }\nfiles x", "1:30: only `cache off` is possible in a when".to_owned()),
        ("when \"method == 'A'\" { when \"method == 'A'\" { deny all; }; }\nfiles x", "1:29: a `when` around this one has the same condition".to_owned()),
        ("route \"/a\" { files x; }\nroute \"/a\" when=\"method == 'A'\" { files y; }", "2:7: this is never used: the route on line 1 takes all its requests".to_owned()),
        ("route \"/a\" when=\"method == 'A'\" { files x; }\nroute \"/a\" when=\"method == 'A'\" { files y; }", "2:7: this is never used: the route on line 1".to_owned()),
        ("tls local passwords=p\nfiles x", "1:5: tls: `tls local` reads no key, so it has no passwords".to_owned()),
        (&site("tls refuse passwords=p"), "1:14: tls: `tls refuse` reads no key".to_owned()),
        ("tls-client-ca off crl=x\nfiles x", "1:15: tls-client-ca: `off` asks for no certificates, so it has no crl".to_owned()),
        ("tls-client-ca off optional=on\nfiles x", "1:15: tls-client-ca: `off` asks for no certificates, so it has no optional".to_owned()),
        ("tls-client-ca any crl=x\nfiles x", "1:15: tls-client-ca: `any` verifies no certificates, so it has no crl".to_owned()),
        ("tls-client-ca any unknown=off\nfiles x", "1:15: tls-client-ca: `any` accepts certificates of all CAs; name a file".to_owned()),
        ("map a \"$hst\" { }\nfiles x", "1:7: unknown variable `$hst`; did you mean `$host`?".to_owned()),
        ("map a \"$host\" { case x; }\nfiles x", "1:17: `case` needs a text in quotes".to_owned()),
    ] {
        let message = read(text).err().unwrap_or_default();
        if !message.starts_with(&format!("a.kdl:{expected}")) {
            wrong.push(format!("{text}\n{message}\nexpected: {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// As `flatout check` shows them: in the order of the file, each at its word, and none that follows from another one.
#[test]
fn all_mistakes_of_a_file_are_shown() {
    let all = |text: &str| -> Vec<String> {
        let source = Source::new("a.kdl", text.as_bytes().to_vec(), &SITE_FILE).unwrap();
        let (_, mistakes) = build_all(read_tree(source, &grammar()), Path::new("/srv"), &[]).unwrap();
        mistakes.iter().map(|it| format!("{}:{}: {}", it.line, it.column, it.message)).collect()
    };
    for (text, expected) in [
        (
            "workers 0\nlisten \"host:80\"\nsite a {\n  filse x\n  redirect \"https://$hots$uri\"\n  route \"/x\" { allow me; proxy apo; }\n  route \"/y\" { spa; }\n}\nsite \"b:1\" { respond 99; }",
            &[
                "1:9: workers: got 0",
                "2:8: listen: got `host:80`",
                "4:3: unknown setting `filse` in a site; did you mean `files`?",
                "5:21: unknown variable `$hots`; did you mean `$host`?",
                "6:22: allow: got `me`",
                "6:32: there is no upstream `apo`",
                "7:3: this route serves nothing",
                "9:6: got `b:1`",
                "9:22: got `99`",
            ][..],
        ),
        // What refers to something with a mistake is none.
        (
            "upstream api { server \"a:1\" weight=0; }\nset x \"$y\"\nmap z \"$hots\" { }\nresponse-header set A \"$x$z\"\nproxy api",
            &[
                "1:29: got `0`, need at least 1",
                "2:7: unknown variable `$y`",
                "3:7: unknown variable `$hots`",
            ],
        ),
        (
            "upstream api { serve \"a:1\"; }\nsite a { proxzy api; }",
            &["1:16: unknown setting `serve`", "2:10: unknown setting `proxzy`"],
        ),
        ("when \"metod == 'GET'\" { deny nobody; respond 403; }\nfiles x", &["1:7: unknown name `metod`"]),
        (
            "basic-auth x\nauth-user ann secret\nauth-user \"a:b\" \"$2y$x\"\nfiles x",
            &["2:15: auth-user: this is no password hash", "3:11: auth-user: got `a:b`"],
        ),
        ("limits {\nfiles x\n", &["1:8: this `{` is not closed"]),
        (
            "files = x\nspa true\nlisen 80",
            &["1:7: leave out this `=`", "2:5: got `true`, need on", "3:1: unknown setting `lisen`"],
        ),
    ] {
        let found = all(text);
        let is_same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected));
        assert!(is_same, "{text}\n{found:#?}");
    }
    let shown = read("basic-auth x\nauth-user ann secret\nfiles x").err().unwrap();
    assert!(!shown.contains("secret") && shown.contains("auth-user ann ******"), "{shown}");
    let many = read(&"lisen 80\n".repeat(50)).err().unwrap();
    assert!(many.ends_with("and 20 more mistakes"), "{many}");
}

/// The reference page is generated from the table, and its example is the tested one.
#[test]
fn the_reference_page_is_up_to_date() {
    let page = include_str!("../../../../docs/site-file.md");
    let between = |begin: &str, end: &str| {
        let (_, behind) = page.split_once(begin).unwrap();
        behind.split_once(end).unwrap().0.trim().to_owned()
    };
    let settings = between("<!-- flatout check --reference -->", "<!-- end -->");
    assert!(
        settings == super::manual::text().trim(),
        "put what `flatout check --reference` prints into docs/site-file.md"
    );
    assert_eq!(between("<!-- docs/site.kdl -->\n```kdl", "```"), EXAMPLE.trim());
}

#[test]
fn the_schema_has_every_setting() {
    let schema: serde_json::Value = serde_json::from_str(&super::schema::text()).unwrap();
    let defs = &schema["$defs"];
    assert_eq!(schema["$ref"], "#/$defs/top");
    for setting in all() {
        assert!(defs["top"]["properties"][setting.name]["description"].is_string(), "{}", setting.name);
    }
    assert_eq!(
        defs["route"]["properties"]["rate-limit"]["items"]["properties"]["values"]["type"][0],
        "string"
    );
    assert_eq!(defs["site"]["properties"]["route"]["items"]["properties"]["inner"]["$ref"], "#/$defs/route");
}

/// Any corrupted file is either read or refused with a position.
#[test]
fn broken_files_are_refused_with_a_place() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut state = seed | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let words: Vec<&str> = EXAMPLE.split_inclusive([' ', '\n']).collect();
    for _ in 0..300 {
        let mut broken = words.clone();
        for _ in 0..=random(3) {
            let (at, from) = (random(broken.len()), random(broken.len()));
            match random(3) {
                0 => drop(broken.remove(at)),
                1 => broken[at] = broken[from],
                _ => broken.swap(at, from),
            }
        }
        if let Err(message) = read(&broken.concat()) {
            assert!(message.starts_with("a.kdl:"), "seed {seed}: {message}");
        }
    }
    assert!(flags_of(&COMMAND.parse(Vec::new()).ok().unwrap()).is_ok());
}

/// What a request of a file would get, in a few words: the texts of `respond`, and conditions with their truth.
fn explained(text: &str, method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let built = read(text).unwrap_or_else(|message| panic!("{text}: {message}"));
    let question = Question {
        method: method.to_owned(),
        host: "a.example".to_owned(),
        target: target.to_owned(),
        fields: fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        peer: Some(([192, 0, 2, 1], 1).into()),
        listener: 0,
        is_tls: false,
    };
    let found = explain(&built.plan.sites, &question).unwrap_or_else(|fault| panic!("{text}: {fault}"));
    let Ok(route) = found.route else { return format!("{:?}", found.route) };
    let route = &built.plan.sites.sites[found.site.unwrap()].routes[route];
    let conditions = found.conditions.iter().map(|condition| format!(" {:?}", condition.holds));
    match &route.action {
        Action::Respond { body, .. } => {
            format!("{}{}", super::format::template(&built.plan.sites, body), conditions.collect::<String>())
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn whens_choose_actions_in_their_order() {
    let file = r#"
        when "arg.everywhere == '1'" { respond 200 "top"; }
        site "a.example" {
            set kind "none"
            when "has(header.x)" {
                set kind "x"
                when "method == 'POST'" { respond 200 "x post"; }
                respond 200 "x"
            }
            when "$kind == 'x'" { set kind "never"; }
            route "/a" {
                set kind "${kind}a"
                when "$kind == 'nonea' && method == 'POST'" { respond 200 "post a"; }
                respond 200 "a $kind"
            }
            route "/b" when="method == 'PUT'" { respond 200 "b put"; }
            respond 200 "rest"
        }
    "#;
    for (method, target, fields, expected) in [
        ("GET", "/a?everywhere=1", &[][..], "top Some(true) Some(false) Some(false) Some(false) Some(false)"),
        ("GET", "/", &[("X", "1")], "x Some(false) Some(true) Some(false) Some(true)"),
        ("POST", "/", &[("X", "1")], "x post Some(false) Some(true) Some(true) Some(true)"),
        ("POST", "/a", &[], "post a Some(false) Some(false) Some(true) Some(false) Some(true)"),
        ("GET", "/a", &[], "a $kind Some(false) Some(false) Some(false) Some(false) Some(false)"),
        ("PUT", "/b", &[], "b put Some(false) Some(false) Some(false) Some(false) Some(true)"),
        ("GET", "/b", &[], "rest Some(false) Some(false) Some(false) Some(false) Some(false)"),
    ] {
        assert_eq!(explained(file, method, target, fields), expected, "{method} {target}");
    }
}

#[test]
fn rewrites_under_conditions_keep_their_order() {
    let built = read(
        "rewrite \"^/a\" \"/b\"\nwhen \"method == 'GET'\" { rewrite \"^/b\" \"/c\"; }\nrewrite \"^/c\" \"/d\"\nsite a {\n\
         rewrite \"^/1\" \"/2\"\nwhen \"method == 'GET'\" { rewrite \"^/2\" \"/3\" then=stop; }\nrewrite \"^/3\" \"/4\"\nfiles x\n}",
    );
    let site = &built.unwrap().plan.sites.sites[0];
    let conditions: Vec<usize> = site.rewrites.iter().map(|rewrite| rewrite.when.len()).collect();
    assert_eq!(conditions, [0, 1, 0]);
}

#[test]
fn an_inner_access_list_replaces_outer_blocks() {
    let built = read(
        "when \"has(header.x)\" { allow all; }\nsite a {\nroute \"/a\" { deny all; files x; }\nroute \"/b\" { when \"has(header.y)\" { deny all; }; files x; }\n}",
    );
    let routes = &built.unwrap().plan.sites.sites[0].routes;
    let blocks = |at: usize| -> Vec<usize> {
        routes[at].rules.when.iter().map(|block| block.rules.access.len()).collect()
    };
    assert_eq!((blocks(0), blocks(1)), (vec![0], vec![1, 1]));
}

#[test]
fn a_site_has_several_named_routes() {
    let named = |second: &str| {
        format!(
            "site a {{ files x; route \"@one\" {{ respond 200; }}\nroute \"{second}\" {{ respond 200; }} }}"
        )
    };
    assert!(read(&named("@two")).is_ok());
    assert!(read(&named("@one")).err().unwrap().contains("2:7: this route occurs twice; first on line 1"));
}
