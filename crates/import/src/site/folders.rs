//! Folders whose names depend on the request, as in `root /srv/$host` and `alias /srv/files/$1`: the part of the name before the first
//! variable is the folder, and a rewrite adds the rest to the path.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::ifs::has_group;
use super::location::Path;
use super::out::{Lines, text};

/// The folder, and what each request has below it; `None` if that could be any folder.
fn split(name: &str) -> Option<(&str, &str)> {
    let plain = name.get(..name.find('$')?)?;
    let (folder, _) = plain.rsplit_once('/').filter(|(folder, _)| !folder.is_empty())?;
    Some((folder, name.get(folder.len()..)?))
}

impl<'d> Import<'d> {
    /// The files of a `root` with variables.
    pub(super) fn root_of_request(
        &mut self,
        root: &'d Directive,
        chain: &Chain<'d>,
        path: Option<&Path>,
        lines: &mut Lines,
    ) {
        let tried = chain.find_own("try_files");
        let is_usual = |text: &&str| ["$uri", "$uri/", "=404"].contains(text);
        let found = self.folder_of_request(root, lines).and_then(|(folder, below)| {
            if tried.is_some_and(|tried| !tried.texts().iter().all(is_usual)) {
                return Err(
                    "its folder depends on the request, so try_files has only $uri and =404".to_owned()
                );
            }
            match (has_group(below), path.and_then(Path::pattern)) {
                (false, _) => Ok((folder, below, ("^", false))),
                (true, Some(pattern)) => Ok((folder, below, pattern)),
                (true, None) => Err("it has a group of no expression".to_owned()),
            }
        });
        match found {
            Ok((folder, below, pattern)) => {
                self.fates.carried(root);
                match tried {
                    Some(tried) => self.try_files(tried, folder, chain, path, &[], lines),
                    None => self.plain_files(folder, chain, path, lines),
                }
                lines.setting(rewrite(pattern, &format!("{}$uri", below.trim_end_matches('/'))));
            }
            Err(why) => self.lose(root, &why, lines),
        }
    }

    /// The files of an `alias` in a location with an expression, or with variables.
    pub(super) fn alias_of_request(
        &mut self,
        alias: &'d Directive,
        path: Option<&Path>,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) {
        let found = self.folder_of_request(alias, lines).and_then(|(folder, below)| {
            if chain.own().iter().any(|directive| directive.name == "try_files") {
                return Err("try_files is not supported in such a location".to_owned());
            }
            match (path.and_then(Path::pattern), path.and_then(Path::prefix)) {
                (Some(pattern), _) => Ok((folder, rewrite(pattern, below))),
                (None, Some(prefix)) if !has_group(below) => {
                    let pattern = format!("^{}(.*)$", regex::escape(prefix));
                    Ok((folder, rewrite((&pattern, false), &format!("{below}$1"))))
                }
                _ => Err("it needs a location with a path or an expression".to_owned()),
            }
        });
        match found {
            Ok((folder, rewrite)) => {
                self.fates.carried(alias);
                self.plain_files(folder, chain, path, lines);
                lines.setting(rewrite);
            }
            Err(why) => self.lose(alias, &why, lines),
        }
    }

    /// # Errors
    /// Why the folder of a directive cannot be converted.
    fn folder_of_request(
        &self,
        directive: &'d Directive,
        lines: &Lines,
    ) -> Result<(&'d str, &'d str), String> {
        let name = directive.word(0);
        if let Some(why) = self.no_path(name) {
            return Err(why);
        }
        if lines.stops_rewrites() {
            // Their paths would be those of files.
            return Err(
                "its folder depends on the request, and a rewrite before it is the last one".to_owned()
            );
        }
        split(name).ok_or_else(|| "it needs a folder, and a group or a variable behind it".to_owned())
    }
}

/// The last rewrite of a place; the expression may ignore case.
fn rewrite((pattern, ignore_case): (&str, bool), to: &str) -> String {
    let ignore_case = if ignore_case { " ignore-case=on" } else { "" };
    format!("rewrite {} {} then=stop{ignore_case}", text(pattern), text(to))
}

#[cfg(test)]
mod tests {
    use super::super::written::of_server;
    use super::*;

    #[test]
    fn a_folder_comes_before_the_first_variable() {
        for (name, expected) in [
            ("/srv/$host", Some(("/srv", "/$host"))),
            ("/srv/a-$host/b", Some(("/srv", "/a-$host/b"))),
            ("/srv/www/$1/$2", Some(("/srv/www", "/$1/$2"))),
            ("/$host", None),
            ("$root/a", None),
            ("/srv", None),
        ] {
            assert_eq!(split(name), expected, "{name}");
        }
    }

    #[test]
    fn the_rest_of_its_name_is_a_rewrite() {
        for (content, expected) in [
            ("location / { root /srv/$host/; }", "files \"/srv\" | rewrite \"^\" \"/$host$uri\" then=stop"),
            (
                "location /a/ { alias /srv/$host/b/; }",
                "files \"/srv\" | rewrite \"^/a/(.*)$\" \"/$host/b/$1\" then=stop",
            ),
            (
                "location ~* ^/d/(.+)\\.txt$ { alias /srv/$1.md; }",
                "files \"/srv\" | rewrite \"^/d/(.+)\\\\.txt$\" \"/$1.md\" then=stop ignore-case=on",
            ),
        ] {
            let site = of_server(content);
            assert!(site.contains(expected) && !site.contains("501"), "{content}: {site}");
        }
    }

    #[test]
    fn places_whose_folder_is_uncertain_are_closed() {
        for content in [
            "location / { root /$host; }",
            "location / { root /srv/$request_body; }",
            "location / { root /srv/$1; }",
            "location / { root /srv/$host; try_files $uri /index.html; }",
            "location / { root /srv/$host; rewrite ^/a /b break; }",
            "location / { root /srv/$host; if ($arg_a) { rewrite ^ /b break; } }",
            "location /a { alias /srv/$host; try_files $uri =404; }",
            "location /a { alias /srv/$1; }",
        ] {
            let site = of_server(content);
            assert!(site.contains("501"), "{content}: {site}");
        }
    }
}
