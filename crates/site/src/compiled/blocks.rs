//! Rules under conditions, checked and prepared.

use std::sync::Arc;

use flatout_expression::Regex;
use flatout_observe::observed::RequestLogs;

use super::super::expires::CompiledExpires;
use super::super::facts::Uses;
use super::super::fault::{Fault, Place};
use super::super::fields::FieldRules;
use super::super::late::FieldValue;
use super::super::maps::{MapTable, TableCounts};
use super::super::plan::{Condition, Rules, Template, Variable, WhenBlock};
use super::super::render::{Text, View};
use super::Parts;
use super::guards::Guards;

/// Blocks of one route, with those of its site: each has a bit.
const BLOCKS_MAX: usize = 64;

/// Rules that apply if conditions are true.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) uses: Uses,
    pub(crate) guards: Guards,
    pub(crate) request_fields: FieldRules,
    /// A request bypasses the cache if one of these is neither empty nor `0`.
    pub(crate) bypass: Vec<Text>,
    /// The response is not stored if one of these is neither empty nor `0`.
    pub(crate) no_store: Vec<Text>,
}

/// The rules of a block for responses. A route's response has as many of them as its guards have blocks, in the same order.
#[derive(Debug, Clone)]
pub(crate) struct ResponseBlock {
    /// They depend on the response.
    pub(crate) is_late: bool,
    pub(crate) conditions: Vec<Condition>,
    /// The maps of the response that they use.
    pub(crate) maps: Vec<(usize, Arc<MapTable>)>,
    pub(crate) fields: FieldRules,
    pub(crate) expires: Option<CompiledExpires>,
    pub(crate) is_unlogged: bool,
    /// The access logs that leave the request out, a bit for each.
    pub(crate) log_skips: u8,
}

/// All blocks of some rules.
///
/// # Errors
/// Too many blocks, or a rule of requests under a condition on the response.
pub(super) fn blocks(
    parts: Parts<'_>,
    rules: &Rules,
    expression: Option<&Regex>,
    place: Place,
) -> Result<Vec<Block>, Fault> {
    if rules.when.len() > BLOCKS_MAX {
        return Err(place.fault(format!("got {} blocks of `when`, allowed {BLOCKS_MAX}", rules.when.len())));
    }
    rules.when.iter().map(|block| Block::new(parts, block, expression, place)).collect()
}

impl Block {
    fn new(
        parts: Parts<'_>,
        block: &WhenBlock,
        expression: Option<&Regex>,
        place: Place,
    ) -> Result<Block, Fault> {
        let counts = TableCounts::of(parts.plan);
        let conditions = resolved(&block.conditions, expression, counts, place)?;
        let uses = Uses::of_all(&conditions, parts.tables);
        let texts = |templates: &[Template]| {
            templates
                .iter()
                .map(|text| Text::new(text, expression, counts, place))
                .collect::<Result<Vec<_>, _>>()
        };
        let rules = &block.rules;
        let cache = rules.cache.clone().unwrap_or_default();
        let mut guards = Guards::new(parts, rules, expression, place)?;
        guards.rates.iter_mut().for_each(|rate| rate.is_of_user |= uses.has(Uses::USER));
        let block = Block {
            guards,
            request_fields: FieldRules::new(&rules.request_fields, expression, counts, place)?,
            bypass: texts(&cache.bypass)?,
            no_store: texts(&cache.no_store)?,
            conditions,
            uses,
        };
        let is_of_request =
            !block.guards.is_open() || !block.request_fields.is_empty() || rules.cache.is_some();
        if uses.has(Uses::RESPONSE) && is_of_request {
            let source = block.conditions.last().map(Condition::source).unwrap_or_default();
            return Err(place.fault(format!(
                "the condition `{source}` depends on the response, so only response-header, response-trailer, expires and log-requests are possible under it"
            )));
        }
        Ok(block)
    }

    /// Whether its conditions are true for a request; not if they depend on the response.
    pub(crate) fn holds(&self, view: &View<'_>) -> bool {
        !self.uses.has(Uses::RESPONSE) && all_hold(&self.conditions, view)
    }

    pub(super) fn uses_captures(&self) -> bool {
        let texts = || self.bypass.iter().chain(&self.no_store).any(Text::uses_captures);
        self.uses.has(Uses::CAPTURES)
            || self.guards.uses_captures()
            || self.request_fields.uses_captures()
            || texts()
    }
}

impl ResponseBlock {
    pub(super) fn new(
        parts: Parts<'_>,
        block: &WhenBlock,
        expression: Option<&Regex>,
        place: Place,
    ) -> Result<ResponseBlock, Fault> {
        let counts = TableCounts::of(parts.plan);
        let conditions = resolved(&block.conditions, expression, counts, place)?;
        let maps = conditions.iter().flat_map(Condition::facts).filter_map(|fact| match fact {
            Variable::ResponseMap(at) => Some((*at, parts.tables.map(*at)?)),
            _ => None,
        });
        Ok(ResponseBlock {
            maps: maps.collect(),
            is_unlogged: block.rules.logs == RequestLogs::None,
            log_skips: block.rules.log_skips,
            is_late: Uses::of_all(&conditions, parts.tables).has(Uses::RESPONSE),
            conditions,
            fields: FieldRules::of_responses(&block.rules.response_fields, expression, counts, place)?,
            expires: expires(&block.rules, expression, counts, place)?,
        })
    }

    /// Changes which access logs a request is written to, and which conditional ones leave it out.
    #[inline]
    pub(crate) fn choose_logs(&self, logs: &mut RequestLogs, skips: &mut u8) {
        if self.is_unlogged {
            *logs = RequestLogs::None;
        }
        *skips |= self.log_skips;
    }

    /// Whether it changes anything of a response.
    pub(crate) fn has_rules(&self) -> bool {
        !self.fields.is_empty() || self.expires.is_some() || self.is_unlogged || self.log_skips != 0
    }

    /// The values of its field rules, and after them that of `expires`.
    pub(crate) fn rendered(&self, view: &View<'_>) -> Vec<FieldValue> {
        with_expires(&self.fields, self.expires.as_ref(), view)
    }
}

/// How long clients may use the responses of these rules.
///
/// # Errors
/// An unknown group, map or variable.
pub(super) fn expires(
    rules: &Rules,
    expression: Option<&Regex>,
    counts: TableCounts,
    place: Place,
) -> Result<Option<CompiledExpires>, Fault> {
    let text = |template: &Template| Text::of_response(template, expression, counts, place);
    rules.expires.as_ref().map(|expires| CompiledExpires::new(expires, text)).transpose()
}

/// The values of field rules, and after them that of `expires`.
pub(super) fn with_expires(
    fields: &FieldRules,
    expires: Option<&CompiledExpires>,
    view: &View<'_>,
) -> Vec<FieldValue> {
    let mut values = fields.rendered(view);
    values.extend(expires.and_then(CompiledExpires::text).map(|text| FieldValue::of(text, view)));
    values
}

/// Whether all conditions are true.
pub(crate) fn all_hold(conditions: &[Condition], view: &View<'_>) -> bool {
    conditions.iter().all(|condition| condition.holds(view))
}

/// Conditions of a place with this expression, whose named groups they may use.
///
/// # Errors
/// An unknown group, map or variable.
pub(crate) fn resolved(
    conditions: &[Condition],
    expression: Option<&Regex>,
    counts: TableCounts,
    place: Place,
) -> Result<Vec<Condition>, Fault> {
    let mut conditions = conditions.to_vec();
    for condition in &mut conditions {
        condition.resolve(|fact| match fact {
            Variable::NamedCapture(name) => {
                let mut names = expression.map(Regex::capture_names).into_iter().flatten();
                let at = names.position(|known| known == Some(name));
                let at =
                    at.ok_or_else(|| place.fault(format!("the expression has no group named `{name}`")))?;
                *fact = Variable::Capture(at);
                Ok(())
            }
            Variable::Map(at) | Variable::ResponseMap(at) if *at >= counts.maps => {
                Err(place.fault(format!("no map {at}")))
            }
            Variable::Set(at) if *at >= counts.sets => Err(place.fault(format!("no variable {at}"))),
            _ => Ok(()),
        })?;
    }
    Ok(conditions)
}

/// The same for conditions that decide before there is a response.
///
/// # Errors
/// An unknown group, map or variable, or a fact of the response.
pub(crate) fn resolved_for_requests(
    conditions: &[Condition],
    expression: Option<&Regex>,
    counts: TableCounts,
    place: Place,
) -> Result<Vec<Condition>, Fault> {
    let conditions = resolved(conditions, expression, counts, place)?;
    let is_late = |condition: &&Condition| condition.facts().iter().any(Variable::is_of_response);
    match conditions.iter().find(is_late) {
        Some(late) => Err(place.fault(format!(
            "the condition `{}` depends on the response, which does not exist yet",
            late.source()
        ))),
        None => Ok(conditions),
    }
}
