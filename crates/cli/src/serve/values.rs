//! The values of a setting, from a flag or a file.

use flatout_config::{Kind, Mistake, Node, Tree, Value, parts};

use super::setting::ServeSetting;

/// The values of a setting, and its `name=value` pairs.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: Vec<String>,
    keys: Vec<(String, String)>,
}

/// Why a value was refused, and which one.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Refused {
    /// The key it belongs to.
    pub(super) key: Option<&'static str>,
    /// The place of the value among those without a key, if it is a secret: its text must not be shown.
    pub(super) secret: Option<usize>,
    pub(super) message: String,
}

impl From<String> for Refused {
    fn from(message: String) -> Refused {
        Refused { message, ..Refused::default() }
    }
}

impl From<&str> for Refused {
    fn from(message: &str) -> Refused {
        Refused::from(message.to_owned())
    }
}

impl Values {
    /// From a file.
    pub(super) fn of_node(node: &Node) -> Values {
        let text = |value: &Value| value.text.clone();
        Values {
            values: node.values.iter().map(text).collect(),
            keys: node.keys.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        }
    }

    /// From a flag with one argument per value.
    pub(super) fn of_arguments(setting: &ServeSetting, arguments: Vec<String>) -> Result<Values, String> {
        let given = Values { values: arguments, keys: Vec::new() };
        given.check(setting)?;
        Ok(given)
    }

    /// From a flag with the same syntax as in a file, in one text; quotes keep blanks together.
    pub(super) fn of_flag(setting: &ServeSetting, text: &str) -> Result<Values, String> {
        if setting.is_single() {
            return Ok(Values { values: vec![text.to_owned()], keys: Vec::new() });
        }
        let mut given = Values::default();
        for word in words(text)? {
            match word.split_once('=').filter(|(name, _)| setting.keys.iter().any(|key| key.name == *name)) {
                Some((name, value)) => given.keys.push((name.to_owned(), value.to_owned())),
                None => given.values.push(word),
            }
        }
        given.check(setting)?;
        Ok(given)
    }

    /// Checks the number of values, and that choices are valid.
    fn check(&self, setting: &ServeSetting) -> Result<(), String> {
        let need = || format!("got {} values, need `{}`", self.values.len(), setting.notation());
        let wanted: Vec<_> = parts(setting.value).collect();
        let least = wanted.iter().filter(|part| !part.is_optional).count();
        let is_endless = wanted.last().is_some_and(|part| part.repeats);
        if self.values.len() < least || (self.values.len() > wanted.len() && !is_endless) {
            return Err(need());
        }
        for (value, part) in self.values.iter().zip(&wanted) {
            if part.kind() == Kind::Choice && !part.choices().any(|choice| choice == value) {
                return Err(format!("got `{value}`, need one of {}", part.name.replace('|', ", ")));
            }
        }
        Ok(())
    }

    /// The first value; empty if there is none.
    pub(super) fn text(&self) -> &str {
        self.value(0).unwrap_or_default()
    }

    pub(super) fn value(&self, index: usize) -> Option<&str> {
        self.values.get(index).map(String::as_str)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// Whether it is on: `spa`, `spa on`, but not `spa off`.
    pub(super) fn is_on(&self) -> bool {
        self.text() != "off"
    }

    /// The value of a key.
    pub(super) fn key(&self, name: &str) -> Option<&str> {
        self.keys.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of a key, parsed by `read`.
    pub(super) fn read<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Refused> {
        let value = self.key(name).map(read).transpose();
        value.map_err(|message| Refused { key: Some(name), message, ..Refused::default() })
    }
}

/// The mistake of a refused value, at its place in the file.
pub(super) fn mistake(tree: &Tree, node: &Node, refused: &Refused, message: String) -> Mistake {
    if let Some(value) = refused.secret.and_then(|at| node.values.get(at)) {
        return tree.mistake(&value.at, message).without_marked();
    }
    let keyed = refused.key.and_then(|key| node.key(key));
    let candidates: Vec<&Value> = match keyed {
        Some(value) => vec![value],
        None => node.values.iter().chain(node.keys.iter().map(|(_, value)| value)).collect(),
    };
    // The first text in backquotes that stands in the setting is what the message is about.
    let quoted = refused.message.split('`').skip(1).step_by(2).filter(|text| !text.is_empty());
    for text in quoted {
        if let Some(value) = candidates.iter().find(|value| value.text == text) {
            return tree.mistake(&value.at, message);
        }
        if let Some((value, at)) = candidates.iter().find_map(|value| Some((value, value.text.find(text)?))) {
            return tree.mistake_within(value, &(at..at + text.len()), message);
        }
    }
    tree.mistake(keyed.map_or_else(|| node.value_at(), |value| &value.at), message)
}

/// The same for a message about any of its values.
pub(super) fn mistake_in(tree: &Tree, node: &Node, message: String) -> Mistake {
    mistake(tree, node, &Refused::from(message.clone()), message)
}

/// Splits at blanks; quotes keep blanks together, also within a word: `text="not here"`.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    for char in text.chars() {
        match char {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            char if char.is_whitespace() && !is_quoted => words.extend(word.take()),
            char => word.get_or_insert_default().push(char),
        }
    }
    if is_quoted {
        return Err(format!("got `{text}`, which has an unclosed quote"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_in_a_file() {
        assert_eq!(words("a  b=\"c d\" \"\"").unwrap(), ["a", "b=c d", ""]);
        assert!(words("a \"b").is_err());
    }
}
