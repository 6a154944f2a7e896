//! `techempower-peers NAME ADDRESS`: TechEmpower's tests by one server of the field, with one worker. The database is
//! `DATABASE_URL`: hyper, axum and actix-web ask it by tokio-postgres, xitca-web by xitca-postgres, all pipelined on one connection.

mod actix;
mod axum;
mod database;
mod fortunes;
mod hyper;
mod may;
mod xitca;

use std::net::SocketAddr;

use database::Database;

/// As in their entries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const HELLO: Hello = Hello { message: "Hello, World!" };
const PLAIN: &str = "Hello, World!";

#[derive(serde::Serialize)]
struct Hello {
    message: &'static str,
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let (name, address) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let address: SocketAddr = address.parse()?;
    match name.as_str() {
        "hyper" => hyper::run(address),
        "axum" => axum::run(address),
        "actix-web" => actix::run(address),
        "xitca-web" => xitca::run(address),
        "may_minihttp" => may::run(address),
        _ => Err(format!("no peer `{name}`").into()),
    }
}

fn current_thread(future: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// From 1 to 500; anything that is not a number is 1.
fn bounded(count: Option<&str>) -> usize {
    count.and_then(|count| count.parse::<i64>().ok()).unwrap_or(1).clamp(1, 500) as usize
}
