//! Changes of a list, as steps from the former one to the new one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A step through the former list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step<T> {
    /// Keep the next N elements.
    Keep(usize),
    /// Drop the next N elements.
    Drop(usize),
    /// Insert this element.
    Put(T),
}

/// The steps from one list to another. Elements with the same key are taken for versions of one, at whatever place they are. As elements
/// are `Eq`, those that both lists share are compared by their addresses.
pub(crate) fn steps<T: Eq, K: Hash + Eq>(
    former: &[Arc<T>],
    current: &[Arc<T>],
    key: impl Fn(&T) -> K,
) -> Vec<Step<Arc<T>>> {
    let front = former.iter().zip(current).take_while(|(one, other)| one == other).count();
    let mut steps = Vec::new();
    if front == former.len() && front == current.len() {
        return steps;
    }
    let places: HashMap<K, usize> =
        former.iter().enumerate().skip(front).map(|(at, it)| (key(it), at)).collect();
    let mut next = front;
    push(&mut steps, Step::Keep(front));
    for element in current.iter().skip(front) {
        let place = places.get(&key(element)).copied().filter(|at| *at >= next);
        if let Some(at) = place {
            push(&mut steps, Step::Drop(at - next));
            next = at + 1;
            if former.get(at) == Some(element) {
                push(&mut steps, Step::Keep(1));
                continue;
            }
            push(&mut steps, Step::Drop(1));
        }
        steps.push(Step::Put(element.clone()));
    }
    push(&mut steps, Step::Drop(former.len() - next));
    steps
}

/// Adds a step, to the last one if both are of the same kind.
fn push<T>(steps: &mut Vec<Step<T>>, step: Step<T>) {
    match (steps.last_mut(), step) {
        (_, Step::Keep(0) | Step::Drop(0)) => {}
        (Some(Step::Keep(count)), Step::Keep(more)) | (Some(Step::Drop(count)), Step::Drop(more)) => {
            *count += more
        }
        (_, step) => steps.push(step),
    }
}

/// The list after these steps; without any, it is the same.
///
/// # Errors
/// They are steps of another list.
pub(crate) fn after<T: Clone>(former: &[T], steps: Vec<Step<T>>) -> Result<Vec<T>, String> {
    if steps.is_empty() {
        return Ok(former.to_vec());
    }
    let other_list = || "changes of another plan".to_owned();
    let (mut rest, mut list) = (former, Vec::with_capacity(former.len()));
    for step in steps {
        match step {
            Step::Keep(count) => {
                let (kept, others) = rest.split_at_checked(count).ok_or_else(other_list)?;
                list.extend_from_slice(kept);
                rest = others;
            }
            Step::Drop(count) => rest = rest.get(count..).ok_or_else(other_list)?,
            Step::Put(element) => list.push(element),
        }
    }
    if rest.is_empty() { Ok(list) } else { Err(other_list()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Arc<String>> {
        text.split_whitespace().map(|it| Arc::new(it.to_owned())).collect()
    }

    fn between(former: &str, current: &str) -> Vec<Step<Arc<String>>> {
        steps(&list(former), &list(current), |it| it.chars().next())
    }

    #[test]
    fn steps_name_only_the_differences() {
        assert_eq!(between("a b c", "a b c"), []);
        let put = |text: &str| Step::Put(Arc::new(text.to_owned()));
        assert_eq!(between("a b c", "a b2 c"), [Step::Keep(1), Step::Drop(1), put("b2"), Step::Keep(1)]);
        assert_eq!(between("a c", "a b c"), [Step::Keep(1), put("b"), Step::Keep(1)]);
        assert_eq!(between("a b c d", "d"), [Step::Drop(3), Step::Keep(1)]);
        assert_eq!(between("a b", ""), [Step::Drop(2)]);
    }

    #[test]
    fn any_list_is_reached_from_any_other() {
        let lists = ["", "a", "b", "a b c", "c b a", "a2 b c", "a b2 d e", "e d c b a", "b a a", "c d a b2"];
        for former in lists {
            for current in lists {
                let steps = between(former, current);
                assert_eq!(after(&list(former), steps), Ok(list(current)), "{former:?} to {current:?}");
            }
        }
    }

    #[test]
    fn steps_of_another_list_are_errors() {
        let former = list("a b");
        for steps in [
            vec![Step::Keep(3)],
            vec![Step::Drop(3)],
            vec![Step::Keep(1)],
            vec![Step::Keep(usize::MAX), Step::Drop(usize::MAX)],
            vec![Step::Put(Arc::new("c".to_owned()))],
        ] {
            assert!(after(&former, steps.clone()).is_err(), "{steps:?}");
        }
    }
}
