//! Converts `location` blocks into routes.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text, value};

/// The paths of a location.
pub(super) enum Path {
    Exact(String),
    Prefix { path: String, before_patterns: bool },
    Regex { pattern: String, ignore_case: bool },
}

impl Path {
    /// The paths of a location; `None` for a named one.
    pub(super) fn of(location: &Directive) -> Option<Path> {
        let path = |path: &str| path.to_owned();
        Some(match location.texts()[..] {
            [name] if name.starts_with('@') => return None,
            ["=", exact] => Path::Exact(path(exact)),
            ["^~", prefix] => Path::Prefix { path: path(prefix), before_patterns: true },
            ["~", pattern] => Path::Regex { pattern: path(pattern), ignore_case: false },
            ["~*", pattern] => Path::Regex { pattern: path(pattern), ignore_case: true },
            // `=/x` is `= /x`, and so on.
            [one] => match one.strip_prefix('=') {
                Some(exact) => Path::Exact(path(exact)),
                None => match (one.strip_prefix("^~"), one.strip_prefix("~*"), one.strip_prefix('~')) {
                    (Some(prefix), _, _) => Path::Prefix { path: path(prefix), before_patterns: true },
                    (_, Some(pattern), _) => Path::Regex { pattern: path(pattern), ignore_case: true },
                    (_, _, Some(pattern)) => Path::Regex { pattern: path(pattern), ignore_case: false },
                    _ => Path::Prefix { path: path(one), before_patterns: false },
                },
            },
            _ => return None,
        })
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        match self {
            Path::Prefix { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(super) fn exact(&self) -> Option<&str> {
        match self {
            Path::Exact(path) => Some(path),
            _ => None,
        }
    }

    /// The first line of its route.
    fn head(&self) -> String {
        match self {
            Path::Exact(path) => format!("route {} match=exact", text(path)),
            Path::Prefix { path, before_patterns } => {
                // nginx ignores segment boundaries; after a slash there is no difference.
                let how = if path.ends_with('/') { "" } else { " match=starts-with" };
                let before = if *before_patterns { " before-patterns=on" } else { "" };
                format!("route {}{how}{before}", text(path))
            }
            Path::Regex { pattern, ignore_case } => {
                let how = if *ignore_case { "regex-ignore-case" } else { "regex" };
                format!("route {} match={how}", text(pattern))
            }
        }
    }
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
        let exacts: Vec<String> = block
            .iter()
            .filter(|directive| directive.name == "location")
            .filter_map(|location| Path::of(location)?.exact().map(str::to_owned))
            .collect();
        for location in block.iter().filter(|directive| directive.name == "location") {
            let Some(path) = Path::of(location) else { continue };
            if let Path::Regex { pattern, .. } = &path
                && let Err(error) = regex::Regex::new(pattern)
            {
                let error = error.to_string();
                let last =
                    error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
                self.leave(location, &last, site);
                continue;
            }
            self.location(location, &path, chains, named, site);
            // nginx redirects a client that requests the folder without its slash.
            let slashless =
                path.prefix().and_then(|path| path.strip_suffix('/')).filter(|path| !path.is_empty());
            let passes = location.inner().iter().any(|directive| directive.name == "proxy_pass");
            if let Some(slashless) =
                slashless.filter(|path| passes && !exacts.iter().any(|exact| exact == path))
            {
                let mut lines = Lines::default();
                let inner = chains.first().map(|around| around.within(location.inner()));
                let levels: Vec<&Chain<'d>> = inner.iter().chain(chains.iter().copied()).collect();
                self.lists(&levels, &mut lines);
                lines.setting(format!(
                    "redirect {} status=301",
                    text(&format!("$scheme://$http_host{slashless}/$is_args$args"))
                ));
                site.block(&[], format!("route {} match=exact", text(slashless)), lines);
            }
        }
    }

    fn location(
        &mut self,
        location: &'d Directive,
        path: &Path,
        chains: &[&Chain<'d>],
        named: &[&'d Directive],
        site: &mut Lines,
    ) {
        let Some(around) = chains.first() else { return };
        let chain = around.within(location.inner());
        let mut lines = Lines::default();
        self.fates.carried(location);
        // It cannot be reached from outside.
        if location.inner().iter().any(|directive| directive.name == "internal") {
            location.inner().iter().for_each(|directive| self.fates.carried(directive));
            lines.setting("respond 404".to_owned());
            return site.block(&location.comments, path.head(), lines);
        }
        self.seen(location.inner());
        self.settings(&chain, &mut lines);
        self.auth_request(&chain, around, &mut lines);
        let mut levels = vec![&chain];
        levels.extend(chains);
        self.lists(&levels, &mut lines);
        let redirects = self.rewrites(&chain, true, &mut lines);
        for (head, redirect) in redirects.0 {
            let mut lines = Lines::default();
            let inner = chain.within(&[]);
            let around: Vec<&Chain<'d>> = std::iter::once(&inner).chain(levels.iter().copied()).collect();
            self.lists(&around, &mut lines);
            lines.setting(redirect);
            site.block(&[], head, lines);
        }
        self.action(&chain, Some(path), named, &mut lines);
        self.rest(location.inner(), &mut lines);
        site.block(&location.comments, path.head(), lines);
        // Nested locations: a plain path within a plain path becomes a sibling.
        let inner = location.inner().iter().filter(|directive| directive.name == "location");
        let is_plain = |inner: &Directive| {
            path.prefix().is_some() && matches!(Path::of(inner), Some(Path::Exact(_) | Path::Prefix { .. }))
        };
        for within in inner.clone().filter(|within| !is_plain(within)) {
            self.leave(
                within,
                "a regex inside a location is not supported; write a route with the whole pattern",
                site,
            );
        }
        let plain: Vec<&'d Directive> = inner.filter(|within| is_plain(within)).collect();
        for within in plain {
            if let Some(path) = Path::of(within) {
                self.location(within, &path, &levels, named, site);
            }
        }
    }

    /// `auth_request` names a location that forwards requests.
    fn auth_request(&mut self, chain: &Chain<'d>, server: &Chain<'d>, lines: &mut Lines) {
        let Some(directive) = chain.own().iter().find(|directive| directive.name == "auth_request") else {
            return;
        };
        let uri = directive.word(0);
        if uri == "off" {
            self.fates.carried(directive);
            return lines.setting("forward-auth off".to_owned());
        }
        let asked = server.own().iter().find(|location| {
            location.name == "location"
                && matches!(Path::of(location), Some(path) if path.exact().or(path.prefix()) == Some(uri))
        });
        let pass = asked
            .and_then(|location| location.inner().iter().find(|directive| directive.name == "proxy_pass"));
        let Some((pass, (scheme, rest))) =
            pass.and_then(|pass| Some((pass, pass.word(0).split_once("://")?)))
        else {
            return self.leave(directive, "it needs a location with proxy_pass", lines);
        };
        if pass.word(0).contains('$') {
            return self.leave(directive, "variables are not supported in upstreams", lines);
        }
        let (authority, path) = match rest.find('/') {
            Some(at) if !rest.starts_with("unix:") => rest.split_at(at),
            _ => (rest.trim_end_matches(':'), uri),
        };
        let upstream = self.upstream(authority, scheme == "https", server, lines);
        self.fates.carried(directive);
        lines.setting(format!("forward-auth {} path={}", value(&upstream), value(path)));
    }
}
