//! Which server gets a request.

pub(crate) mod balance;
pub(crate) mod budget;
pub(crate) mod moving_time;
pub(crate) mod outliers;
pub(crate) mod sticky;
pub(crate) mod tally;
