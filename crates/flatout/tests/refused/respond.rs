//! A pair whose second member is not a response.
use flatout::{Respond, Status};

struct Report;

fn respond(_: impl Respond) {}

fn main() {
    respond((Status::OK, Report));
}
