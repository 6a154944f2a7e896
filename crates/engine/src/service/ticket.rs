//! What a service has decided about a request before its body came.

use std::any::Any;

use super::BodyPlan;

/// How a request goes on whose body follows: the result of [`Service::prepare`](crate::Service::prepare).
#[derive(Debug)]
pub struct Prepared {
    /// How its body is read.
    pub body: BodyPlan,
    /// Comes back with the request; `None` if [`Service::call`](crate::Service::call) needs nothing.
    pub ticket: Option<Ticket>,
}

/// A service's own note about a request, which comes back to it as [`Request::ticket`](crate::Request::ticket). It is
/// dropped with a request that ends before it is passed to the service. Costs one allocation.
#[derive(Debug)]
pub struct Ticket(Box<dyn Any>);

impl Ticket {
    /// A ticket with this value.
    pub fn new<T: 'static>(value: T) -> Ticket {
        Ticket(Box::new(value))
    }

    /// Its value.
    ///
    /// # Errors
    /// The ticket itself, if its value has another type: another service has made it.
    pub fn open<T: 'static>(self) -> Result<Box<T>, Ticket> {
        self.0.downcast().map_err(Ticket)
    }
}

impl From<BodyPlan> for Prepared {
    fn from(body: BodyPlan) -> Prepared {
        Prepared { body, ticket: None }
    }
}
