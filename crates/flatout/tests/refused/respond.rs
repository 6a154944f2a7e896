//! A response of a pair whose second is none.
use flatout::{Respond, Status};

struct Report;

fn respond(_: impl Respond) {}

fn main() {
    respond((Status::OK, Report));
}
