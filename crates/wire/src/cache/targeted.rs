//! Targeted cache control (RFC 9213): fields for one kind of caches, which replace `Cache-Control` and `Expires`.
//!
//! Such a field is a structured dictionary (RFC 9651). If it is malformed anywhere, it is ignored.

use super::control::{Argument, Control, Directive};

/// The directives of a targeted field; `None` if it is empty or malformed, and the next field applies.
pub fn targeted<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Control> {
    let mut members: Vec<(&[u8], Value<'_>)> = Vec::new();
    for line in lines {
        let mut text = Text(line);
        text.skip_spaces();
        while !text.0.is_empty() {
            let (key, value) = text.member()?;
            // If a key is repeated, the last one counts.
            members.retain(|(known, _)| *known != key);
            members.push((key, value));
            text.skip_ows();
            if text.0.is_empty() {
                break;
            }
            text.take(b',')?;
            text.skip_ows();
            if text.0.is_empty() {
                return None;
            }
        }
    }
    if members.is_empty() {
        return None;
    }
    let mut control = Control { is_said: true, ..Control::default() };
    for (name, value) in members {
        let argument = match value {
            Value::True => Argument::None,
            Value::Integer(digits) => Argument::Value(digits),
            // The arguments are lists of fields or integers, nothing else.
            Value::Text(text) if matches!(name, b"no-cache" | b"private") => Argument::Value(text),
            // False is the same as absent; no known directive takes another type.
            Value::Text(_) | Value::Other => continue,
        };
        control.note(&Directive { name, argument });
    }
    Some(control)
}

/// The value of a dictionary member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    True,
    Integer(&'a [u8]),
    /// A string or a token.
    Text(&'a [u8]),
    Other,
}

/// The rest of a line.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn skip_spaces(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    fn skip_ows(&mut self) {
        self.take_while(|byte| matches!(byte, b' ' | b'\t'));
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        let rest = self.0.strip_prefix(&[byte])?;
        self.0 = rest;
        Some(())
    }

    fn take_while(&mut self, is_of_it: impl Fn(u8) -> bool) -> &'a [u8] {
        let bytes = self.0.iter().take_while(|&&byte| is_of_it(byte)).count();
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        if !self.0.first().is_some_and(|&byte| byte.is_ascii_lowercase() || byte == b'*') {
            return None;
        }
        let is_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
        Some(self.take_while(is_key))
    }

    fn member(&mut self) -> Option<(&'a [u8], Value<'a>)> {
        let key = self.key()?;
        let value = match self.take(b'=') {
            Some(()) => self.item_or_list()?,
            None => Value::True,
        };
        self.parameters()?;
        Some((key, value))
    }

    fn item_or_list(&mut self) -> Option<Value<'a>> {
        if self.take(b'(').is_none() {
            return self.item();
        }
        loop {
            self.skip_spaces();
            if self.take(b')').is_some() {
                return Some(Value::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';').is_some() {
            self.skip_spaces();
            self.key()?;
            if self.take(b'=').is_some() {
                self.item()?;
            }
        }
        Some(())
    }

    fn item(&mut self) -> Option<Value<'a>> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'?' => {
                self.take(b'?')?;
                match self.take(b'1') {
                    Some(()) => Some(Value::True),
                    None => self.take(b'0').map(|()| Value::Other),
                }
            }
            b':' => {
                self.take(b':')?;
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').map(|()| Value::Other)
            }
            b'@' => {
                self.take(b'@')?;
                matches!(self.number()?, Value::Integer(_) | Value::Other).then_some(Value::Other)
            }
            byte if byte.is_ascii_alphabetic() || *byte == b'*' => {
                let is_token =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                Some(Value::Text(self.take_while(is_token)))
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value<'a>> {
        let is_negative = self.take(b'-').is_some();
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.take(b'.').is_some() {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let fits = (1..=3).contains(&fraction.len()) && digits.len() <= 12;
            return fits.then_some(Value::Other);
        }
        Some(if is_negative { Value::Other } else { Value::Integer(digits) })
    }

    fn string(&mut self) -> Option<Value<'a>> {
        self.take(b'"')?;
        let all = self.0;
        let mut is_escaped = false;
        for (at, byte) in all.iter().enumerate() {
            match byte {
                b'"' | b'\\' if is_escaped => is_escaped = false,
                _ if is_escaped => return None,
                b'\\' => is_escaped = true,
                b'"' => {
                    self.0 = all.get(at + 1..)?;
                    return all.get(..at).map(Value::Text);
                }
                0x20..=0x7e => {}
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &'static str) -> Option<Control> {
        targeted(std::iter::once(line.as_bytes()))
    }

    #[test]
    fn a_dictionary_is_read() {
        let said = read(
            "max-age=60, s-maxage=9;x=\"y\", no-cache=?0, private=\"a\", foo=(1 \"b\";c), must-revalidate",
        );
        let said = said.unwrap();
        assert_eq!((said.max_age, said.s_maxage), (Some(60), Some(9)));
        assert!(!said.no_cache && said.must_revalidate && !said.private);
        assert_eq!(said.withheld, [b"a"]);
        assert_eq!(read("max-age=60, max-age=5").unwrap().max_age, Some(5));
        // A value of the wrong type is ignored.
        assert_eq!(read("max-age=60.5").unwrap().max_age, None);
        assert_eq!(read("max-age=-1").unwrap().max_age, None);
        assert_eq!(
            read("max-age=\"60\", s-maxage=a").unwrap(),
            Control { is_said: true, ..Control::default() }
        );
    }

    #[test]
    fn malformed_fields_are_ignored() {
        for line in [
            "",
            " ",
            "max-age=60,",
            "MAX-age=60",
            "max-age =60",
            "max-age= 60",
            "a=\"b",
            "a=1 b",
            "a=,b",
            "a=1234567890123456",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
