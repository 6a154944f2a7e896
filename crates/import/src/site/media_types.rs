//! The type of a text that `return` sends: nginx takes that of the ending of the path, from `types`, or else `default_type`. The type of
//! the files of a location with a table of its own: that of their endings, or else `default_type` too.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, text};

/// What nginx sends without `default_type`.
const DEFAULT: &str = "text/plain";

impl<'d> Import<'d> {
    /// `types { … }` in a location that serves files.
    pub(super) fn types_of_location(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        if !lines.has("files") {
            return;
        }
        let has_types = |level: &&&'d [Directive]| level.iter().any(|directive| directive.name == "types");
        let Some(level) = chain.of_route().iter().find(has_types) else { return };
        let types = level.iter().filter(|directive| directive.name == "types");
        let table = table(types.clone().flat_map(|types| types.inner()), chain);
        let Some(table) = table.filter(|_| ["", "off"].contains(&chain.word("charset"))) else {
            let why = "files have the types of their endings; of a location, only a short table without charset is supported";
            types.for_each(|types| self.leave(types, why, lines));
            return;
        };
        types.for_each(|types| self.carry(types));
        let kind = match chain.find("default_type") {
            Some(kind) => {
                self.fates.carried(kind);
                kind.word(0)
            }
            None => DEFAULT,
        };
        let setting =
            |kind: &str| format!("response-header set \"Content-Type\" {} when=success", text(kind));
        if table.is_empty() {
            return lines.setting(setting(kind));
        }
        let found: Vec<String> = table.iter().map(|(_, test)| format!("!{test}")).collect();
        let others = [(kind.to_owned(), found.join(" && "))];
        for (kind, test) in table.iter().chain(&others) {
            let mut inner = Lines::default();
            inner.setting(setting(kind));
            lines.block(&[], format!("when {}", text(test)), inner);
        }
    }
}

/// Types of one location.
const TYPES_MAX: usize = 20;

/// The types of a table, with the tests of the paths that have them. `None` if it is too long, or has other than plain endings.
fn table<'d>(lines: impl Iterator<Item = &'d Directive>, chain: &Chain<'_>) -> Option<Vec<(String, String)>> {
    let index = chain.find("index").map_or("index.html", |index| index.word(0));
    let of_folders = index.rsplit('.').next().unwrap_or_default();
    let test = |kind: &'d Directive| {
        let endings = kind.texts();
        let is_plain =
            |ending: &&str| ending.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if endings.is_empty() || !endings.iter().all(is_plain) || kind.name.contains('$') {
            return None;
        }
        // A folder has the type of its page.
        let folder = if endings.contains(&of_folders) { "|/" } else { "" };
        Some((kind.name.clone(), format!("$uri.matches(r'(?i)(?:\\.(?:{}){folder})$')", endings.join("|"))))
    };
    let table: Vec<(String, String)> = lines.map(test).collect::<Option<_>>()?;
    (table.len() <= TYPES_MAX).then_some(table)
}

/// What nginx has without `types`.
const USUAL: [(&str, &str); 3] = [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];

/// The type for the paths of a location. Where their endings may differ, it is that of a path without one.
pub(super) fn of_path(path: Option<&Path>, chain: &Chain<'_>) -> String {
    let of_ending = path.and_then(ending).and_then(|ending| of_ending(&ending, chain));
    let given = chain.word("default_type");
    of_ending.unwrap_or_else(|| if given.is_empty() { DEFAULT.to_owned() } else { given.to_owned() })
}

/// The ending that all paths of a location have.
fn ending(path: &Path) -> Option<String> {
    let name = match (path.exact(), path.pattern()) {
        (Some(path), _) => path.rsplit('/').next()?,
        (None, Some((pattern, _))) => pattern.strip_suffix('$').filter(|it| !it.contains('|'))?,
        (None, None) => return None,
    };
    let (before, ending) = name.rsplit_once('.')?;
    // A dot of an expression stands for itself behind a backslash.
    let is_dot = path.exact().is_some() && !before.is_empty() || before.ends_with('\\');
    let is_plain = !ending.is_empty() && ending.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_dot && is_plain).then(|| ending.to_ascii_lowercase())
}

fn of_ending(ending: &str, chain: &Chain<'_>) -> Option<String> {
    let is_types = |directive: &&Directive| directive.name == "types";
    let level = chain.levels().iter().find(|level| level.iter().any(|directive| is_types(&directive)));
    let Some(level) = level else {
        return USUAL.iter().find(|(known, _)| *known == ending).map(|(_, kind)| (*kind).to_owned());
    };
    let mut kinds = level.iter().filter(is_types).flat_map(|types| types.inner());
    kinds.find(|kind| kind.texts().contains(&ending)).map(|kind| kind.name.clone())
}

#[cfg(test)]
mod tests {
    use super::super::written::of_server;

    #[test]
    fn texts_have_the_type_of_the_ending_of_all_paths() {
        for (location, expected) in [
            ("= /a.json", "\"application/json\""),
            ("= /a.JSON", "\"application/json\""),
            ("~ \\.json$", "\"application/json\""),
            ("~ \\.(json|xml)$", "\"a/b\""),
            ("= /.json", "\"a/b\""),
            ("= /a.other", "\"a/b\""),
            ("/a.json", "\"a/b\""),
        ] {
            let content = "default_type a/b; types { application/json json; }";
            let site = of_server(&format!("{content} location {location} {{ return 200 x; }}"));
            assert!(site.contains(&format!("respond 200 \"x\" type={expected}")), "{location}: {site}");
        }
        let site = of_server("location = /a.html { return 200 x; }");
        assert!(site.contains("type=\"text/html\""), "{site}");
    }

    #[test]
    fn files_behind_an_empty_table_have_the_default_type() {
        for (content, expected) in [
            ("types { } default_type a/b;", Some("a/b")),
            ("types { }", Some("text/plain")),
            ("default_type a/b;", None),
            ("types { } charset utf-8;", None),
        ] {
            let site = of_server(&format!("root /r; location /a/ {{ {content} }}"));
            let setting =
                expected.map(|kind| format!("response-header set \"Content-Type\" \"{kind}\" when=success"));
            assert_eq!(setting.is_some(), site.contains("Content-Type"), "{content}: {site}");
            assert!(setting.is_none_or(|setting| site.contains(&setting)), "{content}: {site}");
        }
        let site =
            of_server("root /r; location /a/ { types { a/b log md; text/html html; } default_type a/c; }");
        for expected in [
            "when \"$uri.matches(r'(?i)(?:\\\\.(?:log|md))$')\" { | response-header set \"Content-Type\" \"a/b\" when=success | }",
            "when \"$uri.matches(r'(?i)(?:\\\\.(?:html)|/)$')\" { | response-header set \"Content-Type\" \"text/html\" when=success | }",
            "when \"!$uri.matches(r'(?i)(?:\\\\.(?:log|md))$') && !$uri.matches(",
            "{ | response-header set \"Content-Type\" \"a/c\" when=success | }",
        ] {
            assert!(site.contains(expected), "{expected}\n{site}");
        }
        for lost in ["types { a/b log; } charset utf-8;", "types { a/b a.b; }"] {
            let site = of_server(&format!("root /r; location /a/ {{ {lost} }}"));
            assert!(site.contains("not converted: types"), "{site}");
        }
        let site = of_server("types { a/b log; } location /a/ { types { } proxy_pass http://a; }");
        assert!(!site.contains("Content-Type") && !site.contains("not converted"), "{site}");
    }
}
