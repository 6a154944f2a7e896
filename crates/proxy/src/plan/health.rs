//! When a server is considered down, or pauses.

use std::time::Duration;

/// Passive health checks: when a server is considered down because of its responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passive {
    /// Failures within `window` after which it is down; 0 never.
    pub failures_max: u32,
    /// The time in which failures are counted.
    pub window: Duration,
    /// How long it stays down before one request tries it again.
    pub down_time: Duration,
}

/// When a server pauses because it stands out from its siblings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outliers {
    /// The time in which servers are compared.
    pub interval: Duration,
    /// Requests in it that a server and its siblings need to be compared.
    pub requests_min: u64,
    /// How many times as slow a server has to be; `None` compares only errors.
    pub slow_times: Option<f64>,
    /// The first pause; each further one in a row is twice as long.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Default for Outliers {
    fn default() -> Outliers {
        Outliers {
            interval: Duration::from_secs(10),
            requests_min: 50,
            slow_times: Some(3.0),
            pause: Duration::from_secs(30),
            pause_max: Duration::from_secs(300),
        }
    }
}

/// Active health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// What is checked.
    pub check: HealthCheck,
    /// The time between checks.
    pub interval: Duration,
    /// How long a response may take.
    pub time_max: Duration,
    /// Good responses in a row after which a server is up.
    pub rise: u32,
    /// Bad responses in a row after which it is down.
    pub fall: u32,
}

/// What a health check looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthCheck {
    /// The response to a GET.
    Http {
        /// The target of the request.
        path: String,
        /// The statuses of good responses.
        statuses: Vec<std::ops::RangeInclusive<u16>>,
        /// A text that the body of a good response has in its first 64 KiB; empty: any body.
        body: String,
    },
    /// A connection can be opened, with TLS if the server has it.
    Tcp,
    /// The standard service of gRPC, `grpc.health.v1.Health`.
    Grpc {
        /// The service that it is asked about; empty: the server as a whole.
        service: String,
    },
}

impl HealthCheck {
    /// A GET of this path, whose response has one of these statuses.
    pub fn http(path: &str, statuses: std::ops::RangeInclusive<u16>) -> HealthCheck {
        HealthCheck::Http { path: path.to_owned(), statuses: vec![statuses], body: String::new() }
    }
}
