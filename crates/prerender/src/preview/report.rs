//! The page of a preview. Everything that comes from the page is text in it: nothing of it becomes markup.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::findings::{Finding, Severity};
use crate::page::{Inspected, PARTS, Rendered};

/// Bytes of HTML that are shown.
const SHOWN_BYTES_MAX: usize = 200_000;

/// The frame of the page, with places for its parts.
const PAGE: &str = include_str!("report.html");

/// The two sides of a page.
pub(crate) struct Sides<'a> {
    pub(crate) url: &'a str,
    /// The HTML as the site sends it.
    pub(crate) plain: &'a str,
    pub(crate) rendered: &'a Rendered,
    pub(crate) inspected: &'a Inspected,
}

/// The page of a preview.
pub(crate) fn report(sides: &Sides<'_>, findings: &[Finding]) -> String {
    let wrong = findings.iter().filter(|finding| finding.severity == Severity::Wrong).count();
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let verdict = match (wrong, findings.len() - wrong) {
        (0, 0) => "No problems for crawlers".to_owned(),
        (0, doubtful) => format!("No problems for crawlers, {}", count(doubtful, "hint")),
        (wrong, 0) => format!("{} for crawlers", count(wrong, "problem")),
        (wrong, doubtful) => format!("{} for crawlers, {}", count(wrong, "problem"), count(doubtful, "hint")),
    };
    let picture = match sides.inspected.picture.is_empty() {
        true => "<p class=\"empty\">The browser made no picture of this page.</p>".to_owned(),
        false => format!(
            "<img alt=\"The page as a person sees it\" src=\"data:image/jpeg;base64,{}\">",
            BASE64_STANDARD.encode(&sides.inspected.picture)
        ),
    };
    let parts = [
        ("url", escape(sides.url)),
        ("mood", if wrong == 0 { "good" } else { "bad" }.to_owned()),
        ("verdict", escape(&verdict)),
        ("findings", list(findings)),
        ("parts", table(sides.inspected)),
        ("picture", picture),
        ("rendered", shown(&sides.rendered.html)),
        ("plain", shown(sides.plain)),
    ];
    let mut page = String::with_capacity(PAGE.len() + sides.rendered.html.len());
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let Some((name, after)) = after.split_once("}}") else { break };
        let part = parts.iter().find(|(known, _)| *known == name);
        page.push_str(part.map(|(_, text)| text.as_str()).unwrap_or_default());
        rest = after;
    }
    page.push_str(rest);
    page
}

fn list(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let class = if finding.severity == Severity::Wrong { "wrong" } else { "doubtful" };
        format!(
            "<li class=\"{class}\"><b>{}</b> <code>{}</code></li>",
            escape(&finding.text),
            escape(&finding.detail)
        )
    };
    findings.iter().map(line).collect()
}

fn table(inspected: &Inspected) -> String {
    let cell = |text: &str| match text {
        "" => "<td class=\"none\">–</td>".to_owned(),
        text => format!("<td>{}</td>", escape(text)),
    };
    let row = |name: &str, plain: &str, rendered: &str| {
        format!("<tr><th scope=\"row\">{name}</th>{}{}</tr>", cell(plain), cell(rendered))
    };
    let text = |texts: &[String], at: usize| texts.get(at).cloned().unwrap_or_default();
    let mut rows: Vec<String> = PARTS
        .iter()
        .enumerate()
        .map(|(at, name)| row(name, &text(&inspected.plain, at), &text(&inspected.rendered, at)))
        .collect();
    for (name, [plain, rendered]) in [("words", inspected.words), ("links", inspected.links)] {
        rows.push(row(name, &plain.to_string(), &rendered.to_string()));
    }
    rows.concat()
}

fn shown(html: &str) -> String {
    let end = (0..=SHOWN_BYTES_MAX.min(html.len())).rev().find(|at| html.is_char_boundary(*at));
    let (text, rest) = html.split_at(end.unwrap_or_default());
    match rest.len() {
        0 => escape(text),
        bytes => format!("{}\n… and {bytes} bytes more", escape(text)),
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_page_becomes_markup() {
        let rendered =
            Rendered { html: "</pre><script>alert(1)</script>{{plain}}".to_owned(), ..Rendered::default() };
        let (plain, picture) = (vec!["<b>".to_owned(); 10], b"x".to_vec());
        let inspected = Inspected { plain, picture, ..Inspected::default() };
        let url = "http://a.test/?\"><script>alert(2)</script>";
        let sides = Sides { url, plain: "<i>plain</i>", rendered: &rendered, inspected: &inspected };
        let finding = Finding {
            severity: Severity::Wrong,
            text: "x".to_owned(),
            detail: "<script>alert(3)".to_owned(),
        };
        let page = report(&sides, &[finding]);
        assert!(!page.contains("<script>") && !page.contains("<b><"), "{page}");
        assert!(
            page.contains("&lt;script&gt;alert(1)&lt;/script&gt;{{plain}}"),
            "a place within a value stays text"
        );
        assert!(page.contains("data:image/jpeg;base64,eA==") && page.contains("1 problem for crawlers<"));
    }

    #[test]
    fn long_html_is_cut_between_characters() {
        let text = shown(&"ä".repeat(SHOWN_BYTES_MAX));
        assert!(text.ends_with(&format!("… and {SHOWN_BYTES_MAX} bytes more")));
    }
}
