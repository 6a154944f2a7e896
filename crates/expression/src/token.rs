//! Splits an expression into words, literals and signs.

use std::ops::Range;

use crate::{EXPRESSION_BYTES_MAX, Fault, fault};

/// A word, a literal or a sign.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// A name, or `$name`.
    Word(String),
    Text(Vec<u8>),
    Int(f64),
    Double(f64),
    Sign(&'static str),
}

/// A token with its place.
pub(crate) type Placed = (Token, Range<usize>);

/// The longer ones first, because they are compared by prefix.
const SIGNS: [&str; 23] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "?", ":", "(", ")", "[", "]", ",", ".", "+", "-", "*",
    "/", "%", "=",
];

/// The largest whole number that a fraction's type holds exactly.
const INT_MAX: f64 = 9_007_199_254_740_992.0;

/// # Errors
/// Characters that no token begins with, unclosed texts, unknown escapes, numbers that are too large, an expression that is too long.
pub(crate) fn tokens(text: &str) -> Result<Vec<Placed>, Fault> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return fault(&(0..0), format!("it has {} bytes, allowed {EXPRESSION_BYTES_MAX}", text.len()));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let blanks = rest.len() - rest.trim_start().len();
        if blanks > 0 {
            at += blanks;
            continue;
        }
        let (token, length) = token(rest, at)?;
        found.push((token, at..at + length));
        at += length;
    }
    Ok(found)
}

fn token(rest: &str, at: usize) -> Result<(Token, usize), Fault> {
    let (is_raw, quoted) = match rest.strip_prefix(['r', 'R']) {
        Some(quoted) if quoted.starts_with(['"', '\'']) => (true, quoted),
        _ => (false, rest),
    };
    if let Some(quote) = quoted.chars().next().filter(|first| matches!(first, '"' | '\'')) {
        let begin = rest.len() - quoted.len() + 1;
        let (value, end) = literal(rest, begin, quote, is_raw, at)?;
        return Ok((Token::Text(value), end));
    }
    let first = rest.chars().next().unwrap_or_default();
    let is_of_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if first.is_ascii_alphabetic() || first == '_' || first == '$' {
        let behind = rest.get(1..).unwrap_or_default();
        let length = 1 + behind.find(|char| !is_of_word(char)).unwrap_or(behind.len());
        let word = rest.get(..length).unwrap_or_default();
        return match word {
            "$" => fault(&(at..at + 1), "expected the name of a variable after `$`"),
            word => Ok((Token::Word(word.to_owned()), length)),
        };
    }
    if first.is_ascii_digit() {
        return number(rest, at);
    }
    match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        Some(&"=") => fault(&(at..at + 1), "got `=`, need `==` to compare"),
        Some(sign) => Ok((Token::Sign(sign), sign.len())),
        None => {
            let hint = match first {
                '&' => "; `and` is written `&&`",
                '|' => "; `or` is written `||`",
                '~' => "; a regular expression is text.matches('EXPRESSION')",
                _ => "",
            };
            fault(&(at..at + first.len_utf8()), format!("unexpected `{}`{hint}", first.escape_default()))
        }
    }
}

fn number(rest: &str, at: usize) -> Result<(Token, usize), Fault> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(rest);
    let behind = rest.get(whole..).unwrap_or_default();
    let fraction = behind.strip_prefix('.').map(digits).filter(|digits| *digits > 0);
    let length = whole + fraction.map_or(0, |digits| digits + 1);
    let place = at..at + length;
    if rest
        .get(length..)
        .is_some_and(|behind| behind.starts_with(|char: char| char.is_ascii_alphabetic() || char == '.'))
    {
        return fault(&place, "need a number without a unit; an address or a name is a text in quotes");
    }
    let value: f64 = rest.get(..length).and_then(|text| text.parse().ok()).unwrap_or(f64::INFINITY);
    if value > INT_MAX {
        return fault(&place, "this number is too large");
    }
    Ok((if fraction.is_some() { Token::Double(value) } else { Token::Int(value) }, length))
}

/// The value of a text in quotes, and where its closing quote ends.
fn literal(
    rest: &str,
    begin: usize,
    quote: char,
    is_raw: bool,
    at: usize,
) -> Result<(Vec<u8>, usize), Fault> {
    let mut value = Vec::new();
    let mut chars = rest.get(begin..).unwrap_or_default().char_indices();
    while let Some((offset, char)) = chars.next() {
        let here = begin + offset;
        if char == quote {
            return Ok((value, here + 1));
        }
        if char != '\\' || is_raw {
            value.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let behind = rest.get(here + 1..).unwrap_or_default();
        let Some(length) = escape(behind, &mut value) else {
            let unknown = behind.chars().next();
            let escaped = unknown.map_or_else(String::new, |char| char.escape_default().to_string());
            let place = at + here..at + here + 1 + unknown.map_or(0, char::len_utf8);
            return fault(
                &place,
                format!("unknown escape `\\{escaped}`; a backslash is written `\\\\`, or the text as r'…'"),
            );
        };
        for _ in 0..length {
            chars.next();
        }
    }
    fault(&(at..at + rest.len()), "this text has no closing quote")
}

/// Adds the character that an escape stands for, and returns how many characters it has behind the backslash.
fn escape(behind: &str, value: &mut Vec<u8>) -> Option<usize> {
    let first = behind.chars().next()?;
    let simple = match first {
        '\\' | '"' | '\'' | '`' | '?' => first as u8,
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        _ => {
            let (digits, radix, skipped) = match first {
                'x' | 'X' => (2, 16, 1),
                'u' => (4, 16, 1),
                'U' => (8, 16, 1),
                '0'..='3' => (3, 8, 0),
                _ => return None,
            };
            let text = behind.get(skipped..skipped + digits)?;
            if !text.chars().all(|char| char.is_digit(radix)) {
                return None;
            }
            let char = char::from_u32(u32::from_str_radix(text, radix).ok()?)?;
            value.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(skipped + digits);
        }
    };
    value.push(simple);
    Some(1)
}
