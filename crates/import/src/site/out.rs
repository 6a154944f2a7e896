//! The generated site file, and the result for each directive.

use std::collections::HashMap;
use std::fmt::Write;

use flatout_config::quoted;

use crate::nginx::Directive;

/// The result for a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was converted.
    Carried,
    /// It is not needed: it is the default here, or concerns nginx itself.
    Needless,
    /// It became a comment.
    Left,
}

/// The results for all directives, by their address in memory.
#[derive(Default)]
pub(super) struct Fates(HashMap<*const Directive, Fate>);

impl Fates {
    pub(super) fn carried(&mut self, directive: &Directive) {
        self.0.insert(directive, Fate::Carried);
    }

    pub(super) fn needless(&mut self, directive: &Directive) {
        self.0.entry(directive).or_insert(Fate::Needless);
    }

    pub(super) fn left(&mut self, directive: &Directive) {
        self.0.insert(directive, Fate::Left);
    }

    /// A directive that says the same as another one has its result.
    pub(super) fn like(&mut self, other: &Directive, directive: &Directive) {
        if let Some(fate) = self.0.get(&std::ptr::from_ref(other)).copied() {
            self.0.insert(directive, fate);
        }
    }

    pub(super) fn is_known(&self, directive: &Directive) -> bool {
        self.0.contains_key(&std::ptr::from_ref(directive))
    }

    pub(super) fn count(&self, fate: Fate) -> usize {
        self.0.values().filter(|known| **known == fate).count()
    }
}

/// The start of a setting that makes a group of an expression into a variable.
const SET_GROUP: &str = "set redirect_";

/// Lines of a block.
#[derive(Default)]
pub(super) struct Lines {
    lines: Vec<OutputLine>,
}

enum OutputLine {
    Comment(String),
    Setting(String),
    Block(Vec<String>, String, Lines),
    Gap,
}

impl Lines {
    /// A comment.
    pub(super) fn comment(&mut self, text: &str) {
        self.lines.push(OutputLine::Comment(harmless(text)));
    }

    /// A setting, unless the block already has it.
    pub(super) fn setting(&mut self, text: String) {
        let is_same = |line: &OutputLine| matches!(line, OutputLine::Setting(other) if *other == text);
        if !self.lines.iter().any(is_same) {
            self.lines.push(OutputLine::Setting(text));
        }
    }

    /// A setting, also if the block already has it.
    pub(super) fn setting_again(&mut self, text: String) {
        self.lines.push(OutputLine::Setting(text));
    }

    /// A setting before all others.
    pub(super) fn setting_first(&mut self, text: String) {
        self.lines.insert(0, OutputLine::Setting(text));
    }

    /// A setting behind this many lines.
    pub(super) fn setting_at(&mut self, at: usize, text: String) {
        self.lines.insert(at.min(self.lines.len()), OutputLine::Setting(text));
    }

    /// Folders have no page.
    pub(super) fn index_off(&mut self) {
        let is_index =
            |line: &OutputLine| matches!(line, OutputLine::Setting(text) if text.starts_with("index "));
        self.lines.retain(|line| !is_index(line));
        self.setting("index off".to_owned());
    }

    /// Keeps only this many lines.
    pub(super) fn truncate(&mut self, count: usize) {
        self.lines.truncate(count);
    }

    /// The number of its lines.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// A block with the comments before it, after an empty line.
    pub(super) fn block(&mut self, comments: &[String], head: String, mut inner: Lines) {
        if head.starts_with("when ") {
            // All that are true set their variables before the first one acts.
            let is_other = |line: &&OutputLine| match line {
                OutputLine::Block(_, head, other) => head.starts_with("when ") && other.has_groups(),
                _ => false,
            };
            let others = self.lines.iter().filter(is_other).count();
            if others > 0 {
                inner.rename_groups(others + 1);
            }
        }
        if !self.lines.is_empty() {
            self.lines.push(OutputLine::Gap);
        }
        let is_said = |text: &&String| !text.is_empty();
        self.lines.push(OutputLine::Block(comments.iter().filter(is_said).cloned().collect(), head, inner));
    }

    /// Whether it makes groups of an expression into variables.
    fn has_groups(&self) -> bool {
        let is_group =
            |line: &OutputLine| matches!(line, OutputLine::Setting(text) if text.starts_with(SET_GROUP));
        self.lines.iter().any(is_group)
    }

    /// Gives these variables names of their own.
    fn rename_groups(&mut self, number: usize) {
        for line in &mut self.lines {
            if let OutputLine::Setting(text) = line {
                let is_set = text.starts_with(SET_GROUP);
                *text = text.replace("${redirect_", &format!("${{redirect_{number}_"));
                if is_set {
                    *text = text.replacen(SET_GROUP, &format!("{SET_GROUP}{number}_"), 1);
                }
            }
        }
    }

    /// Leaves only the settings of this name.
    pub(super) fn retain(&mut self, name: &str) {
        let is_it = |line: &OutputLine| matches!(line, OutputLine::Setting(text) if text.split(' ').next() == Some(name));
        self.lines.retain(is_it);
    }

    /// Puts a comment before everything else.
    pub(super) fn comment_first(&mut self, texts: &[String]) {
        let comments = texts.iter().map(|text| OutputLine::Comment(harmless(text)));
        self.lines.splice(0..0, comments);
    }

    /// An empty line before the next block.
    pub(super) fn gap(&mut self) {
        self.lines.push(OutputLine::Gap);
    }

    /// Adds all lines of another block.
    pub(super) fn extend(&mut self, other: Lines) {
        self.lines.extend(other.lines);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether it has exactly this setting.
    pub(super) fn has_setting(&self, text: &str) -> bool {
        self.lines.iter().any(|line| matches!(line, OutputLine::Setting(other) if other == text))
    }

    /// Whether it has a block whose first line begins so.
    pub(super) fn has_block(&self, start: &str) -> bool {
        self.lines.iter().any(|line| matches!(line, OutputLine::Block(_, head, _) if head.starts_with(start)))
    }

    /// Whether it has a setting of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let begins = |text: &String| text.split(' ').next() == Some(name);
        self.lines.iter().any(|line| matches!(line, OutputLine::Setting(text) if begins(text)))
    }

    /// Whether a `when` of it has an action.
    pub(super) fn has_conditional_action(&self) -> bool {
        let actions = ["files", "proxy", "redirect", "respond", "reroute", "stub-status", "close"];
        self.lines.iter().any(|line| match line {
            OutputLine::Block(_, head, inner) => {
                head.starts_with("when ") && actions.iter().any(|action| inner.has(action))
            }
            _ => false,
        })
    }

    /// Whether it, or a block in it, has a rewrite that is the last one.
    pub(super) fn stops_rewrites(&self) -> bool {
        self.lines.iter().any(|line| match line {
            OutputLine::Setting(text) => text.starts_with("rewrite ") && text.contains(" then=stop"),
            OutputLine::Block(_, _, inner) => inner.stops_rewrites(),
            _ => false,
        })
    }

    /// Whether it contains a route.
    pub(super) fn has_routes(&self) -> bool {
        let is_route =
            |line: &OutputLine| matches!(line, OutputLine::Block(_, head, _) if head.starts_with("route "));
        self.lines.iter().any(is_route)
    }

    /// The text, `depth` braces deep.
    pub(super) fn write(&self, depth: usize, text: &mut String) {
        let indent = "    ".repeat(depth);
        for (index, line) in self.lines.iter().enumerate() {
            let _ = match line {
                // Comments of a block are directly before it.
                OutputLine::Gap => match self.lines.get(index + 1) {
                    Some(OutputLine::Block(..)) => writeln!(text),
                    _ => Ok(()),
                },
                OutputLine::Comment(comment) => writeln!(text, "{indent}// {comment}"),
                OutputLine::Setting(setting) => writeln!(text, "{indent}{setting}"),
                OutputLine::Block(comments, head, inner) => {
                    for comment in comments {
                        let _ = writeln!(text, "{indent}// {}", harmless(comment));
                    }
                    if inner.is_empty() {
                        let _ = writeln!(text, "{indent}{head} {{}}");
                        continue;
                    }
                    let _ = writeln!(text, "{indent}{head} {{");
                    inner.write(depth + 1, text);
                    writeln!(text, "{indent}}}")
                }
            };
        }
    }
}

/// Keeps any configuration text within its comment line.
fn harmless(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// A word with a text: `files "/var/www"`.
pub(super) fn line(word: &str, text: &str) -> String {
    format!("{word} {}", value(text))
}

/// An option behind the values of a setting: ` crl="/etc/revoked.pem"`; nothing without a text.
pub(super) fn option(name: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" {name}={}", value(text)) }
}

/// A text as a value, always quoted.
pub(super) fn text(text: &str) -> String {
    quoted(text)
}

/// A text as a value, quoted if necessary.
pub(super) fn value(text: &str) -> String {
    let is_word = text.starts_with(|char: char| char.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !["true", "false", "null", "inf", "nan"].contains(&text);
    if is_word { text.to_owned() } else { quoted(text) }
}
