//! Converts nodes into a plan.

use std::ops::Range;

use kdl::{KdlDocument, KdlNode, KdlValue};

use crate::guess::guess;
use crate::mistake::Mistake;
use crate::places::Places;
use crate::source::Source;
use crate::syntax;
use crate::tree::span;

/// Filled from a file, in the file's order. Every error gets its position.
pub trait Plan {
    /// A setting, by its word, with its value as on the command line.
    ///
    /// # Errors
    /// The value, and what is allowed.
    fn setting(&mut self, word: &str, value: &str) -> Result<(), String>;

    /// A rung that applies a tuning.
    fn tuning(&mut self, name: &str);

    /// A rung with a variant; its settings follow.
    fn variant(&mut self, name: &str);

    /// A setting of the last variant.
    ///
    /// # Errors
    /// The value, and what is allowed.
    fn of_variant(&mut self, word: &str, value: &str) -> Result<(), String>;

    /// A skipped rung, and the reason.
    fn skip(&mut self, name: &str, reason: &str);
}

/// A word that may be in a file.
#[derive(Debug, Clone, Copy)]
pub struct Word<'w> {
    /// The word.
    pub name: &'w str,
    /// The type of its value.
    pub takes: Takes,
    /// Whether it may be repeated.
    pub is_list: bool,
}

/// The type of a word's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Text, in quotes if it contains blanks.
    Text,
    /// A whole number.
    Number,
    /// Nothing.
    Nothing,
}

/// All words of a file.
#[derive(Debug, Clone, Copy)]
pub struct Words<'w> {
    /// Settings.
    pub settings: &'w [Word<'w>],
    /// Settings of a variant.
    pub variant: &'w [Word<'w>],
    /// Words that are only flags: they give consent, or concern a single climb.
    pub by_hand: &'w [&'w str],
    /// Names of tunings.
    pub tunings: &'w [&'w str],
}

/// Words that are not settings.
const RUNGS: [&str; 3] = ["rung", "variant", "skip"];

/// Words for the server; a file has at most one of them.
const SERVERS: [&str; 2] = ["server-cmd", "pid"];

/// Words for the server's address.
const PLACES: [&str; 2] = ["url", "port"];

/// Words that define a change.
const CHANGES: [&str; 3] = ["set", "server-cmd", "server-args"];

/// Parses a whole file into `plan`, and returns the positions.
///
/// # Errors
/// The first mistake in it.
pub fn read(source: Source, words: &Words<'_>, plan: &mut dyn Plan) -> Result<Places, Mistake> {
    let (settings, rungs) = fill(&source, words, plan)?;
    Ok(Places::new(source, settings, rungs))
}

/// Settings and rungs by name, with their positions.
type Found = (Vec<(String, Range<usize>)>, Vec<(String, Range<usize>)>);

fn fill(source: &Source, words: &Words<'_>, plan: &mut dyn Plan) -> Result<Found, Mistake> {
    let document = syntax::document(source)?;
    let mut seen: Vec<(&KdlNode, &str)> = Vec::new();
    for node in document.nodes() {
        let reader = Reader { source, words, node };
        let name = match word(node) {
            "rung" => reader.rung(plan)?,
            "variant" => reader.variant(plan)?,
            "skip" => reader.skip(plan)?,
            _ => reader.setting(plan)?,
        };
        reader.is_first(&seen, name)?;
        seen.push((node, name));
    }
    let find = |names: &[&str]| document.nodes().iter().find(|node| names.contains(&word(node)));
    if let (Some(server), None) = (find(&SERVERS), find(&PLACES)) {
        let name = word(server);
        return Err(source.mistake(place(server), format!("`{name}` needs `url`: the URL to request")));
    }
    if let (Some(_), Some(pid)) = (find(&SERVERS[..1]), find(&SERVERS[1..])) {
        let message = "`server-cmd` starts a server, `pid` names one that runs; give one".to_owned();
        return Err(source.mistake(place(pid), message));
    }
    let (rungs, settings): (Vec<_>, Vec<_>) = seen.into_iter().partition(|(node, _)| is_rung(node));
    let place = |node: &KdlNode, name: &str| (name.to_owned(), value_place(node));
    Ok((
        settings.iter().map(|(node, _)| place(node, word(node))).collect(),
        rungs.iter().map(|(node, name)| place(node, name)).collect(),
    ))
}

/// One node of the file, with its context.
#[derive(Clone, Copy)]
struct Reader<'r> {
    source: &'r Source,
    words: &'r Words<'r>,
    node: &'r KdlNode,
}

impl<'r> Reader<'r> {
    fn rung(self, plan: &mut dyn Plan) -> Result<&'r str, Mistake> {
        self.no_children()?;
        let (name, at) = self.name(&[])?;
        if !self.words.tunings.contains(&name) {
            let guess = did_you_mean(name, self.words.tunings, "`flatout tune --all` lists them");
            return Err(self.source.mistake(at, format!("unknown tuning `{name}`; {guess}")));
        }
        plan.tuning(name);
        Ok(name)
    }

    fn skip(self, plan: &mut dyn Plan) -> Result<&'r str, Mistake> {
        self.no_children()?;
        let (name, _) = self.name(&["reason"])?;
        let reason = self.node.get("reason").and_then(KdlValue::as_string).map(str::trim);
        let Some(reason) = reason.filter(|reason| !reason.is_empty()) else {
            return self.wrong("`skip` needs a reason, such as skip \"xps\" reason=\"it has one queue\"");
        };
        plan.skip(name, reason);
        Ok(name)
    }

    fn variant(self, plan: &mut dyn Plan) -> Result<&'r str, Mistake> {
        let (name, _) = self.name(&[])?;
        plan.variant(name);
        let inner = self.node.children().map(KdlDocument::nodes).unwrap_or_default();
        let names: Vec<&str> = self.words.variant.iter().map(|word| word.name).collect();
        let mut seen: Vec<(&KdlNode, &str)> = Vec::new();
        for node in inner {
            let reader = Reader { node, ..self };
            let Some(found) = self.words.variant.iter().find(|known| known.name == word(node)) else {
                let guess = did_you_mean(word(node), &names, &format!("it has {}", names.join(", ")));
                return reader.wrong(&format!("unknown setting `{}` of a variant; {guess}", word(node)));
            };
            reader.is_first(&seen, "")?;
            let value = reader.value(found)?;
            plan.of_variant(found.name, &value).map_err(|message| reader.refused(found, &message))?;
            seen.push((node, ""));
        }
        let find = |name: &str| inner.iter().find(|node| word(node) == name);
        match (find("set"), find("unset")) {
            (Some(set), None) => {
                Reader { node: set, ..self }.wrong("`set` needs an `unset`: otherwise it could not be undone")
            }
            (None, Some(unset)) => {
                Reader { node: unset, ..self }.wrong("`unset` without `set` has nothing to undo")
            }
            _ if !CHANGES.iter().any(|change| find(change).is_some()) => {
                self.wrong("it changes nothing; add server-cmd, server-args, or set and unset")
            }
            _ => Ok(name),
        }
    }

    fn setting(self, plan: &mut dyn Plan) -> Result<&'r str, Mistake> {
        let name = word(self.node);
        let Some(found) = self.words.settings.iter().find(|known| known.name == name) else {
            if self.words.by_hand.contains(&name) {
                return self.wrong(&format!("`{name}` is not allowed in a plan; use the flag --{name}"));
            }
            let inner = self.words.variant.iter().any(|known| known.name == name);
            if inner {
                return self.wrong(&format!("`{name}` belongs inside a variant: variant \"NAME\" {{ … }}"));
            }
            let settings = self.words.settings.iter().map(|known| known.name);
            let names: Vec<&str> = settings.chain(RUNGS).collect();
            let guess = did_you_mean(name, &names, "see flatout climb --help");
            return self.wrong(&format!("unknown setting `{name}`; {guess}"));
        };
        self.no_children()?;
        let value = self.value(found)?;
        plan.setting(name, &value).map_err(|message| self.refused(found, &message))?;
        Ok("")
    }

    /// The value of a setting, as on the command line.
    fn value(self, known: &Word<'_>) -> Result<String, Mistake> {
        let entries = self.node.entries();
        let name = known.name;
        let count = if known.takes == Takes::Nothing { 0 } else { 1 };
        if let Some(more) = entries.get(count) {
            let message = match count {
                0 => format!("`{name}` takes no value; leave this out"),
                _ => format!("`{name}` takes one value; text with spaces needs quotes"),
            };
            return Err(self.source.mistake(span(more), message));
        }
        let Some(entry) = entries.first() else {
            return match known.takes {
                Takes::Nothing => Ok(String::new()),
                Takes::Text => self.wrong(&format!("`{name}` needs text")),
                Takes::Number => self.wrong(&format!("`{name}` needs a whole number")),
            };
        };
        let message = match (entry.name(), entry.value(), known.takes) {
            (Some(key), _, _) => {
                format!("`{name}` takes no `{}=`; leave that out", key.value())
            }
            (None, KdlValue::String(text), Takes::Text) => return Ok(text.clone()),
            (None, KdlValue::Integer(number), Takes::Number) => return Ok(number.to_string()),
            (None, value, Takes::Text) => format!("`{name}` needs text in quotes, not {}", kind(value)),
            (None, value, _) => format!("`{name}` needs a whole number, not {}", kind(value)),
        };
        Err(self.source.mistake(span(entry), message))
    }

    /// The name of a rung, and its position; `properties` are allowed after it.
    fn name(self, properties: &[&str]) -> Result<(&'r str, Range<usize>), Mistake> {
        let mut found = None;
        for entry in self.node.entries() {
            let wrong = match (entry.name(), entry.value()) {
                (None, KdlValue::String(name)) if found.is_none() && !name.trim().is_empty() => {
                    found = Some((name.as_str(), span(entry)));
                    continue;
                }
                (Some(key), KdlValue::String(_)) if properties.contains(&key.value()) => continue,
                (None, _) if found.is_some() => "give each rung its own line".to_owned(),
                (None, KdlValue::String(_)) => "a rung needs a name".to_owned(),
                (None, value) => format!("a name must be text in quotes, not {}", kind(value)),
                (Some(key), value) if properties.contains(&key.value()) => {
                    format!("`{}` must be text in quotes, not {}", key.value(), kind(value))
                }
                (Some(key), _) => match guess(key.value(), properties) {
                    Some(guess) => format!("unknown property `{}=`; did you mean `{guess}=`?", key.value()),
                    None => format!("unknown property `{}=`; leave it out", key.value()),
                },
            };
            return Err(self.source.mistake(span(entry), wrong));
        }
        found.map_or_else(|| self.wrong(&format!("`{}` needs a name", word(self.node))), Ok)
    }

    fn no_children(self) -> Result<(), Mistake> {
        match self.node.children() {
            Some(_) => self.wrong(&format!("`{}` takes no braces; only a variant does", word(self.node))),
            None => Ok(()),
        }
    }

    /// Checks for duplicates: rungs are identified by name, settings by their word.
    fn is_first(self, seen: &[(&KdlNode, &str)], name: &str) -> Result<(), Mistake> {
        let this = word(self.node);
        let is_list = self.words.settings.iter().any(|known| known.name == this && known.is_list);
        let first = match is_rung(self.node) {
            true => seen.iter().find(|(other, named)| is_rung(other) && *named == name),
            false => seen.iter().find(|(other, _)| word(other) == this && !is_list),
        };
        let Some((other, _)) = first else { return Ok(()) };
        let line = self.source.line(other.name().span().offset());
        match is_rung(self.node) {
            true => self.wrong(&format!("there are two rungs named `{name}`; the first is on line {line}")),
            false => self.wrong(&format!("`{this}` is given twice; first on line {line}")),
        }
    }

    /// A mistake of the node itself, shown at its word.
    fn wrong<T>(self, message: &str) -> Result<T, Mistake> {
        Err(self.source.mistake(place(self.node), message.to_owned()))
    }

    /// A value that the plan has rejected.
    fn refused(self, known: &Word<'_>, message: &str) -> Mistake {
        self.source.mistake(value_place(self.node), format!("{}: {message}", known.name))
    }
}

fn did_you_mean(typed: &str, names: &[&str], otherwise: &str) -> String {
    guess(typed, names).map_or(otherwise.to_owned(), |guess| format!("did you mean `{guess}`?"))
}

fn word(node: &KdlNode) -> &str {
    node.name().value()
}

fn is_rung(node: &KdlNode) -> bool {
    RUNGS.contains(&word(node))
}

/// The bytes of its word.
fn place(node: &KdlNode) -> Range<usize> {
    let span = node.name().span();
    span.offset()..span.offset() + span.len()
}

/// The bytes of its values; of its word if it has none.
fn value_place(node: &KdlNode) -> Range<usize> {
    node.entries().first().map_or_else(|| place(node), span)
}

fn kind(value: &KdlValue) -> &'static str {
    match value {
        KdlValue::String(_) => "a text",
        KdlValue::Integer(_) => "a whole number",
        KdlValue::Float(_) => "a decimal number",
        KdlValue::Bool(_) => "true or false",
        KdlValue::Null => "null",
    }
}
