//! What a crawler would miss of a page.

use crate::page::{Inspected, Rendered};

/// Characters of a title and of a description that search engines show.
const TITLE_CHARACTERS_MAX: usize = 70;
const DESCRIPTION_CHARACTERS_MAX: usize = 170;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// A crawler misses it.
    Wrong,
    /// It may be meant so.
    Doubtful,
}

/// Something that a crawler would miss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) text: String,
    /// A value from the page.
    pub(crate) detail: String,
}

/// All findings about a page, the worst first.
pub(crate) fn findings(
    inspected: &Inspected,
    rendered: &Rendered,
    broken: &[(String, String)],
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |severity, text: &str, detail: &str| {
        found.push(Finding { severity, text: text.to_owned(), detail: detail.to_owned() });
    };
    for name in ["title", "description", "og:title", "og:description", "og:image", "canonical"] {
        if inspected.part(name).is_empty() {
            add(Severity::Wrong, &format!("no {name}"), advice(name));
        }
    }
    if rendered.is_late {
        let text = "not finished at its deadline: crawlers get what was drawn by then, stored for a minute";
        add(Severity::Wrong, text, "prerender-page-time; window.prerenderReady");
    }
    if rendered.status >= 300 {
        add(Severity::Doubtful, "the page sets a status", &rendered.status.to_string());
    }
    for error in &rendered.errors {
        add(Severity::Wrong, "JavaScript error", error);
    }
    for (link, why) in broken {
        add(Severity::Wrong, "broken link", &format!("{link} ({why})"));
    }
    for request in &rendered.failed {
        let severity = if request.is_walled { Severity::Doubtful } else { Severity::Wrong };
        let text = if request.is_walled { "request not allowed" } else { "request failed" };
        add(severity, text, &format!("{} ({})", request.url, request.reason));
    }
    for (name, most) in [("title", TITLE_CHARACTERS_MAX), ("description", DESCRIPTION_CHARACTERS_MAX)] {
        let count = inspected.part(name).chars().count();
        if count > most {
            add(
                Severity::Doubtful,
                &format!("long {name}"),
                &format!("{count} characters; about {most} are shown"),
            );
        }
    }
    for (name, advice) in [("language", "<html lang=\"en\">"), ("heading", "no <h1>")] {
        if inspected.part(name).is_empty() {
            add(Severity::Doubtful, &format!("no {name}"), advice);
        }
    }
    if inspected.part("robots").to_ascii_lowercase().contains("noindex") {
        add(Severity::Doubtful, "search engines do not list it", inspected.part("robots"));
    }
    if inspected.unnamed > 0 {
        add(Severity::Doubtful, "pictures without a text (alt)", &inspected.unnamed.to_string());
    }
    found.sort_by_key(|finding| finding.severity);
    found
}

fn advice(name: &str) -> &'static str {
    match name {
        "title" => "document.title = …",
        "description" => "<meta name=\"description\" content=\"…\">",
        "canonical" => "<link rel=\"canonical\" href=\"…\">",
        "og:title" => "<meta property=\"og:title\" content=\"…\">",
        "og:description" => "<meta property=\"og:description\" content=\"…\">",
        _ => "<meta property=\"og:image\" content=\"…\">",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::FailedRequest;

    #[test]
    fn a_page_without_tags_has_a_finding_for_each() {
        let walled = FailedRequest {
            url: "https://ads.test/".to_owned(),
            reason: "origin".to_owned(),
            is_walled: true,
        };
        let rendered =
            Rendered { errors: vec!["Error: x".to_owned()], failed: vec![walled], ..Rendered::default() };
        let broken = [("/gone".to_owned(), "404".to_owned())];
        let found = findings(&Inspected::default(), &rendered, &broken);
        let texts: Vec<&str> = found.iter().map(|finding| finding.text.as_str()).collect();
        for expected in [
            "no title",
            "no description",
            "no og:title",
            "no og:description",
            "no og:image",
            "no canonical",
            "JavaScript error",
            "broken link",
            "request not allowed",
        ] {
            assert!(texts.contains(&expected), "{expected}: {texts:?}");
        }
        assert!(found.is_sorted_by_key(|finding| finding.severity));
    }

    #[test]
    fn a_complete_page_has_none() {
        let value = serde_json::json!({
            "rendered": ["en", "A", "B", "https://a.test/", "A", "B", "https://a.test/a.png", "https://a.test/", "A", ""],
            "plain": [], "words": [1, 9], "links": [0, 2], "own": ["/x"], "unnamed": 0,
        });
        let inspected = Inspected::of(&value);
        assert_eq!((inspected.words, inspected.own.len()), ([1, 9], 1));
        assert_eq!(findings(&inspected, &Rendered::default(), &[]), []);
    }
}
