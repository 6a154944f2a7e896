//! WebSockets by a plain function.

use std::sync::Arc;

use flatout_engine::websocket::{Message, Socket, WebSocketPlan, upgrade};
use flatout_engine::{Reply, Response};
use flatout_wire::Status;
use flatout_wire::websocket::UpgradeOffer;

use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::{Context, Problem, Respond};

/// A function that is called with each message.
pub(crate) struct WebSocketEndpoint<H> {
    plan: WebSocketPlan,
    handler: Arc<H>,
}

impl<H> WebSocketEndpoint<H> {
    pub(crate) fn new(plan: WebSocketPlan, handler: H) -> WebSocketEndpoint<H> {
        WebSocketEndpoint { plan, handler: Arc::new(handler) }
    }
}

impl<H> Endpoint for WebSocketEndpoint<H>
where
    H: Fn(&Socket, Message<'_>) + Send + Sync + 'static,
{
    fn body_use(&self) -> BodyUse {
        BodyUse::None
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let Some(asked) = UpgradeOffer::of(context.head()) else {
            Problem::new(Status::UPGRADE_REQUIRED)
                .detail("only WebSockets are served here")
                .respond(response);
            response.header("Upgrade", "websocket");
            return Reply::Now;
        };
        let Some(lane) = context.local.lane() else {
            let detail = "a WebSocket needs a server; see flatout::test::Client::over_socket";
            Problem::new(Status::NOT_IMPLEMENTED).detail(detail).respond(response);
            return Reply::Now;
        };
        let handler = self.handler.clone();
        upgrade(asked, &self.plan, lane, move |socket, message| handler(socket, message), response);
        Reply::Now
    }
}
