//! `techempower-peers NAME ADDRESS`: TechEmpower's tests by one server of the field, with one worker. The database is
//! `DATABASE_URL`. All that have database tests use tokio-postgres, pipelined on one connection, as their entries do.

mod actix;
mod axum;
mod database;
mod hyper;
mod others;

use std::net::SocketAddr;

use database::Database;

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
        "xitca-web" => others::xitca(address),
        "may_minihttp" => others::may(address),
        _ => Err(format!("no peer `{name}`").into()),
    }
}

fn current_thread(future: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// From 1 to 500; what is no number is 1.
fn bounded(count: Option<&str>) -> usize {
    count.and_then(|count| count.parse::<i64>().ok()).unwrap_or(1).clamp(1, 500) as usize
}
