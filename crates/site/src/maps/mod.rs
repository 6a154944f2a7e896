//! Tables that turn one text into another, and variables of the file.
//!
//! ```text
//! $name ─> Set:  its conditions ─> text or expression, once for a request
//!          Map:  source text ─> keys ─> value, or the entry of a file (read again by a thread when it changes), or the default
//! ```

mod addresses;
mod file;
mod keys;

use std::net::IpAddr;
use std::sync::Arc;

use flatout_wire::Head;

use super::access::AccessList;
use super::client::forwarded_address;
use super::cost::steps_of;
use super::facts::Uses;
use super::fault::{Fault, Place};
use super::plan::{
    Condition, CrawlerAddresses, Map, MapFile, Piece, Plan, SetValue, SetVariable, Template, Variable,
};
use super::render::{Captures, Paths, Text, View};
use file::{FileForm, FileTable};
use keys::Keys;

pub(crate) use file::watch;

/// Maps that one map may use in turn.
const MAPS_DEEP_MAX: usize = 8;

/// Values that one value may use in turn: each takes frames of the stack.
const SETS_DEEP_MAX: usize = 64;

/// The longest value of a variable; a longer one is cut.
const VALUE_BYTES_MAX: usize = flatout_expression::TEXT_BYTES_MAX;

/// The maps and variables of a plan.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    maps: Vec<Arc<MapTable>>,
    sets: Vec<CompiledSet>,
    /// The name of a crawler, and its addresses. Several files may be those of one crawler.
    crawlers: Vec<(String, Arc<FileTable>)>,
}

/// How many maps and variables a text may use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TableCounts {
    pub(crate) maps: usize,
    pub(crate) sets: usize,
}

#[derive(Debug)]
pub(crate) struct MapTable {
    source: Text,
    keys: Keys,
    values: Vec<Text>,
    default: Text,
    file: Option<Arc<FileTable>>,
    /// Proxies, and whether all of several are skipped.
    proxies: Option<(AccessList, bool)>,
    uses: Uses,
}

#[derive(Debug)]
struct CompiledSet {
    value: CompiledValue,
    when: Vec<Condition>,
    before: Option<usize>,
    uses: Uses,
    /// Values that it uses in turn.
    depth: usize,
}

#[derive(Debug)]
enum CompiledValue {
    Text(Text),
    Expression(super::plan::Expression),
}

impl TableCounts {
    pub(crate) fn of(plan: &Plan) -> TableCounts {
        TableCounts { maps: plan.maps.len(), sets: plan.sets.len() }
    }
}

impl Tables {
    /// Reads the files of maps and those with addresses of crawlers.
    ///
    /// # Errors
    /// A map or a variable uses itself or a later one, too many in turn, or something that only a response has; an invalid
    /// expression; a file that cannot be read.
    pub(crate) fn new(
        maps: &[Map],
        sets: &[SetVariable],
        crawlers: &[CrawlerAddresses],
    ) -> Result<Tables, Fault> {
        let mut tables = Tables::default();
        for (at, map) in maps.iter().enumerate() {
            let table = MapTable::new(map, at, &tables)?;
            tables.maps.push(Arc::new(table));
        }
        for (at, set) in sets.iter().enumerate() {
            let set = CompiledSet::new(set, TableCounts { maps: maps.len(), sets: at }, &tables)?;
            tables.sets.push(set);
        }
        for (at, CrawlerAddresses { crawler, path }) in crawlers.iter().enumerate() {
            let file = FileTable::open(path, FileForm::Addresses);
            let file = file.map_err(|reason| Place::CrawlerAddresses(at).fault(reason))?;
            tables.crawlers.push((crawler.clone(), Arc::new(file)));
        }
        Ok(tables)
    }

    pub(crate) fn counts(&self) -> TableCounts {
        TableCounts { maps: self.maps.len(), sets: self.sets.len() }
    }

    /// What the result of a map depends on.
    pub(crate) fn uses_of_map(&self, map: usize) -> Uses {
        self.maps.get(map).map_or(Uses::NOTHING, |map| map.uses)
    }

    /// What the value of a variable depends on.
    pub(crate) fn uses_of_set(&self, set: usize) -> Uses {
        self.sets.get(set).map_or(Uses::NOTHING, |set| set.uses)
    }

    /// The most steps of a map: its text, one for each kind of keys, and one for each regular expression.
    pub(crate) fn steps_of_map(&self, map: usize, sets: &mut Vec<usize>) -> usize {
        let Some(map) = self.maps.get(map) else { return 0 };
        let texts = map.values.iter().chain([&map.default, &map.source]);
        let of_texts = texts.flat_map(Text::variables).map(|variable| 1 + steps_of(variable, self, sets));
        map.keys.steps() + of_texts.sum::<usize>()
    }

    /// The most steps of a variable's value: its conditions and those before it.
    pub(crate) fn steps_of_set(&self, set: usize, sets: &mut Vec<usize>) -> usize {
        let (mut steps, mut next) = (0, Some(set));
        while let Some(set) = next.and_then(|at| self.sets.get(at)) {
            let facts: Vec<&Variable> = match &set.value {
                CompiledValue::Text(text) => text.variables().collect(),
                CompiledValue::Expression(expression) => {
                    steps += expression.steps();
                    expression.facts().iter().collect()
                }
            };
            steps += set.when.iter().map(Condition::steps).sum::<usize>();
            let facts = facts.into_iter().chain(set.when.iter().flat_map(Condition::facts));
            steps += facts.map(|fact| 1 + steps_of(fact, self, sets)).sum::<usize>();
            next = set.before;
        }
        steps
    }

    /// A map, for what has to wait for the response.
    pub(crate) fn map(&self, at: usize) -> Option<Arc<MapTable>> {
        self.maps.get(at).cloned()
    }

    fn files(&self) -> impl Iterator<Item = &Arc<FileTable>> {
        let of_crawlers = self.crawlers.iter().map(|(_, file)| file);
        self.maps.iter().filter_map(|map| map.file.as_ref()).chain(of_crawlers)
    }

    /// Whether an address is one of those that the operator of a crawler has published; `None` if there is no file of this crawler.
    pub(crate) fn is_of_crawler(&self, crawler: &str, address: IpAddr) -> Option<bool> {
        let files = || self.crawlers.iter().filter(|(name, _)| name == crawler);
        files().next()?;
        Some(files().any(|(_, file)| file.has(address)))
    }

    fn depth_of(&self, set: usize) -> usize {
        self.sets.get(set).map_or(0, |set| set.depth)
    }
}

impl MapTable {
    fn new(map: &Map, at: usize, tables: &Tables) -> Result<MapTable, Fault> {
        let place = Place::Map(at);
        let counts = TableCounts { maps: at, sets: 0 };
        let keys = Keys::new(map.cases.iter().map(|(key, _)| key)).map_err(|reason| place.fault(reason))?;
        let value = |template: &Template| Text::of_response(template, None, counts, place);
        let source = value(&map.source)?;
        let values = map.cases.iter().map(|(_, to)| value(to)).collect::<Result<Vec<_>, Fault>>()?;
        let default = value(&map.default)?;
        // Groups in a value are those of its key.
        let uses =
            values.iter().chain([&default]).fold(Uses::NOTHING, |all, text| all.and(text.uses(tables)));
        let uses = uses.without(Uses::CAPTURES).and(source.uses(tables));
        if uses.has(Uses::RESPONSE) {
            let of_values = values.iter().chain([&default]).flat_map(Text::variables);
            let of_values = of_values.filter(|variable| !matches!(variable, Variable::Capture(_)));
            let mut variables = source.variables().chain(of_values);
            if variables.any(|variable| !is_of_response_alone(variable)) {
                return Err(place.fault(
                    "it depends on the response, so its texts can have no other variables than those of the response, and the groups of its keys",
                ));
            }
        }
        if uses.has(Uses::RESPONSE) && map.proxies.is_some() {
            return Err(place.fault("it depends on the response, so there are no proxies"));
        }
        let proxies = map.proxies.as_ref();
        let proxies = proxies.map(|proxies| (AccessList::of(&proxies.peers), proxies.is_recursive));
        let open = |file: &MapFile| FileTable::open(&file.path, FileForm::Map(file.kind));
        let file = map.file.as_ref().map(open).transpose().map_err(|reason| place.fault(reason))?;
        Ok(MapTable { uses, source, keys, values, default, file: file.map(Arc::new), proxies })
    }

    /// The address in a text, or the one that a proxy of this address names.
    fn forwarded(&self, source: Vec<u8>, head: &Head<'_>) -> Vec<u8> {
        let Some((proxies, is_recursive)) = &self.proxies else { return source };
        let address = std::str::from_utf8(&source).ok().and_then(|text| text.parse::<IpAddr>().ok());
        let found = address.and_then(|_| forwarded_address(proxies, *is_recursive, address, head));
        found.map_or(source, |found| found.to_string().into_bytes())
    }
}

/// Whether a variable's value is known with the response and nothing else.
fn is_of_response_alone(variable: &Variable) -> bool {
    variable.is_of_response()
        && !matches!(variable, Variable::Body | Variable::Limit(_) | Variable::ResponseMap(_))
}

impl MapTable {
    /// The value for a response, whose variables `write` writes.
    pub(crate) fn value_of(&self, write: impl Fn(&Variable, &mut Vec<u8>)) -> Vec<u8> {
        let render = |template: &Text, captured: Option<&Captures>| {
            let mut out = Vec::new();
            for piece in template.pieces() {
                match piece {
                    Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                    Piece::Variable(Variable::Capture(at)) => {
                        out.extend_from_slice(captured.map_or(&[], |captured| captured.group(*at)));
                    }
                    Piece::Variable(variable) => write(variable, &mut out),
                }
            }
            out
        };
        let source = render(&self.source, None);
        let mut value = Vec::new();
        match self.look_up(&source, &mut value) {
            Some((text, captured)) => render(text, captured.as_ref()),
            None => value,
        }
    }

    /// The text for a source, and what its key has matched; `None` if it is an entry of the file, which is written to `out`.
    fn look_up(&self, source: &[u8], out: &mut Vec<u8>) -> Option<(&Text, Option<Captures>)> {
        if let Some((at, expression)) = self.keys.find(source) {
            let captured = expression.and_then(|expression| Captures::of(expression, source));
            return Some((self.values.get(at)?, captured));
        }
        let is_in_file = self.file.as_ref().is_some_and(|file| file.write(source, out));
        (!is_in_file).then_some((&self.default, None))
    }
}

impl CompiledSet {
    fn new(set: &SetVariable, counts: TableCounts, tables: &Tables) -> Result<CompiledSet, Fault> {
        let place = Place::Plan;
        let named = |fault: Fault| place.fault(format!("the variable `${}`: {}", set.name, fault.reason));
        let value = match &set.value {
            SetValue::Text(template) => {
                CompiledValue::Text(Text::new(template, None, counts, place).map_err(named)?)
            }
            SetValue::Expression(expression) => CompiledValue::Expression(expression.clone()),
        };
        let facts = match &value {
            CompiledValue::Text(text) => text.variables().cloned().collect(),
            CompiledValue::Expression(expression) => expression.facts().to_vec(),
        };
        let facts = || facts.iter().chain(set.when.iter().flat_map(Condition::facts));
        let uses = facts().fold(Uses::NOTHING, |all, fact| all.and(Uses::of(fact, tables)));
        let before = set.before.map_or(Uses::NOTHING, |before| tables.uses_of_set(before));
        let deepest = facts().filter_map(|fact| match fact {
            Variable::Set(at) => Some(*at),
            _ => None,
        });
        if facts().any(|fact| matches!(fact, Variable::NamedCapture(_))) {
            return Err(named(place.fault("it uses a named group; write its number, such as $1")));
        }
        let is_later = |at: &usize| *at >= counts.sets;
        if deepest.clone().chain(set.before).any(|at| is_later(&at)) {
            return Err(named(place.fault("it uses itself or a later variable")));
        }
        let depth = 1 + deepest.chain(set.before).map(|at| tables.depth_of(at)).max().unwrap_or(0);
        if depth > SETS_DEEP_MAX {
            return Err(named(place.fault(format!("more than {SETS_DEEP_MAX} variables use each other"))));
        }
        if uses.has(Uses::RESPONSE) {
            return Err(named(
                place.fault("it depends on the response; rules of responses can use that directly"),
            ));
        }
        Ok(CompiledSet { value, when: set.when.clone(), before: set.before, uses: uses.and(before), depth })
    }
}

impl View<'_> {
    pub(super) fn write_mapped(&self, map: usize, depth: usize, out: &mut Vec<u8>) {
        let Some(map) = self.tables.maps.get(map).filter(|_| depth < MAPS_DEEP_MAX) else { return };
        let mut source = Vec::new();
        map.source.render_at(self, Paths::Decoded, depth + 1, &mut source);
        let source = map.forwarded(source, self.head);
        let Some((text, captured)) = map.look_up(&source, out) else { return };
        let view = View { captured: captured.as_ref().unwrap_or(self.captured), ..*self };
        text.render_at(&view, Paths::Decoded, depth + 1, out);
    }

    /// Writes the value of a variable, which is made at its first use.
    pub(super) fn write_set(&self, set: usize, out: &mut Vec<u8>) {
        if self.noted.write(set, out) {
            return;
        }
        let mut value = Vec::new();
        let mut next = Some(set);
        while let Some(set) = next.and_then(|at| self.tables.sets.get(at)) {
            if set.when.iter().all(|condition| condition.holds(self)) {
                match &set.value {
                    CompiledValue::Text(text) => text.render(self, Paths::Decoded, &mut value),
                    CompiledValue::Expression(expression) => expression.write(self, &mut value),
                }
                break;
            }
            next = set.before;
        }
        value.truncate(VALUE_BYTES_MAX);
        out.extend_from_slice(&value);
        self.noted.keep(set, value);
    }
}
