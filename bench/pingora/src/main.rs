//! `pingora-peer ADDRESS UPSTREAM` passes all requests on, on one thread; UPSTREAM is an address or `unix:PATH`.

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

struct Pass(String);

#[async_trait]
impl ProxyHttp for Pass {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        let peer = match self.0.strip_prefix("unix:") {
            Some(path) => HttpPeer::new_uds(path, false, String::new())?,
            None => HttpPeer::new(self.0.as_str(), false, String::new()),
        };
        Ok(Box::new(peer))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, upstream] = &arguments[..] else { panic!("usage: pingora-peer ADDRESS UPSTREAM") };
    let conf = ServerConf { threads: 1, upstream_keepalive_pool_size: 1000, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Pass(upstream.clone()));
    service.add_tcp(address);
    server.add_service(service);
    server.run_forever();
}
