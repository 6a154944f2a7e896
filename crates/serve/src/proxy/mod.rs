//! The reverse proxy: requests go to upstream servers over connections in the worker's own lane.

mod plan;

pub use plan::{Active, Address, Balance, Forward, Host, Key, Passive, ProxyProtocol, Server, Tls, Upstream};
