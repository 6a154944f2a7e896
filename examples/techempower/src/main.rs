//! `techempower [--listen ADDR] [--workers N]`; the database is `DATABASE_URL`, and without it there are JSON and plaintext.

use std::process::ExitCode;

use flatout::Error;

/// As the entries that it is measured against.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let settings = match std::env::var("DATABASE_URL").ok().map(|url| url.parse()).transpose() {
        Ok(settings) => settings,
        Err(error) => return flatout::exit(Err(Error::Usage(format!("DATABASE_URL: {error}")))),
    };
    flatout::exit(techempower::app(settings).listen("127.0.0.1:8080").arguments().run())
}
