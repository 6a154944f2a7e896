//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.

#[path = "chart.rs"]
mod chart;
#[path = "rights.rs"]
mod rights;
