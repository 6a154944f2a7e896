//! What proxies are measured in front of: `/N.bin` has N bytes, `/slow` takes its time, and whatever is sent is taken.

use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{Address, Body, BodyPlan, Plan, Reply, Request, Response, Service, start};
use flatout_wire::{Head, Status};

use crate::Failure;

/// The largest body, either way.
const BYTES_MAX: usize = 8 << 20;

/// How long `/slow` takes.
const SLOW: Duration = Duration::from_secs(30);

struct Origin(Bytes);

impl Service for Origin {
    fn body(&self, _: &Head<'_>, _: &[u8]) -> BodyPlan {
        BodyPlan::Whole { bytes_max: Some(BYTES_MAX as u64) }
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if request.path == b"/slow" {
            return Reply::Later(Box::pin(async {
                tokio::time::sleep(SLOW).await;
                Response::with_status(Status::NO_CONTENT)
            }));
        }
        let name = request.path.strip_prefix(b"/").and_then(|path| path.strip_suffix(b".bin"));
        let bytes = name.and_then(|name| std::str::from_utf8(name).ok()?.parse().ok()).unwrap_or(2);
        response.header("Content-Type", "application/octet-stream");
        response.header("Cache-Control", "no-store");
        response.set_body(Body::Shared(self.0.slice(..bytes.min(BYTES_MAX))));
        Reply::Now
    }
}

pub(crate) fn run(addresses: &[&str]) -> Result<(), Failure> {
    let listen = addresses.iter().map(|address| address.parse()).collect::<Result<Vec<Address>, _>>()?;
    let plan = Plan { listen, workers: Some(1), ..Plan::default() };
    let bytes = Bytes::from(vec![b'x'; BYTES_MAX]);
    Ok(start(plan, move |_| Box::new(Origin(bytes.clone())))?.run()?)
}
