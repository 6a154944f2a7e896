//! Responses to requests whose bodies cannot be collected.

use flatout_engine::BodyFault;
use flatout_wire::Status;

use crate::Problem;

/// The problem that the client gets: the body is too large (413), too slow (408) or cannot be read (400), or there is no memory
/// for it (503).
pub(crate) fn refused(fault: BodyFault) -> Problem {
    match fault {
        BodyFault::TooLarge => Problem::new(Status::CONTENT_TOO_LARGE),
        BodyFault::TooSlow => Problem::new(Status::REQUEST_TIMEOUT).detail(fault.to_string()),
        BodyFault::Starved => {
            Problem::new(Status::SERVICE_UNAVAILABLE).detail(fault.to_string()).header("Retry-After", "1")
        }
        fault => Problem::new(Status::BAD_REQUEST).detail(fault.to_string()),
    }
}
