//! Whether a response may be stored, and the entry made of it.

use flatout_engine::{Body, Response};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::cache::{Exchange, Reason, StorageDecision, store, vary_names};

use flatout_gateway::private::PrivateLifetime;

use super::fill::Fill;
use super::waiting_request::with_head;
use crate::entry::{Content, Entry, Parts, stored_lines};
use crate::policy::select;

/// A value of selecting fields that no request has.
const NOBODYS: &[u8] = b"\0";

impl Fill {
    /// Whether the upstream's response is stored; if not, the error is whether others' would not be either.
    pub(super) fn stored(&self, response: &Response) -> Result<StorageDecision, bool> {
        let now_ms = clock::unix_milliseconds();
        let length = response.declared_length();
        let bytes_max = self.worker.store.body_bytes_max();
        let is_pushed = matches!(response.body(), Body::Pushed);
        let is_too_large = match is_pushed {
            true => length.is_some_and(|length| length > bytes_max),
            false => response.body_bytes().is_none_or(|body| body.len() as u64 > bytes_max),
        };
        if is_too_large {
            return Err(true);
        }
        // A response caused by this request says nothing about the next request's response.
        self.storage_decision(response.status(), response.fields(), now_ms)
            .map_err(|reason| reason != Reason::Authorization && !self.order.directives.no_store)
    }

    /// The decision by status and fields.
    pub(super) fn storage_decision<'a>(
        &self,
        status: Status,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
        now_ms: u64,
    ) -> Result<StorageDecision, Reason> {
        let exchange = Exchange {
            request_ms: self.order.asked_ms,
            response_ms: now_ms,
            is_authorized: self.order.is_authorized,
            has_authorization_key: self.order.has_authorization_key,
            asks_no_store: self.order.directives.no_store,
        };
        let mut rules = self.order.rules.of(status.code());
        match self.lifetime.get() {
            None => {}
            Some(PrivateLifetime::Nothing) => return Err(Reason::NoStore),
            // It is for this cache alone; what the response says otherwise is for those behind it.
            Some(PrivateLifetime::Seconds(seconds)) => {
                rules.validity = Some(seconds);
                rules.ignored.cache_control = true;
                rules.ignored.expires = true;
            }
        }
        store(status, fields, &exchange, &rules)
    }

    /// The entry of a response that is stored.
    pub(super) fn entry<'a>(
        &self,
        status: Status,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
        decision: &StorageDecision,
        now_ms: u64,
        body: impl Into<Content>,
    ) -> Entry {
        let lines = stored_lines(fields.clone(), &decision.withheld, Some(now_ms / 1000));
        let vary = match self.order.rules.ignored.vary {
            true => Vec::new(),
            false => vary_names(
                fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"vary")).map(|(_, value)| value),
            ),
        };
        let mut selected = Vec::new();
        if !vary.is_empty()
            && with_head(&self.order.head, |head| select(head, &vary, &mut selected)).is_none()
        {
            // It may be anybody's variant, so it is nobody's.
            selected = NOBODYS.to_vec();
        }
        let parts = Parts {
            key: self.key(),
            vary: &vary,
            selected: &selected,
            lines: &lines,
            status,
            policy: decision.policy,
        };
        Entry::new(&parts, body)
    }
}
