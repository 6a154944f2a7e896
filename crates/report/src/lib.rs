//! Results as people and programs read them: terminal, JSON, HTML. It cannot run anything.
#![forbid(unsafe_code)]

pub mod flame;
