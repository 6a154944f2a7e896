//! A service that queries its upstream in a future, on the worker's runtime.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use flatout_engine::{Reply, Request, Response, Service, Worker};
use flatout_wire::Status;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{LINE_BYTES_MAX, LINKS_MAX, QUESTION};

struct ByTokio(Rc<Pool>);

struct Pool {
    upstream: SocketAddr,
    idle: RefCell<Vec<TcpStream>>,
}

pub(crate) fn service(_: Worker, upstream: SocketAddr) -> Box<dyn Service> {
    Box::new(ByTokio(Rc::new(Pool { upstream, idle: RefCell::default() })))
}

impl Service for ByTokio {
    fn call(&self, _: Request<'_>, response: &mut Response) -> Reply {
        // Every future holds the pool.
        if Rc::strong_count(&self.0) > LINKS_MAX {
            response.set_status(Status::SERVICE_UNAVAILABLE);
            return Reply::Now;
        }
        let pool = self.0.clone();
        Reply::Later(Box::pin(async move {
            pool.ask().await.unwrap_or_else(|_| Response::with_status(Status::BAD_GATEWAY))
        }))
    }
}

impl Pool {
    async fn ask(&self) -> io::Result<Response> {
        let mut link = self.link().await?;
        link.write_all(QUESTION).await?;
        let mut response = Response::new();
        while !response.buffer().ends_with(b"\n") {
            if link.read_buf(response.buffer()).await? == 0 || response.buffer().len() > LINE_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        self.idle.borrow_mut().push(link);
        response.header("Content-Type", "text/plain");
        Ok(response)
    }

    async fn link(&self) -> io::Result<TcpStream> {
        let idle = self.idle.borrow_mut().pop();
        if let Some(link) = idle {
            return Ok(link);
        }
        let link = TcpStream::connect(self.upstream).await?;
        link.set_nodelay(true)?;
        Ok(link)
    }
}
