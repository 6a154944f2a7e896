//! Files with blocks. Any input becomes a tree in which everything is allowed, or an error with a position in the
//! file. Formatting keeps the meaning and is idempotent.

use flatout_config::{Grammar, Mistake, Node, SITE_FILE, Scope, SiteWord, Source, formatted, read_tree};

fn grammar() -> Grammar<'static> {
    let word = |name, values| SiteWord { name, values, keys: Vec::new(), braces: None, is_list: false };
    let list = |name, values| SiteWord { is_list: true, ..word(name, values) };
    let log = SiteWord { keys: vec![("buffer", "BYTES"), ("gzip", "on|off")], ..word("log", "FILE") };
    Grammar {
        scopes: vec![
            Scope {
                name: "at the top of the file",
                words: vec![
                    list("listen", "ADDR"),
                    word("workers", "N"),
                    word("spa", "[on|off]"),
                    log,
                    SiteWord { braces: Some(1), ..list("site", "HOST…") },
                ],
            },
            Scope {
                name: "in a site",
                words: vec![
                    word("respond", "STATUS [TEXT]"),
                    list("header", "set|add NAME TEXT"),
                    SiteWord { braces: Some(1), ..list("route", "PATH") },
                ],
            },
        ],
        elsewhere: &[("location", "route")],
        manual: "see the manual",
    }
}

/// The depth of nested braces, and the number of words.
fn count(nodes: &[Node]) -> usize {
    nodes.iter().map(|node| 1 + count(node.inner.as_deref().unwrap_or_default())).sum()
}

fn check(mistake: &Mistake, input: &[u8]) {
    let lines = String::from_utf8_lossy(input).matches('\n').count() + 1;
    let Mistake { line, column, message, shown, caret: (before, length), .. } = mistake;
    assert!((1..=lines).contains(line) && *column >= 1 && !message.is_empty(), "{mistake}");
    assert!(before + length <= shown.chars().count().max(*before), "{mistake}");
    let told = mistake.to_string();
    assert!(told.chars().all(|char| !char.is_control() || char == '\t' || char == '\n'), "{told:?}");
}

pub fn run(input: &[u8]) {
    let source = match Source::new("a.kdl", input.to_vec(), &SITE_FILE) {
        Ok(source) => source,
        Err(mistake) => return check(&mistake, input),
    };
    let (tree, mistakes) = read_tree(source.clone(), &grammar());
    check(&tree.mistake(&(0..1), "a mistake"), input);
    mistakes.iter().for_each(|mistake| check(mistake, input));
    match formatted(&source) {
        Err(mistake) => check(&mistake, input),
        Ok(text) => {
            if text.is_empty() {
                return;
            }
            let again = Source::new("a.kdl", text.clone().into_bytes(), &SITE_FILE).expect("text");
            assert_eq!(formatted(&again).expect("it is formatted"), text);
            let (other, others) = read_tree(again, &grammar());
            assert_eq!(mistakes.is_empty(), others.is_empty());
            assert_eq!(count(&tree.nodes), count(&other.nodes));
        }
    }
}
