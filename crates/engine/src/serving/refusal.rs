//! Responses to requests that are refused before the service is called.

use flatout_wire::Status;

use super::Refusal;
use crate::service::Response;

pub(crate) const BAD_PATH: Refusal = Refusal { status: Status::BAD_REQUEST, reason: "the path is malformed" };

/// The response to a request that is refused.
pub(crate) fn refused(refusal: Refusal) -> Response {
    let mut response = Response::with_status(refusal.status);
    response.header("Content-Type", "text/plain; charset=utf-8");
    if refusal.status == Status::SERVICE_UNAVAILABLE {
        response.header("Retry-After", "1");
    }
    response.buffer().extend_from_slice(refusal.reason.as_bytes());
    response.buffer().push(b'\n');
    response
}
