//! Finds conditions that exclude each other.

use crate::compiled::{Number, Order, Test, Text};
use crate::syntax::Term;
use crate::{Fault, fault};

/// Whether all of these conditions can be true together: one fact cannot be equal to two texts, or be in no range.
///
/// # Errors
/// The condition that excludes an earlier one.
pub(crate) fn possible<F: PartialEq>(parts: &[Term], tests: &[Test<F>]) -> Result<(), Fault> {
    let never = |at| fault(at, "this is never true together with a condition before it");
    for (at, (part, test)) in parts.iter().zip(tests).enumerate() {
        let before = tests.get(..at).unwrap_or_default();
        if let Some((fact, text)) = equal_text(test)
            && before.iter().filter_map(equal_text).any(|(other, its)| other == fact && its != text)
        {
            return never(&part.at);
        }
        let Some((fact, _)) = bound(test) else { continue };
        let bounds = before.iter().chain([test]).filter_map(bound).filter(|(other, _)| *other == fact);
        let (mut low, mut high) = ((f64::NEG_INFINITY, false), (f64::INFINITY, false));
        for (_, (order, value)) in bounds {
            let is_open = matches!(order, Order::Greater | Order::Less);
            if matches!(order, Order::Equal | Order::Greater | Order::GreaterOrEqual) && value >= low.0 {
                low = (value, is_open || (low.1 && value == low.0));
            }
            if matches!(order, Order::Equal | Order::Less | Order::LessOrEqual) && value <= high.0 {
                high = (value, is_open || (high.1 && value == high.0));
            }
        }
        if low.0 > high.0 || (low.0 == high.0 && (low.1 || high.1)) {
            return never(&part.at);
        }
    }
    Ok(())
}

fn equal_text<F>(test: &Test<F>) -> Option<(&F, &[u8])> {
    let Test::Texts(Order::Equal, one, other) = test else { return None };
    match (&**one, &**other) {
        (Text::Fact(fact), Text::Constant(text)) | (Text::Constant(text), Text::Fact(fact)) => {
            Some((fact, text))
        }
        _ => None,
    }
}

fn bound<F>(test: &Test<F>) -> Option<(&F, (Order, f64))> {
    let Test::Numbers(order, one, other) = test else { return None };
    match (&**one, &**other) {
        (Number::Fact(fact), Number::Constant(value)) => Some((fact, (*order, *value))),
        _ => None,
    }
}
