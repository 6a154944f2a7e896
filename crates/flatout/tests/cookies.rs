//! Cookies, including those of clients that cheat.

use flatout::cookie::{Cookie, Key};
use flatout::test::Client;
use flatout::{App, Cookies, PrivateCookies, SignedCookies, Status};

fn client(app: App) -> Client {
    Client::new(app).unwrap()
}

fn name_and_value(set: &str) -> (&str, &str) {
    set.split(';').next().unwrap().split_once('=').unwrap()
}

/// `/sign`, `/hide` set the cookie `user`; `/signed/{name}`, `/hidden/{name}` return the verified value.
fn app(key: &Key) -> App {
    App::new()
        .state(key.clone())
        .get("/sign", |cookies: SignedCookies| (cookies.add(Cookie::new("user", "ada; \"x\"")), "ok"))
        .get("/hide", |cookies: PrivateCookies| (cookies.add(Cookie::new("user", "ada; \"x\"")), "ok"))
        .get("/signed/{name}", |flatout::Path(name): flatout::Path<String>, cookies: SignedCookies| {
            cookies.get(&name)
        })
        .get("/hidden/{name}", |flatout::Path(name): flatout::Path<String>, cookies: PrivateCookies| {
            cookies.get(&name)
        })
        .get("/out", |cookies: SignedCookies| (cookies.remove(Cookie::from("user")), "out"))
}

#[test]
fn plain_cookies_come_and_go() {
    let client = client(
        App::new()
            .get("/", |cookies: Cookies| format!("{:?}", cookies.get("a b").map(Cookie::value)))
            .get("/set", |cookies: Cookies| {
                (cookies.add(Cookie::build(("n", "v; Domain=evil\r\n")).path("/").build()), Status::CREATED)
            })
            .get("/count", |cookies: Cookies| cookies.iter().count().to_string()),
    );
    let get = |path: &str, cookie: &str| client.get(path).header("Cookie", cookie).send().text().to_owned();
    assert_eq!(get("/", "x=y; a%20b=1%3B2; a%20b=3"), "Some(\"1;2\")");
    assert_eq!(get("/", "=; ;; a b c; %zz=%"), "None");
    let set = client.get("/set").send();
    assert_eq!(set.status(), Status::CREATED);
    // A value cannot add attributes or lines.
    assert_eq!(set.header("set-cookie"), Some("n=v%3B%20Domain%3Devil%0D%0A; Path=/"));
    // Eight KiB of cookies are read up to a number, and no further.
    let many: Vec<String> = (0..1500).map(|at| format!("c{at}=")).collect();
    assert_eq!(get("/count", &many.join("; ")), "200");
}

#[test]
fn keyed_cookies_are_believed_as_they_were_set() {
    let key = Key::generate();
    let ours = client(app(&key));
    for (set, read) in [("/sign", "/signed/user"), ("/hide", "/hidden/user")] {
        let answer = ours.get(set).send();
        let header = answer.header("set-cookie").unwrap();
        assert!(header.contains("; HttpOnly; SameSite=Lax; Path=/"), "{header}");
        let (name, value) = name_and_value(header);
        let cookie = format!("{name}={value}");
        assert_eq!(ours.get(read).header("Cookie", &cookie).send().text(), "ada; \"x\"", "{cookie}");
        assert_eq!(header.contains("ada"), set == "/sign");
    }
    let out = ours.get("/out").header("Cookie", "user=x").send();
    assert!(
        out.header("set-cookie").is_some_and(|set| set.starts_with("user=; ") && set.contains("Max-Age=0"))
    );
}

#[test]
fn forged_cookies_and_those_of_another_name_or_key_are_not_believed() {
    let ours = client(app(&Key::generate()));
    let theirs = client(app(&Key::generate()));
    for (set, read) in [("/sign", "/signed/"), ("/hide", "/hidden/")] {
        let answer = ours.get(set).send();
        let (_, value) = name_and_value(answer.header("set-cookie").unwrap());
        let foreign = theirs.get(set).send();
        let (_, foreign) = name_and_value(foreign.header("set-cookie").unwrap());
        let mut flipped = value.to_owned();
        let last = flipped.pop().unwrap();
        flipped.insert(0, if last == 'A' { 'B' } else { 'A' });
        let long = "A".repeat(8000);
        for (name, cookie) in [
            ("user", format!("user={foreign}")),
            ("user", format!("user={flipped}")),
            ("user", "user=ada".to_owned()),
            ("user", "user=".to_owned()),
            ("user", format!("user={long}")),
            // The value set as `user` is replayed as `admin`.
            ("admin", format!("admin={value}")),
        ] {
            let answer = ours.get(&format!("{read}{name}")).header("Cookie", &cookie).send();
            assert_eq!(answer.status(), Status::NOT_FOUND, "{cookie}");
        }
    }
    let keyless = client(App::new().get("/", |cookies: SignedCookies| cookies.get("user")));
    assert_eq!(keyless.get("/").send().status(), Status::INTERNAL_SERVER_ERROR);
}
