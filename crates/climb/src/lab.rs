//! The lab: two network namespaces joined by a veth pair, which disappear with this process.
//!
//! ```text
//! server's network (this thread, the server, the changes)       client's network (the load generator's thread)
//!        flatout0  198.18.0.1/30  <──────── veth ────────>  198.18.0.2/30  flatout1
//! ```
//!
//! They have no names, so nothing is left behind, however this process ends.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use flatout_lane::namespace::{Network, enter_new};

use crate::command;
use crate::plan::Error;

/// The client's network, and the way back to the host's.
pub(crate) struct Lab {
    host: Network,
    client: Network,
}

/// The server's end. RFC 2544 reserves this range for benchmarks.
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));

/// The server's device.
pub const DEVICE: &str = "flatout0";

/// Time limit for the creation of a device.
const DEVICE_TIME_MAX: Duration = Duration::from_secs(10);

/// Time limit for the plan's command that prepares the lab.
const SETUP_TIME_MAX: Duration = Duration::from_secs(60);

impl Lab {
    /// Creates both networks, moves this thread into the server's, and runs the plan's `setup` there.
    pub(crate) fn new(setup: Option<&str>) -> Result<Lab, Error> {
        let failed = |error| Error::System(format!("cannot make the lab's networks: {error}; it needs root"));
        let host = Network::of_this_thread().map_err(failed)?;
        let client = thread::spawn(|| enter_new().and_then(|()| Network::of_this_thread())).join();
        let client = client.unwrap_or_else(|_| Err(std::io::Error::other("its thread panicked")));
        let lab = Lab { host, client: client.map_err(failed)? };
        enter_new().map_err(failed)?;
        let client = format!("/proc/{}/fd/{}", std::process::id(), lab.client.as_fd().as_raw_fd());
        let ip = |arguments: String| {
            command::succeed(&format!("ip {arguments}"), &[], DEVICE_TIME_MAX)
                .map_err(|error| Error::System(format!("the lab needs `ip` (iproute2) and veth: {error}")))
        };
        ip("link set lo up".to_owned())?;
        ip(format!("link add {DEVICE} type veth peer name flatout1 netns {client}"))?;
        ip(format!("address add {SERVER}/30 dev {DEVICE}"))?;
        ip(format!("link set {DEVICE} up"))?;
        lab.in_client(|| {
            ip("link set lo up".to_owned())?;
            ip("address add 198.18.0.2/30 dev flatout1".to_owned())?;
            ip("link set flatout1 up".to_owned())
        })??;
        if let Some(setup) = setup {
            let environment = [
                ("FLATOUT_DEVICE", DEVICE.to_owned()),
                ("FLATOUT_CLIENT_NETWORK", client),
                ("FLATOUT_PID", std::process::id().to_string()),
            ];
            command::succeed(setup, &environment, SETUP_TIME_MAX)
                .map_err(|error| Error::System(format!("lab-setup: {error}")))?;
        }
        Ok(lab)
    }

    /// The network that requests are sent from.
    pub(crate) fn client(&self) -> &Network {
        &self.client
    }

    /// Runs a function in the client's network.
    pub(crate) fn in_client<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let failed = |error| Error::System(format!("cannot enter the lab's client network: {error}"));
        let entered = thread::scope(|scope| {
            let thread = scope.spawn(|| self.client.enter().map(|()| act()));
            thread.join().unwrap_or_else(|_| Err(std::io::Error::other("its thread panicked")))
        });
        entered.map_err(failed)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The mounts belong to this process and end with it.
        let _ = self.host.enter();
    }
}
