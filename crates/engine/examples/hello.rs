//! The engine alone, without the library: one worker that answers everything with the same few bytes.

use flatout_engine::{Plan, Reply, Request, Response, Service, start};

struct Hello;

impl Service for Hello {
    fn call(&self, _request: Request<'_>, response: &mut Response) -> Reply {
        response.header("Content-Type", "text/plain").buffer().extend_from_slice(b"Hello, World!");
        Reply::Now
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let plan = Plan { listen: vec![address.parse()?], workers: Some(1), ..Plan::default() };
    Ok(start(plan, |_| Box::new(Hello))?.run()?)
}
