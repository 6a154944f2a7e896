//! Listeners that are inherited from another process, or passed on to one.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use flatout_lane::listener;

use super::bind::options;
use super::{Entry, Inherited, Listeners, Start, address_of, file_id};
use crate::Error;
use crate::plan::{Address, Plan};

impl Listeners {
    /// Takes over a listener of another flatout process.
    pub(super) fn inherit(
        &mut self,
        inherited: Inherited,
        plan: &Plan,
    ) -> Result<(Entry, Vec<OwnedFd>), Error> {
        let refused = |error| Error::System("a socket inherited from the old process".to_owned(), error);
        let Inherited { asked, is_secure, sockets } = inherited;
        let (had, has) = (sockets.len(), self.cpus.len());
        if had != has {
            return Err(Error::Plan(format!(
                "workers: got {has}, but the process to be replaced has {had}; that change needs a restart"
            )));
        }
        let mut bound = Vec::with_capacity(had);
        let mut address = None;
        for socket in sockets {
            let (socket, at) = listener::adopt(socket, &options(&plan.socket)).map_err(refused)?;
            address = Some(address_of(at));
            bound.push(socket);
        }
        let address = address.ok_or_else(|| refused(ErrorKind::InvalidData.into()))?;
        self.is_handed_over |= asked.is_none();
        let file = match &address {
            Address::Unix(path) if asked.is_some() => file_id(path),
            _ => None,
        };
        let id = self.next_id;
        self.next_id += 1;
        // A listener of a plan is altered by `prepare`, which looks for one that is as secure as before.
        let start = match asked {
            Some(_) => Start {
                is_secure,
                proxy_header: crate::plan::ProxyHeader::None,
                passes_tls: false,
                is_internal: false,
                number: 0,
            },
            None => Start::of_handed_over(&address, plan),
        };
        Ok((Entry { id, asked, address, start, file }, bound))
    }

    /// The listeners for a process that is to listen at the same addresses. Internal ones stay with this process.
    ///
    /// # Errors
    /// A worker lacks a socket of a listener: another change is in progress.
    pub(crate) fn inherited(&self, mut workers: Vec<Vec<(u32, OwnedFd)>>) -> Result<Vec<Inherited>, Error> {
        let mut found = Vec::with_capacity(self.entries.len());
        for entry in self.public() {
            let mut sockets = Vec::with_capacity(workers.len());
            for worker in &mut workers {
                let at = worker.iter().position(|(id, _)| *id == entry.id);
                let at = at.ok_or_else(|| {
                    Error::System(format!("the listener {}", entry.address), ErrorKind::ResourceBusy.into())
                })?;
                sockets.push(worker.swap_remove(at).1);
            }
            found.push(Inherited { asked: entry.asked.clone(), is_secure: entry.start.is_secure, sockets });
        }
        Ok(found)
    }

    pub(super) fn adopt(&mut self, socket: OwnedFd, plan: &Plan) -> Result<(Entry, Vec<OwnedFd>), Error> {
        let refused = |error| Error::System("a socket inherited by LISTEN_FDS".to_owned(), error);
        let (socket, address) = listener::adopt(socket, &options(&plan.socket)).map_err(refused)?;
        let address = address_of(address);
        let start = Start::of_handed_over(&address, plan);
        let entry = Entry { id: self.next_id, asked: None, address, start, file: None };
        self.next_id += 1;
        Ok((entry, self.shared(&socket)?))
    }
}
