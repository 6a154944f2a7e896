//! What a worker runs: one service, whose parts a request passes in turn.
//!
//! ```text
//! begun ──> observer (logs, metrics)
//! call ───> before (challenges of CAs, early data, the redirect to https) ──> a folder, or sites that may be replaced
//! ended ──> observer
//! route_tls ──> sites: who gets a connection whose TLS may not end here
//! ```

use std::net::SocketAddr;
use std::rc::Rc;

use flatout_engine::{Begun, Ended, Prepared, Reply, Request, Response, Service, TlsRoute};
use flatout_observe::observed::Observer;
use flatout_site::TlsDecision;
use flatout_wire::Head;
use flatout_wire::target::PathForm;

use crate::live::LiveService;
use crate::passthrough::{self, PassedConnection};
use crate::secure::Before;

/// The service of a worker.
pub(crate) struct WorkerService {
    /// `None` without logs and metrics.
    pub(crate) observer: Option<Rc<Observer>>,
    /// `None` if it would let every request pass.
    pub(crate) before: Option<Before>,
    pub(crate) site: Site,
}

/// What is served.
pub(crate) enum Site {
    /// Nothing but one folder: it needs no routes.
    Folder(Box<dyn Service>),
    Sites(LiveService),
}

impl Service for WorkerService {
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        match &self.site {
            Site::Folder(folder) => folder.prepare(head, path, listener),
            Site::Sites(sites) => sites.prepare(head, path, listener),
        }
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if let Some(before) = &self.before
            && before.responds(&request, response)
        {
            return Reply::Now;
        }
        match &self.site {
            Site::Folder(folder) => folder.call(request, response),
            Site::Sites(sites) => sites.call(request, response),
        }
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        match &self.site {
            Site::Folder(folder) => folder.believes_proxy(peer, listener),
            Site::Sites(sites) => sites.believes_proxy(peer, listener),
        }
    }

    fn route_tls(&self, name: Option<&str>, peer: Option<SocketAddr>, listener: u16) -> TlsRoute {
        let Site::Sites(sites) = &self.site else { return TlsRoute::Terminate };
        let (decision, proxy_worker) = sites.passthrough(name, peer, listener);
        match decision {
            TlsDecision::Terminate => TlsRoute::Terminate,
            TlsDecision::Refuse { site, logs } => {
                if let Some(observer) = &self.observer {
                    passthrough::note_refused(name, peer, observer, (site, logs));
                }
                TlsRoute::Refuse
            }
            TlsDecision::Pass { site, logs, upstream, ends_tls } => {
                let passed = PassedConnection { proxy_worker, upstream, site, logs };
                match ends_tls {
                    true => passed.route_inside(name, peer, self.observer.clone()),
                    false => passed.route(name, peer, self.observer.clone()),
                }
            }
        }
    }

    fn path_form(&self) -> PathForm {
        match &self.site {
            Site::Folder(folder) => folder.path_form(),
            Site::Sites(sites) => sites.path_form(),
        }
    }

    fn wants_ended(&self) -> bool {
        self.observer.is_some()
    }

    fn wants_begun(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.wants_begun())
    }

    #[inline]
    fn begun(&self, begun: &Begun<'_>) -> u64 {
        let Some(observer) = &self.observer else { return 0 };
        let client = match &self.site {
            Site::Sites(sites) => sites.named_client(begun),
            Site::Folder(_) => None,
        };
        match client {
            Some(_) => observer.begun(&Begun { peer: client, ..*begun }, 0),
            None => observer.begun(begun, 0),
        }
    }

    #[inline]
    fn ended(&self, ended: &Ended) {
        if let Some(observer) = &self.observer {
            observer.ended(ended);
        }
    }
}
