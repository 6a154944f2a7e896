//! What a response keeps when a page or a rule changes it: where it leads, how to log in, its charset.

use flatout_tests::Folder;

use crate::rules::served;

#[test]
fn pages_keep_where_a_redirect_leads_and_how_to_log_in() {
    let folder = Folder::new();
    folder.write("users", "ann:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n");
    let site = r#"
        error-page 301 text="a page"
        error-page 302 401 to="/page"
        error-page 307 to="@own" status=own
        site "*" {
            route "/page" { respond 200 "of a route"; }
            route "@own" { redirect "https://c.test/"; }
            route "/301" { redirect "https://b.test/1" status=301; }
            route "/302" { redirect "https://b.test/2" status=302; }
            route "/307" { redirect "https://b.test/3" status=307; }
            route "/401" { basic-auth users file=users; respond 200 secret; }
        }
    "#;
    let server = served(&folder, site);
    for (path, status, location, body) in [
        ("/301", 301, Some("https://b.test/1"), "a page"),
        ("/302", 302, Some("https://b.test/2"), "of a route"),
        ("/307", 302, Some("https://c.test/"), ""),
        ("/401", 401, None, "of a route"),
    ] {
        let found = server.get(path, "");
        assert_eq!(
            (found.status, found.field("location"), &*found.text()),
            (status, location, body),
            "{path}"
        );
        assert_eq!(found.field("www-authenticate").is_some(), status == 401, "{path}");
    }
}

#[test]
fn a_redirect_of_an_upstream_keeps_its_location_with_a_page() {
    let folder = Folder::new();
    let upstream = served(&Folder::new(), "redirect \"https://b.test/\"\n");
    let site = format!(
        "site \"*\" {{ proxy \"http://{}\"; error-page 302 text=\"a page\" upstream=on; }}\n",
        upstream.address
    );
    let found = served(&folder, &site).get("/", "");
    assert_eq!(
        (found.status, found.field("location"), &*found.text()),
        (302, Some("https://b.test/"), "a page")
    );
}

#[test]
fn an_action_in_a_when_above_try_files_is_for_requests_of_files_too() {
    let folder = Folder::new();
    folder.write("www/a.txt", "a file");
    let site = r#"
        when "$arg_k == 'top'" { respond 403 top; }
        site "*" {
            when "$arg_k == 'above'" { respond 403 above; }
            try-files www
            when "$arg_k == 'below'" { respond 403 below; }
            respond 200 other
        }
    "#;
    let server = served(&folder, site);
    for (path, status, body) in [
        ("/a.txt", 200, "a file"),
        ("/a.txt?k=top", 403, "top"),
        ("/a.txt?k=above", 403, "above"),
        ("/a.txt?k=below", 200, "a file"),
        ("/none?k=below", 403, "below"),
        ("/none", 200, "other"),
    ] {
        let found = server.get(path, "");
        assert_eq!((found.status, &*found.text()), (status, body), "{path}");
    }
}

#[test]
fn groups_in_a_query_stay_one_value() {
    let folder = Folder::new();
    let site = r#"
        site "*" {
            rewrite "^/inner/(.*)$" "/shown?id=$1"
            route "/shown" { respond 200 "$args"; }
            route "^/moved/(.*)$" match=regex { redirect "/x/$1?id=$1"; }
            route "^/again/(.*)$" match=regex { reroute "/shown?id=$1"; }
        }
    "#;
    let server = served(&folder, site);
    for (path, expected) in [
        ("/inner/a%26b=1", "id=a%26b=1"),
        ("/inner/c++", "id=c%2B%2B"),
        ("/inner/a%3Bb%20c", "id=a%3Bb%20c"),
        // As a query that was written as a path.
        ("/inner/a&b=1", "id=a&b=1"),
        ("/again/a%26b", "id=a%26b"),
    ] {
        assert_eq!(server.get(path, "").text(), expected, "{path}");
    }
    let moved = server.get("/moved/a%26b", "");
    assert_eq!(moved.field("location"), Some("/x/a&b?id=a%26b"));
}

#[test]
fn texts_have_the_charset_of_their_route() {
    let folder = Folder::new();
    for name in ["www/a.html", "www/a.css", "www/a.png"] {
        folder.write(name, "a");
    }
    let upstream = served(
        &Folder::new(),
        "site \"*\" {\n  route \"/html\" { respond 200 a type=\"text/html\"; }\n  route \"/css\" { respond 200 a type=\"text/css\"; }\n  \
         route \"/own\" { respond 200 a type=\"text/html; charset=koi8-r\"; }\n}\n",
    );
    let site = format!(
        "charset \"windows-1251\"\nsite \"*\" {{\n  files www\n  \
         route \"/app/\" {{ proxy \"http://{0}\"; rewrite-prefix \"/app/\" \"/\"; cache \"1m\"; cache-valid \"1m\" 200; }}\n  \
         route \"/types/\" {{ charset-types \"text/*\"; proxy \"http://{0}\"; rewrite-prefix \"/types/\" \"/\"; }}\n  \
         route \"/off/\" {{ charset off; proxy \"http://{0}\"; rewrite-prefix \"/off/\" \"/\"; }}\n}}\n",
        upstream.address
    );
    let server = served(&folder, &site);
    for (path, expected) in [
        ("/a.html", "text/html; charset=windows-1251"),
        ("/a.css", "text/css; charset=utf-8"),
        ("/a.png", "image/png"),
        ("/app/html", "text/html; charset=windows-1251"),
        // From the cache.
        ("/app/html", "text/html; charset=windows-1251"),
        ("/app/css", "text/css"),
        ("/app/own", "text/html; charset=koi8-r"),
        ("/types/css", "text/css; charset=windows-1251"),
        ("/off/html", "text/html"),
    ] {
        assert_eq!(server.get(path, "").field("content-type"), Some(expected), "{path}");
    }
}
