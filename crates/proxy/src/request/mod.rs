//! A request on its way to an upstream: the job, and the head that is sent.

pub(crate) mod auth_query;
pub(crate) mod cgi;
pub(crate) mod fields;
mod forwarded;
pub(crate) mod head;
pub(crate) mod job;
pub(crate) mod retry;
#[cfg(test)]
mod tests;
pub(crate) mod trailers;
pub(crate) mod upgrade;
