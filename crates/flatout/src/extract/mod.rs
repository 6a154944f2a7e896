//! What a handler may take as an argument.

mod body;
mod client;
mod extension;
mod form;
mod hints;
mod param;
mod parts;
mod query;
mod target;

use crate::{Context, Problem};

pub use body::{Json, Streamed};
pub use client::ClientIp;
pub(crate) use client::Network;
pub use extension::Extension;
pub use form::Form;
pub use hints::EarlyHints;
pub use param::Path;
pub(crate) use parts::header_map;
pub use parts::{Headers, Local, Peer, Shutdown, State};
pub use query::Query;
pub use target::Host;

/// An argument of a handler, made from its request.
pub trait Extract: Sized {
    /// How it needs the body to be read. Of several arguments of one handler, one may have it.
    const BODY: BodyUse = BodyUse::None;

    /// Makes it.
    ///
    /// # Errors
    /// The problem that the client is answered with instead.
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem>;
}

/// How an extractor needs the body to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyUse {
    /// Not at all: what comes is skipped.
    None,
    /// Whole, before the handler is called.
    Whole,
    /// While the handler runs.
    Stream,
}

/// `None` where the argument could not be made.
impl<T: Extract> Extract for Option<T> {
    const BODY: BodyUse = T::BODY;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(T::extract(context).ok())
    }
}

/// Leaves it to the handler to answer what could not be made.
impl<T: Extract> Extract for Result<T, Problem> {
    const BODY: BodyUse = T::BODY;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(T::extract(context))
    }
}
