//! Converts a file with blocks into nodes, each checked against the grammar.

use std::cell::RefCell;
use std::ops::Range;

use kdl::{KdlDocument, KdlEntry, KdlNode, KdlValue};

use crate::chunks::chunks;
use crate::grammar::{Grammar, Kind, Part, Scope, SiteWord, parts};
use crate::guess::closest;
use crate::mistake::Mistake;
use crate::source::Source;
use crate::syntax::{self, Mended, Origin};

/// Mistakes of a file that are looked for: the rest of it is not read.
const MISTAKES_MAX: usize = 100;

/// A parsed file: every word is in the grammar, and allowed in its place.
#[derive(Debug, Clone)]
pub struct Tree {
    source: Source,
    /// The top-level nodes, in order.
    pub nodes: Vec<Node>,
}

/// A word with its values.
#[derive(Debug, Clone)]
pub struct Node {
    /// The word.
    pub name: String,
    /// Position of the word.
    pub at: Range<usize>,
    /// Its values.
    pub values: Vec<Value>,
    /// Its `name=value` pairs.
    pub keys: Vec<(String, Value)>,
    /// The nodes in its braces; `None` without braces.
    pub inner: Option<Vec<Node>>,
    /// Whether nothing in it, braces included, was left out because of a mistake.
    pub is_whole: bool,
}

/// A value with its position.
#[derive(Debug, Clone)]
pub struct Value {
    /// Its text, without quotes.
    pub text: String,
    /// Its position.
    pub at: Range<usize>,
}

/// Parses a file with blocks, and returns what is right of it with all mistakes in the rest: a tree with mistakes is only good for
/// finding more of them.
pub fn read_tree(source: Source, grammar: &Grammar<'_>) -> (Tree, Vec<Mistake>) {
    let mut nodes = Vec::new();
    let mut firsts = Firsts::of(&grammar.scopes[0]);
    let mistakes = RefCell::new(Vec::new());
    for chunk in chunks(source.text()) {
        let known = mistakes.borrow().len();
        if known >= MISTAKES_MAX {
            break;
        }
        let Mended { document, origin, mistakes: found } = syntax::mended(&source, chunk, known == 0);
        mistakes.borrow_mut().extend(found);
        let reader = TreeReader { source: &source, grammar, origin: &origin, mistakes: &mistakes };
        nodes.extend(document.map(|document| reader.nodes(&document, 0, &mut firsts)).unwrap_or_default());
    }
    let mistakes = in_order(mistakes.into_inner());
    (Tree { source, nodes }, mistakes)
}

/// Mistakes in the order of their file, one at a place: the first one noted.
pub fn in_order(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    mistakes.dedup_by_key(|mistake| (mistake.line, mistake.column));
    mistakes
}

impl Tree {
    /// A mistake at this position.
    pub fn mistake(&self, at: &Range<usize>, message: impl Into<String>) -> Mistake {
        self.source.mistake(at.clone(), message.into())
    }

    /// A mistake at these bytes of a value's text.
    pub fn mistake_within(&self, value: &Value, bytes: &Range<usize>, message: impl Into<String>) -> Mistake {
        let place = self.place_within(value, bytes).unwrap_or_else(|| value.at.clone());
        self.source.mistake(place, message.into())
    }

    /// Where bytes of a value's text are in the file: a text in quotes may have escapes.
    fn place_within(&self, value: &Value, bytes: &Range<usize>) -> Option<Range<usize>> {
        let written = self.source.text().get(value.at.clone())?;
        if let Some(start) = written.find(&value.text) {
            let from = value.at.start + start;
            return Some(from + bytes.start..from + bytes.end);
        }
        // Byte `n` of the text begins where `places[n]` says.
        let mut places = Vec::with_capacity(value.text.len() + 1);
        let mut chars = written.char_indices().skip(1).peekable();
        let mut text = value.text.chars();
        while let (Some((at, char)), Some(meant)) = (chars.next(), text.next()) {
            places.resize(places.len() + meant.len_utf8(), at);
            if char != '\\' {
                continue;
            }
            let is_code = chars.next().is_some_and(|(_, escaped)| escaped == 'u');
            while is_code && chars.next().is_some_and(|(_, char)| char != '}') {}
        }
        places.push(chars.next().map_or(written.len(), |(at, _)| at));
        Some(value.at.start + places.get(bytes.start)?..value.at.start + places.get(bytes.end)?)
    }

    /// Whether this text is anywhere in the file, comments included.
    pub fn has_text(&self, text: &str) -> bool {
        self.source.text().contains(text)
    }

    /// The line number, from 1, of this position.
    pub fn line(&self, at: &Range<usize>) -> usize {
        self.source.line(at.start)
    }
}

impl Node {
    /// The value of a key.
    pub fn key(&self, name: &str) -> Option<&Value> {
        self.keys.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The position of its first value, or of its word.
    pub fn value_at(&self) -> &Range<usize> {
        self.values.first().map_or(&self.at, |value| &value.at)
    }
}

struct TreeReader<'r> {
    source: &'r Source,
    grammar: &'r Grammar<'r>,
    /// Where the parsed bytes are in the source.
    origin: &'r Origin,
    mistakes: &'r RefCell<Vec<Mistake>>,
}

/// Where each word of a scope occurred first, so that long lists are not searched for each line.
struct Firsts(Vec<Option<usize>>);

impl Firsts {
    fn of(scope: &Scope) -> Firsts {
        Firsts(vec![None; scope.words.len()])
    }
}

impl TreeReader<'_> {
    /// The value, or its mistake is noted.
    fn noted<T>(&self, result: Result<T, Mistake>) -> Option<T> {
        result.map_err(|mistake| self.mistakes.borrow_mut().push(mistake)).ok()
    }

    fn has_enough(&self) -> bool {
        self.mistakes.borrow().len() >= MISTAKES_MAX
    }

    fn block(&self, document: &KdlDocument, scope: usize) -> Vec<Node> {
        self.nodes(document, scope, &mut Firsts::of(&self.grammar.scopes[scope]))
    }

    fn nodes(&self, document: &KdlDocument, scope: usize, Firsts(firsts): &mut Firsts) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for node in document.nodes() {
            if self.has_enough() {
                break;
            }
            let Some(index) = self.noted(self.word(node, scope)) else {
                self.guessed_block(node, scope);
                continue;
            };
            let word = &self.grammar.scopes[scope].words[index];
            if let (Some(first), false) = (firsts[index], word.is_list) {
                let line = self.source.line(first);
                let message = format!("`{}` is given twice; first on line {line}", word.name);
                self.mistakes.borrow_mut().push(self.wrong(node, message));
            }
            firsts[index].get_or_insert(self.name_at(node).start);
            nodes.extend(self.node(node, word));
        }
        nodes
    }

    /// Looks for mistakes in the braces of an unknown word, if one can guess what it was meant to be.
    fn guessed_block(&self, node: &KdlNode, scope: usize) {
        let Some(children) = node.children() else { return };
        let (typed, words) = (node.name().value(), &self.grammar.scopes[scope].words);
        let known: Vec<&str> = words.iter().map(|word| word.name).collect();
        let elsewhere =
            self.grammar.elsewhere.iter().find(|(theirs, _)| *theirs == typed).map(|(_, ours)| *ours);
        let meant = elsewhere.or_else(|| closest(typed, &known));
        if let Some(scope) = words.iter().find(|word| Some(word.name) == meant).and_then(|word| word.braces) {
            self.block(children, scope);
        }
    }

    /// The index of its word in the scope.
    fn word(&self, node: &KdlNode, scope: usize) -> Result<usize, Mistake> {
        let (typed, here) = (node.name().value(), &self.grammar.scopes[scope]);
        if let Some(ty) = node.ty() {
            return Err(
                self.wrong(node, format!("leave out `({})`: type annotations are not supported", ty.value()))
            );
        }
        if let Some(index) = here.words.iter().position(|word| word.name == typed) {
            return Ok(index);
        }
        let homes = self.grammar.homes(typed);
        if !homes.is_empty() {
            let homes = homes.join(" or ");
            return Err(self.wrong(node, format!("`{typed}` is not allowed {}, only {homes}", here.name)));
        }
        let known: Vec<&str> = here.words.iter().map(|word| word.name).collect();
        let elsewhere = self.grammar.elsewhere.iter().find(|(theirs, _)| *theirs == typed);
        let everywhere: Vec<&str> =
            self.grammar.scopes.iter().flat_map(|scope| scope.words.iter().map(|word| word.name)).collect();
        let hint = match (elsewhere, closest(typed, &known).or_else(|| closest(typed, &everywhere))) {
            (Some((_, ours)), _) => format!("here it is `{ours}`"),
            (None, Some(guess)) => format!("did you mean `{guess}`?"),
            (None, None) => self.grammar.manual.to_owned(),
        };
        Err(self.wrong(node, format!("unknown setting `{typed}` {}; {hint}", here.name)))
    }

    /// A node without what is wrong in it; `None` if it lacks values.
    fn node(&self, node: &KdlNode, word: &SiteWord<'_>) -> Option<Node> {
        let mistakes_before = self.mistakes.borrow().len();
        let (mut values, mut keys) = (Vec::new(), Vec::new());
        let mut wanted = Wanted::of(word.values);
        let mut has_values = true;
        for entry in node.entries() {
            if self.has_enough() {
                return None;
            }
            match entry.name() {
                Some(key) => {
                    let key = self.noted(self.key(word, key.value(), entry, &keys));
                    keys.extend(key);
                }
                None => {
                    let value = self.noted(self.next_value(word, &mut wanted, entry));
                    has_values &= value.is_some();
                    values.extend(value);
                }
            }
        }
        if let Some(missing) = wanted.missing() {
            has_values = false;
            // Another mistake explains why it is missing.
            if self.mistakes.borrow().len() == mistakes_before {
                let mistake = self.wrong(node, format!("`{}` needs {}", word.name, described(&missing)));
                self.mistakes.borrow_mut().push(mistake);
            }
        }
        let inner = match (node.children(), word.braces) {
            (None, _) => None,
            (Some(children), Some(scope)) => Some(self.block(children, scope)),
            (Some(_), None) => {
                let mistake = self.wrong(node, format!("`{}` takes no braces", word.name));
                self.mistakes.borrow_mut().push(mistake);
                None
            }
        };
        let is_whole = self.mistakes.borrow().len() == mistakes_before;
        let at = self.name_at(node);
        has_values.then(|| Node { name: word.name.to_owned(), at, values, keys, inner, is_whole })
    }

    fn next_value(
        &self,
        word: &SiteWord<'_>,
        wanted: &mut Wanted<'_>,
        entry: &KdlEntry,
    ) -> Result<Value, Mistake> {
        self.check_type(entry)?;
        match wanted.next() {
            Some(part) => self.value(word.name, &part, entry),
            None => Err(self.source.mistake(self.span(entry), too_many(word))),
        }
    }

    fn check_type(&self, entry: &KdlEntry) -> Result<(), Mistake> {
        let Some(ty) = entry.ty() else { return Ok(()) };
        let message = format!("leave out `({})`: type annotations are not supported", ty.value());
        Err(self.source.mistake(self.span(entry), message))
    }

    fn key(
        &self,
        word: &SiteWord<'_>,
        typed: &str,
        entry: &KdlEntry,
        seen: &[(String, Value)],
    ) -> Result<(String, Value), Mistake> {
        self.check_type(entry)?;
        let wrong = |message| Err(self.source.mistake(self.span(entry), message));
        let Some((name, notation)) = word.keys.iter().find(|(name, _)| *name == typed) else {
            let known: Vec<&str> = word.keys.iter().map(|(name, _)| *name).collect();
            let hint = match closest(typed, &known) {
                Some(guess) => format!("did you mean `{guess}=`?"),
                None if known.is_empty() => "leave it out".to_owned(),
                None => format!(
                    "it has {}",
                    known.iter().map(|name| format!("{name}=")).collect::<Vec<_>>().join(", ")
                ),
            };
            return wrong(format!("`{}` has no `{typed}=`; {hint}", word.name));
        };
        if seen.iter().any(|(other, _)| other == name) {
            return wrong(format!("`{name}=` is given twice"));
        }
        let Some(part) = parts(notation).next() else {
            return wrong(format!("`{name}=` takes no value"));
        };
        Ok(((*name).to_owned(), self.value(&format!("{name}="), &part, entry)?))
    }

    fn value(&self, of: &str, part: &Part<'_>, entry: &KdlEntry) -> Result<Value, Mistake> {
        let written = self.source.text().get(self.span(entry)).unwrap_or_default();
        let written = written.split_once('=').map_or(written, |(_, value)| value);
        if let Some(inner) = written.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
            let message = format!("text needs double quotes: \"{inner}\"");
            return Err(self.source.mistake(self.span(entry), message));
        }
        let text = match (entry.value(), part.kind()) {
            (KdlValue::String(text), Kind::Text | Kind::Either) => text.clone(),
            (KdlValue::Integer(number), Kind::Number | Kind::Either) => number.to_string(),
            (KdlValue::String(text), Kind::Choice) if part.choices().any(|choice| choice == text) => {
                text.clone()
            }
            (KdlValue::Bool(value), Kind::Choice) if part.choices().any(|choice| choice == "on") => {
                if *value { "on".to_owned() } else { "off".to_owned() }
            }
            (KdlValue::String(text), Kind::Choice) => {
                let choices: Vec<&str> = part.choices().collect();
                let guess = closest(text, &choices).map(|guess| format!("; did you mean `{guess}`?"));
                let message =
                    format!("{of}: got `{text}`, need {}{}", one_of(&choices), guess.unwrap_or_default());
                return Err(self.source.mistake(self.span(entry), message));
            }
            (value, _) => {
                let message = format!("`{of}` needs {}, not {}", described(part), kind(value));
                return Err(self.source.mistake(self.span(entry), message));
            }
        };
        Ok(Value { text, at: self.span(entry) })
    }

    /// A mistake of the node itself, shown at its word.
    fn wrong(&self, node: &KdlNode, message: String) -> Mistake {
        self.source.mistake(self.name_at(node), message)
    }

    fn name_at(&self, node: &KdlNode) -> Range<usize> {
        let at = node.name().span();
        self.origin.of(at.offset()..at.offset() + at.len())
    }

    fn span(&self, entry: &KdlEntry) -> Range<usize> {
        self.origin.of(span(entry))
    }
}

/// The values of a notation, in order; the last one is repeated if the notation allows it.
struct Wanted<'w> {
    rest: Vec<Part<'w>>,
    has_one: bool,
}

impl<'w> Wanted<'w> {
    fn of(notation: &'w str) -> Wanted<'w> {
        let mut rest: Vec<Part<'w>> = parts(notation).collect();
        rest.reverse();
        Wanted { rest, has_one: false }
    }

    fn next(&mut self) -> Option<Part<'w>> {
        let next = *self.rest.last()?;
        self.has_one = next.repeats;
        if !next.repeats {
            self.rest.pop();
        }
        Some(next)
    }

    /// The value that is missing, if any.
    fn missing(&self) -> Option<Part<'w>> {
        self.rest.last().filter(|part| !part.is_optional && !self.has_one).copied()
    }
}

fn too_many(word: &SiteWord<'_>) -> String {
    match parts(word.values).count() {
        0 => format!("`{}` takes no value; leave this out", word.name),
        1 => format!("`{}` takes one value; text with spaces needs quotes", word.name),
        count => format!("`{}` takes {count} values; text with spaces needs quotes", word.name),
    }
}

/// A description of the expected value, for messages.
fn described(part: &Part<'_>) -> String {
    match (part.kind(), part.name) {
        (Kind::Choice, _) => one_of(&part.choices().collect::<Vec<_>>()),
        (Kind::Number, _) => "a whole number".to_owned(),
        (Kind::Either, "BYTES") => "a number of bytes such as \"64KiB\"".to_owned(),
        (Kind::Either, _) => "a number or a text in quotes".to_owned(),
        (Kind::Text, "TIME") => "a time in quotes such as \"10s\"".to_owned(),
        (Kind::Text, _) => "a text in quotes".to_owned(),
    }
}

fn one_of(choices: &[&str]) -> String {
    match choices {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        all => all.join(""),
    }
}

/// The bytes of a value.
pub(crate) fn span(entry: &KdlEntry) -> Range<usize> {
    let span = entry.span();
    span.offset()..span.offset() + span.len()
}

fn kind(value: &KdlValue) -> &'static str {
    match value {
        KdlValue::String(_) => "a text",
        KdlValue::Integer(_) => "a whole number",
        KdlValue::Float(_) => "a decimal number",
        KdlValue::Bool(_) => "#true or #false",
        KdlValue::Null => "#null",
    }
}
