//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
//! Those with a program of their own are in `Cargo.toml`.
#![allow(clippy::module_inception, reason = "the attacks of the benchmark are a module of their own")]
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[path = "accel.rs"]
mod accel;
#[path = "addresses.rs"]
mod addresses;
#[path = "attacks.rs"]
mod attacks;
#[path = "bench_figures.rs"]
mod bench_figures;
#[path = "buffering.rs"]
mod buffering;
#[path = "bus.rs"]
mod bus;
#[path = "busy_poll.rs"]
mod busy_poll;
#[path = "cache.rs"]
mod cache;
#[path = "cache_generations.rs"]
mod cache_generations;
#[path = "certificates.rs"]
mod certificates;
#[path = "conditions.rs"]
mod conditions;
mod controller;
mod controller_cluster;
#[path = "cpus.rs"]
mod cpus;
#[path = "crossing.rs"]
mod crossing;
#[path = "data_planes.rs"]
mod data_planes;
#[path = "differential.rs"]
mod differential;
#[path = "ending.rs"]
mod ending;
#[path = "fastcgi.rs"]
mod fastcgi;
#[path = "files.rs"]
mod files;
#[path = "first_minute.rs"]
mod first_minute;
#[path = "gateway_tls.rs"]
mod gateway_tls;
#[path = "grpc.rs"]
mod grpc;
#[path = "help.rs"]
mod help;
#[path = "hostile.rs"]
mod hostile;
#[path = "http2.rs"]
mod http2;
#[path = "import.rs"]
mod import;
#[path = "import_closed.rs"]
mod import_closed;
#[path = "import_logs.rs"]
mod import_logs;
#[path = "import_php.rs"]
mod import_php;
#[path = "import_tls.rs"]
mod import_tls;
#[path = "import_upstream.rs"]
mod import_upstream;
#[path = "library.rs"]
mod library;
#[path = "limit_rate.rs"]
mod limit_rate;
#[path = "live_upstreams.rs"]
mod live_upstreams;
#[path = "map.rs"]
mod map;
#[path = "monitoring.rs"]
mod monitoring;
#[path = "named_servers.rs"]
mod named_servers;
#[path = "names.rs"]
mod names;
#[path = "new_project.rs"]
mod new_project;
#[path = "observe.rs"]
mod observe;
mod operator;
#[path = "outliers.rs"]
mod outliers;
#[path = "package.rs"]
mod package;
#[path = "pages.rs"]
mod pages;
#[path = "php.rs"]
mod php;
#[path = "prerender.rs"]
mod prerender;
#[path = "prerender_cache.rs"]
mod prerender_cache;
#[path = "prerender_changes.rs"]
mod prerender_changes;
#[path = "proxy_protocol.rs"]
mod proxy_protocol;
#[path = "published.rs"]
mod published;
#[path = "push.rs"]
mod push;
#[path = "push_groups.rs"]
mod push_groups;
#[path = "reloading.rs"]
mod reloading;
#[path = "remote.rs"]
mod remote;
#[path = "replaced.rs"]
mod replaced;
#[path = "request_buffering.rs"]
mod request_buffering;
#[path = "request_ids.rs"]
mod request_ids;
#[path = "response_trailers.rs"]
mod response_trailers;
#[path = "route_logs.rs"]
mod route_logs;
#[path = "rules.rs"]
mod rules;
#[path = "scgi_uwsgi.rs"]
mod scgi_uwsgi;
#[path = "screens.rs"]
mod screens;
#[path = "scripts.rs"]
mod scripts;
#[path = "servers_file.rs"]
mod servers_file;
#[path = "services.rs"]
mod services;
#[path = "sites.rs"]
mod sites;
#[path = "stub_status.rs"]
mod stub_status;
#[path = "tls.rs"]
mod tls;
#[path = "tls_passthrough.rs"]
mod tls_passthrough;
#[path = "traffic_split.rs"]
mod traffic_split;
#[path = "tune.rs"]
mod tune;
#[path = "tutorial.rs"]
mod tutorial;
#[path = "upgrade.rs"]
mod upgrade;
#[path = "upgrade_tunnels.rs"]
mod upgrade_tunnels;
#[path = "upstream_dies.rs"]
mod upstream_dies;
#[path = "upstream_figures.rs"]
mod upstream_figures;
#[path = "volume_faults.rs"]
mod volume_faults;
