//! Crawlers are recognised by the user agents that they really send, and browsers never are.

use flatout_prerender::crawler;

/// The lines of a file without its comments.
fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[test]
fn no_browser_of_a_thousand_is_recognised_as_a_crawler() {
    let browsers: Vec<&str> = lines(include_str!("browsers.txt")).collect();
    assert!(browsers.len() >= 1000, "{} browsers", browsers.len());
    let wrong: Vec<_> = browsers.iter().filter_map(|it| Some((it, crawler(it.as_bytes())?.name))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crawlers_are_recognised_by_their_user_agents() {
    for line in lines(include_str!("crawlers.txt")) {
        let parts: Vec<&str> = line.split('\t').collect();
        let [name, kind, user_agent] = parts[..] else { panic!("three parts are needed: {line}") };
        let found = crawler(user_agent.as_bytes()).map(|found| (found.name, found.kind.name()));
        assert_eq!(found, Some((name, kind)), "{user_agent}");
    }
}
