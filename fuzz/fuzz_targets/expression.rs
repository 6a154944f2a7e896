//! Expressions. Any text becomes a condition and a value that can be evaluated for any facts, or a mistake whose place is in the
//! text. No depth of nesting ends the stack, and no value is longer than its limit.

use std::borrow::Cow;
use std::net::IpAddr;

use flatout_expression::{Condition, Expression, Facts, Fault, Names, TEXT_BYTES_MAX, Type};

/// Facts of every type, with texts from the input.
struct Known<'i>(&'i [u8]);

impl Names for Known<'_> {
    type Fact = String;

    fn fact(&self, name: &str) -> Option<(String, Type)> {
        let kind = match name.as_bytes().first()? {
            b'a'..=b'h' | b'$' => Type::Text,
            b'i'..=b'n' => Type::Int,
            b'o' => Type::Double,
            b'p'..=b'r' => Type::Address,
            b's' => Type::Bool,
            _ => return None,
        };
        Some((name.to_owned(), kind))
    }

    fn entry(&self, table: &str, key: &str) -> Option<String> {
        (table == "t").then(|| key.to_owned())
    }

    fn all(&self) -> Vec<String> {
        vec!["method".to_owned(), "path".to_owned()]
    }
}

impl Facts<String> for Known<'_> {
    fn text<'a>(&'a self, fact: &'a String) -> Cow<'a, [u8]> {
        if fact.len() > 1 { Cow::Borrowed(self.0) } else { Cow::Owned(self.0.to_vec()) }
    }

    fn number(&self, fact: &String) -> f64 {
        fact.len() as f64
    }

    fn address(&self, fact: &String) -> Option<IpAddr> {
        (fact.len() > 1).then(|| IpAddr::from([10, 0, 0, 1]))
    }

    fn is_true(&self, fact: &String) -> bool {
        fact.len() > 1
    }

    fn has(&self, fact: &String) -> bool {
        !fact.is_empty()
    }
}

fn check(fault: &Fault, text: &str) {
    assert!(fault.at.start <= fault.at.end && !fault.reason.is_empty(), "{fault:?}");
    assert!(fault.at.end <= text.len() + 1, "{fault:?}");
}

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let facts = Known(input.get(..2000).unwrap_or(input));
    let condition = Condition::parse(text, &facts);
    match &condition {
        Ok(condition) => {
            condition.holds(&facts);
            assert!(condition.steps() > 0 && condition.source() == text);
        }
        Err(fault) => check(fault, text),
    }
    match Expression::parse(text, &facts) {
        Ok(expression) => {
            let mut out = Vec::new();
            expression.write(&facts, &mut out);
            assert!(out.len() <= TEXT_BYTES_MAX.max(input.len()), "{} bytes", out.len());
        }
        Err(fault) => {
            check(&fault, text);
            assert!(condition.is_err(), "a condition is an expression");
        }
    }
}
