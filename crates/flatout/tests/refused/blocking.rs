//! A blocking handler whose argument cannot be sent to a thread.
use std::rc::Rc;

use flatout::{App, Local, blocking};

fn handler(Local(_): Local<Rc<u8>>) -> &'static str {
    "never"
}

fn main() {
    App::new().get("/", blocking(handler));
}
