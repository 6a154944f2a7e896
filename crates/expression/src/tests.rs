//! Expressions: what is refused and where, what is true, and random ones compared with a simple evaluator.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;

use crate::{Condition, DEPTH_MAX, EXPRESSION_BYTES_MAX, Expression, Facts, Names, Type};

/// Facts by name: texts, numbers, addresses; `header` is a table.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, String>);

impl Names for Known {
    type Fact = String;

    fn fact(&self, name: &str) -> Option<(String, Type)> {
        let kind = match name {
            "method" | "path" | "tls.version" | "$mobile" | "$1" => Type::Text,
            "status" | "port" => Type::Int,
            "random" => Type::Double,
            "remote" => Type::Address,
            "is_early" => Type::Bool,
            _ => return None,
        };
        Some((name.to_owned(), kind))
    }

    fn entry(&self, table: &str, key: &str) -> Option<String> {
        (table == "header").then(|| format!("header {}", key.to_ascii_lowercase()))
    }

    fn all(&self) -> Vec<String> {
        ["method", "path", "status", "port", "random", "remote", "header"].map(str::to_owned).to_vec()
    }
}

impl Facts<String> for Known {
    fn text<'a>(&'a self, fact: &'a String) -> Cow<'a, [u8]> {
        Cow::Borrowed(self.0.get(fact).map(|text| text.as_bytes()).unwrap_or_default())
    }

    fn number(&self, fact: &String) -> f64 {
        self.0.get(fact).and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }

    fn address(&self, fact: &String) -> Option<IpAddr> {
        self.0.get(fact)?.parse().ok()
    }

    fn is_true(&self, fact: &String) -> bool {
        self.0.contains_key(fact)
    }

    fn has(&self, fact: &String) -> bool {
        self.0.contains_key(fact)
    }
}

fn request() -> Known {
    let facts = [
        ("method", "POST"),
        ("path", "/api/v12/Users"),
        ("tls.version", "TLSv1.3"),
        ("$mobile", "yes"),
        ("$1", "group"),
        ("status", "404"),
        ("port", "8080"),
        ("random", "0.25"),
        ("remote", "10.1.2.3"),
        ("header x-a", "v17"),
        ("header x-empty", ""),
        ("header x-number", " 42 "),
    ];
    Known(facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
}

fn holds(text: &str) -> bool {
    match Condition::parse(text, &request()) {
        Ok(condition) => condition.holds(&request()),
        Err(fault) => panic!("{text}: {fault}"),
    }
}

fn value(text: &str) -> String {
    let expression = Expression::parse(text, &request()).unwrap_or_else(|fault| panic!("{text}: {fault}"));
    let mut out = Vec::new();
    expression.write(&request(), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn conditions_are_read_as_in_cel() {
    for (text, expected) in [
        ("method == 'POST' && path.startsWith(\"/api/\") && header[\"x-a\"].matches(\"^v[0-9]+$\")", true),
        ("ip(remote).inRange(\"10.0.0.0/8\")", true),
        ("remote.inRange('192.0.2.0/24', '10.1.2.3')", true),
        ("remote in ['10.1.0.0/16']", true),
        ("remote in ['2001:db8::/32']", false),
        ("remote == ip('10.1.2.3') && remote != ip('::1')", true),
        ("method in ['GET', 'HEAD']", false),
        ("!(method in ['GET', 'HEAD'])", true),
        ("status in [404, 410]", true),
        ("status >= 400 && status < 500", true),
        ("status / 100 == 4 && status % 100 == 4 && -status + 1 == -403", true),
        ("random * 4 == 1 || status == 1", true),
        ("has(header.host) || 'x-a' in header", true),
        ("has(header['x-empty']) && header['x-empty'] == ''", true),
        ("has(header['x-none']) || header['x-none'] != ''", false),
        ("int(header['x-number']) == 42 && int(header['x-a']) == 0", true),
        ("path.size() == 14 && size(method) < 5", true),
        ("path.lowerAscii().endsWith('/users')", true),
        ("path.contains('v12') ? method == 'POST' : method == 'GET'", true),
        ("tls.version == 'TLSv1.3' && $mobile == 'yes' && $1.contains('rou')", true),
        ("is_early == (method == 'GET')", true),
        ("method == 'GET' || method == 'POST' && status == 404", true),
        ("(method == 'GET' || method == 'POST') && status == 405", false),
        (r#"path != "a\"b\x41\u00e9\101\n" && path != r'\d'"#, true),
        ("method < 'Q' && method >= 'P'", true),
    ] {
        assert_eq!(holds(text), expected, "{text}");
    }
}

#[test]
fn values_are_texts() {
    for (text, expected) in [
        ("method + ':' + path", "POST:/api/v12/Users"),
        ("path.extract('^/api/v([0-9]+)/')", "12"),
        ("path.extract('/[a-z]+')", "/api"),
        ("path.extract('^x')", ""),
        ("path.replace('/', '-').upperAscii()", "-API-V12-USERS"),
        ("path.substring(1, 4) + path.substring(99)", "api"),
        ("header['x-number'].trim()", "42"),
        // As `openssl md5 -binary | basenc --base64url` writes it.
        ("'abc'.md5()", "kAFQmDzST7DWlj99KOF_cg"),
        ("''.md5()", "1B2M2Y8AsgTpgAmY7PhCfg"),
        ("status + 1", "405"),
        ("cookieDate(status * 86400)", "Tue, 09-Feb-71 00:00:00 GMT"),
        ("random", "0.25"),
        ("remote", "10.1.2.3"),
        ("method == 'GET'", "false"),
        ("$mobile == 'yes' ? 'm' : 'www'", "m"),
        ("string(7.0 / 2) + string(7 / 2)", "3.53"),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
}

#[test]
fn mistakes_have_a_place_and_a_suggestion() {
    for (text, at, reason) in [
        ("", 0..0, "expected a name"),
        ("metod == 'GET'", 0..5, "did you mean `method`?"),
        ("method == 'GET' && pth == '/'", 19..22, "did you mean `path`?"),
        ("method = 'GET'", 7..8, "need `==`"),
        ("method == 'GET", 10..14, "no closing quote"),
        ("path.startswith('/')", 0..20, "did you mean `startsWith`?"),
        ("path.startsWith()", 0..17, "is used as text.startsWith"),
        ("path.matches('(')", 13..16, "unclosed group"),
        ("path.matches('(((a{100}){100}){100})')", 13..37, "size limit"),
        ("path.matches('\\d')", 14..16, "unknown escape"),
        ("path.matches('\\\u{1b}')", 14..16, "unknown escape"),
        ("path", 0..4, "this is a text, need a condition"),
        ("status == '404'", 10..15, "this is a text, need a number as before"),
        ("remote == '10.0.0.1'", 10..20, "ip('192.0.2.1')"),
        ("remote.inRange('10.0.0.1/8')", 15..27, "10.0.0.0/8"),
        ("true", 0..4, "this is always true"),
        ("method == 'GET' || true", 19..23, "this is always true"),
        ("'a' == 'b'", 0..10, "this is always false"),
        ("is_early == true", 0..16, "leave out the comparison"),
        ("method == 'GET' && method == 'PUT'", 19..34, "never true"),
        ("status > 400 && status < 400", 16..28, "never true"),
        ("method in []", 10..12, "this list is empty"),
        ("path in header", 8..14, "need a list"),
        ("status / port == 1", 9..13, "must be a constant"),
        ("status % 0 == 1", 9..10, "divided by 0"),
        ("method == 'GET' and path == '/'", 16..19, "unexpected `and`"),
        ("method ~ 'x'", 7..8, "matches"),
        ("method == 'GET')", 15..16, "unexpected `)`"),
        ("10.0.0.0/8 == remote", 0..4, "a text in quotes"),
        ("has(method)", 4..10, "need an entry"),
        ("header[method] == ''", 7..13, "in quotes"),
        ("['a'] == method", 0..5, "only behind `in`"),
        ("path.contains('')", 14..16, "every text"),
        ("é == 'x'", 0..2, "unexpected"),
        ("99999999999999999999 == status", 0..20, "too large"),
    ] {
        let fault = Condition::parse(text, &request()).expect_err(text);
        assert!(fault.at == at && fault.reason.contains(reason), "{text}: {:?} {}", fault.at, fault.reason);
    }
}

#[test]
fn hostile_texts_are_refused_before_the_stack_ends() {
    for text in [
        format!("{}method == 'GET'{}", "(".repeat(4000), ")".repeat(4000)),
        format!("{}is_early", "!".repeat(8000)),
        format!("{}1 == status", "-".repeat(8000)),
        format!("method{}", ".trim()".repeat(1000)),
        format!("method{} == ''", "+method".repeat(1000)),
        "is_early?is_early:".repeat(400),
        "[".repeat(8000),
        "header[".repeat(1000),
        "has(".repeat(2000),
    ] {
        let fault = Condition::parse(&text, &request()).expect_err(&text);
        assert!(fault.reason.contains(&DEPTH_MAX.to_string()), "{}: {fault}", &text[..20]);
    }
    let long = format!("method == '{}'", "x".repeat(EXPRESSION_BYTES_MAX));
    assert!(Condition::parse(&long, &request()).unwrap_err().reason.contains("allowed"));
    let many = vec!["is_early"; 800].join("||");
    assert!(Condition::parse(&many, &request()).is_ok(), "{} bytes", many.len());
    let regexes = vec!["path.matches('a')"; 40].join("||");
    assert!(Condition::parse(&regexes, &request()).unwrap_err().reason.contains("32 regular"));
}

#[test]
fn facts_and_steps_are_counted() {
    let condition = Condition::parse("method == 'A' || path == 'B' && method != 'C'", &request()).unwrap();
    assert_eq!(condition.facts(), ["method", "path"]);
    assert_eq!(condition.steps(), 6);
    let mut renamed = condition.clone();
    let rename = |fact: &mut String| -> Result<(), ()> {
        fact.make_ascii_uppercase();
        Ok(())
    };
    renamed.resolve(rename).unwrap();
    assert_eq!(renamed.facts(), ["METHOD", "PATH"]);
    assert!(renamed != condition && renamed.source() == condition.source());
    assert_eq!(renamed.resolve(|fact| Err(fact.clone())), Err("METHOD".to_owned()));
}

#[test]
fn texts_that_grow_are_cut() {
    let mut facts = request();
    facts.0.insert("path".to_owned(), "x".repeat(50_000));
    for text in ["path + path + path", "path.replace('x', 'xxxx')"] {
        let expression = Expression::parse(text, &facts).unwrap();
        let mut out = Vec::new();
        expression.write(&facts, &mut out);
        assert_eq!(out.len(), crate::TEXT_BYTES_MAX, "{text}");
    }
}

/// An expression for the simple evaluator, which works on texts and numbers alone.
#[derive(Debug, Clone)]
enum Simple {
    Name(&'static str),
    Literal(String),
    Number(i32),
    Add(Box<Simple>, Box<Simple>),
    Lower(Box<Simple>),
    Size(Box<Simple>),
    Compare(&'static str, Box<Simple>, Box<Simple>),
    Part(&'static str, Box<Simple>, String),
    Within(Box<Simple>, Vec<String>),
    Not(Box<Simple>),
    Join(&'static str, Box<Simple>, Box<Simple>),
    Choose(Box<Simple>, Box<Simple>, Box<Simple>),
}

/// A value of the simple evaluator; conditions are the numbers 0 and 1.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Plain {
    Number(f64),
    Text(String),
}

impl Simple {
    fn source(&self) -> String {
        let quoted = |text: &String| format!("{text:?}");
        match self {
            Simple::Name(name) => (*name).to_owned(),
            Simple::Literal(text) => quoted(text),
            Simple::Number(number) => number.to_string(),
            Simple::Add(one, other) => format!("({} + {})", one.source(), other.source()),
            Simple::Lower(inner) => format!("{}.lowerAscii()", inner.source()),
            Simple::Size(inner) => format!("size({})", inner.source()),
            Simple::Compare(sign, one, other) => format!("({} {sign} {})", one.source(), other.source()),
            Simple::Part(name, inner, part) => format!("{}.{name}({part:?})", inner.source()),
            Simple::Within(inner, list) => {
                format!(
                    "({} in [{}])",
                    inner.source(),
                    list.iter().map(quoted).collect::<Vec<_>>().join(", ")
                )
            }
            Simple::Not(inner) => format!("!{}", inner.source()),
            Simple::Join(sign, one, other) => format!("({} {sign} {})", one.source(), other.source()),
            Simple::Choose(test, one, other) => {
                format!("({} ? {} : {})", test.source(), one.source(), other.source())
            }
        }
    }

    fn evaluate(&self, facts: &Known) -> Plain {
        let is = |value: bool| Plain::Number(f64::from(u8::from(value)));
        let text = |simple: &Simple| match simple.evaluate(facts) {
            Plain::Text(text) => text,
            Plain::Number(number) => number.to_string(),
        };
        let holds = |simple: &Simple| simple.evaluate(facts) == Plain::Number(1.0);
        match self {
            Simple::Name(name) => {
                let value = facts.0.get(*name).cloned().unwrap_or_default();
                if *name == "status" { Plain::Number(value.parse().unwrap()) } else { Plain::Text(value) }
            }
            Simple::Literal(text) => Plain::Text(text.clone()),
            Simple::Number(number) => Plain::Number(f64::from(*number)),
            Simple::Add(one, other) => match (one.evaluate(facts), other.evaluate(facts)) {
                (Plain::Number(one), Plain::Number(other)) => Plain::Number(one + other),
                _ => Plain::Text(text(one) + &text(other)),
            },
            Simple::Lower(inner) => Plain::Text(text(inner).to_ascii_lowercase()),
            Simple::Size(inner) => Plain::Number(text(inner).len() as f64),
            Simple::Compare(sign, one, other) => {
                let (one, other) = (one.evaluate(facts), other.evaluate(facts));
                is(match *sign {
                    "==" => one == other,
                    "!=" => one != other,
                    "<" => one < other,
                    _ => one >= other,
                })
            }
            Simple::Part(name, inner, part) => {
                let inner = text(inner);
                is(match *name {
                    "startsWith" => inner.starts_with(part),
                    "endsWith" => inner.ends_with(part),
                    _ => inner.contains(part),
                })
            }
            Simple::Within(inner, list) => is(list.contains(&text(inner))),
            Simple::Not(inner) => is(!holds(inner)),
            Simple::Join(sign, one, other) => {
                is(if *sign == "&&" { holds(one) && holds(other) } else { holds(one) || holds(other) })
            }
            Simple::Choose(test, one, other) => {
                if holds(test) {
                    one.evaluate(facts)
                } else {
                    other.evaluate(facts)
                }
            }
        }
    }
}

fn literal() -> impl Strategy<Value = String> {
    "[aAb/é]{1,3}"
}

fn simple_text() -> impl Strategy<Value = Simple> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["method", "path", "$mobile"]).prop_map(Simple::Name),
        literal().prop_map(Simple::Literal),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(one, other)| Simple::Add(one.into(), other.into())),
            inner.prop_map(|inner| Simple::Lower(inner.into())),
        ]
    })
}

fn simple_number() -> impl Strategy<Value = Simple> {
    let leaf = prop_oneof![
        Just(Simple::Name("status")),
        (0..6i32).prop_map(Simple::Number),
        simple_text().prop_map(|text| Simple::Size(text.into())),
    ];
    leaf.prop_recursive(2, 4, 2, |inner| {
        (inner.clone(), inner).prop_map(|(one, other)| Simple::Add(one.into(), other.into()))
    })
}

fn simple_test() -> impl Strategy<Value = Simple> {
    let sign = || prop::sample::select(vec!["==", "!=", "<", ">="]);
    let leaf = prop_oneof![
        (sign(), simple_text(), simple_text()).prop_map(|(sign, one, other)| Simple::Compare(
            sign,
            one.into(),
            other.into()
        )),
        (sign(), simple_number(), simple_number()).prop_map(|(sign, one, other)| Simple::Compare(
            sign,
            one.into(),
            other.into()
        )),
        (prop::sample::select(vec!["startsWith", "endsWith", "contains"]), simple_text(), literal())
            .prop_map(|(name, inner, part)| Simple::Part(name, inner.into(), part)),
        (simple_text(), prop::collection::vec(literal(), 1..4))
            .prop_map(|(inner, list)| Simple::Within(inner.into(), list)),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| Simple::Not(inner.into())),
            (prop::sample::select(vec!["&&", "||"]), inner.clone(), inner.clone())
                .prop_map(|(sign, one, other)| Simple::Join(sign, one.into(), other.into())),
            (inner.clone(), inner.clone(), inner).prop_map(|(test, one, other)| Simple::Choose(
                test.into(),
                one.into(),
                other.into()
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_conditions_agree_with_a_simple_evaluator(
        test in simple_test(),
        method in "[aAb/]{0,3}",
        path in "[aAbé/]{0,5}",
        status in 0..6u8,
    ) {
        let facts = Known([
            ("method", method.as_str()),
            ("path", path.as_str()),
            ("$mobile", "ab"),
            ("status", &status.to_string()),
        ].map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let source = test.source();
        match Condition::parse(&source, &facts) {
            Ok(condition) => {
                let expected = test.evaluate(&facts) == Plain::Number(1.0);
                prop_assert_eq!(condition.holds(&facts), expected, "{}", source);
            }
            // Refused as constant or impossible.
            Err(fault) => prop_assert!(
                fault.reason.contains("always") || fault.reason.contains("never"), "{}: {}", source, fault
            ),
        }
    }

    #[test]
    fn any_text_is_an_expression_or_has_a_mistake_within_it(text in "[-a-z'\"()\\[\\].,!&|=<>?:+*/%$0-9 é]{0,40}") {
        if let Err(fault) = Condition::parse(&text, &request()) {
            prop_assert!(fault.at.start <= fault.at.end && fault.at.end <= text.len().max(1), "{}: {}", text, fault);
        }
    }
}

#[test]
fn tests_of_files_cost_many_steps() {
    let condition = Condition::parse("('/' + path).exists() && '/proc'.isDirectory()", &request()).unwrap();
    assert_eq!(condition.facts(), ["path"]);
    assert!(condition.steps() >= 40, "{}", condition.steps());
    assert!(Condition::parse("path.isFile('x')", &request()).unwrap_err().reason.contains("is used as"));
}
