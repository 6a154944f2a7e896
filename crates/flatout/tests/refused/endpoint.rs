//! A type that is no endpoint.
use flatout::Endpoint;

struct Report;

fn takes<T: Endpoint>() {}

fn main() {
    takes::<Report>();
}
