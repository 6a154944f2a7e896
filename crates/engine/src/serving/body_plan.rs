//! How the service wants a request's body.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flatout_lane::slab::Key;
use flatout_wire::{Framing, Head};

use super::Refusal;
use crate::exchange::{Mail, Mailbox};
use crate::plan::Limits;
use crate::service::{BodyPlan, Service};

#[inline(never)]
pub(crate) fn plan_body(
    service: &dyn Service,
    limits: &Limits,
    head: &Head<'_>,
    path: &[u8],
    listener: u16,
) -> Result<BodyPlan, Refusal> {
    let plan = catch_unwind(AssertUnwindSafe(|| service.body(head, path, listener)));
    let plan = plan.unwrap_or(BodyPlan::Whole { bytes_max: None });
    let bytes_max = match plan {
        BodyPlan::Refused => return Ok(plan),
        BodyPlan::None => None,
        BodyPlan::Whole { bytes_max } | BodyPlan::Stream { bytes_max } | BodyPlan::Pull { bytes_max } => {
            bytes_max
        }
    };
    let bytes_max = bytes_max.unwrap_or(limits.body_bytes_max);
    match head.framing {
        Framing::Length(length) if length > bytes_max => Err(Refusal::BODY_TOO_LARGE),
        _ => Ok(plan),
    }
}

pub(crate) fn length_of(framing: Framing) -> Option<u64> {
    match framing {
        Framing::Length(length) => Some(length),
        Framing::None => Some(0),
        Framing::Chunked => None,
    }
}

/// Asks the worker to read on; a worker that has ended has no such connection.
pub(crate) fn read_on(mailbox: Mailbox, exchange: Key) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || mailbox.post(Mail::ReadOn(exchange)))
}
