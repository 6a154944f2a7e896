//! Checks names and types of an expression, and that its conditions depend on something.

use std::ops::Range;

use crate::compiled::{Address, Number, Order, Test, Text};
use crate::functions;
use crate::guess::closest;
use crate::possible::possible;
use crate::syntax::{Operator, Syntax, Term, parse};
use crate::{Fault, Names, Type, fault};

/// A checked term.
pub(crate) enum Typed<F> {
    Bool(Test<F>),
    /// And whether it is a whole number.
    Number(Number<F>, bool),
    Text(Text<F>),
    Address(Address<F>),
}

/// Checks terms.
pub(crate) struct Checker<'n, F> {
    pub(crate) names: &'n dyn Names<Fact = F>,
    pub(crate) regexes: usize,
}

/// A condition.
pub(crate) fn condition<F: Clone + PartialEq>(
    text: &str,
    names: &dyn Names<Fact = F>,
) -> Result<Test<F>, Fault> {
    Checker { names, regexes: 0 }.varying(&parse(text)?)
}

/// A value, as a text.
pub(crate) fn value<F: Clone + PartialEq>(text: &str, names: &dyn Names<Fact = F>) -> Result<Text<F>, Fault> {
    Ok(Checker { names, regexes: 0 }.check(&parse(text)?)?.into_text())
}

impl<F> Typed<F> {
    pub(crate) fn kind(&self) -> Type {
        match self {
            Typed::Bool(_) => Type::Bool,
            Typed::Number(_, true) => Type::Int,
            Typed::Number(_, false) => Type::Double,
            Typed::Text(_) => Type::Text,
            Typed::Address(_) => Type::Address,
        }
    }

    /// The value as a text.
    pub(crate) fn into_text(self) -> Text<F> {
        match self {
            Typed::Text(text) => text,
            Typed::Number(number, _) => Text::OfNumber(Box::new(number)),
            Typed::Address(address) => Text::OfAddress(Box::new(address)),
            Typed::Bool(test) => Text::OfTest(Box::new(test)),
        }
    }
}

impl<F: Clone + PartialEq> Checker<'_, F> {
    pub(crate) fn check(&mut self, term: &Term) -> Result<Typed<F>, Fault> {
        match &term.syntax {
            Syntax::Bool(value) => Ok(Typed::Bool(Test::Constant(*value))),
            Syntax::Int(value) => Ok(Typed::Number(Number::Constant(*value), true)),
            Syntax::Double(value) => Ok(Typed::Number(Number::Constant(*value), false)),
            Syntax::Text(text) => Ok(Typed::Text(Text::Constant(text.as_slice().into()))),
            Syntax::Name(_) | Syntax::Member(..) | Syntax::Index(..) => self.fact(term),
            Syntax::Call(target, name, arguments) => {
                functions::call(self, term, target.as_deref(), name, arguments)
            }
            Syntax::Not(inner) => Ok(Typed::Bool(Test::Not(Box::new(self.varying(inner)?)))),
            Syntax::Negative(inner) => {
                let (number, is_whole) = self.number(inner)?;
                Ok(Typed::Number(
                    match number {
                        Number::Constant(value) => Number::Constant(-value),
                        number => Number::Negative(Box::new(number)),
                    },
                    is_whole,
                ))
            }
            Syntax::And(parts) => {
                let tests = parts.iter().map(|part| self.varying(part)).collect::<Result<Vec<_>, _>>()?;
                possible(parts, &tests)?;
                Ok(Typed::Bool(Test::All(tests)))
            }
            Syntax::Or(parts) => {
                let tests = parts.iter().map(|part| self.varying(part)).collect::<Result<_, _>>()?;
                Ok(Typed::Bool(Test::Any(tests)))
            }
            Syntax::Binary(operator, one, other) => self.binary(*operator, one, other, &term.at),
            Syntax::Conditional(parts) => self.conditional(parts),
            Syntax::List(_) => {
                fault(&term.at, "a list is possible only behind `in`: method in ['GET', 'HEAD']")
            }
        }
    }

    /// A condition that is not always the same.
    fn varying(&mut self, term: &Term) -> Result<Test<F>, Fault> {
        match self.test(term)? {
            Test::Constant(value) => fault(&term.at, format!("this is always {value}")),
            test => Ok(test),
        }
    }

    fn test(&mut self, term: &Term) -> Result<Test<F>, Fault> {
        match self.check(term)? {
            Typed::Bool(test) => Ok(test),
            other => {
                let hint = if other.kind() == Type::Text { "; compare it, as in x != ''" } else { "" };
                fault(&term.at, format!("this is {}, need a condition{hint}", other.kind()))
            }
        }
    }

    pub(crate) fn text(&mut self, term: &Term) -> Result<Text<F>, Fault> {
        match self.check(term)? {
            Typed::Text(text) => Ok(text),
            other => fault(&term.at, format!("this is {}, need a text; string() makes one", other.kind())),
        }
    }

    pub(crate) fn number(&mut self, term: &Term) -> Result<(Number<F>, bool), Fault> {
        match self.check(term)? {
            Typed::Number(number, is_whole) => Ok((number, is_whole)),
            other => fault(&term.at, format!("this is {}, need a number; int() makes one", other.kind())),
        }
    }

    pub(crate) fn address(&mut self, term: &Term) -> Result<Address<F>, Fault> {
        match self.check(term)? {
            Typed::Address(address) => Ok(address),
            other => fault(&term.at, format!("this is {}, need an address; ip() makes one", other.kind())),
        }
    }

    fn fact(&self, term: &Term) -> Result<Typed<F>, Fault> {
        if let Some(entry) = self.entry(term)? {
            return Ok(Typed::Text(Text::Fact(entry)));
        }
        let name = dotted(term);
        if let Some((fact, kind)) = name.as_deref().and_then(|name| self.names.fact(name)) {
            return Ok(match kind {
                Type::Bool => Typed::Bool(Test::Fact(fact)),
                Type::Int => Typed::Number(Number::Fact(fact), true),
                Type::Double => Typed::Number(Number::Fact(fact), false),
                Type::Text => Typed::Text(Text::Fact(fact)),
                Type::Address => Typed::Address(Address::Fact(fact)),
            });
        }
        let Some(name) = name else { return fault(&term.at, "only facts have parts") };
        let guess = closest(&name, &self.names.all());
        let guess = guess.map_or_else(String::new, |guess| format!("; did you mean `{guess}`?"));
        fault(&term.at, format!("unknown name `{name}`{guess}"))
    }

    /// The entry of a table of facts.
    pub(crate) fn entry(&self, term: &Term) -> Result<Option<F>, Fault> {
        match &term.syntax {
            Syntax::Index(table, key) => {
                let Syntax::Text(text) = &key.syntax else {
                    return fault(&key.at, "need a text in quotes, as in header['accept']");
                };
                let text = std::str::from_utf8(text).unwrap_or_default();
                let entry = dotted(table).and_then(|table| self.names.entry(&table, text));
                match entry {
                    Some(entry) => Ok(Some(entry)),
                    None => fault(&table.at, "only tables such as header, arg and cookie have entries"),
                }
            }
            Syntax::Member(table, name) => Ok(dotted(table).and_then(|table| self.names.entry(&table, name))),
            _ => Ok(None),
        }
    }

    fn conditional(&mut self, parts: &[Term; 3]) -> Result<Typed<F>, Fault> {
        let [condition, one, other] = parts;
        let test = self.varying(condition)?;
        match (self.check(one)?, self.check(other)?) {
            (Typed::Bool(one), Typed::Bool(other)) => {
                Ok(Typed::Bool(Test::Conditional(Box::new((test, one, other)))))
            }
            (Typed::Number(one, whole), Typed::Number(other, other_whole)) => {
                Ok(Typed::Number(Number::Conditional(Box::new((test, one, other))), whole && other_whole))
            }
            (Typed::Text(one), Typed::Text(other)) => {
                Ok(Typed::Text(Text::Conditional(Box::new((test, one, other)))))
            }
            (Typed::Address(one), Typed::Address(other)) => {
                Ok(Typed::Address(Address::Conditional(Box::new((test, one, other)))))
            }
            (one, found) => {
                fault(&other.at, format!("this is {}, and the other value is {}", found.kind(), one.kind()))
            }
        }
    }

    fn binary(
        &mut self,
        operator: Operator,
        one: &Term,
        other: &Term,
        at: &Range<usize>,
    ) -> Result<Typed<F>, Fault> {
        let order = match operator {
            Operator::Equal => Order::Equal,
            Operator::Unequal => Order::Unequal,
            Operator::Less => Order::Less,
            Operator::LessOrEqual => Order::LessOrEqual,
            Operator::Greater => Order::Greater,
            Operator::GreaterOrEqual => Order::GreaterOrEqual,
            Operator::In => return self.within(one, other).map(Typed::Bool),
            _ => return self.arithmetic(operator, one, other),
        };
        self.compare(order, one, other, at).map(Typed::Bool)
    }

    fn compare(
        &mut self,
        order: Order,
        one: &Term,
        other: &Term,
        at: &Range<usize>,
    ) -> Result<Test<F>, Fault> {
        let is_equality = matches!(order, Order::Equal | Order::Unequal);
        let negated = |test| if order == Order::Equal { test } else { Test::Not(Box::new(test)) };
        match (self.check(one)?, self.check(other)?) {
            (Typed::Text(Text::Constant(one)), Typed::Text(Text::Constant(other))) => {
                fault(at, format!("this is always {}", order.fits(&one, &other)))
            }
            (Typed::Text(one), Typed::Text(other)) => Ok(Test::Texts(order, Box::new(one), Box::new(other))),
            (Typed::Number(Number::Constant(one), _), Typed::Number(Number::Constant(other), _)) => {
                fault(at, format!("this is always {}", order.fits(&one, &other)))
            }
            (Typed::Number(one, _), Typed::Number(other, _)) => {
                Ok(Test::Numbers(order, Box::new(one), Box::new(other)))
            }
            (Typed::Address(one), Typed::Address(other)) if is_equality => {
                Ok(negated(Test::Addresses(Box::new(one), Box::new(other))))
            }
            (Typed::Bool(Test::Constant(value)), _) | (_, Typed::Bool(Test::Constant(value)))
                if is_equality =>
            {
                let hint =
                    if value == (order == Order::Equal) { "the condition" } else { "! and the condition" };
                fault(at, format!("leave out the comparison with {value}: write {hint}"))
            }
            (Typed::Bool(one), Typed::Bool(other)) if is_equality => {
                Ok(negated(Test::Same(Box::new(one), Box::new(other))))
            }
            (Typed::Address(_), Typed::Text(_)) => {
                fault(&other.at, "this is a text, need an address: ip('192.0.2.1')")
            }
            (one, found) if one.kind() != found.kind() => {
                fault(&other.at, format!("this is {}, need {} as before", found.kind(), one.kind()))
            }
            (one, _) => fault(at, format!("{} has no order; use == or !=", one.kind())),
        }
    }

    /// `value in [constants]`, or `'key' in table`.
    fn within(&mut self, one: &Term, list: &Term) -> Result<Test<F>, Fault> {
        let Syntax::List(entries) = &list.syntax else {
            if let (Syntax::Text(key), Some(table)) = (&one.syntax, dotted(list))
                && let Some(entry) = self.names.entry(&table, std::str::from_utf8(key).unwrap_or_default())
            {
                return Ok(Test::Has(entry));
            }
            return fault(&list.at, "need a list such as ['GET', 'HEAD'], or a table such as header");
        };
        if entries.is_empty() {
            return fault(&list.at, "this list is empty, so nothing is in it");
        }
        let value = self.check(one)?;
        let wrong = |entry: &Term, need: &str| fault(&entry.at, format!("need {need} here"));
        match value {
            Typed::Text(text) => {
                let mut texts = Vec::with_capacity(entries.len());
                for entry in entries {
                    let Syntax::Text(text) = &entry.syntax else { return wrong(entry, "a text in quotes") };
                    texts.push(text.as_slice().into());
                }
                texts.sort_unstable();
                Ok(Test::OneText(Box::new(text), texts))
            }
            Typed::Number(number, _) => {
                let mut numbers = Vec::with_capacity(entries.len());
                for entry in entries {
                    let (Number::Constant(value), _) = self.number(entry)? else {
                        return wrong(entry, "a number");
                    };
                    numbers.push(value);
                }
                Ok(Test::OneNumber(Box::new(number), numbers))
            }
            Typed::Address(address) => {
                functions::networks(entries).map(|networks| Test::Networks(Box::new(address), networks))
            }
            Typed::Bool(_) => fault(&one.at, "this is a condition, need a text, a number or an address"),
        }
    }

    fn arithmetic(&mut self, operator: Operator, one: &Term, other: &Term) -> Result<Typed<F>, Fault> {
        let left = self.check(one)?;
        if let (Operator::Plus, Typed::Text(_)) = (operator, &left) {
            let mut parts = match left.into_text() {
                Text::Joined(parts) => parts,
                text => vec![text],
            };
            parts.push(self.text(other)?);
            return Ok(Typed::Text(Text::Joined(parts)));
        }
        let Typed::Number(left, is_whole) = left else {
            return fault(&one.at, format!("this is {}, need a number", left.kind()));
        };
        let (right, is_other_whole) = self.number(other)?;
        let is_whole = is_whole && is_other_whole;
        let number = match (operator, right) {
            (Operator::Plus, right) => Number::Sum(Box::new(left), Box::new(right)),
            (Operator::Minus, right) => {
                Number::Sum(Box::new(left), Box::new(Number::Negative(Box::new(right))))
            }
            (Operator::Times, right) => Number::Product(Box::new(left), Box::new(right)),
            (_, Number::Constant(0.0)) => return fault(&other.at, "a number cannot be divided by 0"),
            (Operator::Divided, Number::Constant(by)) => Number::Divided(Box::new(left), by, is_whole),
            (_, Number::Constant(by)) => Number::Remainder(Box::new(left), by),
            _ => return fault(&other.at, "a divisor must be a constant, so that it is never 0"),
        };
        Ok(Typed::Number(number, is_whole))
    }
}

/// `a.b.c` as a name.
fn dotted(term: &Term) -> Option<String> {
    match &term.syntax {
        Syntax::Name(name) => Some(name.clone()),
        Syntax::Member(inner, name) => Some(format!("{}.{name}", dotted(inner)?)),
        _ => None,
    }
}
