//! docs/operator.md: each command of the guide works as it stands, one after the other, in an empty folder.

use std::process::Command;

use flatout_tests::authority::Authority;
use flatout_tests::{Folder, guide, program};

#[test]
fn the_commands_of_the_operators_guide_work_as_they_stand() {
    let folder = Folder::new();
    let shown = guide::run(&guide::commands(&guide::page("operator.md")), &folder).to_lowercase();
    for expected in ["<h1>hello</h1>", "x-cache-status: hit", "has taken over", "requests/sec"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let server = std::fs::read_to_string(folder.0.join("server.log")).unwrap();
    assert!(server.contains("reloaded site.kdl"), "{server}");
}

/// The site file for a server, with the folders of a test in the place of those of a system.
#[test]
fn the_site_file_for_a_server_has_no_mistake() {
    let page = guide::page("operator.md");
    let site = page.split("```kdl\n").nth(1).and_then(|rest| rest.split_once("```")).expect("a site file").0;
    let folder = Folder::new();
    let root = folder.0.display().to_string();
    let site = ["/etc/flatout", "/var/www", "/var/log", "/var/cache", "/run/flatout"]
        .iter()
        .fold(site.to_owned(), |site, path| site.replace(&format!("\"{path}"), &format!("\"{root}{path}")));
    let site = site.replace("unix:/run/flatout", &format!("unix:{root}/run/flatout"));
    let authority = Authority::new();
    authority.sign("a", "example.org");
    let site = ["pem", "key"].iter().fold(site, |site, kind| {
        site.replace(&format!("{root}/etc/flatout/example.org.{kind}"), &authority.path(&format!("a.{kind}")))
    });
    folder.write("etc/flatout/users", "eve:$2y$05$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa\n");
    folder.write("etc/flatout/404.html", "<h1>Not here</h1>");
    for made in
        ["var/www/html/a", "var/www/blog/a", "var/log/flatout/a", "var/cache/flatout/a", "run/flatout/a"]
    {
        folder.write(made, "");
    }
    folder.write("etc/flatout/site.kdl", &site);
    let output = Command::new(program("flatout"))
        .arg("check")
        .arg(folder.0.join("etc/flatout/site.kdl"))
        .output()
        .unwrap();
    let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && !shown.contains("warning"), "{shown}\n{site}");
}
