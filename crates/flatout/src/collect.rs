//! Bodies that are collected after middleware has seen their requests.

use flatout_engine::{BodyFault, BodyStream, Collected};
use flatout_wire::Status;

use crate::Problem;
use crate::middleware::owned::OwnedBody;
use crate::scope::WorkerLocal;

/// Collects a body of at most `bytes_max` bytes, within the server's memory for bodies.
///
/// # Errors
/// The problem that the client gets: the body is too large (413) or cannot be read (400), or there is no memory for it (503).
pub(crate) async fn collect(
    body: BodyStream,
    bytes_max: u64,
    local: &WorkerLocal,
) -> Result<OwnedBody, Problem> {
    let collected = flatout_engine::collect(body, bytes_max, local.lane()).await;
    let Collected { bytes, trailers, memory } = collected.map_err(refused)?;
    Ok(OwnedBody::Whole(bytes, trailers, memory))
}

/// The response to a request whose body cannot be read.
fn refused(fault: BodyFault) -> Problem {
    match fault {
        BodyFault::TooLarge => Problem::new(Status::CONTENT_TOO_LARGE),
        BodyFault::TooSlow => Problem::new(Status::REQUEST_TIMEOUT).detail(fault.to_string()),
        BodyFault::Starved => {
            Problem::new(Status::SERVICE_UNAVAILABLE).detail(fault.to_string()).header("Retry-After", "1")
        }
        fault => Problem::new(Status::BAD_REQUEST).detail(fault.to_string()),
    }
}
