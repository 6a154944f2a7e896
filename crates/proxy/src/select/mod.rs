//! Which server gets a request.

pub(crate) mod balance;
pub(crate) mod budget;
pub(crate) mod sticky;
