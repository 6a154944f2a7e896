//! Parses tokens into terms, by the precedence of their signs (a Pratt parser).

use std::ops::Range;

use crate::token::{Placed, Token, tokens};
use crate::{DEPTH_MAX, Fault, TERMS_MAX, fault};

/// A part of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Term {
    pub(crate) syntax: Syntax,
    pub(crate) at: Range<usize>,
    /// Of its parts, and itself.
    depth: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Syntax {
    Bool(bool),
    Int(f64),
    Double(f64),
    Text(Vec<u8>),
    Name(String),
    Member(Box<Term>, String),
    Index(Box<Term>, Box<Term>),
    /// A function, or a method of the first term.
    Call(Option<Box<Term>>, String, Vec<Term>),
    Not(Box<Term>),
    Negative(Box<Term>),
    /// All of them, at least two.
    And(Vec<Term>),
    Or(Vec<Term>),
    Binary(Operator, Box<Term>, Box<Term>),
    Conditional(Box<[Term; 3]>),
    List(Vec<Term>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Plus,
    Minus,
    Times,
    Divided,
    Remainder,
}

/// The signs between two terms, and how strongly they bind.
const OPERATORS: [(&str, u8, Operator); 12] = [
    ("==", RELATION, Operator::Equal),
    ("!=", RELATION, Operator::Unequal),
    ("<", RELATION, Operator::Less),
    ("<=", RELATION, Operator::LessOrEqual),
    (">", RELATION, Operator::Greater),
    (">=", RELATION, Operator::GreaterOrEqual),
    ("in", RELATION, Operator::In),
    ("+", SUM, Operator::Plus),
    ("-", SUM, Operator::Minus),
    ("*", PRODUCT, Operator::Times),
    ("/", PRODUCT, Operator::Divided),
    ("%", PRODUCT, Operator::Remainder),
];

const OR: u8 = 1;
const AND: u8 = 2;
const RELATION: u8 = 3;
const SUM: u8 = 4;
const PRODUCT: u8 = 5;

/// Parses an expression.
///
/// # Errors
/// The first mistake in its syntax, or a limit.
pub(crate) fn parse(text: &str) -> Result<Term, Fault> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, end: text.len(), terms: 0, depth: 0 };
    let term = parser.conditional()?;
    match parser.peek() {
        None => Ok(term),
        Some((token, at)) => fault(at, format!("unexpected {}", shown(token))),
    }
}

struct Parser {
    tokens: Vec<Placed>,
    next: usize,
    /// The length of the text.
    end: usize,
    terms: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Placed> {
        self.tokens.get(self.next)
    }

    fn is_at(&self, sign: &str) -> bool {
        match self.peek() {
            Some((Token::Sign(found), _)) => *found == sign,
            Some((Token::Word(word), _)) => word == sign,
            _ => false,
        }
    }

    fn skip(&mut self, sign: &str) -> bool {
        let is_at = self.is_at(sign);
        self.next += usize::from(is_at);
        is_at
    }

    /// The place of the next token, or the end of the text.
    fn place(&self) -> Range<usize> {
        self.peek().map_or(self.end..self.end, |(_, at)| at.clone())
    }

    /// Where the last token ends.
    fn behind(&self) -> usize {
        self.next.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |(_, at)| at.end)
    }

    fn expect(&mut self, sign: &str) -> Result<(), Fault> {
        if self.skip(sign) {
            return Ok(());
        }
        let found = self.peek().map_or_else(|| "the end".to_owned(), |(token, _)| shown(token));
        fault(&self.place(), format!("got {found}, need `{sign}`"))
    }

    fn term(&mut self, start: usize, syntax: Syntax) -> Result<Term, Fault> {
        let at = start..self.behind();
        self.terms += 1;
        if self.terms > TERMS_MAX {
            return fault(&at, format!("it has more than {TERMS_MAX} parts"));
        }
        let depth = 1 + syntax.parts().map(|part| part.depth).max().unwrap_or(0);
        if depth > DEPTH_MAX {
            return fault(&at, format!("it is nested more than {DEPTH_MAX} times"));
        }
        Ok(Term { syntax, at, depth })
    }

    /// Runs one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Result<T, Fault>) -> Result<T, Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return fault(&self.place(), format!("it is nested more than {DEPTH_MAX} times"));
        }
        let parsed = parse(self)?;
        self.depth -= 1;
        Ok(parsed)
    }

    /// `condition ? one : other`, or what binds more strongly.
    fn conditional(&mut self) -> Result<Term, Fault> {
        self.nested(|parser| {
            let start = parser.place().start;
            let condition = parser.binary(OR)?;
            if !parser.skip("?") {
                return Ok(condition);
            }
            let one = parser.binary(OR)?;
            parser.expect(":")?;
            let other = parser.conditional()?;
            parser.term(start, Syntax::Conditional(Box::new([condition, one, other])))
        })
    }

    /// Terms joined by signs that bind at least this strongly.
    fn binary(&mut self, strength: u8) -> Result<Term, Fault> {
        let start = self.place().start;
        let mut left = match strength {
            OR => self.joined(AND, "||", Syntax::Or)?,
            AND => self.joined(RELATION, "&&", Syntax::And)?,
            PRODUCT => self.unary()?,
            _ => self.binary(strength + 1)?,
        };
        while let Some((_, _, operator)) =
            OPERATORS.iter().find(|(sign, binds, _)| *binds == strength && self.is_at(sign))
        {
            self.next += 1;
            let right = if strength == PRODUCT { self.unary()? } else { self.binary(strength + 1)? };
            left = self.term(start, Syntax::Binary(*operator, Box::new(left), Box::new(right)))?;
            if strength == RELATION {
                // `a < b < c` compares a condition with c.
                break;
            }
        }
        Ok(left)
    }

    fn joined(&mut self, inner: u8, sign: &str, make: fn(Vec<Term>) -> Syntax) -> Result<Term, Fault> {
        let start = self.place().start;
        let first = self.binary(inner)?;
        if !self.is_at(sign) {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip(sign) {
            all.push(self.binary(inner)?);
        }
        self.term(start, make(all))
    }

    fn unary(&mut self) -> Result<Term, Fault> {
        let start = self.place().start;
        let make = match () {
            () if self.skip("!") => Syntax::Not,
            () if self.skip("-") => Syntax::Negative,
            () => return self.member(),
        };
        let inner = self.nested(Parser::unary)?;
        self.term(start, make(Box::new(inner)))
    }

    fn member(&mut self) -> Result<Term, Fault> {
        let start = self.place().start;
        let mut term = self.primary()?;
        loop {
            if self.skip(".") {
                let at = self.place();
                let Some((Token::Word(name), _)) = self.peek().cloned() else {
                    return fault(&at, "need a name after `.`");
                };
                self.next += 1;
                let syntax = match self.skip("(") {
                    true => Syntax::Call(Some(Box::new(term)), name, self.list(")")?),
                    false => Syntax::Member(Box::new(term), name),
                };
                term = self.term(start, syntax)?;
            } else if self.skip("[") {
                let index = self.conditional()?;
                self.expect("]")?;
                term = self.term(start, Syntax::Index(Box::new(term), Box::new(index)))?;
            } else {
                return Ok(term);
            }
        }
    }

    fn primary(&mut self) -> Result<Term, Fault> {
        let Some((token, at)) = self.peek().cloned() else {
            return fault(&self.place(), "expected a name, a text or a number here");
        };
        self.next += 1;
        let syntax = match token {
            Token::Text(text) => Syntax::Text(text),
            Token::Int(number) => Syntax::Int(number),
            Token::Double(number) => Syntax::Double(number),
            Token::Word(word) if word == "true" || word == "false" => Syntax::Bool(word == "true"),
            Token::Word(word) if word == "in" => return fault(&at, "unexpected `in`"),
            Token::Word(name) if self.skip("(") => Syntax::Call(None, name, self.list(")")?),
            Token::Word(name) => Syntax::Name(name),
            Token::Sign("[") => Syntax::List(self.list("]")?),
            Token::Sign("(") => {
                let inner = self.conditional()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign(sign) => return fault(&at, format!("unexpected `{sign}`")),
        };
        self.term(at.start, syntax)
    }

    /// Terms separated by commas, up to the closing sign.
    fn list(&mut self, close: &str) -> Result<Vec<Term>, Fault> {
        let mut all = Vec::new();
        if self.skip(close) {
            return Ok(all);
        }
        loop {
            all.push(self.conditional()?);
            if !self.skip(",") {
                self.expect(close)?;
                return Ok(all);
            }
        }
    }
}

impl Syntax {
    fn parts(&self) -> Box<dyn Iterator<Item = &Term> + '_> {
        match self {
            Syntax::Bool(_) | Syntax::Int(_) | Syntax::Double(_) | Syntax::Text(_) | Syntax::Name(_) => {
                Box::new(std::iter::empty())
            }
            Syntax::Member(one, _) | Syntax::Not(one) | Syntax::Negative(one) => {
                Box::new(std::iter::once(&**one))
            }
            Syntax::Index(one, other) | Syntax::Binary(_, one, other) => {
                Box::new([&**one, &**other].into_iter())
            }
            Syntax::Call(target, _, list) => Box::new(target.as_deref().into_iter().chain(list)),
            Syntax::And(list) | Syntax::Or(list) | Syntax::List(list) => Box::new(list.iter()),
            Syntax::Conditional(parts) => Box::new(parts.iter()),
        }
    }
}

fn shown(token: &Token) -> String {
    match token {
        Token::Word(word) => format!("`{word}`"),
        Token::Text(_) => "a text".to_owned(),
        Token::Int(_) | Token::Double(_) => "a number".to_owned(),
        Token::Sign(sign) => format!("`{sign}`"),
    }
}
