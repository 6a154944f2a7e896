//! The settings of a file that apply to a request and are no rules of its route: as they are written, with their lines and what they do.

use std::ops::Range;

use flatout_config::Node;
use flatout_site::plan::{Action, Route};

use super::explain::Lines;
use super::setting::ServeSetting;
use super::settings::GROUPS;
use super::site::Built;

/// Settings whose values are secrets.
const SECRETS: [&str; 3] = ["push-token", "push-secret", "bus"];

/// What a request meets: it selects the groups of settings.
pub(super) struct Met<'p> {
    pub(super) route: Option<&'p Route>,
    /// The positions of its site and route.
    pub(super) site: Option<Range<usize>>,
    pub(super) place: Option<Range<usize>>,
    pub(super) upstream: Option<String>,
    pub(super) is_tls: bool,
}

impl Met<'_> {
    /// Whether the settings of a group have an effect. Those of rules are shown with the rules.
    fn needs(&self, group: &str) -> bool {
        let action = self.route.map(|route| &route.action);
        let is_proxy = matches!(action, Some(Action::Proxy(_)));
        match group {
            "Listening" | "Logs and metrics" | "Limits" => true,
            "TLS" => self.is_tls,
            "Files" => {
                matches!(action, Some(Action::Files(_)))
                    || self.route.is_some_and(|route| route.try_files.is_some())
            }
            "Proxying" | "Upstreams" => is_proxy,
            "Prerendering" => self.route.is_some(),
            "Push" => matches!(action, Some(Action::Push(_))),
            _ => false,
        }
    }
}

/// Adds a line for each setting.
pub(super) fn of_settings(lines: &mut Lines, built: &Built, met: &Met<'_>) {
    let levels = levels(built, met);
    for (_, settings) in GROUPS.iter().filter(|(group, _)| met.needs(group)) {
        // HSTS is shown with the rules.
        for setting in settings.iter().filter(|setting| setting.name != "hsts") {
            // The innermost level that has it.
            let here = |nodes: &&&[Node]| nodes.iter().any(|node| node.name == setting.name);
            let Some(nodes) = levels.iter().find(here) else { continue };
            let named = nodes.iter().filter(|node| node.name == setting.name);
            for (at, node) in named.enumerate() {
                // What it does is said once.
                let help = setting.help.split(';').next().filter(|_| at == 0);
                let help = help.map_or_else(String::new, |help| format!(": {help}"));
                lines.line("setting", format!("{}{help}", written(built, setting, node)));
            }
        }
    }
}

/// The nodes of each level, from the innermost one.
fn levels<'b>(built: &'b Built, met: &Met<'_>) -> Vec<&'b [Node]> {
    let top = &built.tree.nodes[..];
    let inner = |node: &'b Node| node.inner.as_deref().unwrap_or_default();
    let site = met.site.as_ref().and_then(|at| top.iter().find(|node| node.at == *at && node.name == "site"));
    let routes = site.map_or(top, inner);
    let route = met.place.as_ref().and_then(|at| {
        routes.iter().find(|node| node.name == "route" && (node.at == *at || node.value_at() == at))
    });
    let is_named = |node: &&Node| {
        node.name == "upstream" && met.upstream.as_ref().is_some_and(|name| node.values[0].text == *name)
    };
    let upstream = top.iter().find(is_named);
    let found = [upstream.map(inner), route.map(inner), site.map(inner), Some(top)];
    found.into_iter().flatten().collect()
}

/// A setting as it is written, and its line.
fn written(built: &Built, setting: &ServeSetting, node: &Node) -> String {
    let is_secret = SECRETS.contains(&setting.name);
    let values = node.values.iter().map(|value| if is_secret { "…".to_owned() } else { value.text.clone() });
    let keys = node.keys.iter().map(|(name, value)| format!("{name}={}", value.text));
    let words: Vec<String> = std::iter::once(setting.name.to_owned()).chain(values).chain(keys).collect();
    format!("{}, line {}", words.join(" "), built.tree.line(&node.at))
}
