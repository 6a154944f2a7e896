//! nginx's syntax: directives with words, ended by `;` or followed by a block in braces. Each one knows its position,
//! so that a file is edited in place and the text around it is kept.

use std::ops::Range;

/// One directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directive {
    /// Its name and its arguments, without quotes.
    pub(super) words: Vec<String>,
    /// From its name to the end of its `;` or `}`.
    pub(super) span: Range<usize>,
    /// The content of its braces, and where that starts.
    pub(super) block: Option<(usize, Vec<Directive>)>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// An argument by its number, from 1.
    pub(super) fn argument(&self, number: usize) -> &str {
        self.words.get(number).map_or("", String::as_str)
    }

    pub(super) fn children(&self) -> &[Directive] {
        self.block.as_ref().map_or(&[], |(_, children)| children)
    }
}

/// Nested blocks; nginx's own have at most six levels.
const DEPTH_MAX: usize = 32;

/// Parses a whole file; `None` if the syntax is invalid.
pub(super) fn parse(text: &str) -> Option<Vec<Directive>> {
    let mut at = 0;
    let found = block(text, &mut at, 0)?;
    (at == text.len()).then_some(found)
}

/// Parses directives up to the end of the file, or up to the closing brace of their block, which is not consumed.
fn block(text: &str, at: &mut usize, depth: usize) -> Option<Vec<Directive>> {
    let mut found = Vec::new();
    loop {
        skip(text, at);
        match text.as_bytes().get(*at) {
            None if depth == 0 => return Some(found),
            Some(b'}') if depth > 0 => return Some(found),
            None | Some(b'}') => return None,
            Some(_) => found.push(directive(text, at, depth)?),
        }
    }
}

fn directive(text: &str, at: &mut usize, depth: usize) -> Option<Directive> {
    let (start, mut words) = (*at, Vec::new());
    loop {
        skip(text, at);
        match text.as_bytes().get(*at)? {
            b';' => {
                *at += 1;
                return (!words.is_empty()).then_some(Directive { words, span: start..*at, block: None });
            }
            b'{' if depth < DEPTH_MAX => {
                *at += 1;
                let opened = *at;
                let is_code = words.first().is_some_and(|name: &String| name.ends_with("_by_lua_block"));
                let children = if is_code { code(text, at)? } else { block(text, at, depth + 1)? };
                *at += 1;
                return Some(Directive { words, span: start..*at, block: Some((opened, children)) });
            }
            b'{' | b'}' => return None,
            _ => words.push(word(text, at)?),
        }
    }
}

/// Code in another language, up to its closing brace.
fn code(text: &str, at: &mut usize) -> Option<Vec<Directive>> {
    let mut depth = 0usize;
    for (offset, byte) in text.as_bytes()[*at..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => {
                *at += offset;
                return Some(Vec::new());
            }
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn word(text: &str, at: &mut usize) -> Option<String> {
    let bytes = text.as_bytes();
    if let Some(quote @ (b'"' | b'\'')) = bytes.get(*at) {
        let start = *at + 1;
        let mut end = start;
        while bytes.get(end)? != quote {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        *at = end + 1;
        return text.get(start..end).map(str::to_owned);
    }
    let start = *at;
    while let Some(byte) = bytes.get(*at) {
        match byte {
            // A variable in braces is part of its word.
            b'$' if bytes.get(*at + 1) == Some(&b'{') => {
                *at += text[*at..].find('}')? + 1;
            }
            b'\\' => *at += 2,
            b';' | b'{' | b'}' => break,
            byte if byte.is_ascii_whitespace() => break,
            _ => *at += 1,
        }
    }
    (*at > start).then(|| text.get(start..*at).map(str::to_owned)).flatten()
}

/// Skips blanks and comments.
fn skip(text: &str, at: &mut usize) {
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(*at) {
        match byte {
            b'#' => *at += text[*at..].find('\n').unwrap_or(text.len() - *at),
            byte if byte.is_ascii_whitespace() => *at += 1,
            _ => return,
        }
    }
}

/// All directives of a file, each with the names of its enclosing blocks.
pub(super) fn walk<'d>(
    directives: &'d [Directive],
    within: &mut Vec<&'d str>,
    each: &mut dyn FnMut(&[&'d str], &'d Directive),
) {
    for directive in directives {
        each(within, directive);
        within.push(directive.name());
        walk(directive.children(), within, each);
        within.pop();
    }
}

/// Applies replacements, which must not overlap.
pub(super) fn replaced(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let mut text = text.to_owned();
    for (range, new) in edits.into_iter().rev() {
        text.replace_range(range, &new);
    }
    text
}

/// The edit that inserts a directive at the start of a block, with the indentation of its neighbours.
pub(super) fn first_in(text: &str, block: &Directive, line: &str) -> Option<(Range<usize>, String)> {
    let (opened, children) = block.block.as_ref()?;
    let indentation = match children.first() {
        Some(child) => {
            let start = text[..child.span.start].rfind('\n').map_or(0, |at| at + 1);
            let blanks = &text[start..child.span.start];
            if blanks.trim().is_empty() { blanks.to_owned() } else { "    ".to_owned() }
        }
        None => "    ".to_owned(),
    };
    Some((*opened..*opened, format!("\n{indentation}{line}")))
}

/// Replaces `include WORD;` with other lines.
pub(super) fn replace_include(text: &str, word: &str, lines: &str) -> String {
    let directives = parse(text).unwrap_or_default();
    let mut edits = Vec::new();
    walk(&directives, &mut Vec::new(), &mut |_, directive| {
        if directive.name() == "include" && directive.argument(1) == word {
            edits.push((directive.span.clone(), lines.to_owned()));
        }
    });
    replaced(text, edits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_know_where_they_stand() {
        let text = "# a; {\nuser www;events{}\nhttp {\n  log_format x '$a \"b\" ;{';\n  map $x ${y}z { ~^a\\;b{2} 1; }\n}\n";
        // A brace in a pattern must be quoted, as in nginx itself.
        assert_eq!(parse(text), None);
        let text = text.replace("~^a\\;b{2}", "\"~^a;b{2}\"");
        let found = parse(&text).unwrap();
        assert_eq!(found.iter().map(Directive::name).collect::<Vec<_>>(), ["user", "events", "http"]);
        assert_eq!(&text[found[0].span.clone()], "user www;");
        let http = &found[2];
        assert_eq!(http.children()[0].argument(2), "$a \"b\" ;{");
        assert_eq!(http.children()[1].words, ["map", "$x", "${y}z"]);
        let lua = parse("a { content_by_lua_block { if x { y } } }").unwrap();
        assert_eq!(lua[0].children()[0].name(), "content_by_lua_block");
    }

    #[test]
    fn incomplete_and_foreign_files_are_refused() {
        let whole = "events { a b; }\nhttp { server { listen 80; x \"y\\\"z\"; } }\n";
        for end in 1..whole.len() - 1 {
            if whole.is_char_boundary(end) && !whole[..end].trim_end().ends_with('}') {
                assert_eq!(parse(&whole[..end]), None, "{}", &whole[..end]);
            }
        }
        for text in
            ["{", "}", ";", "a", "a {", "a }", "\"", "a \\", "${", "a;\\", "é", "a \"é", &"a{".repeat(1000)]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn edits_leave_the_rest_as_it_was() {
        let text = "http {\n\tinclude a/*; # all\n\tx;\n}\n";
        assert_eq!(
            replace_include(text, "a/*", "include 1; include 2;"),
            "http {\n\tinclude 1; include 2; # all\n\tx;\n}\n"
        );
        let found = parse(text).unwrap();
        let edit = first_in(text, &found[0], "y 1;").unwrap();
        assert_eq!(replaced(text, vec![edit]), "http {\n\ty 1;\n\tinclude a/*; # all\n\tx;\n}\n");
    }
}
