//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[path = "bodies.rs"]
mod bodies;
#[path = "cache.rs"]
mod cache;
#[path = "cache_disk.rs"]
mod cache_disk;
#[path = "cache_forms.rs"]
mod cache_forms;
#[path = "cache_hostile.rs"]
mod cache_hostile;
#[path = "compress.rs"]
mod compress;
#[path = "early_responses.rs"]
mod early_responses;
#[path = "endings.rs"]
mod endings;
#[path = "endings_h2.rs"]
mod endings_h2;
#[path = "expect.rs"]
mod expect;
#[path = "h2_upstream.rs"]
mod h2_upstream;
#[path = "h2_upstream_faults.rs"]
mod h2_upstream_faults;
#[path = "h2_websockets.rs"]
mod h2_websockets;
#[path = "limits.rs"]
mod limits;
#[path = "live_servers.rs"]
mod live_servers;
#[path = "next_server.rs"]
mod next_server;
#[path = "proxy.rs"]
mod proxy;
#[path = "push.rs"]
mod push;
#[path = "push_h2.rs"]
mod push_h2;
#[path = "secure.rs"]
mod secure;
#[path = "sites.rs"]
mod sites;
#[path = "slices.rs"]
mod slices;
#[path = "smuggling.rs"]
mod smuggling;
#[path = "smuggling_h2.rs"]
mod smuggling_h2;
#[path = "spool.rs"]
mod spool;
#[path = "unwanted.rs"]
mod unwanted;
#[path = "upstreams.rs"]
mod upstreams;
#[path = "waiting.rs"]
mod waiting;
