//! The most steps that the expressions of a request take.

use super::compiled::{Block, CompiledRoute, CompiledSite};
use super::maps::Tables;
use super::plan::{Condition, Variable};

/// Steps to choose a route among these candidates, and for the rules of the chosen one. The value of a variable is counted once,
/// as it is made once.
pub(crate) fn steps(
    tables: &Tables,
    site: &CompiledSite,
    candidates: &[&CompiledRoute],
    chosen: Option<&CompiledRoute>,
) -> usize {
    let conditions = candidates.iter().flat_map(|route| &route.when);
    let blocks = chosen.map_or(&site.rest.blocks, |route| &route.guards.blocks);
    let of_blocks = blocks.iter().flat_map(|block: &Block| &block.conditions);
    let rewrites = chosen.into_iter().map(|route| &route.rewrites).chain([&site.rewrites]);
    let of_rewrites = rewrites.flat_map(|rewrites| rewrites.conditions());
    let all: Vec<&Condition> = conditions.chain(of_blocks).chain(of_rewrites).collect();
    let own: usize = all.iter().map(|condition| condition.steps()).sum();
    let mut sets = Vec::new();
    let facts = all.iter().flat_map(|condition| condition.facts());
    own + facts.map(|fact| steps_of(fact, tables, &mut sets)).sum::<usize>()
}

/// The steps for the value of a variable, apart from the one that uses it. `sets` are those that were counted.
pub(crate) fn steps_of(variable: &Variable, tables: &Tables, sets: &mut Vec<usize>) -> usize {
    match variable {
        Variable::Map(at) | Variable::ResponseMap(at) => tables.steps_of_map(*at, sets),
        Variable::Set(at) if !sets.contains(at) => {
            sets.push(*at);
            tables.steps_of_set(*at, sets)
        }
        _ => 0,
    }
}
