//! Requests that a map divides between two upstreams: by share, by header and by cookie.

use std::process::Command;

use flatout_tests::{Folder, Server, program, until};

use crate::scgi_uwsgi::application;

const USERS: usize = 300;

fn server(folder: &Folder, shares: &str) -> Server {
    folder.write("shares", shares);
    let upstream = |name: &'static str| {
        let (address, _) = application("uwsgi", move |received| {
            received.respond(format!("Content-Length: 3\r\n\r\n{name}").as_bytes());
        });
        format!("upstream {name} {{ server \"{address}\"; protocol uwsgi; }}\n")
    };
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\n{}{}\
             map share \"$arg_user\" by=share file=\"shares\" {{ default \"old\"; }}\n\
             map version \"$http_x_version$cookie_version\" {{ case \"new\" \"new\"; case \"old\" \"old\"; default \"$share\"; }}\n\
             site * {{ route \"/\" {{ proxy \"http://$version\"; }} }}\n",
            upstream("old"),
            upstream("new"),
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    Server::start(command)
}

/// The users that get the new version.
fn new_users(server: &Server) -> Vec<usize> {
    (0..USERS).filter(|user| server.get(&format!("/?user={user}"), "").text() == "new").collect()
}

#[test]
fn a_share_of_users_stays_with_the_new_version_until_its_file_changes() {
    let folder = Folder::new();
    let server = server(&folder, "20% new\n");
    let few = new_users(&server);
    // The hash is always the same, so the count is too.
    assert!((USERS / 10..USERS / 10 * 3).contains(&few.len()), "{} of {USERS}", few.len());
    assert_eq!(new_users(&server), few, "each user stays where it was");
    // Who was in a smaller share is in a larger one.
    folder.write("shares", "60% new\n");
    until("the file is read again", || new_users(&server).len() > few.len());
    let many = new_users(&server);
    assert!(
        few.iter().all(|user| many.contains(user)) && many.len() < USERS / 10 * 8,
        "{} of {USERS}",
        many.len()
    );
    // A mistake changes nothing.
    folder.write("shares", "160% new\n");
    until("the mistake is logged", || server.said().iter().any(|line| line.contains("160%")));
    assert_eq!(new_users(&server), many);
}

#[test]
fn a_header_or_a_cookie_chooses_and_anything_else_does_not() {
    let folder = Folder::new();
    let server = server(&folder, "");
    for (fields, expected) in [
        ("", "old"),
        ("X-Version: new\r\n", "new"),
        ("X-Version: NEW\r\n", "new"),
        ("Cookie: a=b; version=new\r\n", "new"),
        ("Cookie: version=newer\r\n", "old"),
        ("X-Version: new\r\nCookie: version=old\r\n", "old"),
        ("X-Version: http://127.0.0.1:1\r\n", "old"),
        ("X-Version: $share\r\n", "old"),
    ] {
        assert_eq!(server.get("/?user=1", fields).text(), expected, "{fields}");
    }
}
