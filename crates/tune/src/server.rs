//! Recognises the server software, so that advice can name its own settings.

use crate::host::Host;
use crate::served::Served;

/// Known server software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Software {
    Nginx,
    Haproxy,
    Gunicorn,
    Node,
    Java,
    Flatout,
    /// Unknown.
    Other,
}

/// The server's processes by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Processes {
    pub(crate) software: Software,
    /// Processes that serve, without a master that only holds the sockets.
    pub(crate) workers: Vec<u32>,
}

impl Processes {
    /// The processes of this server.
    pub(crate) fn of(host: &Host, served: &Served) -> Processes {
        let pids = served.pids().unwrap_or_default();
        let name = |pid: u32| host.text(&format!("/proc/{pid}/comm")).unwrap_or_default();
        let parent = |pid: u32| {
            let status = host.text(&format!("/proc/{pid}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
        };
        let parents: Vec<Option<u32>> = pids.iter().map(|pid| parent(*pid)).collect();
        let software =
            pids.first().map_or(Software::Other, |pid| Software::of(&name(*pid), &arguments(host, *pid)));
        // A master is the parent of others that hold the same sockets.
        let is_master = |pid: &u32| software.has_master() && parents.contains(&Some(*pid));
        let workers: Vec<u32> = pids.iter().copied().filter(|pid| !is_master(pid)).collect();
        Processes { software, workers: if workers.is_empty() { pids.to_vec() } else { workers } }
    }
}

impl Software {
    fn of(name: &str, arguments: &str) -> Software {
        match name {
            "nginx" => Software::Nginx,
            "haproxy" => Software::Haproxy,
            "node" | "MainThread" => Software::Node,
            "java" => Software::Java,
            "flatout" => Software::Flatout,
            name if name.starts_with("gunicorn") || arguments.contains("gunicorn") => Software::Gunicorn,
            _ => Software::Other,
        }
    }

    fn has_master(self) -> bool {
        matches!(self, Software::Nginx | Software::Haproxy | Software::Gunicorn | Software::Node)
    }

    /// How to configure this many workers.
    pub(crate) fn workers(self, count: usize) -> String {
        match self {
            Software::Nginx => "worker_processes auto; in nginx.conf".to_owned(),
            Software::Haproxy => format!("nbthread {count} in section global of haproxy.cfg"),
            Software::Gunicorn => format!("gunicorn --workers {}", 2 * count + 1),
            Software::Node => format!("{count} processes: node:cluster, or pm2 start -i {count}"),
            Software::Java => format!("a pool of at least {count} threads: see the server's own setting"),
            Software::Flatout => format!("start it with {count} workers (flatout serve --workers {count})"),
            Software::Other => format!("start it with {count} workers"),
        }
    }

    /// How to configure the CPUs that it runs on.
    pub(crate) fn on_cpus(self, cpus: &[usize]) -> String {
        let (list, count) = (crate::cpus::list(cpus), cpus.len());
        match self {
            Software::Nginx => {
                format!("worker_processes {count}; and worker_cpu_affinity for CPUs {list} in nginx.conf")
            }
            Software::Haproxy => format!("cpu-map 1/all {list} in section global of haproxy.cfg"),
            Software::Flatout => format!("flatout serve --cpus {list}"),
            Software::Gunicorn | Software::Node | Software::Java | Software::Other => {
                format!("AllowedCPUs={list} of its unit, or taskset --cpu-list {list}")
            }
        }
    }

    /// The setting for its accept backlog.
    pub(crate) fn backlog(self) -> Option<&'static str> {
        match self {
            Software::Nginx => Some("in nginx.conf: listen … backlog=4096 reuseport;"),
            Software::Haproxy => Some("in haproxy.cfg: backlog 4096, in the frontend"),
            Software::Gunicorn => Some("gunicorn --backlog 4096"),
            Software::Node => Some("server.listen({ port, backlog: 4096 })"),
            Software::Java | Software::Flatout | Software::Other => None,
        }
    }

    /// How to raise its limit of open files permanently.
    pub(crate) fn files(self, count: u64) -> Option<String> {
        match self {
            Software::Nginx => Some(format!("to make it last: worker_rlimit_nofile {count}; in nginx.conf")),
            Software::Haproxy => {
                Some(format!("to make it last: ulimit-n {count} in section global of haproxy.cfg"))
            }
            _ => None,
        }
    }
}

fn arguments(host: &Host, pid: u32) -> String {
    host.text(&format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::served::ServerSelector;

    #[test]
    fn a_master_is_no_worker() {
        let fake = Fake::with(&[(
            "/proc/net/tcp",
            "sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode\n\
             0: 00000000:0050 00000000:0000 0A 0:0 0:0 0 0 0 77\n",
        )]);
        for (pid, parent) in [(10, 1), (11, 10), (12, 10), (13, 10)] {
            fake.file(&format!("/proc/{pid}/comm"), "nginx\n");
            fake.file(&format!("/proc/{pid}/status"), format!("Name:\tnginx\nPPid:\t{parent}\n"));
            fake.link(&format!("/proc/{pid}/fd/6"), "socket:[77]");
        }
        let host = fake.host();
        let served =
            Served::find(&host, &ServerSelector { port: Some(80), ..ServerSelector::default() }).unwrap();
        let found = Processes::of(&host, &served);
        assert_eq!(found, Processes { software: Software::Nginx, workers: vec![11, 12, 13] });
    }

    #[test]
    fn servers_are_known_by_their_names() {
        assert_eq!(Software::of("python3", "/usr/bin/python3 /usr/bin/gunicorn app:app"), Software::Gunicorn);
        assert_eq!(Software::of("java", ""), Software::Java);
        assert_eq!(Software::of("httpd", ""), Software::Other);
    }
}
