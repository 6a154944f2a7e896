//! HTTP/2 upstreams and clients, using another implementation.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use bytes::Bytes;
use flatout_proxy::{Protocol, Upstream};
use h2::client::SendRequest;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// A request that an upstream received.
pub(crate) struct ReceivedRequest {
    pub(crate) request: Request<RecvStream>,
    pub(crate) respond: SendResponse<Bytes>,
    /// Numbers of earlier connections and requests.
    pub(crate) connection: usize,
    pub(crate) number: usize,
}

/// An HTTP/2 upstream.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Served {
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// An upstream with this server alone.
    pub(crate) fn upstream(&self) -> Upstream {
        h2c(self.address)
    }
}

pub(crate) fn h2c(address: SocketAddr) -> Upstream {
    Upstream { protocol: Protocol::H2c { streams_max: Protocol::STREAMS_MAX }, ..super::one(address) }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// An upstream that calls `serve` for each request. It sends GOAWAY after this many requests of a connection.
pub(crate) fn serving<F: Future<Output = ()> + 'static>(
    builder: Builder,
    goodbye_after: Option<usize>,
    serve: impl Fn(ReceivedRequest) -> F + Send + 'static,
) -> Served {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let (sender, bound) = channel();
    std::thread::spawn(move || {
        LocalSet::new().block_on(&runtime(), async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let serve = std::rc::Rc::new(serve);
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let connection = counted.fetch_add(1, Ordering::SeqCst);
                let (builder, serve) = (builder.clone(), serve.clone());
                tokio::task::spawn_local(async move {
                    let Ok(mut machine) = builder.handshake(socket).await else { return };
                    let mut number = 0;
                    while let Some(Ok((request, respond))) = machine.accept().await {
                        tokio::task::spawn_local(serve(ReceivedRequest {
                            request,
                            respond,
                            connection,
                            number,
                        }));
                        number += 1;
                        if goodbye_after == Some(number) {
                            machine.graceful_shutdown();
                        }
                    }
                });
            }
        });
    });
    Served { address: bound.recv().unwrap(), connections }
}

/// The response as a client received it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    /// The response was cut.
    pub(crate) is_cut: bool,
}

/// Runs a client over one connection to `address`.
pub(crate) fn client<T>(address: SocketAddr, act: impl AsyncFnOnce(SendRequest<Bytes>) -> T) -> T {
    LocalSet::new().block_on(&runtime(), async move {
        let socket = TcpStream::connect(address).await.unwrap();
        let mut builder = h2::client::Builder::new();
        // Without this it would take many small unread frames for an attack.
        builder.data_frame_budget(1 << 30);
        let (send, connection) = builder.initial_window_size(1 << 20).handshake(socket).await.unwrap();
        let task = tokio::task::spawn_local(connection);
        let got = act(send).await;
        task.abort();
        got
    })
}

pub(crate) fn request(method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://t{path}")).body(()).unwrap()
}

/// Sends a request, with content if there is some.
pub(crate) async fn ask(send: &SendRequest<Bytes>, request: Request<()>, body: Option<Vec<u8>>) -> Got {
    let mut send = send.clone().ready().await.unwrap();
    let (response, mut stream) = send.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        stream.send_data(body.into(), true).unwrap();
    }
    match response.await {
        Ok(response) => read(response).await,
        Err(error) => panic!("no response: {error}"),
    }
}

/// Reads a response.
pub(crate) async fn read(response: Response<RecvStream>) -> Got {
    let (parts, mut content) = response.into_parts();
    let mut got = Got { status: parts.status.as_u16(), fields: parts.headers, ..Got::default() };
    match read_content(&mut content).await {
        Some((body, trailers)) => (got.body, got.trailers) = (body, trailers),
        None => got.is_cut = true,
    }
    got
}

/// Reads content and trailers; `None` if the response was cut.
pub(crate) async fn read_content(content: &mut RecvStream) -> Option<(Vec<u8>, Option<HeaderMap>)> {
    let mut body = Vec::new();
    while let Some(piece) = content.data().await {
        let piece = piece.ok()?;
        content.flow_control().release_capacity(piece.len()).unwrap();
        body.extend_from_slice(&piece);
    }
    Some((body, content.trailers().await.ok()?))
}

/// Responds with this content.
pub(crate) fn respond(asked: &mut SendResponse<Bytes>, status: u16, body: impl Into<Bytes>) {
    let body = body.into();
    let response = Response::builder().status(status).body(()).unwrap();
    if let Ok(mut stream) = asked.send_response(response, body.is_empty())
        && !body.is_empty()
    {
        let _ = stream.send_data(body, true);
    }
}

/// Sends the head of a response, and returns a sender for its content.
pub(crate) fn begin(asked: &mut SendResponse<Bytes>, response: Response<()>) -> SendStream<Bytes> {
    asked.send_response(response, false).unwrap()
}
