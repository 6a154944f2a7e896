//! Sites: which site, which route and which rules answer a request.

mod fault;
mod forward;
pub mod plan;

pub use fault::{Fault, Place};
pub use forward::{Client, Edits, Finish, Forwarded, Forwarding, MadeBy, Opinion, Question};
pub use plan::Plan;
