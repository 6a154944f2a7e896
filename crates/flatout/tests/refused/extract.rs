//! A type that is `Extract` of something that is not.
use flatout::{Extract, State};

struct Session;

fn takes<T: Extract>() {}

fn main() {
    takes::<State<u8>>();
    takes::<Option<Session>>();
    takes::<Session>();
}
