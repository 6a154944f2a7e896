//! docs/tutorial.md: the programs of its steps, which `examples/tutorial` takes from the page, do what its commands show.

use flatout_tests::{Folder, guide, program};

/// The text of each step.
fn steps(page: &str) -> Vec<&str> {
    page.split("\n## ").skip(1).collect()
}

/// Starts the program of a step, runs the commands of a text, and ends the program.
fn script(step: usize, commands: &str) -> String {
    let program = program(&format!("tutorial-{step}")).display().to_string();
    format!(
        "TOKEN=secret {program} &\nlinks=$!\n\
         until curl -sf -o /dev/null http://127.0.0.1:8080/health; do sleep 0.1; done\n{commands}\nkill $links\nwait $links\n"
    )
}

#[test]
fn each_step_of_the_tutorial_works() {
    let page = guide::page("tutorial.md");
    let steps = steps(&page);
    assert_eq!(steps.len(), 6);
    let expected: [&[&str]; 6] = [
        &["ok\n", "404 Not Found"],
        &[
            r#"{"code":"1","url":"https://example.org/a/long/path"}"#,
            "location: https://example.org/a/long/path",
            "missing field `url` at line 1 column 35",
        ],
        &[r#""followed":1"#],
        &["401\n", r#""url":"https://example.org/""#],
        &["serving", "flatout_requests_total", "requests/sec"],
        &[r#""code":"1""#],
    ];
    let folder = Folder::new();
    let mut all = String::new();
    for (at, step) in steps.iter().enumerate() {
        if let Some((_, file)) = step.split_once("`site.kdl`:") {
            let file = file.split_once("```kdl\n").unwrap().1.split_once("```").unwrap().0;
            folder.write("site.kdl", file);
        }
        // The last one has no program of its own: it deploys that of the step before.
        all += &format!("echo '== step'\n{}", script((at + 1).min(5), &guide::commands(step)));
    }
    let shown = guide::run(&all, &folder);
    let shown: Vec<&str> = shown.split("== step\n").skip(1).collect();
    for (at, (shown, expected)) in shown.iter().zip(expected).enumerate() {
        for text in expected {
            assert!(
                shown.to_lowercase().contains(&text.to_lowercase()),
                "step {}: no `{text}` in: {shown}",
                at + 1
            );
        }
    }
}
