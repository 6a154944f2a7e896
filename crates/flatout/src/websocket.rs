//! WebSockets by a plain function, or by a handler with extractors.

use std::sync::Arc;

use flatout_engine::websocket::{Message, Socket, SocketHandlers, WebSocketPlan, upgrade};
use flatout_engine::{Reply, Response, Worker};
use flatout_wire::Status;
use flatout_wire::websocket::{UpgradeOffer, UpgradeRefusal};

use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::{Context, Extract, Problem, Respond};

type OnOpen = Box<dyn FnOnce(&Socket)>;
type OnClose = Box<dyn FnOnce(&Socket, Option<u16>)>;

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
        match WebSocketUpgrade::extract(context) {
            Err(problem) => problem.respond(response),
            Ok(asked) => {
                let handler = self.handler.clone();
                let handled = move |socket: &Socket, message: Message<'_>| handler(socket, message);
                asked.plan(self.plan).on_message(handled).respond(response);
            }
        }
        Reply::Now
    }
}

/// A request for a WebSocket, as an argument of a handler beside others: the path, the user, the session. The handler's result
/// is what [`on_message`](WebSocketUpgrade::on_message) returns, or a refusal. Other requests get 426.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use flatout::test::{Client, ServerMessage};
/// use flatout::{App, Message, Path, Problem, Respond, SocketSender, State, Status, WebSocketUpgrade};
///
/// /// Everyone in the room, on all workers.
/// type Room = Mutex<Vec<SocketSender>>;
///
/// fn join(
///     Path(name): Path<String>,
///     State(room): State<Room>,
///     asked: WebSocketUpgrade,
/// ) -> Result<impl Respond, Problem> {
///     if name.is_empty() {
///         return Err(Problem::new(Status::FORBIDDEN));
///     }
///     let (joined, left) = (room.clone(), room.clone());
///     Ok(asked
///         .on_open(move |socket| joined.lock().unwrap().push(socket.sender()))
///         .on_close(move |_, _| left.lock().unwrap().retain(SocketSender::is_open))
///         .on_message(move |_, message| {
///             let Message::Text(text) = message else { return };
///             let line = format!("{name}: {text}");
///             room.lock().unwrap().iter().for_each(|member| drop(member.send(Message::Text(&line))));
///         }))
/// }
///
/// let client = Client::over_socket(App::new().state(Room::default()).get("/rooms/{name}", join))?;
/// let mut ann = client.get("/rooms/ann").websocket();
/// ann.send(Message::Text("hello"));
/// assert_eq!(ann.receive(), ServerMessage::Text("ann: hello".to_owned()));
/// # Ok::<(), flatout::Error>(())
/// ```
#[must_use]
pub struct WebSocketUpgrade {
    asked: Result<UpgradeOffer, UpgradeRefusal>,
    worker: Worker,
    plan: WebSocketPlan,
    opened: Option<OnOpen>,
    closed: Option<OnClose>,
}

impl WebSocketUpgrade {
    /// Other limits than those of [`WebSocketPlan::default`].
    ///
    /// ```
    /// use flatout::{App, WebSocketPlan, WebSocketUpgrade};
    ///
    /// let app = App::new().get("/echo", |upgrade: WebSocketUpgrade| {
    ///     upgrade.plan(WebSocketPlan::default()).on_message(|socket, message| socket.send(message))
    /// });
    /// ```
    pub fn plan(mut self, plan: WebSocketPlan) -> WebSocketUpgrade {
        self.plan = plan;
        self
    }

    /// `opened` is called once, before the first message.
    pub fn on_open(mut self, opened: impl FnOnce(&Socket) + 'static) -> WebSocketUpgrade {
        self.opened = Some(Box::new(opened));
        self
    }

    /// `closed` is called once when nothing can be sent any more, whoever ended the connection; with the code that the client
    /// closed it with, if it did. It is not called when the process ends.
    pub fn on_close(mut self, closed: impl FnOnce(&Socket, Option<u16>) + 'static) -> WebSocketUpgrade {
        self.closed = Some(Box::new(closed));
        self
    }

    /// The response: the connection becomes a WebSocket, and `message` is called with each message, on the worker's thread. If
    /// it blocks, it blocks every connection of the worker.
    pub fn on_message(self, message: impl Fn(&Socket, Message<'_>) + 'static) -> UpgradeResponse {
        let mut handlers = SocketHandlers::new(message);
        if let Some(opened) = self.opened {
            handlers = handlers.opened(opened);
        }
        if let Some(closed) = self.closed {
            handlers = handlers.closed(closed);
        }
        UpgradeResponse { asked: self.asked, worker: self.worker, plan: self.plan, handlers }
    }
}

impl Extract for WebSocketUpgrade {
    fn extract(context: &mut Context<'_>) -> Result<WebSocketUpgrade, Problem> {
        let Some(asked) = UpgradeOffer::of(context.head()) else {
            let problem = Problem::new(Status::UPGRADE_REQUIRED).detail("only WebSockets are served here");
            return Err(problem.header("Upgrade", "websocket"));
        };
        let Some(worker) = context.local.worker().cloned() else {
            let detail = "a WebSocket needs a server; see flatout::test::Client::over_socket";
            return Err(Problem::new(Status::NOT_IMPLEMENTED).detail(detail));
        };
        Ok(WebSocketUpgrade { asked, worker, plan: WebSocketPlan::default(), opened: None, closed: None })
    }
}

/// The response that makes a connection a WebSocket: see [`WebSocketUpgrade::on_message`].
///
/// ```
/// use flatout::{App, UpgradeResponse, WebSocketUpgrade};
///
/// fn echo(asked: WebSocketUpgrade) -> UpgradeResponse {
///     asked.on_message(|socket, message| socket.send(message))
/// }
///
/// App::new().get("/echo", echo);
/// ```
#[must_use]
pub struct UpgradeResponse {
    asked: Result<UpgradeOffer, UpgradeRefusal>,
    worker: Worker,
    plan: WebSocketPlan,
    handlers: SocketHandlers,
}

impl Respond for UpgradeResponse {
    fn respond(self, response: &mut Response) {
        upgrade(self.asked, &self.plan, &self.worker, self.handlers, response);
    }
}
