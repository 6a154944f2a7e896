//! Conditions, variables and maps of a site file.
//!
//! ```text
//! a level ── variables: set, and when with its conditions, in the order of the file
//!         ── settings:  they can use all variables of the level
//!         ── blocks:    the rules in each when
//!         ── actions:   the actions in each when, each a route of its own
//! ```

use flatout_config::{Mistake, Node, Value};
use flatout_site::plan::{
    Cached, Condition, ExpressionFault, Map, MapFile, MapKey, MapKind, MapProxies, Rules, SetValue,
    SetVariable, Template, WhenBlock,
};

use super::blocks::ACTIONS;
use super::options::{Level, ServeOptions};
use super::parse;
use super::site::Reader;
use super::values::mistake_in;

/// Variables and conditional values of a file.
const SETS_MAX: usize = 65_536;

/// Levels of `when` in each other.
const WHENS_DEEP_MAX: usize = 8;

/// An action under conditions.
pub(super) struct ConditionalAction<'n> {
    /// The `when` around it.
    pub(super) node: &'n Node,
    pub(super) conditions: Vec<Condition>,
}

impl Reader<'_> {
    /// Reads a level: its variables, then its settings, then its blocks.
    pub(super) fn level(self, nodes: &[Node], options: &mut ServeOptions) {
        self.variables(nodes, options);
        // One after another: rewrites under conditions and others keep their order.
        for node in nodes {
            let node = std::slice::from_ref(node);
            self.settings(node, options, |_| true);
            self.blocks(node, options);
        }
    }

    /// Defines the variables of a level, in the order of the file: each value can use those before it.
    pub(super) fn variables(self, nodes: &[Node], options: &mut ServeOptions) {
        for node in nodes {
            match node.name.as_str() {
                "set" if self.note(self.set(node, options)).is_none() => {
                    self.assume(&node.values[0].text, options);
                }
                "when" => {
                    let Some(conditions) = self.note(self.conditions(node, options)) else { continue };
                    let outer = std::mem::replace(&mut options.conditions, conditions);
                    options.whens.extend(options.conditions.last().map(|last| (node.at.start, last.clone())));
                    self.variables(node.inner.as_deref().unwrap_or_default(), options);
                    options.conditions = outer;
                }
                _ => {}
            }
        }
    }

    /// Texts may use this name, although its definition has a mistake: that is reported once.
    fn assume(self, name: &str, options: &ServeOptions) {
        options.shared.borrow_mut().groups.push(name.to_owned());
    }

    /// The conditions of a `when` and those around it.
    fn conditions(self, node: &Node, options: &ServeOptions) -> Result<Vec<Condition>, Mistake> {
        if options.conditions.len() >= WHENS_DEEP_MAX {
            return Err(self
                .tree
                .mistake(&node.at, format!("more than {WHENS_DEEP_MAX} `when` in each other")));
        }
        // It uses the variables that were defined before it.
        let known =
            options.whens.iter().find(|(at, _)| *at == node.at.start).map(|(_, condition)| condition.clone());
        let condition = known.map_or_else(|| self.condition(&node.values[0], options), Ok)?;
        if options.conditions.contains(&condition) {
            let message = "a `when` around this one has the same condition";
            return Err(self.tree.mistake(node.value_at(), message));
        }
        Ok(options.conditions.iter().cloned().chain([condition]).collect())
    }

    /// Reads a condition; a mistake is shown at its word in the expression.
    pub(super) fn condition(self, value: &Value, options: &ServeOptions) -> Result<Condition, Mistake> {
        options.condition(&value.text).map_err(|fault| self.in_expression(value, &fault))
    }

    fn in_expression(self, value: &Value, fault: &ExpressionFault) -> Mistake {
        self.tree.mistake_within(value, &fault.at, fault.reason.clone())
    }

    fn set(self, node: &Node, options: &mut ServeOptions) -> Result<(), Mistake> {
        let name = &node.values[0];
        self.check_name(name, options)?;
        let value = match (node.values.get(1), node.key("expr")) {
            (Some(text), None) => SetValue::Text(
                options.template(&text.text).map_err(|message| mistake_in(self.tree, node, message))?,
            ),
            (None, Some(value)) => SetValue::Expression(
                options.expression(&value.text).map_err(|fault| self.in_expression(value, &fault))?,
            ),
            _ => return Err(self.tree.mistake(&node.at, "need a text, or an expression: expr=\"…\"")),
        };
        let before = options.variables.iter().rev().find(|(known, _)| *known == name.text);
        let set = SetVariable {
            name: name.text.clone(),
            value,
            when: options.conditions.clone(),
            before: before.map(|(_, at)| *at),
        };
        let mut shared = options.shared.borrow_mut();
        if shared.sets.len() >= SETS_MAX {
            return Err(self.tree.mistake(&node.at, format!("more than {SETS_MAX} values of variables")));
        }
        shared.sets.push(set);
        options.variables.push((name.text.clone(), shared.sets.len() - 1));
        Ok(())
    }

    /// A name of a variable, which no other kind of variable has.
    fn check_name(self, name: &Value, options: &ServeOptions) -> Result<(), Mistake> {
        let text = &name.text;
        let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name {
            let message = format!("got `{text}`, need a name of letters, digits and _");
            return Err(self.tree.mistake(&name.at, message));
        }
        if options.shared.borrow().maps.iter().any(|map| map.name == *text) {
            return Err(self.tree.mistake(&name.at, format!("there is a map `{text}`")));
        }
        if Template::parse(&format!("${text}"), |_| None).is_ok() {
            let message = format!("`${text}` is a variable of every request; choose another name");
            return Err(self.tree.mistake(&name.at, message));
        }
        Ok(())
    }

    /// Adds the rules of each `when` of a level to its options.
    pub(super) fn blocks(self, nodes: &[Node], options: &mut ServeOptions) {
        for node in nodes.iter().filter(|node| node.name == "when") {
            self.note(self.conditional_block(node, options));
        }
    }

    fn conditional_block(self, node: &Node, options: &mut ServeOptions) -> Result<(), Mistake> {
        let inner = node.inner.as_deref().unwrap_or_default();
        let mut block = options.within(Level::When);
        block.conditions = self.conditions(node, options)?;
        block.rules = Rules::default();
        block.caching = Cached::default();
        // Unchanged if the block says nothing.
        block.cache_time = Some(std::time::Duration::MAX);
        self.settings(inner, &mut block, |_| true);
        match block.cache_time {
            Some(std::time::Duration::MAX) => {}
            None => {
                block.caching.bypass.push(Template::text("1"));
                block.caching.no_store.push(Template::text("1"));
            }
            Some(_) => {
                let cache = inner.iter().find(|node| node.name == "cache").unwrap_or(node);
                let message = "only `cache off` is possible in a when; a route has when=";
                return Err(self.tree.mistake(cache.value_at(), message));
            }
        }
        let is_cached = block.caching != Cached::default();
        block.rules.cache = is_cached.then(|| block.caching.clone());
        options.rewrites.append(&mut block.rewrites);
        if block.rules != Rules::default() {
            let rules = std::mem::take(&mut block.rules);
            options.rules.when.push(WhenBlock { conditions: block.conditions.clone(), rules });
        }
        let before = options.conditions.clone();
        options.conditions = block.conditions;
        self.blocks(inner, options);
        options.conditions = before;
        Ok(())
    }

    /// The actions in each `when` of a level, in the order of the file, inner ones first.
    pub(super) fn conditional_actions<'n>(
        self,
        nodes: impl IntoIterator<Item = &'n Node>,
        options: &ServeOptions,
    ) -> Vec<ConditionalAction<'n>> {
        let mut found = Vec::new();
        for node in nodes.into_iter().filter(|node| node.name == "when") {
            let inner = node.inner.as_deref().unwrap_or_default();
            // A condition with a mistake was noted before.
            let Ok(conditions) = self.conditions(node, options) else { continue };
            let mut within = options.clone();
            within.conditions.clone_from(&conditions);
            found.extend(self.conditional_actions(inner, &within));
            if inner.iter().any(|node| ACTIONS.contains(&node.name.as_str())) {
                found.push(ConditionalAction { node, conditions });
            }
        }
        found
    }

    /// Reads the maps of the file.
    pub(super) fn maps(self, top: &ServeOptions) {
        for node in self.tree.nodes.iter().filter(|node| node.name == "map") {
            match self.note(self.map(node, top)) {
                Some(map) => top.shared.borrow_mut().maps.push(map),
                None => self.assume(&node.values[0].text, top),
            }
        }
    }

    /// The proxies of a map of addresses.
    fn proxies_of(self, node: &Node, kind: MapKind) -> Result<Option<MapProxies>, Mistake> {
        let is_recursive = node.key("recursive");
        let Some(proxies) = node.key("proxies") else {
            let alone = is_recursive.map(|key| self.tree.mistake(&key.at, "recursive= is for proxies="));
            return alone.map_or(Ok(None), Err);
        };
        if kind != MapKind::Address {
            return Err(self.tree.mistake(&proxies.at, "proxies= is for by=address"));
        }
        let peers = parse::peers_list(&proxies.text);
        let peers = peers.map_err(|message| self.tree.mistake(&proxies.at, message))?;
        Ok(Some(MapProxies { peers, is_recursive: is_recursive.is_some_and(|key| key.text == "on") }))
    }

    fn map(self, node: &Node, top: &ServeOptions) -> Result<Map, Mistake> {
        let name = &node.values[0];
        self.check_name(name, top)?;
        let template = |node: &Node, at: usize| {
            top.template(&node.values[at].text).map_err(|message| mistake_in(self.tree, node, message))
        };
        let kind = match node.key("by").map_or("text", |by| by.text.as_str()) {
            "address" => MapKind::Address,
            "number" => MapKind::Number,
            "share" => MapKind::Share,
            _ => MapKind::Text,
        };
        let inner = node.inner.as_deref().unwrap_or_default();
        let mut cases = Vec::new();
        for case in inner.iter().filter(|node| node.name == "case") {
            let from = &case.values[0];
            let key = MapKey::parse(&from.text, kind).map_err(|message| self.tree.mistake(&from.at, message));
            let (key, to) = (self.note(key), self.note(template(case, 1)));
            cases.extend(key.zip(to));
        }
        let default = inner.iter().find(|node| node.name == "default");
        let default = default.map(|node| template(node, 0)).transpose()?.unwrap_or_default();
        let file = node.key("file").map(|file| MapFile { path: top.path(&file.text), kind });
        let proxies = self.proxies_of(node, kind)?;
        Ok(Map { name: name.text.clone(), source: template(node, 1)?, cases, default, file, proxies })
    }
}
