//! What an upstream gets in place of parts of a client's request.

use flatout_expression::Regex;
use flatout_wire::{Framing, Head, is_authority};

use super::fault::{Fault, Place};
use super::maps::TableCounts;
use super::plan::ReplacedParts;
use super::render::{Paths, Text, View};

/// The replaced parts of a route that has some.
#[derive(Debug, Clone)]
pub(crate) struct Replaced {
    host: Option<Text>,
    method: Option<Text>,
    body: Option<Text>,
    pub(crate) drops_fields: bool,
}

/// The parts for one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadyParts {
    pub(crate) host: Option<String>,
    pub(crate) method: Option<Vec<u8>>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) drops_fields: bool,
}

impl Replaced {
    /// `None` if everything of the client is forwarded.
    ///
    /// # Errors
    /// A text with a variable that is unknown here.
    pub(crate) fn new(
        parts: &ReplacedParts,
        expression: Option<&Regex>,
        counts: TableCounts,
        place: Place,
    ) -> Result<Option<Replaced>, Fault> {
        if *parts == ReplacedParts::default() {
            return Ok(None);
        }
        let text = |template: &Option<_>| {
            template.as_ref().map(|template| Text::new(template, expression, counts, place)).transpose()
        };
        let ReplacedParts { host, method, body, drops_fields } = parts;
        let (host, method, body) = (text(host)?, text(method)?, text(body)?);
        Ok(Some(Replaced { host, method, body, drops_fields: *drops_fields }))
    }

    /// Whether the client's body is not wanted.
    pub(crate) fn has_body(&self) -> bool {
        self.body.is_some()
    }

    pub(crate) fn uses_captures(&self) -> bool {
        self.host.iter().chain(&self.method).chain(&self.body).any(Text::uses_captures)
    }

    /// The parts for one request. `None` if its host or its method would be one that cannot be sent.
    pub(crate) fn ready(&self, view: &View<'_>) -> Option<ReadyParts> {
        let rendered = |text: &Text| {
            let mut bytes = Vec::new();
            text.render(view, Paths::Decoded, &mut bytes);
            bytes
        };
        let is_other = |method: &Vec<u8>| !method.is_empty() && *method != view.head.method_name();
        let method = self.method.as_ref().map(rendered).filter(is_other);
        let host = self.host.as_ref().map(rendered).filter(|host| !host.is_empty());
        let is_possible = method.as_deref().is_none_or(ReplacedParts::may_be_method)
            && host.as_deref().is_none_or(is_authority);
        let host = host.and_then(|host| String::from_utf8(host).ok());
        let body = self.body.as_ref().map(rendered);
        is_possible.then_some(ReadyParts { host, method, body, drops_fields: self.drops_fields })
    }
}

impl ReadyParts {
    /// The head of a request with this body in place of its own.
    pub(crate) fn reframed<'h>(&self, mut head: Head<'h>) -> Head<'h> {
        match self.body.as_ref().map(Vec::len) {
            None => {}
            Some(0) => head.framing = Framing::None,
            Some(length) => head.framing = Framing::Length(length as u64),
        }
        head
    }
}
