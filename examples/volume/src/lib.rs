//! Three services on one volume, as a cluster has it over NFS: a writer that takes uploads, a transformer that makes JSON of tables,
//! and `flatout serve`, which serves what was made.
//!
//! ```text
//! client ── PUT, tus ──> writer ──> inbox/ ──> transformer ──> public/ ──> flatout serve ──> client
//!                          │ parts    table.csv    │ work/OWNER/    table.csv.json
//!                          └ uploads/              └ done/, failed/
//! ```
//!
//! The volume is the queue: where a file is says what happens to it next. A file gets its name only when it is complete and on
//! disk ([`store::Part::publish`]), by a rename inside the volume, which is atomic over NFS too. So whoever reads a folder sees
//! complete files only, and a process that is killed at any step loses nothing.
#![forbid(unsafe_code)]

pub mod name;
pub mod queue;
pub mod store;
pub mod table;
pub mod transformer;
pub mod tus;
pub mod writer;
