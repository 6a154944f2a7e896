//! Channels whose messages are pushed to many: the module of `flatout serve`, for programs that publish themselves.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use flatout_engine::{Reply, Request, RequestBody, Response};
use flatout_gateway::{Finish, ResponseOrigin};
use flatout_push::{Hub, Limits, Who, WorkerChannels};
use flatout_wire::Status;

pub use flatout_push::{History, Kind, Plan, Publication, Refused};

use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::ready::SpareId;
use crate::{Context, Problem, Respond};

/// Channels, for [`App::push`](crate::App::push), and publishing to them from any thread. Clones share the same
/// channels.
///
/// ```
/// use flatout::push::{History, Plan, Publisher};
/// use flatout::{App, test::Client};
///
/// let plan = Plan { history: History { count: 10, ..History::default() }, ..Plan::default() };
/// let publisher = Publisher::with(plan);
/// let client = Client::over_socket(App::new().push("/live/{channel}", &publisher))?;
/// let first = publisher.publish("NBA.1234", "12:10")?;
/// publisher.publish("NBA.1234", "13:10")?;
/// // A subscriber that comes back gets what it has missed.
/// let missed = client.get("/live/NBA.1234").header("Last-Event-ID", &first).events(1);
/// assert_eq!(missed[0].data, "13:10");
/// println!("{} subscribers", publisher.subscribers("NBA.1234"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Publisher {
    hub: Hub,
    plan: Arc<Plan>,
}

impl Publisher {
    /// Channels as they are by default: logs that keep a hundred messages for five minutes.
    pub fn new() -> Publisher {
        Publisher::with(Plan::default())
    }

    /// Channels with their own settings. The prefix follows from the route.
    pub fn with(plan: Plan) -> Publisher {
        Publisher { hub: Hub::new(Limits::default()), plan: Arc::new(plan) }
    }

    /// Publishes a message, text or a [`Publication`], and returns its id. Never waits for subscribers: costs a lock, and a system
    /// call for each worker that has some and has not been woken yet.
    ///
    /// # Errors
    /// See [`Refused`]. Nothing was published.
    pub fn publish(&self, channel: &str, message: impl Into<Publication>) -> Result<String, Refused> {
        self.hub.publish(channel, message, &self.plan)
    }

    #[cfg(feature = "admin")]
    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// How many subscribers a channel has.
    pub fn subscribers(&self, channel: &str) -> u32 {
        self.hub.subscribers(&self.plan.group, channel)
    }
}

impl Default for Publisher {
    fn default() -> Publisher {
        Publisher::new()
    }
}

/// A route with channels.
pub(crate) struct PushEndpoint {
    publisher: Publisher,
    /// With the prefix of the paths, which is known once this is nested.
    plan: OnceLock<Arc<Plan>>,
    /// Of each worker's channels.
    id: SpareId,
}

impl PushEndpoint {
    pub(crate) fn new(publisher: &Publisher) -> PushEndpoint {
        PushEndpoint { publisher: publisher.clone(), plan: OnceLock::new(), id: SpareId::new() }
    }
}

/// Responses that come later are as they are.
struct AsItIs;

impl Finish for AsItIs {
    fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
}

impl Endpoint for PushEndpoint {
    fn body_use(&self) -> BodyUse {
        BodyUse::Whole
    }

    fn placed(&self, pattern: &str) {
        let prefix = pattern.split('{').next().unwrap_or(pattern).to_owned();
        let _ = self.plan.set(Arc::new(Plan { prefix, ..Plan::clone(&self.publisher.plan) }));
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let (Some(plan), Some(lane)) = (self.plan.get(), context.local.lane().cloned()) else {
            let detail = "channels need a server; see flatout::test::Client::over_socket";
            Problem::new(Status::NOT_IMPLEMENTED).detail(detail).respond(response);
            return Reply::Now;
        };
        let made = || WorkerChannels::new(&self.publisher.hub, &lane);
        let worker_channels: Rc<Rc<WorkerChannels>> = context.local.spares.keep(self.id, made);
        let detached = Request::detached(*context.head(), context.path().as_bytes(), RequestBody::NONE);
        let request = std::mem::replace(&mut context.request, detached);
        let who = Who { address: request.peer.map(|peer| peer.ip().to_canonical()) };
        worker_channels.call(&request, plan, who, Rc::new(AsItIs), response)
    }
}
