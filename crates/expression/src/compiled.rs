//! The typed form of an expression, in which every mistake that could be made is impossible.

use std::net::IpAddr;

use crate::file::FileTest;
use crate::network::Network;
use crate::{Facts, Fault, Names, Regex, check};

/// An expression that is true or false.
#[derive(Debug, Clone)]
pub struct Condition<F> {
    source: String,
    test: Test<F>,
    facts: Vec<F>,
}

/// An expression of any type; its value is written as a text.
#[derive(Debug, Clone)]
pub struct Expression<F> {
    source: String,
    text: Text<F>,
    facts: Vec<F>,
}

#[derive(Debug, Clone)]
pub(crate) enum Test<F> {
    Constant(bool),
    Fact(F),
    Has(F),
    Not(Box<Test<F>>),
    All(Vec<Test<F>>),
    Any(Vec<Test<F>>),
    Texts(Order, Box<Text<F>>, Box<Text<F>>),
    Numbers(Order, Box<Number<F>>, Box<Number<F>>),
    Addresses(Box<Address<F>>, Box<Address<F>>),
    Same(Box<Test<F>>, Box<Test<F>>),
    /// The texts are sorted.
    OneText(Box<Text<F>>, Vec<Box<[u8]>>),
    OneNumber(Box<Number<F>>, Vec<f64>),
    Networks(Box<Address<F>>, Vec<Network>),
    Parts(Place, Box<Text<F>>, Box<Text<F>>),
    Matches(Box<Text<F>>, Box<Regex>),
    File(FileTest, Box<Text<F>>),
    Conditional(Box<(Test<F>, Test<F>, Test<F>)>),
}

/// Where one text is in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Start,
    End,
    Anywhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone)]
pub(crate) enum Text<F> {
    Constant(Box<[u8]>),
    Fact(F),
    Joined(Vec<Text<F>>),
    Changed(Change, Box<Text<F>>),
    /// What the group of an expression matches.
    Extracted(Box<Text<F>>, Box<Regex>, usize),
    Replaced(Box<Text<F>>, Box<[u8]>, Box<[u8]>),
    /// From one byte to another.
    Part(Box<Text<F>>, usize, Option<usize>),
    OfNumber(Box<Number<F>>),
    /// The date of a cookie.
    Date(Box<Number<F>>),
    OfAddress(Box<Address<F>>),
    OfTest(Box<Test<F>>),
    Conditional(Box<(Test<F>, Text<F>, Text<F>)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Lower,
    Upper,
    Trim,
    /// Its MD5, as 22 characters of base64url.
    Md5,
}

#[derive(Debug, Clone)]
pub(crate) enum Number<F> {
    Constant(f64),
    Fact(F),
    Negative(Box<Number<F>>),
    Sum(Box<Number<F>>, Box<Number<F>>),
    Product(Box<Number<F>>, Box<Number<F>>),
    /// By a constant that is not zero; whether the result is a whole number.
    Divided(Box<Number<F>>, f64, bool),
    Remainder(Box<Number<F>>, f64),
    Size(Box<Text<F>>),
    OfText(Box<Text<F>>),
    /// Without its fraction.
    Whole(Box<Number<F>>),
    Conditional(Box<(Test<F>, Number<F>, Number<F>)>),
}

#[derive(Debug, Clone)]
pub(crate) enum Address<F> {
    Constant(IpAddr),
    Fact(F),
    OfText(Box<Text<F>>),
    Conditional(Box<(Test<F>, Address<F>, Address<F>)>),
}

impl<F: Clone + PartialEq> Condition<F> {
    /// Reads and checks a condition.
    ///
    /// # Errors
    /// The first mistake, with its place in the text.
    pub fn parse(text: &str, names: &dyn Names<Fact = F>) -> Result<Condition<F>, Fault> {
        let test = check::condition(text, names)?;
        let mut condition = Condition { source: text.to_owned(), test, facts: Vec::new() };
        condition.resolve(|_| Ok::<(), Fault>(()))?;
        Ok(condition)
    }

    /// Replaces its facts.
    ///
    /// # Errors
    /// The first error of `change`.
    pub fn resolve<E>(&mut self, mut change: impl FnMut(&mut F) -> Result<(), E>) -> Result<(), E> {
        let (facts, result) = visited(&mut change, |see| self.test.visit(see));
        self.facts = facts;
        result
    }

    /// The facts that it uses.
    pub fn facts(&self) -> &[F] {
        &self.facts
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The most steps that an evaluation takes: comparisons, functions and facts. The time of a step grows with the length of
    /// its texts.
    pub fn steps(&self) -> usize {
        self.test.steps()
    }

    /// Whether it is true. Facts that can be borrowed are compared without an allocation.
    #[inline]
    pub fn holds(&self, facts: &impl Facts<F>) -> bool {
        self.test.holds(facts)
    }
}

impl<F: Clone + PartialEq> Expression<F> {
    /// Reads and checks an expression.
    ///
    /// # Errors
    /// The first mistake, with its place in the text.
    pub fn parse(text: &str, names: &dyn Names<Fact = F>) -> Result<Expression<F>, Fault> {
        let mut expression =
            Expression { source: text.to_owned(), text: check::value(text, names)?, facts: Vec::new() };
        expression.resolve(|_| Ok::<(), Fault>(()))?;
        Ok(expression)
    }

    /// Replaces its facts.
    ///
    /// # Errors
    /// The first error of `change`.
    pub fn resolve<E>(&mut self, mut change: impl FnMut(&mut F) -> Result<(), E>) -> Result<(), E> {
        let (facts, result) = visited(&mut change, |see| self.text.visit(see));
        self.facts = facts;
        result
    }

    /// The facts that it uses.
    pub fn facts(&self) -> &[F] {
        &self.facts
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The most steps that an evaluation takes, as for [`Condition::steps`].
    pub fn steps(&self) -> usize {
        self.text.steps()
    }

    /// Writes its value.
    pub fn write(&self, facts: &impl Facts<F>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.text.value(facts));
    }
}

/// Equal texts with equal facts: the names in a text may mean something else elsewhere.
impl<F: PartialEq> PartialEq for Condition<F> {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.facts == other.facts
    }
}

impl<F: Eq> Eq for Condition<F> {}

impl<F: PartialEq> PartialEq for Expression<F> {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.facts == other.facts
    }
}

impl<F: Eq> Eq for Expression<F> {}

/// Changes and collects the facts that `visit` visits; the first error stops the changes.
fn visited<F: Clone + PartialEq, E>(
    change: &mut impl FnMut(&mut F) -> Result<(), E>,
    visit: impl FnOnce(&mut dyn FnMut(&mut F)),
) -> (Vec<F>, Result<(), E>) {
    let (mut facts, mut result) = (Vec::new(), Ok(()));
    visit(&mut |fact: &mut F| {
        if result.is_ok() {
            result = change(fact);
        }
        if !facts.contains(fact) {
            facts.push(fact.clone());
        }
    });
    (facts, result)
}
