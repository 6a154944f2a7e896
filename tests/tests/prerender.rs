//! `prerender` on routes: crawlers get pages as a browser has drawn them, through the cache, and people get them as they are.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use flatout_tests::authority::Authority;
use flatout_tests::{Answer, Folder, Server, program, until};

pub(crate) const CRAWLER: &str =
    "User-Agent: Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)\r\n";
pub(crate) const ASSISTANT: &str = "User-Agent: GPTBot/1.2\r\n";
pub(crate) const PERSON: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\nAccept: text/html,*/*;q=0.8\r\n";

pub(crate) const PAGE: &str = "<!DOCTYPE html><html><head><title>App</title><script src=\"/app.js\" defer></script></head>\
    <body><div id=\"root\"></div></body></html>";

/// Draws its URL, and what it gets of `/admin`.
const SCRIPT: &str = "fetch('/admin').then(async r => { document.getElementById('root').textContent = \
    'drawn ' + location.href + ' admin ' + r.status + ' ' + (await r.text()); });";

#[allow(clippy::print_stderr, reason = "whoever runs the tests sees what was skipped")]
pub(crate) fn has_chromium() -> bool {
    let found = Path::new("/usr/bin/chromium").exists();
    if !found {
        eprintln!("skipped: this machine has no chromium (apt-get install chromium)");
    }
    found
}

/// An application, its site file, and an admin listener.
pub(crate) struct Application {
    pub(crate) folder: Folder,
}

impl Application {
    pub(crate) fn new() -> Application {
        let folder = Folder::new();
        std::fs::create_dir(folder.0.join("app")).unwrap();
        folder.write("app/index.html", PAGE);
        folder.write("app/app.js", SCRIPT);
        Application { folder }
    }

    fn admin(&self) -> String {
        format!("unix:{}", self.folder.0.join("admin").display())
    }

    pub(crate) fn write(&self, text: &str) {
        let text = text.replace("{F}", &self.folder.0.display().to_string());
        self.folder
            .write("site.kdl", format!("admin \"{}\"\nprerender-page-time \"60s\"\n{text}", self.admin()));
    }

    pub(crate) fn start(&self, text: &str) -> Server {
        Server::start(self.command(text))
    }

    pub(crate) fn command(&self, text: &str) -> Command {
        self.write(text);
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(self.folder.0.join("site.kdl")).stdin(Stdio::null());
        command
    }

    /// A page of the admin listener.
    pub(crate) fn admin_page(&self, path: &str) -> String {
        let mut command = Command::new("curl");
        command.args(["--silent", "--unix-socket"]).arg(self.folder.0.join("admin"));
        let output = command.arg(format!("http://t{path}")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn flatout(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(program("flatout"));
        let output = command.args(arguments).args(["--admin", &self.admin()]).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), text)
    }
}

fn check(text: &str) -> (bool, String) {
    let folder = Folder::new();
    folder.write("site.kdl", text.replace("{F}", &folder.0.display().to_string()));
    let output =
        Command::new(program("flatout")).arg("check").arg(folder.0.join("site.kdl")).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

pub(crate) fn is_drawn(answer: &Answer) -> bool {
    answer.status == 200
        && answer.field("X-Prerender").is_some_and(|mark| mark.starts_with("rendered"))
        && answer.text().contains("drawn http")
        && !answer.text().contains("<script")
}

pub(crate) const SITE: &str = "listen \"127.0.0.1:0\"\nfiles \"{F}/app\"\nspa\nprerender\n\
    route \"/admin\" { allow \"127.0.0.0/8\" \"unix\"; deny \"all\"; respond 200 \"the secret\"; }\n";

#[test]
fn crawlers_get_drawn_pages_from_the_cache_and_people_the_application() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let server = application.start(SITE);
    let first = server.get("/articles/1", CRAWLER);
    assert!(is_drawn(&first), "{}", first.text());
    assert_eq!((first.field("X-Cache-Status"), first.field("Vary")), (Some("MISS"), Some("User-Agent")));
    assert_eq!(first.field("Flatout-Cache-Control"), None, "only our own cache gets it");
    let again = server.get("/articles/1", CRAWLER);
    assert_eq!((again.field("X-Cache-Status"), again.text()), (Some("HIT"), first.text()));
    let other = server.get("/articles/1", ASSISTANT);
    assert_eq!(other.field("X-Cache-Status"), Some("HIT"), "all crawlers share a page");
    let person = server.get("/articles/1", PERSON);
    assert_eq!((person.text(), person.field("Vary")), (PAGE.to_owned(), Some("User-Agent")));
    assert_eq!(person.field("X-Prerender"), None);
    assert_eq!(server.get("/app.js", CRAWLER).text(), SCRIPT, "a file is no page");
    assert_eq!(server.get("/articles/2", &format!("{CRAWLER}X-Prerender: 1\r\n")).text(), PAGE);
    // What a page loads is requested by nobody: rules for addresses of this machine do not let it in.
    assert!(first.text().contains("admin 403"), "{}", first.text());
    assert_eq!(server.get("/admin", PERSON).text(), "the secret");
    let (is_done, text) = application.flatout(&["purge", &format!("http://{}/articles/1", "t")]);
    assert!(is_done && text.contains("purged 1"), "{text}");
    assert_eq!(server.get("/articles/1", CRAWLER).field("X-Cache-Status"), Some("MISS"));
}

#[test]
fn waiting_requests_share_one_render() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let server = application.start(SITE);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(is_drawn(&server.get("/", CRAWLER))));
        }
    });
    let metrics = application.admin_page("/metrics");
    assert!(
        metrics
            .contains("flatout_prerender_crawler_requests_total{crawler=\"Googlebot\",kind=\"search\"} 20"),
        "{metrics}"
    );
    assert!(metrics.contains("flatout_prerender_requests_total{outcome=\"rendered\"} 1"), "{metrics}");
    assert!(metrics.contains("flatout_prerender_browsers_total 1"), "{metrics}");
}

#[test]
fn a_warm_up_renders_the_pages_of_a_sitemap() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let sitemap = "<urlset><url><loc>http://t/one</loc></url><url><loc>http://t/two?x=1&amp;y=2</loc></url>\
        <url><loc>http://other.test/three</loc></url></urlset>";
    application.folder.write("app/sitemap.xml", sitemap);
    let server = application.start(SITE);
    let (is_done, text) = application.flatout(&["prerender", "warm", "http://t/sitemap.xml"]);
    assert!(is_done && text.contains("1 pages and sitemaps to come"), "{text}");
    until("all is rendered", || {
        application.flatout(&["prerender", "status"]).1.contains("3 done, 0 to come")
    });
    for target in ["/one", "/two?x=1&y=2"] {
        let found = server.get(target, CRAWLER);
        assert_eq!((found.field("X-Cache-Status"), is_drawn(&found)), (Some("HIT"), true), "{target}");
    }
    let (_, text) = application.flatout(&["prerender", "status"]);
    assert!(text.contains("rendered 2") && text.contains("browsers   1 started"), "{text}");
    for (url, expected) in [("nonsense", "need the URL"), ("ftp://t/", "need the URL")] {
        let (is_done, text) = application.flatout(&["prerender", "warm", url]);
        assert!(!is_done && text.contains(expected), "{url}: {text}");
    }
    let (is_done, text) = application.flatout(&["prerender", "purge", "http://t/one", "http://t/tw*"]);
    assert!(is_done, "{text}");
    for target in ["/one", "/two?x=1&y=2"] {
        assert_eq!(server.get(target, CRAWLER).field("X-Cache-Status"), Some("MISS"), "{target}");
    }
    for urls in [&["prerender", "purge"][..], &["prerender", "purge", "nonsense"]] {
        assert!(!application.flatout(urls).0, "{urls:?}");
    }
}

#[test]
fn conditions_and_kinds_select_the_crawlers() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let server = application.start(
        "listen \"127.0.0.1:0\"\nfiles \"{F}/app\"\nspa\nprerender\nprerender-for ai=off\n\
         route \"/chosen\" { prerender-when \"arg['render'] == '1'\"; files \"{F}/app\"; }\n\
         route \"/plain\" { prerender off; files \"{F}/app\"; }\n",
    );
    for (target, agent, expected) in [
        ("/", CRAWLER, true),
        ("/", ASSISTANT, false),
        ("/", PERSON, false),
        ("/chosen", CRAWLER, false),
        ("/chosen?render=1", PERSON, true),
        ("/plain", CRAWLER, false),
    ] {
        let found = server.get(target, agent);
        assert_eq!(is_drawn(&found), expected, "{target} {agent} {}", found.text());
    }
}

#[test]
fn reloads_and_upgrades_switch_it_on_and_off() {
    if !has_chromium() {
        return;
    }
    let application = Application::new();
    let without = SITE.replace("prerender\n", "");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = |text: &str| text.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let server = application.start(&at(&without));
    assert_eq!(server.get("/", CRAWLER).text(), PAGE);
    for round in 0..2 {
        application.write(&at(SITE));
        let (is_done, text) = application.flatout(&["reload"]);
        assert!(is_done && !text.contains("flatout-prerender"), "{text}");
        until("it is on", || is_drawn(&server.get(&format!("/{round}"), CRAWLER)));
        application.write(&at(&SITE.replace("prerender\n", "prerender\nprerender-pages 1\n")));
        let (is_done, text) = application.flatout(&["reload"]);
        assert!(is_done, "{text}");
        until("it has changed", || is_drawn(&server.get(&format!("/{round}/changed"), CRAWLER)));
        application.write(&at(&without));
        let (is_done, text) = application.flatout(&["reload"]);
        assert!(is_done, "{text}");
        until("it is off", || server.get("/", CRAWLER).text() == PAGE);
    }
    application.write(&at(SITE));
    let successor = flatout_tests::upgrading::upgrade(&application.folder.0.join("admin"));
    let _successor = flatout_tests::upgrading::orphan(&successor.unwrap());
    until("the new process renders", || is_drawn(&server.get("/upgraded", CRAWLER)));
}

#[test]
fn pages_of_sites_with_tls_keep_their_scheme() {
    if !has_chromium() {
        return;
    }
    let (application, authority) = (Application::new(), Authority::new());
    authority.sign("a", "a.test");
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [secure, plain] = ports.map(|listener| listener.local_addr().unwrap().port());
    let (certificate, key) = (authority.path("a.pem"), authority.path("a.key"));
    let site = format!(
        "listen \"127.0.0.1:{secure}\"\nlisten-plain \"127.0.0.1:{plain}\"\nhttps-redirect on\ntls {certificate:?} {key:?}\n"
    );
    let _server = application.start(&SITE.replace("listen \"127.0.0.1:0\"\n", &site));
    let mut found = String::new();
    until("the server listens", || {
        found = authority
            .curl("a.test", secure, "/x?y=1", &["--user-agent", "Googlebot/2.1"])
            .unwrap_or_default();
        !found.is_empty()
    });
    assert!(found.contains(&format!("drawn https://a.test:{secure}/x?y=1 admin 403")), "{found}");
}

/// Needs root, and is skipped without.
#[test]
fn a_server_that_changes_its_user_renders_pages() {
    use std::os::unix::fs::PermissionsExt;
    if !has_chromium() || !rustix::process::geteuid().is_root() {
        return;
    }
    let application = Application::new();
    std::fs::set_permissions(&application.folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = application.start(&format!("user \"www-data\"\n{SITE}"));
    let found = server.get("/", CRAWLER);
    assert!(is_drawn(&found), "{}", found.text());
}

#[test]
fn check_and_explain_know_the_route_for_crawlers() {
    let protected = "files \"{F}\"\nprerender\nbasic-auth \"x\"\nauth-user a \"$2y$12$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa\"\n";
    for (text, expected) in [
        (protected, "prerender off"),
        ("files \"{F}\"\nprerender\nprerender-verify maybe\n", "need on, all or off"),
        ("files \"{F}\"\nprerender\nprerender-client-budget \"30\"\n", "need a rate"),
        ("files \"{F}\"\nprerender\nprerender-quiet \"2-5\"\n", "such as 02:00-05:30"),
        ("files \"{F}\"\nprerender\nprerender-refresh 10001\n", "at most 10000"),
        ("files \"{F}\"\nprerender\nprerender-pages 0\n", "at least 1"),
        ("files \"{F}\"\nprerender\nprerender-pages 65\n", "need 1 to 64"),
        ("files \"{F}\"\nprerender\nprerender-page-memory \"1MiB\"\n", "need at least 128 MiB"),
        ("files \"{F}\"\nprerender\nprerender-allow \"https://127.0.0.1\"\n", "need an origin"),
        (
            "files \"{F}\"\nprerender-addresses Gogglebot x\n",
            "got `Gogglebot`, need the name of a crawler, such as Googlebot",
        ),
        ("files \"{F}\"\nprerender-addresses Googlebot x\n", "address file"),
        ("files \"{F}\"\nprerender\nprerender-when \"methd == 'GET'\"\n", "did you mean `method`"),
    ] {
        let (is_right, message) = check(text);
        assert!(!is_right && message.contains(expected), "{text}: {message}");
    }
    assert!(check("files \"{F}\"\nprerender\nprerender-for none search=on\nprerender-verify\n").0);
}
