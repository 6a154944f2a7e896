//! docs/operator.md: each command of the guide works as it stands, one after the other, in an empty folder.

use flatout_tests::{Folder, guide};

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
