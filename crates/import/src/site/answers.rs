//! What handles requests in a server or a location.

use crate::nginx::Directive;

use super::chain::{Chain, has_below};
use super::file_tests::file_test;
use super::location::{Path, base_of, choose};
use super::out::{Lines, line, text};
use super::settings::passes;
use super::{Import, closed, values};

/// What happens to requests for files that do not exist.
enum Missing {
    NotFound,
    Status(u16),
    /// nginx passes them to something that is not converted, for this reason.
    Closed(String),
}

/// The requests for folders that nginx passes to an index.
const FOLDERS: &str = "path.endsWith('/') && method in ['GET', 'HEAD', 'POST']";

impl<'d> Import<'d> {
    /// Writes what handles requests. `named` are the named locations of the server.
    pub(super) fn action(
        &mut self,
        chain: &Chain<'d>,
        path: Option<&Path>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        if let Some(why) = self.closed_by(chain) {
            return self.close(&why, lines);
        }
        if let Some(directive) = chain.until_end().last().filter(|end| end.name == "return") {
            match self.answer(directive, chain, path) {
                Ok(said) => return lines.setting(said),
                Err(why) => self.lose(directive, &why, lines),
            }
            return;
        }
        let asks = chain.find("auth_request").and_then(|directive| self.constant_auth(directive, chain));
        // nginx responds 500 to anything but these.
        match asks {
            None | Some(200..=299) => {}
            Some(status @ (401 | 403)) => return lines.setting(format!("respond {status}")),
            Some(_) => return lines.setting("respond 500".to_owned()),
        }
        if let Some(directive) = chain.find_own("stub_status") {
            self.fates.carried(directive);
            return lines.setting("stub-status".to_owned());
        }
        if let Some(directive) = chain.find_own("proxy_pass").or_else(|| chain.find_own("grpc_pass")) {
            match self.proxy(directive, chain, path, lines) {
                Ok(()) => self.fates.carried(directive),
                Err(why) => self.lose(directive, &why, lines),
            }
            return;
        }
        if let Some(directive) = chain.find_own("fastcgi_pass") {
            match self.fastcgi(directive, chain, path, lines) {
                Ok(()) => self.fates.carried(directive),
                Err(why) => self.lose(directive, &why, lines),
            }
            return;
        }
        if let Some(directive) = chain.find_own("uwsgi_pass").or_else(|| chain.find_own("scgi_pass")) {
            match self.application(directive, chain, lines) {
                Ok(()) => self.fates.carried(directive),
                Err(why) => self.lose(directive, &why, lines),
            }
            return;
        }
        if let Some(alias) = chain.find_own("alias") {
            return self.alias(alias, path, chain, named, lines);
        }
        if let Some(alias) = Alias::of(chain) {
            return self.alias_files(&alias, path, chain, named, lines);
        }
        if let Some(outer) = outer_alias(chain) {
            return self.close(
                &format!("{outer}: the alias of an outer location is not converted for inner ones"),
                lines,
            );
        }
        let Some(root) = chain.find("root") else {
            if path.is_some() {
                lines.comment("no root is set");
                lines.setting("respond 404".to_owned());
            }
            return;
        };
        if root.word(0).contains('$') {
            return self.root_of_request(root, chain, path, lines);
        }
        self.fates.carried(root);
        match chain.find_own("try_files") {
            Some(tried) => self.try_files(tried, root.word(0), chain, path, named, lines),
            None => self.files(root.word(0), Missing::NotFound, chain, path, lines),
        }
    }

    /// A directive that handles all requests of this place, and cannot be converted.
    pub(super) fn lose(&mut self, directive: &'d Directive, why: &str, lines: &mut Lines) {
        self.leave(directive, why, lines);
        self.close(&format!("{}: {why}", directive.to_string().trim_end_matches(';')), lines);
    }

    /// Writes a folder, without anything that is tried before 404.
    pub(super) fn plain_files(
        &mut self,
        folder: &str,
        chain: &Chain<'d>,
        path: Option<&Path>,
        lines: &mut Lines,
    ) {
        self.files(folder, Missing::NotFound, chain, path, lines);
    }

    /// Writes a folder. Requests that nginx would have passed on instead of responding 404 are not served.
    fn files(
        &mut self,
        folder: &str,
        missing: Missing,
        chain: &Chain<'d>,
        path: Option<&Path>,
        lines: &mut Lines,
    ) {
        self.serves_files = true;
        if let Some((to, test)) = self.folder_path(chain) {
            let test = match Alias::of(chain) {
                Some(alias) => test.map(|test| alias.test(&test)),
                None => test,
            };
            if test.is_some() {
                // A folder without that file has no other.
                lines.setting("index off".to_owned());
            }
            let test = test.map_or_else(String::new, |test| format!(" && {test}"));
            // The path of such an alias is that of a file when its action begins.
            let is_alias = chain.own().iter().any(|it| it.name == "alias") && Alias::of(chain).is_none();
            let mut inner = Lines::default();
            inner.setting(match is_alias {
                true => format!("rewrite \"^\" {} then=route", text(&to)),
                false => line("reroute", &format!("{to}?$args")),
            });
            lines.block(&[], format!("when {}", text(&format!("{FOLDERS}{test}"))), inner);
        }
        if matches!(missing, Missing::NotFound | Missing::Status(_))
            && path.is_none_or(Path::may_be_folder)
            && !lines.has_setting("index off")
        {
            self.folder_scripts(folder, chain, path, lines);
        }
        let missing = match missing {
            Missing::NotFound => {
                let rewritten = self.missing_rewrite(chain);
                let lost = rewritten.and_then(|(condition, rewrite)| match front_controller(rewrite) {
                    Some(_) => self.unserved(rewrite.word(1), chain),
                    None => Some(format!("{condition} {rewrite}")),
                });
                if let (None, Some((condition, rewrite))) = (&lost, rewritten)
                    && let Some(to) = front_controller(rewrite)
                    && values::unknown_variable(&to, &self.maps).is_none()
                {
                    self.carry(condition);
                    return self.reroute(folder, &to, chain, lines);
                }
                let lost = lost.or_else(|| {
                    path.is_none_or(Path::may_be_folder).then(|| self.unserved_index(chain)).flatten()
                });
                let lost = lost.or_else(|| self.unserved_missing(chain));
                lost.map_or(missing, Missing::Closed)
            }
            missing => missing,
        };
        match missing {
            Missing::NotFound => lines.setting(line("files", folder)),
            Missing::Status(status) => {
                lines.setting(self.final_files(folder, chain, lines));
                lines.setting(format!("respond {status}"));
            }
            Missing::Closed(why) => {
                lines.setting(self.final_files(folder, chain, lines));
                self.close(&format!("files are served, all else is not: {why}"), lines);
            }
        }
    }

    /// The path that requests for folders continue with: the `index` of this block alone, if it is a path or has variables. nginx
    /// chooses a location for it; one in the folder must be a file, for which the second text is the test.
    pub(super) fn folder_path(&self, chain: &Chain<'d>) -> Option<(String, Option<String>)> {
        let index = chain.find_own("index")?;
        let [name] = index.texts()[..] else { return None };
        let is_path = name.contains('$') || name.starts_with('/');
        let is_other = has_below(chain.own(), &["index", "root", "alias", "try_files"])
            || passes(chain)
            || chain
                .own()
                .iter()
                .any(|directive| ["try_files", "location"].contains(&directive.name.as_str()));
        if !is_path || is_other || self.no_path(name).is_some() {
            return None;
        }
        if name.starts_with('/') {
            return Some((name.to_owned(), None));
        }
        let own = chain.find_own("alias");
        let folder = own.or_else(|| chain.find("root"))?.word(0);
        if folder.contains('$') {
            return None;
        }
        let test = file_test("-f", &format!("{}${{uri}}{name}", folder.trim_end_matches('/')), &self.maps)?;
        Some((format!("${{uri}}{name}"), Some(test)))
    }

    /// Whether nginx looks for the location of this page of a folder once more, and finds rules there, as in `location ~ \.html$ { expires
    /// -1; }`.
    fn has_rules_of_its_own(&self, page: &str, chain: &Chain<'d>) -> bool {
        let found = choose(&format!("{}{page}", base_of(chain)), chain.server());
        let is_own = |location| chain.location_at(0).is_some_and(|own| std::ptr::eq(own, location));
        let has_rules = |location: &Directive| {
            matches!(Path::of(location), Some(Path::Regex { .. }))
                && !is_own(location)
                && super::named::has_rules(location.inner())
        };
        found.is_some_and(has_rules) && !self.is_script(page, chain)
    }

    /// Requests for folders whose index is a script, a page with rules of its own, or in the end another path, go to that, after the
    /// rules of this place, as in nginx.
    fn folder_scripts(&self, folder: &str, chain: &Chain<'d>, path: Option<&Path>, lines: &mut Lines) {
        // Its path is that of a file when its action begins, and names another script.
        let alias = Alias::of(chain);
        let has_own_paths = alias.is_none()
            && (chain.own().iter().any(|it| it.name == "alias") || chain.word("root").contains('$'));
        let index = chain.find("index");
        if has_own_paths || matches!(path, Some(Path::Named(_))) {
            if !closed::indexes_where(chain, |name| closed::is_guarded(name, chain, closed::protects))
                .is_empty()
            {
                return lines.index_off();
            }
            return index.into_iter().for_each(|index| self.index_with_script(index, chain, lines));
        }
        let test = |operator: &str, name: &str| {
            let path = format!("{}${{uri}}{name}", folder.trim_end_matches('/'));
            let test = file_test(operator, &path, &self.maps)?;
            Some(alias.as_ref().map_or_else(|| test.clone(), |alias| alias.test(&test)))
        };
        let reroute = |tests: Vec<Option<String>>, to: &str, lines: &mut Lines| {
            let tests: Option<Vec<String>> = std::iter::once(Some(FOLDERS.to_owned())).chain(tests).collect();
            let mut inner = Lines::default();
            inner.setting(line("reroute", to));
            let Some(tests) = tests else { return false };
            lines.block(&[], format!("when {}", text(&tests.join(" && "))), inner);
            true
        };
        let is_guarded = |name: &str| closed::is_guarded(name, chain, closed::matters);
        let leads_elsewhere = |name: &str| is_guarded(name) || self.has_rules_of_its_own(name, chain);
        for (name, before) in closed::indexes_where(chain, leads_elsewhere) {
            let others = before.into_iter().map(|name| test("!-f", name));
            let tests = others.chain([test("-f", name)]).collect();
            if !reroute(tests, &format!("${{uri}}{name}?$args"), lines) && is_guarded(name) {
                return lines.index_off();
            }
        }
        let Some(index) = index else { return };
        if let Some((script, before)) = self.script_index(chain) {
            let others = before.into_iter().map(|name| test("!-f", name));
            if !reroute(
                others.chain([test("-f", script)]).collect(),
                &format!("${{uri}}{script}?$args"),
                lines,
            ) {
                self.index_with_script(index, chain, lines);
            }
        }
        let texts = index.texts();
        let last = texts.split_last().filter(|(last, before)| {
            !before.is_empty() && last.starts_with('/') && self.no_path(last).is_none()
        });
        let Some((last, before)) = last else { return };
        let is_tried = chain.own().iter().any(|it| it.name == "try_files" && it.texts().last() == Some(last));
        if !is_tried
            && !texts[..before.len()].iter().any(|name| name.contains(['/', '$']))
            && self.unserved(last, chain).is_none()
        {
            let others = before.iter().map(|name| test("!-f", name));
            reroute(std::iter::once(test("-d", "")).chain(others).collect(), last, lines);
        }
    }

    /// Where requests for folders do not go to a script that is their index: no name behind it is served in its place.
    fn index_with_script(&self, index: &'d Directive, chain: &Chain<'d>, lines: &mut Lines) {
        if self.names_beside_script(index, chain).is_some() && !lines.has("index") {
            lines.setting(super::settings::index_line(&super::settings::index_names(index)));
        }
    }

    /// A folder that replaces a path.
    fn alias(
        &mut self,
        alias: &'d Directive,
        path: Option<&Path>,
        chain: &Chain<'d>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        let folder = alias.word(0);
        if path.and_then(Path::prefix).is_some_and(|prefix| is_joined(prefix, folder)) {
            let why = "the path ends with a slash, and the alias does not: nginx has no slash between it and the rest of a path";
            return self.lose(alias, why, lines);
        }
        if let Some((folder, name)) = file_of(folder, path) {
            self.fates.carried(alias);
            self.files(folder, Missing::NotFound, chain, path, lines);
            lines.setting(format!("rewrite \"^\" {} then=stop", super::out::text(&format!("/{name}"))));
            return;
        }
        match Alias::of(chain) {
            Some(alias) => self.alias_files(&alias, path, chain, named, lines),
            None => self.alias_of_request(alias, path, chain, lines),
        }
    }

    /// The files of an alias. The path of requests stays whole.
    fn alias_files(
        &mut self,
        alias: &Alias<'d>,
        path: Option<&Path>,
        chain: &Chain<'d>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        self.fates.carried(alias.directive);
        lines.setting(line("files-at", alias.at));
        match chain.find_own("try_files") {
            Some(tried) => self.try_files(tried, alias.folder, chain, path, named, lines),
            None => self.files(alias.folder, Missing::NotFound, chain, path, lines),
        }
    }

    pub(super) fn try_files(
        &mut self,
        tried: &'d Directive,
        root: &str,
        chain: &Chain<'d>,
        path: Option<&Path>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        let texts = tried.texts();
        let Some((last, first)) = texts.split_last() else { return };
        // nginx takes the path of an alias off this one too, if it has variables. Where that leaves no path, it is kept.
        let last = match Alias::of(chain).filter(|_| last.contains('$')) {
            Some(alias) => &last.strip_prefix(alias.at).filter(|rest| rest.starts_with('/')).unwrap_or(last),
            None => last,
        };
        let tries = |text: &str| first.contains(&text);
        if texts == ["$uri/", "=404"] && self.only_folders_with_script(tried, root, chain, lines) {
            return;
        }
        if !tries("$uri") && (tries("$uri/") || tries("$uri/index.html")) {
            // The site file has no folders without their files.
            return self.lose(tried, "without $uri, a folder cannot be tried", lines);
        }
        if let Some(why) =
            first.iter().filter(|text| self.of_user(text).is_some()).find_map(|text| self.no_path(text))
        {
            return self.lose(tried, &why, lines);
        }
        let mut others = match other_files(first, root, &self.maps) {
            Ok(others) => others,
            Err(why) => return self.lose(tried, &why, lines),
        };
        if let Some(alias) = Alias::of(chain).filter(|_| !others.is_empty()) {
            if !others.iter().all(|(_, to)| to.starts_with("$uri")) {
                return self.lose(tried, "with an alias, other files than $uri are not supported", lines);
            }
            others.iter_mut().for_each(|(condition, _)| *condition = alias.test(condition));
        }
        if !others.is_empty() {
            self.serves_files = true;
        }
        if let (Some(Path::Named(_)), [(_, to)], [_], Some(status)) =
            (path, &others[..], first, last.strip_prefix('='))
            && let Ok(status @ 200..=599) = status.parse::<u16>()
        {
            // A named location cannot choose; all its requests are for this file.
            self.fates.carried(tried);
            lines.setting(format!("rewrite \"^\" {} then=stop", text(to)));
            lines.setting(self.final_files(root, chain, lines));
            return lines.setting(format!("respond {status}"));
        }
        // A file that exists is served.
        others.iter().for_each(|other| rewrite_to(other, Some(line("files", root)), lines));
        self.fates.carried(tried);
        if !tries("$uri") {
            return self.try_last(last, chain, lines);
        }
        let tries_folders = first.iter().any(|text| text.starts_with("$uri/"));
        if !tries_folders && path.is_none_or(Path::may_be_folder) && !lines.has("index") {
            lines.setting("index off".to_owned());
        }
        if let Some(status) = last.strip_prefix('=') {
            let missing = match status.parse() {
                Ok(404) => Missing::NotFound,
                Ok(status) if (200..=599).contains(&status) => Missing::Status(status),
                _ => Missing::Closed(format!("try_files {last}")),
            };
            return self.files(root, missing, chain, path, lines);
        }
        if tries_folders {
            self.folder_scripts(root, chain, path, lines);
        }
        if last.starts_with('@') {
            let Some(place) = named.iter().copied().find(|location| location.word(0) == *last) else {
                return self.files(
                    root,
                    Missing::Closed(format!("there is no location {last}")),
                    chain,
                    path,
                    lines,
                );
            };
            if self.is_route(last) {
                return self.reroute(root, last, chain, lines);
            }
            self.serves_files = true;
            lines.setting(self.final_files(root, chain, lines));
            // A named location is not nested in this one: it inherits from its server.
            let inner = chain.at_server().inside(place);
            self.fates.carried(place);
            self.settings(&inner, lines);
            self.seen(place.inner());
            self.set_place(place);
            self.action(&inner, None, named, lines);
            return self.rest(place.inner(), lines);
        }
        if let Some(why) = self.unserved(last, chain) {
            return self.files(root, Missing::Closed(why), chain, path, lines);
        }
        if let Some(why) = self.unsupported(last) {
            self.leave(tried, &why, lines);
            return self.files(root, Missing::Closed(format!("try_files {last}")), chain, path, lines);
        }
        self.reroute(root, last, chain, lines);
    }

    /// `try_files $uri/ =404` where the index is a script: folders go to that, with or without the slash, and there is nothing else.
    fn only_folders_with_script(
        &mut self,
        tried: &'d Directive,
        root: &str,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> bool {
        let Some((script, before)) = self.script_index(chain) else { return false };
        let names = chain.find("index").map_or(0, |index| index.words.len());
        if !before.is_empty() || names != 1 || Alias::of(chain).is_some() {
            return false;
        }
        for (slash, condition) in [("", FOLDERS), ("/", "!path.endsWith('/')")] {
            let path = format!("{}${{uri}}{slash}{script}", root.trim_end_matches('/'));
            let Some(test) = file_test("-f", &path, &self.maps) else { return false };
            let mut inner = Lines::default();
            inner.setting(format!("reroute \"${{uri}}{slash}{script}?$args\""));
            lines.block(&[], format!("when {}", text(&format!("{condition} && {test}"))), inner);
        }
        self.fates.carried(tried);
        lines.setting("respond 404".to_owned());
        true
    }

    /// What `try_files` does last, where it does not try the path itself.
    fn try_last(&mut self, last: &str, chain: &Chain<'d>, lines: &mut Lines) {
        if let Some(status) = last.strip_prefix('=') {
            return match status.parse::<u16>() {
                Ok(status) if (200..=599).contains(&status) => lines.setting(format!("respond {status}")),
                _ => self.close(&format!("try_files {last}"), lines),
            };
        }
        let is_known = values::unknown_variable(last, &self.maps).is_none();
        let unserved = if last.starts_with('@') { None } else { self.unserved(last, chain) };
        match unserved {
            Some(why) => self.close(&why, lines),
            None if !is_known || (last.starts_with('@') && !self.is_route(last)) => {
                self.close(&format!("try_files {last}"), lines);
            }
            None => lines.setting(format!("reroute {}", text(&with_slash(last)))),
        }
    }

    /// Files of a folder, where nginx refuses folders without an index, and other methods than GET and HEAD for files. Folders whose
    /// script has no condition of its own get what comes last.
    fn final_files(&self, folder: &str, chain: &Chain<'d>, lines: &Lines) -> String {
        let leads_folders = lines.has_block(format!("when {}", text(FOLDERS)).trim_end_matches('"'));
        let is_final = self.script_index(chain).is_none() || leads_folders;
        format!("{}{}", line("try-files", folder), if is_final { " final=on" } else { "" })
    }

    /// Files, and for all else another route.
    fn reroute(&mut self, root: &str, to: &str, chain: &Chain<'d>, lines: &mut Lines) {
        self.serves_files = true;
        lines.setting(self.final_files(root, chain, lines));
        lines.setting(format!("reroute {}", text(&with_slash(to))));
    }
}

/// Where a request goes on: a name, or a path, whose slash may be missing.
fn with_slash(to: &str) -> String {
    if to.starts_with(['/', '@', '$']) { to.to_owned() } else { format!("/{to}") }
}

/// The alias of a place, of its own or of a location around it: the files of a path that begins with `at` are in `folder`.
pub(super) struct Alias<'d> {
    directive: &'d Directive,
    pub(super) folder: &'d str,
    pub(super) at: &'d str,
}

impl<'d> Alias<'d> {
    /// That of a plain path, for a folder without variables.
    pub(super) fn of(chain: &Chain<'d>) -> Option<Alias<'d>> {
        let directive = outer_alias(chain)?;
        let has = |level: &&'d [Directive]| level.iter().any(|it| std::ptr::eq(it, directive));
        let location = chain.location_at(chain.of_route().iter().position(has)?)?;
        let path = Path::of(location)?;
        let prefix = path.prefix().filter(|prefix| prefix.starts_with('/'))?;
        // It is one of the location's words, behind `^~`.
        let at = location
            .texts()
            .into_iter()
            .find_map(|text| text.strip_suffix(prefix).map(|how| &text[how.len()..]));
        let folder = directive.word(0);
        let is_folder = !is_joined(prefix, folder)
            && folder.starts_with('/')
            && !folder.contains('$')
            && file_of(folder, Some(&path)).is_none();
        at.filter(|_| is_folder).map(|at| Alias { directive, folder, at })
    }

    /// A test of a file with `$uri` in its path, for that of the alias.
    fn test(&self, test: &str) -> String {
        let rest = format!("$uri.substring({})", self.at.trim_end_matches('/').chars().count());
        test.replace("$uri", &rest)
    }
}

/// Whether nginx puts the rest of a path directly behind the name of an alias.
fn is_joined(prefix: &str, alias: &str) -> bool {
    prefix.ends_with('/') && !alias.ends_with('/')
}

/// The alias, of its own or of a location around it, that nginx uses here.
pub(super) fn outer_alias<'d>(chain: &Chain<'d>) -> Option<&'d Directive> {
    let of_folders = chain.of_route().iter().find_map(|level| {
        level.iter().find(|directive| ["root", "alias"].contains(&directive.name.as_str()))
    });
    of_folders.filter(|directive| directive.name == "alias")
}

/// Where a `rewrite` sends all paths, with the query.
fn front_controller(rewrite: &Directive) -> Option<String> {
    let to = super::rewrite::whole_path(rewrite.word(0), rewrite.word(1)).filter(|to| to.starts_with('/'))?;
    Some(match to.strip_suffix('?') {
        Some(to) => to.to_owned(),
        None if to.contains('?') => format!("{to}&$args"),
        None => format!("{to}?$args"),
    })
}

/// Writes a `when` in which the path is that of another file, with an action of its own.
pub(super) fn rewrite_to((condition, to): &(String, String), action: Option<String>, lines: &mut Lines) {
    let mut inner = Lines::default();
    inner.setting(format!("rewrite \"^\" {} then=stop", text(to)));
    action.into_iter().for_each(|action| inner.setting(action));
    lines.block(&[], format!("when {}", text(condition)), inner);
}

/// Queries behind a file of `try_files`.
const QUERIES: [&str; 4] = ["$is_args$args", "$is_args$query_string", "?$args", "?$query_string"];

/// The files that `try_files` tries besides the path itself, each with a condition: it exists, and no earlier candidate does.
pub(super) fn other_files(
    tried: &[&str],
    root: &str,
    maps: &[String],
) -> Result<Vec<(String, String)>, String> {
    let is_usual = |text: &str| ["$uri", "$uri/", "$uri/index.html"].contains(&text);
    let mut found = Vec::new();
    let mut before: Vec<String> = Vec::new();
    for (at, text) in tried.iter().enumerate() {
        let why = || format!("{text} is not supported here");
        let rest = tried.get(at + 1..).unwrap_or_default();
        // Usual names after the last other file need no condition.
        if is_usual(text) && rest.iter().all(|text| is_usual(text)) {
            break;
        }
        // A query is part of the name here: what is tested is a file only without one.
        let query = QUERIES.iter().find(|query| text.ends_with(**query));
        if query.is_some_and(|query| query.starts_with('?')) {
            continue;
        }
        let text = &query.map_or(*text, |query| text.strip_suffix(query).unwrap_or(text));
        let slash = if text.starts_with('/') || text.starts_with('$') { "" } else { "/" };
        let path = format!("{}{slash}{text}", root.trim_end_matches('/'));
        let test = if text.ends_with('/') { "-d" } else { "-f" };
        let condition = file_test(test, &path, maps).ok_or_else(why)?;
        let condition = match query {
            Some(_) => format!("(query == '' && {condition})"),
            None => condition,
        };
        if !is_usual(text) || query.is_some() {
            if text.starts_with('$') && !text.starts_with("$uri") && !text.starts_with("${uri}") {
                return Err(why());
            }
            let all: Vec<&str> = before.iter().map(String::as_str).chain([condition.as_str()]).collect();
            found.push((all.join(" && "), format!("{slash}{text}")));
        }
        before.push(format!("!{condition}"));
    }
    Ok(found)
}

/// The folder and the name of an alias that is a file.
fn file_of<'a>(alias: &'a str, path: Option<&Path>) -> Option<(&'a str, &'a str)> {
    let is_exact = path.is_some_and(|path| path.exact().is_some()) && !alias.ends_with('/');
    // It may not be there yet.
    let target = std::path::Path::new(alias);
    let is_like = || target.extension().is_some() && !alias.ends_with('/') && !target.is_dir();
    let is_file = target.is_file() || is_like();
    let (folder, name) = alias.rsplit_once('/').filter(|(folder, _)| !folder.is_empty())?;
    ((is_exact || is_file) && !alias.contains('$')).then_some((folder, name))
}
