//! How many connections the server may hold.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::server::Processes;
use crate::settings::{Kind, OpenFiles, Process};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The server's limit of open files.
pub(super) struct Descriptors;

const ABOUT: About = About {
    name: "descriptors",
    reason: "a server without free descriptors stops accepting connections",
    detail: "Each connection takes one, and each file that is being sent takes another.",
    source: "Yang Jian 2008; getrlimit(2)",
    scope: Scope::Process,
    risk: Risk::Low,
    lost: "",
    gain_percent: 0.9,
    needs: Needs::AnyPath,
};

impl Tuning for Descriptors {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ok(limit(host, served)?.read(host)?.line())
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let found = Processes::of(host, served);
        let mut changes = Vec::new();
        // Each worker has its own limit.
        for pid in found.workers.iter().take(PROCESSES_MAX) {
            let limit = OpenFiles { process: Process::now(host, *pid)? };
            let now = limit.read(host)?.line();
            let (soft, hard) = now.split_once(':').unwrap_or((&now, ""));
            // Anything but a number is `unlimited`.
            let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
            if number(soft) < FILES_MIN {
                let hard = if number(hard) >= FILES_MIN { hard.to_owned() } else { FILES_MIN.to_string() };
                changes.push(Change::text(limit, format!("{FILES_MIN}:{hard}")));
            }
        }
        let lasting = found.software.files(FILES_MIN).map_or(String::new(), |lasting| format!("; {lasting}"));
        served.pid()?;
        Ok(Advice::change(format!("{FILES_MIN} open files{lasting}"), changes))
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let open = host.list(&format!("/proc/{}/fd", served.pid()?))?.len() as u64;
        Ok(Counter { name: "open files".to_owned(), value: open })
    }
}

/// Processes whose limits are set.
const PROCESSES_MAX: usize = 256;

/// Open files that a busy server needs.
const FILES_MIN: u64 = 65_536;

fn limit(host: &Host, served: &Served) -> Result<OpenFiles, Unknown> {
    Ok(OpenFiles { process: Process::now(host, served.pid()?)? })
}
