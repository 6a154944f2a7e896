//! How the service wants a request's body.
//!
//! The service decides about a request with a body when its head has come; its ticket waits with the body.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::slab::Key;
use flatout_wire::{Framing, Head};

use super::Refusal;
use crate::exchange::{Mail, Mailbox};
use crate::plan::Limits;
use crate::service::{BodyPlan, Prepared, Service};

#[inline(never)]
pub(crate) fn prepare(
    service: &dyn Service,
    limits: &Limits,
    head: &Head<'_>,
    path: &[u8],
    listener: u16,
) -> Result<Prepared, Refusal> {
    let prepared = catch_unwind(AssertUnwindSafe(|| service.prepare(head, path, listener)));
    let prepared = prepared.unwrap_or_else(|_| BodyPlan::Whole { bytes_max: None }.into());
    let bytes_max = match prepared.body {
        BodyPlan::Refused => return Ok(prepared),
        BodyPlan::None => None,
        BodyPlan::Whole { bytes_max } | BodyPlan::Stream { bytes_max } | BodyPlan::Pull { bytes_max } => {
            bytes_max
        }
    };
    let bytes_max = bytes_max.unwrap_or(limits.body_bytes_max);
    match head.framing {
        Framing::Length(length) if length > bytes_max => Err(Refusal::BODY_TOO_LARGE),
        _ => Ok(prepared),
    }
}

/// Asks the worker to read on; a worker that has ended has no such connection.
pub(crate) fn read_on(mailbox: Mailbox, exchange: Key) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || mailbox.post(Mail::ReadOn(exchange)))
}
