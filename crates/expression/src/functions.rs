//! The functions of expressions.

use std::ops::Range;

use crate::check::{Checker, Typed};
use crate::compiled::{Address, Change, Number, Place, Test, Text};
use crate::file::FileTest;
use crate::guess::closest;
use crate::network::Network;
use crate::syntax::{Syntax, Term};
use crate::{Fault, REGEXES_MAX, Regex, fault};

/// Functions with their use.
const FUNCTIONS: [(&str, &str); 7] = [
    ("has", "has(header['accept'])"),
    ("size", "size(text)"),
    ("int", "int(text)"),
    ("double", "double(text)"),
    ("string", "string(number)"),
    ("ip", "ip(text)"),
    ("cookieDate", "cookieDate(time + 3600)"),
];

/// Methods with their use.
const METHODS: [(&str, &str); 17] = [
    ("startsWith", "text.startsWith('/api/')"),
    ("endsWith", "text.endsWith('.png')"),
    ("contains", "text.contains('bot')"),
    ("matches", "text.matches('^/v[0-9]+/')"),
    ("extract", "text.extract('^/v([0-9]+)/')"),
    ("replace", "text.replace('_', '-')"),
    ("substring", "text.substring(0, 8)"),
    ("lowerAscii", "text.lowerAscii()"),
    ("upperAscii", "text.upperAscii()"),
    ("trim", "text.trim()"),
    ("md5", "(path + 'secret').md5()"),
    ("size", "text.size()"),
    ("isFile", "('/www' + path).isFile()"),
    ("isDirectory", "('/www' + path).isDirectory()"),
    ("exists", "('/www' + path).exists()"),
    ("isExecutable", "('/www' + path).isExecutable()"),
    ("inRange", "remote.inRange('10.0.0.0/8')"),
];

/// A call of a function, or of a method of `target`.
pub(crate) fn call<F: Clone + PartialEq>(
    checker: &mut Checker<'_, F>,
    term: &Term,
    target: Option<&Term>,
    name: &str,
    arguments: &[Term],
) -> Result<Typed<F>, Fault> {
    match target {
        Some(target) => method(checker, term, target, name, arguments),
        None => function(checker, term, name, arguments),
    }
}

fn function<F: Clone + PartialEq>(
    checker: &mut Checker<'_, F>,
    term: &Term,
    name: &str,
    arguments: &[Term],
) -> Result<Typed<F>, Fault> {
    let [argument] = arguments else { return unknown(term, name, &FUNCTIONS, &METHODS) };
    match name {
        "has" => match checker.entry(argument)? {
            Some(entry) => Ok(Typed::Bool(Test::Has(entry))),
            None => fault(&argument.at, "need an entry of a table, as in has(header['accept'])"),
        },
        "size" => Ok(Typed::Number(Number::Size(Box::new(checker.text(argument)?)), true)),
        "int" | "double" => {
            let number = match checker.check(argument)? {
                Typed::Text(text) => Number::OfText(Box::new(text)),
                Typed::Number(number, _) => number,
                other => return fault(&argument.at, format!("this is {}, need a text", other.kind())),
            };
            Ok(match name {
                "int" => Typed::Number(Number::Whole(Box::new(number)), true),
                _ => Typed::Number(number, false),
            })
        }
        "cookieDate" => Ok(Typed::Text(Text::Date(Box::new(checker.number(argument)?.0)))),
        "string" => Ok(Typed::Text(checker.check(argument)?.into_text())),
        "ip" => Ok(Typed::Address(match checker.check(argument)? {
            Typed::Address(address) => address,
            Typed::Text(Text::Constant(text)) => {
                let address = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                match address {
                    Some(address) => Address::Constant(address),
                    None => return fault(&argument.at, "this is no IP address"),
                }
            }
            Typed::Text(text) => Address::OfText(Box::new(text)),
            other => return fault(&argument.at, format!("this is {}, need a text", other.kind())),
        })),
        _ => unknown(term, name, &FUNCTIONS, &METHODS),
    }
}

fn method<F: Clone + PartialEq>(
    checker: &mut Checker<'_, F>,
    term: &Term,
    target: &Term,
    name: &str,
    arguments: &[Term],
) -> Result<Typed<F>, Fault> {
    if name == "inRange" {
        if arguments.is_empty() {
            return unknown(term, name, &METHODS, &FUNCTIONS);
        }
        let address = Box::new(checker.address(target)?);
        return Ok(Typed::Bool(Test::Networks(address, networks(arguments)?)));
    }
    if !METHODS.iter().any(|(known, _)| *known == name) {
        return unknown(term, name, &METHODS, &FUNCTIONS);
    }
    let text = Box::new(checker.text(target)?);
    let changed = |change| Ok(Typed::Text(Text::Changed(change, text.clone())));
    match (name, arguments) {
        ("startsWith", [part]) => parts(checker, Place::Start, text, part),
        ("endsWith", [part]) => parts(checker, Place::End, text, part),
        ("contains", [part]) => parts(checker, Place::Anywhere, text, part),
        ("matches", [pattern]) => Ok(Typed::Bool(Test::Matches(text, Box::new(regex(checker, pattern)?)))),
        ("extract", [pattern]) => {
            let expression = regex(checker, pattern)?;
            let group = usize::from(expression.captures_len() > 1);
            Ok(Typed::Text(Text::Extracted(text, Box::new(expression), group)))
        }
        ("replace", [from, to]) => {
            let (from, to) = (constant(from)?, constant(to)?);
            Ok(Typed::Text(Text::Replaced(text, from.into(), to.into())))
        }
        ("substring", [from]) => Ok(Typed::Text(Text::Part(text, index(from)?, None))),
        ("substring", [from, to]) => {
            let (start, end) = (index(from)?, index(to)?);
            match start < end {
                true => Ok(Typed::Text(Text::Part(text, start, Some(end)))),
                false => fault(&to.at, format!("need a number above {start}")),
            }
        }
        ("lowerAscii", []) => changed(Change::Lower),
        ("upperAscii", []) => changed(Change::Upper),
        ("trim", []) => changed(Change::Trim),
        ("md5", []) => changed(Change::Md5),
        ("size", []) => Ok(Typed::Number(Number::Size(text), true)),
        (name, []) => match FileTest::of(name) {
            Some(test) => Ok(Typed::Bool(Test::File(test, text))),
            None => unknown(term, name, &METHODS, &FUNCTIONS),
        },
        _ => unknown(term, name, &METHODS, &FUNCTIONS),
    }
}

fn parts<F: Clone + PartialEq>(
    checker: &mut Checker<'_, F>,
    place: Place,
    text: Box<Text<F>>,
    part: &Term,
) -> Result<Typed<F>, Fault> {
    match checker.text(part)? {
        Text::Constant(constant) if constant.is_empty() => fault(&part.at, "every text has an empty part"),
        part => Ok(Typed::Bool(Test::Parts(place, text, Box::new(part)))),
    }
}

/// A text that is the same for all requests.
fn constant(term: &Term) -> Result<&[u8], Fault> {
    match &term.syntax {
        Syntax::Text(text) => Ok(text),
        _ => fault(&term.at, "need a text in quotes"),
    }
}

fn index(term: &Term) -> Result<usize, Fault> {
    match term.syntax {
        Syntax::Int(value) => Ok(value as usize),
        _ => fault(&term.at, "need a whole number"),
    }
}

/// Networks in a list.
pub(crate) fn networks(terms: &[Term]) -> Result<Vec<Network>, Fault> {
    let network = |term: &Term| {
        let text = std::str::from_utf8(constant(term)?).unwrap_or_default();
        Network::parse(text).ok_or_else(|| Fault {
            at: term.at.clone(),
            reason: "need an address or a network without bits behind its prefix, such as 10.0.0.0/8"
                .to_owned(),
        })
    };
    terms.iter().map(network).collect()
}

/// A regular expression; it matches bytes, in time proportional to the text's length.
fn regex<F>(checker: &mut Checker<'_, F>, term: &Term) -> Result<Regex, Fault> {
    let Ok(pattern) = std::str::from_utf8(constant(term)?) else {
        return fault(&term.at, "this is not UTF-8");
    };
    checker.regexes += 1;
    if checker.regexes > REGEXES_MAX {
        return fault(&term.at, format!("there are more than {REGEXES_MAX} regular expressions"));
    }
    Regex::new(pattern, false)
        .map_err(|why| Fault { at: term.at.clone(), reason: format!("the regular expression: {why}") })
}

type Uses = [(&'static str, &'static str)];

/// A name that is no function, or has other arguments.
fn unknown<T>(term: &Term, name: &str, these: &Uses, others: &Uses) -> Result<T, Fault> {
    let named = |list: &Uses| list.iter().find(|(known, _)| *known == name).map(|(_, usage)| *usage);
    let at: &Range<usize> = &term.at;
    if let Some(usage) = named(these).or_else(|| named(others)) {
        return fault(at, format!("`{name}` is used as {usage}"));
    }
    let all: Vec<String> = these.iter().chain(others).map(|(name, _)| (*name).to_owned()).collect();
    let guess = closest(name, &all);
    let guess = guess.map_or_else(
        || format!("; there are {}", all.join(", ")),
        |guess| format!("; did you mean `{guess}`?"),
    );
    fault(at, format!("unknown function `{name}`{guess}"))
}
