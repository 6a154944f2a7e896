//! Metrics of the engine and of the process.

use flatout_engine::{Handle, State};

use super::{Family, Kind, Process, Source, Value};

/// Reports what the engine and the kernel know of a server.
pub struct ServerSource {
    handle: Handle,
    /// The name of its workers' threads.
    thread_name: String,
}

impl ServerSource {
    /// Reports this server, whose workers' threads have this name.
    pub fn new(handle: Handle, thread_name: &str) -> ServerSource {
        ServerSource { handle, thread_name: thread_name.to_owned() }
    }
}

impl Source for ServerSource {
    fn collect(&self, into: &mut Vec<Family>) {
        let mut states =
            Family::new("flatout_connections", Kind::Gauge, "Open connections by state, a few seconds ago");
        let mut accepted = Family::new("flatout_connections_accepted", Kind::Counter, "Accepted connections");
        let mut refused = Family::new(
            "flatout_proxy_headers_refused",
            Kind::Counter,
            "Connections that were closed because of their PROXY protocol headers",
        );
        let mut memory = Family::new(
            "flatout_worker_memory_bytes",
            Kind::Gauge,
            "Memory of a worker's connection table and buffers",
        );
        for (index, worker) in self.handle.figures_of_workers().iter().enumerate() {
            let index = index.to_string();
            for (state, count) in State::ALL.iter().zip(worker.states) {
                states.add(&[("worker", &index), ("state", state.name())], Value::Count(count as u64));
            }
            states.add(&[("worker", &index), ("state", "taken")], Value::Count(worker.taken as u64));
            accepted.add(&[("worker", &index)], Value::Count(worker.figures.accepted));
            refused.add(&[("worker", &index)], Value::Count(worker.figures.proxy_refused));
            memory.add(&[("worker", &index)], Value::Count(worker.memory_bytes as u64));
        }
        let process = Process::read();
        let mut cpu =
            Family::new("flatout_worker_cpu_seconds", Kind::Counter, "CPU time of a worker's thread");
        for (index, cpu_ns) in process.workers(&self.thread_name) {
            cpu.add(&[("worker", &index.to_string())], Value::Number(cpu_ns as f64 / 1e9));
        }
        let cpu_ns: u64 = process.threads.iter().map(|thread| thread.cpu_ns).sum();
        into.extend([states, accepted, refused, memory, cpu]);
        into.extend([
            Family::new("process_cpu_seconds", Kind::Counter, "CPU time of all running threads")
                .with(&[], Value::Number(cpu_ns as f64 / 1e9)),
            Family::gauge("process_resident_memory_bytes", "Memory of the process", process.resident_bytes),
            Family::gauge("process_open_fds", "Open descriptors", process.descriptors),
            Family::gauge("process_max_fds", "Limit of open file descriptors", process.descriptors_max),
            Family::counter(
                "flatout_bugs",
                "Impossible states that flatout found in itself; the log says where",
                flatout_engine::bugs_total(),
            ),
        ]);
    }
}
