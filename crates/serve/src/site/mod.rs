//! Sites: which site, which route and which rules answer a request.

pub mod plan;

pub use plan::Plan;
