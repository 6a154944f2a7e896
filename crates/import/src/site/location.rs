//! Converts `location` blocks into routes.

use flatout_expression::Regex;
use flatout_expression::structure::dividers;

use crate::nginx::Directive;

use super::chain::{Chain, has_below};
use super::file_tests::file_test;
use super::named::has_rules;
use super::out::{Lines, text};
use super::pattern::{self, Pattern};
use super::rewrite::{absolute, literal, origin};
use super::{Import, closed};

/// Longer prefixes outside of a location that has an expression inside it; more are not converted.
const EXCEPTIONS_MAX: usize = 100;

/// Words of an expression that are tried as names of folders.
const SAMPLES_MAX: usize = 50;

/// The paths of a location.
#[derive(Clone)]
pub(super) enum Path {
    Exact(String),
    Prefix {
        path: String,
        before_patterns: bool,
    },
    Regex {
        pattern: String,
        ignore_case: bool,
        /// Not for paths that begin so: nginx has another location for them.
        except: Vec<String>,
    },
    /// Those requests of another location for which a condition is true.
    Within {
        outer: Box<Path>,
        condition: String,
        /// The expression that is the condition, and whether it ignores case.
        pattern: Option<(String, bool)>,
    },
    /// A named location: only others of its server lead to it.
    Named(String),
}

impl Path {
    fn regex(pattern: &str, ignore_case: bool) -> Path {
        Path::Regex { pattern: pattern.to_owned(), ignore_case, except: Vec::new() }
    }

    /// The paths of a location; `None` for a named one.
    pub(super) fn of(location: &Directive) -> Option<Path> {
        let path = |path: &str| path.to_owned();
        Some(match location.texts()[..] {
            [name] if name.starts_with('@') => return None,
            ["=", exact] => Path::Exact(path(exact)),
            ["^~", prefix] => Path::Prefix { path: path(prefix), before_patterns: true },
            ["~", pattern] => Path::regex(pattern, false),
            ["~*", pattern] => Path::regex(pattern, true),
            // `=/x` is `= /x`, and so on.
            [one] => match one.strip_prefix('=') {
                Some(exact) => Path::Exact(path(exact)),
                None => match (one.strip_prefix("^~"), one.strip_prefix("~*"), one.strip_prefix('~')) {
                    (Some(prefix), _, _) => Path::Prefix { path: path(prefix), before_patterns: true },
                    (_, Some(pattern), _) => Path::regex(pattern, true),
                    (_, _, Some(pattern)) => Path::regex(pattern, false),
                    _ => Path::Prefix { path: path(one), before_patterns: false },
                },
            },
            _ => return None,
        })
    }

    /// A path inside a location: nginx does not try the expressions outside of `^~` for it either.
    fn before_patterns_of(self, outer: &Path) -> Path {
        match (self, outer) {
            (Path::Prefix { path, .. }, Path::Prefix { before_patterns: true, .. }) => {
                Path::Prefix { path, before_patterns: true }
            }
            (path, _) => path,
        }
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        match self {
            Path::Prefix { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Its expression, and whether that ignores case.
    pub(super) fn pattern(&self) -> Option<(&str, bool)> {
        match self {
            Path::Regex { pattern, ignore_case, .. } => Some((pattern, *ignore_case)),
            Path::Within { pattern, .. } => {
                pattern.as_ref().map(|(text, ignore_case)| (&**text, *ignore_case))
            }
            _ => None,
        }
    }

    pub(super) fn exact(&self) -> Option<&str> {
        match self {
            Path::Exact(path) => Some(path),
            _ => None,
        }
    }

    /// The plain path that its requests have or begin with.
    pub(super) fn plain(&self) -> Option<&str> {
        match self {
            Path::Within { outer, pattern: None, .. } => outer.plain(),
            _ => self.exact().or(self.prefix()),
        }
    }

    /// Whether it may find the path of a folder.
    pub(super) fn may_be_folder(&self) -> bool {
        // Such as `\\.(css|js)$`.
        let is_folder = |pattern: &str| {
            let end = pattern.strip_suffix('$').and_then(|start| start.chars().last());
            !end.is_some_and(|char| char == ')' || char.is_ascii_alphanumeric())
        };
        match self {
            Path::Exact(path) => path.ends_with('/'),
            Path::Prefix { .. } => true,
            Path::Named(_) => true,
            Path::Regex { pattern, .. } => is_folder(pattern),
            Path::Within { outer, pattern, .. } => {
                outer.may_be_folder() && pattern.as_ref().is_none_or(|(pattern, _)| is_folder(pattern))
            }
        }
    }

    /// Whether its expression finds this path. One that is not supported is assumed to.
    fn finds(&self, uri: &str) -> bool {
        let Path::Regex { pattern, ignore_case, .. } = self else { return false };
        let text = match pattern::read(pattern) {
            Some(Pattern::Same(text) | Pattern::Wider(text)) => text,
            None => return true,
        };
        Regex::new(&text, *ignore_case).is_ok_and(|regex| regex.is_match(uri.as_bytes()))
    }

    /// The first line of its route.
    fn head(&self) -> String {
        let conditions = self.conditions();
        let when = match conditions.is_empty() {
            true => String::new(),
            false => format!(" when={}", text(&conditions.join(" && "))),
        };
        format!("{}{when}", self.base())
    }

    /// Its route without conditions.
    fn base(&self) -> String {
        match self {
            Path::Exact(path) => format!("route {} match=exact", text(path)),
            Path::Prefix { path, before_patterns } => {
                // nginx ignores segment boundaries; after a slash there is no difference.
                let how = if path.ends_with('/') { "" } else { " match=starts-with" };
                let before = if *before_patterns { " before-patterns=on" } else { "" };
                format!("route {}{how}{before}", text(path))
            }
            Path::Named(name) => format!("route {}", text(name)),
            Path::Regex { pattern, ignore_case, .. } => {
                let how = if *ignore_case { "regex-ignore-case" } else { "regex" };
                format!("route {} match={how}", text(pattern))
            }
            Path::Within { outer, .. } => outer.base(),
        }
    }

    /// What must be true of its requests beside the path of its route.
    fn conditions(&self) -> Vec<String> {
        match self {
            Path::Regex { except, .. } if !except.is_empty() => {
                let begins: Vec<String> =
                    except.iter().map(|prefix| format!("path.startsWith('{prefix}')")).collect();
                vec![format!("!({})", begins.join(" || "))]
            }
            Path::Within { outer, condition, .. } => {
                let mut all = outer.conditions();
                all.push(condition.clone());
                all
            }
            _ => Vec::new(),
        }
    }

    /// The paths of an expression inside this location; `None` if another location chooses them, or if it cannot be converted.
    fn within(&self, within: &Directive) -> Option<Path> {
        let tries_no_others = matches!(
            self,
            Path::Prefix { before_patterns: true, .. } | Path::Regex { .. } | Path::Within { .. }
        );
        let Some(Path::Regex { pattern, ignore_case, .. }) = Path::of(within).filter(|_| tries_no_others)
        else {
            return None;
        };
        let Some(Pattern::Same(pattern)) = pattern::read(&pattern) else { return None };
        if pattern.contains('\'') || pattern::has_named_group(&pattern) || uses_groups(within) {
            return None;
        }
        let flags = if ignore_case { "(?i)" } else { "" };
        let condition = format!("$uri.matches(r'{flags}{pattern}')");
        Some(Path::Within { outer: Box::new(self.clone()), condition, pattern: Some((pattern, ignore_case)) })
    }
}

/// The path in front of names in the folders of a place, with a slash at its end.
pub(super) fn base_of(chain: &Chain<'_>) -> String {
    let path = chain.location_at(0).and_then(Path::of);
    let prefix = path.as_ref().and_then(Path::prefix).filter(|prefix| prefix.ends_with('/'));
    prefix.unwrap_or("/").to_owned()
}

/// Whether one of these locations, but not `own`, is a guard, and may have a file of this name in a folder below `base` without having
/// the folder.
pub(super) fn may_guard(
    (base, name): (&str, &str),
    block: &[Directive],
    own: Option<&Directive>,
    is_guard: fn(&Directive) -> bool,
) -> bool {
    block.iter().filter(|it| it.name == "location").any(|location| {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, location));
        let finds = || match Path::of(location) {
            Some(Path::Exact(path)) => {
                path.starts_with(base) && path.rsplit('/').next().is_some_and(|last| last == name)
            }
            Some(Path::Prefix { path, .. }) => {
                let last = path.rsplit('/').next().unwrap_or_default();
                path.starts_with(base) && !last.is_empty() && name.starts_with(last)
            }
            Some(path @ Path::Regex { .. }) => samples(base, &path)
                .iter()
                .any(|folder| path.finds(&format!("{folder}{name}")) && !path.finds(folder)),
            _ => false,
        };
        (!is_own && is_guard(location) && finds()) || may_guard((base, name), location.inner(), own, is_guard)
    })
}

/// Folders below `base` that an expression may be about: those whose names are in it.
fn samples(base: &str, path: &Path) -> Vec<String> {
    let Some((pattern, _)) = path.pattern() else { return Vec::new() };
    let words = pattern.split(|char: char| !char.is_ascii_alphanumeric() && !"_-/".contains(char));
    let start = literal(&format!("^{}", pattern.trim_start_matches('^')));
    let start = start.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
    let parts = words.take(SAMPLES_MAX).map(str::to_owned).chain([start]);
    parts
        .flat_map(|part| {
            let part = part.trim_matches('/').to_owned();
            let folder = |base: &str| match part.is_empty() {
                true => base.to_owned(),
                false => format!("{base}{part}/"),
            };
            [folder(base), folder("/"), format!("{}a/", folder(base)), format!("{}a/", folder("/"))]
        })
        .filter(|folder| folder.starts_with(base))
        .collect()
}

/// The location of these that nginx chooses for a path: an exact one, an expression, or the longest prefix.
pub(super) fn choose<'d>(uri: &str, block: &'d [Directive]) -> Option<&'d Directive> {
    let all: Vec<(&'d Directive, Path)> = block
        .iter()
        .filter(|directive| directive.name == "location")
        .filter_map(|location| Some((location, Path::of(location)?)))
        .collect();
    if let Some((exact, _)) = all.iter().find(|(_, path)| path.exact() == Some(uri)) {
        return Some(exact);
    }
    let prefixes = all.iter().filter(|(_, path)| path.prefix().is_some_and(|prefix| uri.starts_with(prefix)));
    let longest = prefixes.max_by_key(|(_, path)| path.prefix().map_or(0, str::len));
    if let Some((location, _)) = longest
        && let Some(inner) = choose(uri, location.inner())
    {
        return Some(inner);
    }
    let is_final = matches!(longest, Some((_, Path::Prefix { before_patterns: true, .. })));
    let found = all.iter().find(|(_, path)| !is_final && path.finds(uri));
    found.or(longest).map(|(location, _)| *location)
}

impl<'d> Import<'d> {
    /// Writes the routes of a block's locations; `chains` are the block and its enclosing blocks.
    pub(super) fn locations(
        &mut self,
        block: &'d [Directive],
        chains: &[&Chain<'d>],
        named: &[&'d Directive],
        site: &mut Lines,
    ) {
        for location in block.iter().filter(|directive| directive.name == "location") {
            self.nested_patterns(location, chains, named, site);
        }
        let plains: Vec<String> = block
            .iter()
            .filter(|directive| directive.name == "location")
            .filter_map(|location| Path::of(location)?.plain().map(str::to_owned))
            .collect();
        for location in block.iter().filter(|directive| directive.name == "location") {
            let Some(path) = Path::of(location) else { continue };
            if path.plain().is_some_and(|plain| !plain.starts_with('/')) {
                self.leave(location, "no path begins so; an expression needs ~", site);
                continue;
            }
            let Some(path) = self.readable(location, path, site) else { continue };
            self.location(location, &path, chains, named, site);
            // nginx redirects a client that requests the folder without its slash, unless there is a location for that.
            let slashless =
                path.prefix().and_then(|path| path.strip_suffix('/')).filter(|path| !path.is_empty());
            let passes = location.inner().iter().any(|directive| directive.name == "proxy_pass");
            if let Some(slashless) =
                slashless.filter(|path| passes && !plains.iter().any(|plain| plain == path))
            {
                let mut lines = Lines::default();
                let Some(around) = chains.first().map(|around| around.inside(location)) else {
                    continue;
                };
                let levels: Vec<&Chain<'d>> =
                    std::iter::once(&around).chain(chains.iter().copied()).collect();
                self.lists(&levels, &mut lines);
                lines.setting(format!(
                    "redirect {} status=301",
                    text(&absolute(&format!("{slashless}/$is_args$args"), &around))
                ));
                site.block(&[], format!("route {} match=exact", text(slashless)), lines);
            }
        }
    }

    /// The paths of a location in the site file's form. If its expression can only be widened, the route refuses what
    /// it finds.
    fn readable(&mut self, location: &'d Directive, path: Path, site: &mut Lines) -> Option<Path> {
        let Path::Regex { pattern, ignore_case, .. } = path else { return Some(path) };
        let why = "look-around and back-references are not supported";
        match pattern::read(&pattern) {
            Some(Pattern::Same(pattern)) => Some(Path::regex(&pattern, ignore_case)),
            Some(Pattern::Wider(pattern)) if closed::only_refuses(location) => {
                Some(Path::regex(&pattern, ignore_case))
            }
            Some(Pattern::Wider(pattern)) => {
                self.closed_route(location, &Path::regex(&pattern, ignore_case), why, site);
                None
            }
            // The whole server is closed.
            None => {
                self.leave(location, why, site);
                None
            }
        }
    }

    /// A route that refuses the requests of a location.
    fn closed_route(&mut self, location: &'d Directive, path: &Path, why: &str, site: &mut Lines) {
        let mut lines = Lines::default();
        self.leave(location, why, &mut lines);
        self.set_place(location);
        self.close(why, &mut lines);
        site.block(&location.comments, path.head(), lines);
    }

    pub(super) fn set_place(&mut self, directive: &Directive) {
        let place = format!("{}:{}", directive.file, directive.line);
        self.place = format!("{} ({place})", directive.to_string().trim_end_matches(" { … }"));
    }

    /// Expressions inside a plain path become routes before all others, because nginx tries them first.
    fn nested_patterns(
        &mut self,
        location: &'d Directive,
        chains: &[&Chain<'d>],
        named: &[&'d Directive],
        site: &mut Lines,
    ) {
        let (Some(around), Some(Path::Prefix { path: prefix, before_patterns })) =
            (chains.first(), Path::of(location))
        else {
            return;
        };
        let chain = around.inside(location);
        let mut levels = vec![&chain];
        levels.extend(chains);
        for within in location.inner().iter().filter(|directive| directive.name == "location") {
            self.nested_patterns(within, &levels, named, site);
            let Some(Path::Regex { pattern, ignore_case, .. }) = Path::of(within) else { continue };
            if before_patterns {
                continue;
            }
            let (pattern, is_same) = match pattern::read(&pattern) {
                Some(Pattern::Same(pattern)) => (pattern, true),
                Some(Pattern::Wider(pattern)) => (pattern, false),
                None => continue,
            };
            let mut except = Vec::new();
            longer(&prefix, chain.server(), location, &mut except);
            if has_patterns(chains) {
                // They are behind the outer expressions, and not before these.
                let inner = location.inner().iter().filter_map(Path::of);
                except.extend(inner.filter_map(|path| match path {
                    Path::Prefix { path, before_patterns: true } => Some(path),
                    _ => None,
                }));
            }
            let is_plain =
                except.len() <= EXCEPTIONS_MAX && except.iter().all(|prefix| is_plain_text(prefix));
            let (pattern, is_inside) = match below(&prefix, &pattern, ignore_case) {
                Some(Below::Pattern(pattern)) => (pattern, true),
                Some(Below::Elsewhere(pattern)) => (pattern, false),
                None => {
                    self.leave(within, "it finds no path of the location around it", site);
                    continue;
                }
            };
            let is_confined = is_inside || is_plain_text(&prefix);
            let confined = |except: Vec<String>| {
                let path = Path::Regex { pattern: pattern.clone(), ignore_case, except };
                match is_inside || !is_confined {
                    true => path,
                    false => Path::Within {
                        outer: Box::new(path),
                        condition: format!("path.startsWith('{prefix}')"),
                        pattern: Some((pattern.clone(), ignore_case)),
                    },
                }
            };
            if is_same && is_plain && is_confined {
                self.location(within, &confined(except), &levels, named, site);
            } else if closed::only_refuses(within) {
                self.location(within, &confined(Vec::new()), &levels, named, site);
            } else if closed::matters(within) {
                // Without one that does not matter, the outer location does the same.
                let why = "an expression inside a location with many longer prefixes, or with look-around, is not supported";
                self.closed_route(within, &confined(Vec::new()), why, site);
            }
        }
    }

    pub(super) fn location(
        &mut self,
        location: &'d Directive,
        path: &Path,
        chains: &[&Chain<'d>],
        named: &[&'d Directive],
        site: &mut Lines,
    ) {
        let Some(around) = chains.first() else { return };
        let chain = around.inside(location);
        let mut lines = Lines::default();
        self.fates.carried(location);
        // Not reachable from outside; inner locations inherit this.
        let is_internal = chain.find_in_route("internal").is_some();
        let uri = path.exact().or(path.prefix());
        let is_page = uri.is_some_and(|uri| is_error_page(uri, chain.server()));
        // One without an upstream decides by itself.
        let is_decider = !location.inner().iter().any(|it| it.name.ends_with("_pass"))
            && uri.is_some_and(|uri| is_asked(uri, chain.server()));
        if is_internal && !is_page && !is_decider && !may_be_sent_to(path, chain.server()) {
            let around: Vec<&Chain<'d>> = std::iter::once(&chain).chain(chains.iter().copied()).collect();
            self.lists(&around, &mut lines);
            location.inner().iter().for_each(|directive| self.fates.carried(directive));
            lines.setting("respond 404".to_owned());
            return site.block(&location.comments, path.head(), lines);
        }
        let mut levels = vec![&chain];
        levels.extend(chains);
        for within in location.inner().iter().filter(|directive| directive.name == "location") {
            if let Some(path) = path.within(within) {
                self.location(within, &path, &levels, named, site);
            }
        }
        let mut lost_if = None;
        // The last one that applies has the requests.
        for within in location.inner().iter().rev() {
            let Some(condition) = self.passing_if(within, &chain) else { continue };
            if matches!(path, Path::Named(_)) {
                lost_if = Some(format!("{within}: conditions are not supported in a named location"));
                continue;
            }
            let path = Path::Within { outer: Box::new(path.clone()), condition, pattern: None };
            self.location(within, &path, &levels, named, site);
        }
        self.seen(location.inner());
        self.set_place(location);
        self.real_ip_of_route(&chain, &mut lines);
        self.settings(&chain, &mut lines);
        self.logs_of_location(&chain, &mut lines);
        let own = chain.find_in_route("auth_request");
        self.auth_request(own, &chain, &mut lines);
        self.lists(&levels, &mut lines);
        // What passes requests on in an `if` has the rewrites around it.
        let is_if = location.name == "if";
        let mut redirects = self.rewrites(if is_if { around } else { &chain }, Some(path), &mut lines);
        if is_if {
            redirects.routes.clear();
            location.inner().iter().filter(|it| it.name == "break").for_each(|it| self.fates.carried(it));
        }
        for (head, redirect) in redirects.routes {
            let mut lines = Lines::default();
            let inner = chain.within(&[]);
            let around: Vec<&Chain<'d>> = std::iter::once(&inner).chain(levels.iter().copied()).collect();
            self.lists(&around, &mut lines);
            redirect.write(false, &mut lines);
            site.block(&[], head, lines);
        }
        self.set_place(location);
        match (redirects.all, redirects.lost.or(lost_if).or_else(|| lost_inside(location, path))) {
            (Some(redirect), _) => redirect.write(matches!(path, Path::Named(_)), &mut lines),
            (None, Some(why)) => self.close(&why, &mut lines),
            (None, None) => self.action(&chain, Some(path), named, &mut lines),
        }
        if matches!(path, Path::Named(_)) && lines.has_conditional_action() {
            lines = Lines::default();
            let why = "a named location cannot respond under a condition; use a location with a path";
            self.leave_inner(location.inner());
            self.close(why, &mut lines);
        }
        self.types_of_location(&chain, &mut lines);
        let own_origin = origin(&chain);
        if ["files", "try-files", "proxy-redirect"].iter().any(|name| lines.has(name))
            && own_origin != origin(&chain.at_server())
        {
            lines.setting(match own_origin {
                Some(origin) => format!("redirect-origin {}", text(&origin)),
                None => "redirect-origin off".to_owned(),
            });
        }
        self.rest(location.inner(), &mut lines);
        // No request comes to a named one by its path.
        let entry = if is_internal && !matches!(path, Path::Named(_)) { " entry=internal" } else { "" };
        // One inside of it with the same path has all its requests.
        let is_same = |inner: &Directive| {
            inner.name == "location"
                && Path::of(inner)
                    .is_some_and(|inner| path.prefix().is_some() && inner.prefix() == path.prefix())
        };
        if !location.inner().iter().any(is_same) {
            site.block(&location.comments, format!("{}{entry}", path.head()), lines);
        }
        if let Some((page, front)) = front_page(path, &chain).filter(|_| !is_internal) {
            let mut inner = Lines::default();
            inner.setting(format!("reroute {}", text(&format!("{page}?$args"))));
            site.block(&[], front.head(), inner);
        }
        // Nested locations: a plain path within a plain path becomes a sibling.
        let inner = location.inner().iter().filter(|directive| directive.name == "location");
        let is_plain = |inner: &Directive| {
            path.prefix().is_some() && matches!(Path::of(inner), Some(Path::Exact(_) | Path::Prefix { .. }))
        };
        for within in inner.clone().filter(|within| !is_plain(within)) {
            if !self.fates.is_known(within) {
                let why =
                    "an expression inside a location is not supported; write a route with the whole pattern";
                self.leave(within, why, site);
            }
        }
        let plain: Vec<&'d Directive> = inner.filter(|within| is_plain(within)).collect();
        for within in plain {
            let Some(inner) = Path::of(within) else { continue };
            let is_before_others = matches!(inner, Path::Prefix { before_patterns: false, .. })
                && matches!(path, Path::Prefix { before_patterns: true, .. });
            let path = match inner {
                // Its `^~` is about the expressions beside it, not about those outside of this location.
                Path::Prefix { path: prefix, before_patterns: true }
                    if matches!(path, Path::Prefix { before_patterns: false, .. })
                        && has_patterns(chains) =>
                {
                    Path::Prefix { path: prefix, before_patterns: false }
                }
                inner => inner.before_patterns_of(path),
            };
            if is_before_others && !self.patterns_beside((location, within), &path, &levels, named, site) {
                let why = "expressions beside it inside another location come first, and are not converted for its paths";
                self.closed_route(within, &path, why, site);
                continue;
            }
            self.location(within, &path, &levels, named, site);
        }
    }

    /// Routes for the expressions beside a plain location inside `^~`: nginx tries them after that. Returns whether they are
    /// converted, or do not matter.
    fn patterns_beside(
        &mut self,
        (location, plain): (&'d Directive, &'d Directive),
        path: &Path,
        levels: &[&Chain<'d>],
        named: &[&'d Directive],
        site: &mut Lines,
    ) -> bool {
        let is_pattern =
            |it: &&Directive| it.name == "location" && matches!(Path::of(it), Some(Path::Regex { .. }));
        let patterns: Vec<&'d Directive> = location.inner().iter().filter(is_pattern).collect();
        if !patterns.iter().any(|pattern| closed::matters(pattern)) {
            return true;
        }
        // They come before what is in the plain one, too, but after its own expressions.
        let has_inner = plain.inner().iter().any(|it| it.name == "location");
        let paths: Option<Vec<Path>> = patterns.iter().map(|pattern| path.within(pattern)).collect();
        let Some(paths) = paths.filter(|_| !has_inner) else { return false };
        for (pattern, path) in patterns.into_iter().zip(&paths) {
            self.location(pattern, path, levels, named, site);
        }
        true
    }
}

/// The page of `/` if it has a location of its own, as in `location = /index.html { add_header … }`: nginx goes on there. Not where
/// rules come before it, or where `try_files` sends it elsewhere. Of several names, nginx uses the first file that exists.
fn front_page(path: &Path, chain: &Chain<'_>) -> Option<(String, Path)> {
    let handles = |it: &Directive| it.name.ends_with("_pass") || ["alias", "return"].contains(&&*it.name);
    if path.prefix() != Some("/")
        || !chain.word("root").starts_with('/')
        || has_rules(chain.own())
        || chain.own().iter().any(handles)
    {
        return None;
    }
    let names = chain.find("index").map_or_else(|| vec!["index.html"], Directive::texts);
    let page = format!("/{}", names.first()?);
    let is_exact = |uri: &str| {
        let mut all = chain.server().iter().filter(|it| it.name == "location");
        all.any(|it| Path::of(it).is_some_and(|path| path.exact() == Some(uri)))
    };
    if page.contains('$') || !is_exact(&page) || is_exact("/") {
        return None;
    }
    let tried = chain.find_own("try_files").map(Directive::texts);
    let elsewhere = tried.filter(|texts| !texts.contains(&"$uri/"));
    let is_last = elsewhere.as_ref().is_some_and(|texts| texts.last() == Some(&page.as_str()));
    if elsewhere.is_some() && !is_last {
        return None;
    }
    let front = Path::Exact("/".to_owned());
    if names.len() == 1 || is_last {
        return Some((page, front));
    }
    let condition = file_test("-f", &format!("{}{page}", chain.word("root").trim_end_matches('/')), &[])?;
    Some((page, Path::Within { outer: Box::new(front), condition, pattern: None }))
}

/// Whether any of these blocks has a location with an expression.
fn has_patterns(chains: &[&Chain<'_>]) -> bool {
    let is_pattern =
        |it: &Directive| it.name == "location" && matches!(Path::of(it), Some(Path::Regex { .. }));
    chains.iter().any(|chain| chain.own().iter().any(is_pattern))
}

/// An expression of a location inside another one.
enum Below {
    /// It finds no paths outside of that.
    Pattern(String),
    /// It finds others too.
    Elsewhere(String),
}

/// The expression of the paths below a prefix that have this expression in them; `None` if there are none. What an expression finds
/// may begin inside of the prefix: the prefix is put in front only of one that begins with a text for which there is no place in it.
fn below(prefix: &str, pattern: &str, ignore_case: bool) -> Option<Below> {
    if prefix == "/" {
        return Some(Below::Pattern(pattern.to_owned()));
    }
    let elsewhere = || Some(Below::Elsewhere(pattern.to_owned()));
    if !is_whole(pattern) {
        return elsewhere();
    }
    if pattern.starts_with('^') {
        let fold = |text: &str| if ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
        let (start, folded) = (fold(&literal(pattern)), fold(prefix));
        return match (start.starts_with(&folded), folded.starts_with(&start)) {
            (true, _) if !ignore_case => Some(Below::Pattern(pattern.to_owned())),
            (true, _) | (_, true) => elsewhere(),
            _ => None,
        };
    }
    // The case of the prefix counts.
    if ignore_case {
        return elsewhere();
    }
    let start = match pattern.split_once('(') {
        Some((before, _)) => literal(&format!("^{before}")),
        None => literal(&format!("^{pattern}")),
    };
    match prefix.strip_suffix('/') {
        // It begins with the slash.
        Some(folder) if start.starts_with('/') && !begins_in(prefix, folder.len(), &start) => {
            Some(Below::Pattern(format!("^{}(?:/.*)?(?:{pattern})", regex::escape(folder))))
        }
        _ if !begins_in(prefix, prefix.len(), &start) => {
            Some(Below::Pattern(format!("^{}.*(?:{pattern})", regex::escape(prefix))))
        }
        _ => elsewhere(),
    }
}

/// Whether a text that has this start may begin before `end` in a path that begins with the prefix.
fn begins_in(prefix: &str, end: usize, start: &str) -> bool {
    let mut rests = prefix.char_indices().filter(|(at, _)| *at < end).filter_map(|(at, _)| prefix.get(at..));
    rests.any(|rest| rest.starts_with(start) || start.starts_with(rest))
}

/// Whether the alternatives of an expression are all inside of groups.
fn is_whole(pattern: &str) -> bool {
    let mut depth = 0usize;
    dividers(pattern).all(|(_, char)| {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth > 0,
        }
        true
    })
}

/// Whether an upstream may send requests here (`X-Accel-Redirect`). A location for `auth_request` is not for that.
fn may_be_sent_to(path: &Path, server: &[Directive]) -> bool {
    let is_auth = path.exact().or(path.prefix()).is_some_and(|uri| is_asked(uri, server));
    !is_auth && has_below(server, &["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"])
}

fn is_asked(uri: &str, block: &[Directive]) -> bool {
    block.iter().any(|directive| {
        (directive.name == "auth_request" && directive.word(0) == uri) || is_asked(uri, directive.inner())
    })
}

/// The longer prefixes of locations outside of this one: its expressions do not apply there. In front of `^~` they are not
/// tried anyway.
fn longer(prefix: &str, block: &[Directive], location: &Directive, found: &mut Vec<String>) {
    for other in block.iter().filter(|other| other.name == "location" && !std::ptr::eq(*other, location)) {
        if let Some(Path::Prefix { path, before_patterns: false }) = Path::of(other)
            && path.len() > prefix.len()
            && path.starts_with(prefix)
        {
            found.push(path);
        }
        longer(prefix, other.inner(), location, found);
    }
}

/// Whether a location uses the groups of its expression where a route has none: not in those of a rewrite or an upstream's path, which
/// have the expression too.
fn uses_groups(location: &Directive) -> bool {
    let has_own = |name: &str| ["rewrite", "if", "location", "proxy_pass"].contains(&name);
    location.inner().iter().any(|directive| {
        !has_own(&directive.name) && directive.texts().iter().any(|text| super::ifs::has_group(text))
    })
}

/// Whether a text needs no escapes in an expression.
fn is_plain_text(text: &str) -> bool {
    !text.contains(['\'', '\\', '$']) && !text.contains(char::is_control)
}

/// Why a location cannot be served without one inside it, which is not converted.
fn lost_inside(location: &Directive, path: &Path) -> Option<String> {
    let is_before_patterns = !matches!(path, Path::Prefix { before_patterns: false, .. });
    let mut inner = location.inner().iter().filter(|directive| directive.name == "location");
    inner.find_map(|within| {
        let is_pattern = !matches!(Path::of(within), Some(Path::Exact(_) | Path::Prefix { .. }));
        let is_lost = is_pattern && is_before_patterns && path.within(within).is_none();
        let place = format!("{}:{}", within.file, within.line);
        (is_lost && closed::matters(within))
            .then(|| format!("{within} ({place}): it is inside another location, and not converted"))
    })
}

/// Whether an `error_page` of a server leads to this path.
fn is_error_page(uri: &str, block: &[Directive]) -> bool {
    block.iter().any(|directive| {
        (directive.name == "error_page" && directive.texts().last() == Some(&uri))
            || is_error_page(uri, directive.inner())
    })
}
