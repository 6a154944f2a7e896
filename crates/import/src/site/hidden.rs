//! Names of files that an imported site does not serve.
//!
//! nginx passed many of them to an application instead of sending their text, or had rules against them that may be among
//! those that were left out. The site file has the list, so that it can be read and changed.

/// Names, and why they are hidden.
pub(super) const HIDDEN: [(&str, &[&str]); 6] = [
    (
        "source of applications behind PHP, CGI and the like",
        &[
            "*.php", "*.php3", "*.php4", "*.php5", "*.php7", "*.php8", "*.phps", "*.phtml", "*.pht",
            "*.phar", "*.inc", "*.cgi", "*.fcgi", "*.pl", "*.pm", "*.py", "*.pyc", "*.rb", "*.lua", "*.jsp",
            "*.asp", "*.aspx", "*.shtml",
        ],
    ),
    (
        "parts of content management systems",
        &["*.module", "*.install", "*.engine", "*.profile", "*.theme", "*.twig", "*.tpl", "*.blade"],
    ),
    (
        "copies that editors and administrators leave beside a file",
        &[
            "*~", "#*#", "*.bak", "*.bak.*", "*.old", "*.orig", "*.save", "*.swp", "*.swo", "*.swn",
            "*.php.*", "*.php_*", "*.inc.*", "*.env.*",
        ],
    ),
    ("databases and logs", &["*.sql", "*.sql.*", "*.sqlite", "*.sqlite3", "*.db", "*.mdb", "*.log"]),
    (
        "settings and secrets",
        &[
            ".env*",
            "*.env",
            ".ht*",
            "*.ini",
            "*.pem",
            "*.key",
            "*.p12",
            "*.pfx",
            "*.kdbx",
            "web.config",
            "wp-config*",
            "composer.json",
            "composer.lock",
            "auth.json",
        ],
    ),
    ("version control", &[".git*", ".svn", ".hg", ".bzr", "CVS"]),
];

/// Whether a file of this name is hidden.
pub(crate) fn is_hidden(name: &str) -> bool {
    let is_dotted = name.starts_with('.') && name != ".well-known";
    is_dotted || HIDDEN.iter().flat_map(|(_, names)| *names).any(|pattern| matches(pattern, name))
}

/// Whether a name matches a pattern in which `*` stands for any text. Case does not matter.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let options = glob::MatchOptions { case_sensitive: false, ..glob::MatchOptions::new() };
    glob::Pattern::new(pattern).is_ok_and(|pattern| pattern.matches_with(name, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hidden_in_any_case() {
        for (name, expected) in [
            ("a.php", true),
            ("A.PHP", true),
            (".env", true),
            ("a.php~", true),
            ("a.css", false),
            ("php", false),
        ] {
            assert_eq!(is_hidden(name), expected, "{name}");
        }
    }
}
