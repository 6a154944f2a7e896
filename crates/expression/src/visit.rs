//! Walks over the typed form: its facts, and the number of its steps.

use crate::compiled::{Address, Number, Test, Text};
use crate::file;

impl<F> Test<F> {
    pub(crate) fn visit(&mut self, see: &mut dyn FnMut(&mut F)) {
        match self {
            Test::Constant(_) => {}
            Test::Fact(fact) | Test::Has(fact) => see(fact),
            Test::Not(inner) => inner.visit(see),
            Test::All(all) | Test::Any(all) => all.iter_mut().for_each(|inner| inner.visit(see)),
            Test::Texts(_, one, other) | Test::Parts(_, one, other) => {
                one.visit(see);
                other.visit(see);
            }
            Test::Numbers(_, one, other) => {
                one.visit(see);
                other.visit(see);
            }
            Test::Addresses(one, other) => {
                one.visit(see);
                other.visit(see);
            }
            Test::Same(one, other) => {
                one.visit(see);
                other.visit(see);
            }
            Test::OneText(text, _) | Test::Matches(text, _) | Test::File(_, text) => text.visit(see),
            Test::OneNumber(number, _) => number.visit(see),
            Test::Networks(address, _) => address.visit(see),
            Test::Conditional(parts) => {
                let (condition, one, other) = &mut **parts;
                condition.visit(see);
                one.visit(see);
                other.visit(see);
            }
        }
    }

    pub(crate) fn steps(&self) -> usize {
        match self {
            Test::Constant(_) => 0,
            Test::Fact(_) | Test::Has(_) => 1,
            Test::Not(inner) => inner.steps(),
            Test::All(all) | Test::Any(all) => all.iter().map(Test::steps).sum(),
            Test::Texts(_, one, other) | Test::Parts(_, one, other) => 1 + one.steps() + other.steps(),
            Test::Numbers(_, one, other) => 1 + one.steps() + other.steps(),
            Test::Addresses(one, other) => 1 + one.steps() + other.steps(),
            Test::Same(one, other) => 1 + one.steps() + other.steps(),
            Test::OneText(text, list) => 1 + text.steps() + list.len().checked_ilog2().unwrap_or(0) as usize,
            Test::OneNumber(number, list) => number.steps() + list.len(),
            Test::Matches(text, _) => 1 + text.steps(),
            Test::File(_, path) => file::STEPS + path.steps(),
            Test::Networks(address, networks) => address.steps() + networks.len(),
            Test::Conditional(parts) => parts.0.steps() + parts.1.steps().max(parts.2.steps()),
        }
    }
}

impl<F> Text<F> {
    pub(crate) fn visit(&mut self, see: &mut dyn FnMut(&mut F)) {
        match self {
            Text::Constant(_) => {}
            Text::Fact(fact) => see(fact),
            Text::Joined(all) => all.iter_mut().for_each(|inner| inner.visit(see)),
            Text::Changed(_, inner)
            | Text::Extracted(inner, ..)
            | Text::Replaced(inner, ..)
            | Text::Part(inner, ..) => inner.visit(see),
            Text::OfNumber(number) | Text::Date(number) => number.visit(see),
            Text::OfAddress(address) => address.visit(see),
            Text::OfTest(test) => test.visit(see),
            Text::Conditional(parts) => {
                let (condition, one, other) = &mut **parts;
                condition.visit(see);
                one.visit(see);
                other.visit(see);
            }
        }
    }

    pub(crate) fn steps(&self) -> usize {
        match self {
            Text::Constant(_) => 0,
            Text::Fact(_) => 1,
            Text::Joined(all) => all.iter().map(Text::steps).sum(),
            Text::Changed(_, inner)
            | Text::Extracted(inner, ..)
            | Text::Replaced(inner, ..)
            | Text::Part(inner, ..) => 1 + inner.steps(),
            Text::OfNumber(number) | Text::Date(number) => 1 + number.steps(),
            Text::OfAddress(address) => 1 + address.steps(),
            Text::OfTest(test) => test.steps(),
            Text::Conditional(parts) => parts.0.steps() + parts.1.steps().max(parts.2.steps()),
        }
    }
}

impl<F> Number<F> {
    pub(crate) fn visit(&mut self, see: &mut dyn FnMut(&mut F)) {
        match self {
            Number::Constant(_) => {}
            Number::Fact(fact) => see(fact),
            Number::Negative(inner)
            | Number::Divided(inner, ..)
            | Number::Remainder(inner, _)
            | Number::Whole(inner) => inner.visit(see),
            Number::Sum(one, other) | Number::Product(one, other) => {
                one.visit(see);
                other.visit(see);
            }
            Number::Size(text) | Number::OfText(text) => text.visit(see),
            Number::Conditional(parts) => {
                let (condition, one, other) = &mut **parts;
                condition.visit(see);
                one.visit(see);
                other.visit(see);
            }
        }
    }

    pub(crate) fn steps(&self) -> usize {
        match self {
            Number::Constant(_) => 0,
            Number::Fact(_) => 1,
            Number::Negative(inner)
            | Number::Divided(inner, ..)
            | Number::Remainder(inner, _)
            | Number::Whole(inner) => 1 + inner.steps(),
            Number::Sum(one, other) | Number::Product(one, other) => 1 + one.steps() + other.steps(),
            Number::Size(text) | Number::OfText(text) => 1 + text.steps(),
            Number::Conditional(parts) => parts.0.steps() + parts.1.steps().max(parts.2.steps()),
        }
    }
}

impl<F> Address<F> {
    pub(crate) fn visit(&mut self, see: &mut dyn FnMut(&mut F)) {
        match self {
            Address::Constant(_) => {}
            Address::Fact(fact) => see(fact),
            Address::OfText(text) => text.visit(see),
            Address::Conditional(parts) => {
                let (condition, one, other) = &mut **parts;
                condition.visit(see);
                one.visit(see);
                other.visit(see);
            }
        }
    }

    pub(crate) fn steps(&self) -> usize {
        match self {
            Address::Constant(_) => 0,
            Address::Fact(_) => 1,
            Address::OfText(text) => 1 + text.steps(),
            Address::Conditional(parts) => parts.0.steps() + parts.1.steps().max(parts.2.steps()),
        }
    }
}
