//! Plan files. Any input becomes a plan, or an error with a position in the file, and the message is harmless for a
//! terminal.

use flatout_config::{Mistake, PLAN, Plan, Source, Takes, Word, Words, read};

/// Refuses some values, as settings do.
struct Choosy;

impl Plan for Choosy {
    fn setting(&mut self, _: &str, value: &str) -> Result<(), String> {
        if value.len() > 3 { Err(format!("got `{value}`, need three characters at most")) } else { Ok(()) }
    }

    fn tuning(&mut self, _: &str) {}

    fn variant(&mut self, _: &str) {}

    fn of_variant(&mut self, word: &str, value: &str) -> Result<(), String> {
        self.setting(word, value)
    }

    fn skip(&mut self, _: &str, reason: &str) {
        assert!(!reason.trim().is_empty());
    }
}

const fn word(name: &str, takes: Takes) -> Word<'_> {
    Word { name, takes, is_list: false }
}

const WORDS: Words<'_> = Words {
    settings: &[
        word("server-cmd", Takes::Text),
        word("url", Takes::Text),
        word("pid", Takes::Number),
        word("lab", Takes::Nothing),
        Word { name: "header", takes: Takes::Text, is_list: true },
    ],
    variant: &[word("server-cmd", Takes::Text), word("set", Takes::Text), word("unset", Takes::Text)],
    by_hand: &["keep"],
    tunings: &["gro", "somaxconn"],
};

pub fn run(input: &[u8]) {
    let read = Source::new("a.kdl", input.to_vec(), &PLAN).and_then(|source| read(source, &WORDS, &mut Choosy));
    let mistake = match read {
        Ok(places) => places.setting("lab", "a mistake").unwrap_or_else(|| places.whole("a mistake")),
        Err(mistake) => mistake,
    };
    let lines = String::from_utf8_lossy(input).matches('\n').count() + 1;
    let Mistake { line, column, ref message, ref shown, caret: (before, length), .. } = mistake;
    assert!((1..=lines).contains(&line) && column >= 1 && !message.is_empty(), "{mistake}");
    assert!(before + length <= shown.chars().count().max(before), "{mistake}");
    let told = mistake.to_string();
    assert!(told.starts_with(&format!("a.kdl:{line}:{column}: ")));
    assert!(told.chars().all(|char| !char.is_control() || char == '\t' || char == '\n'), "{told:?}");
}
