//! A type that is not an endpoint.
use flatout::Endpoint;

struct Report;

fn takes<T: Endpoint>() {}

fn main() {
    takes::<Report>();
}
