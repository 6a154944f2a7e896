//! Explains where a request would go, and why, with the code that a server uses to decide it.

use std::borrow::Cow;
use std::net::SocketAddr;

use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::forward_path;

use super::compiled::Compiled;
use super::fault::Fault;
use super::plan::Plan;
use super::settle::Nowhere;

/// A hypothetical request.
#[derive(Debug, Clone)]
pub struct Question {
    /// The method.
    pub method: String,
    /// The host, with a port if needed.
    pub host: String,
    /// Path and query, as a client would send them.
    pub target: String,
    /// Fields besides `Host`.
    pub fields: Vec<(String, String)>,
    /// The peer of the connection.
    pub peer: Option<SocketAddr>,
}

/// Where the request would go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The index of the site.
    pub site: Option<usize>,
    /// The index of the route in the site, or why there is none.
    pub route: Result<usize, Refused>,
    /// The path in its normal form, after all rewrites.
    pub path: String,
    /// The target that an upstream would get.
    pub target: String,
    /// The client's address, according to trusted proxies.
    pub client: Option<std::net::IpAddr>,
}

/// Why no route matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The status of the response.
    pub status: u16,
    /// The reason, in a few words.
    pub reason: String,
}

impl Refused {
    fn of(status: u16, reason: impl Into<String>) -> Refused {
        Refused { status, reason: reason.into() }
    }
}

/// Decides where a request would go.
///
/// # Errors
/// The first error in the plan.
pub fn explain(plan: &Plan, question: &Question) -> Result<Explained, Fault> {
    let compiled = Compiled::new(plan)?;
    Ok(compiled.explain(question))
}

impl Compiled {
    fn explain(&self, question: &Question) -> Explained {
        let Question { method, host, target, fields, peer } = question;
        let fields = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let bytes =
            format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{}\r\n", fields.collect::<String>());
        let mut spans = Vec::new();
        let nowhere = |refused| Explained {
            site: None,
            route: Err(refused),
            path: String::new(),
            target: target.clone(),
            client: None,
        };
        let head = match parse(bytes.as_bytes(), &mut spans, &HeadLimits::default()) {
            Ok(Some(head)) => head,
            Ok(None) => return nowhere(Refused::of(400, "it is not a complete request")),
            Err(fault) => return nowhere(Refused::of(fault.status().code(), fault.reason())),
        };
        let mut scratch = Vec::new();
        let path = match head.path() {
            b"*" => head.path(),
            path => match forward_path(path, &mut scratch) {
                Ok(path) => path,
                Err(_) => return nowhere(Refused::of(400, "the path is malformed")),
            },
        };
        let settled = self.settle(&head, path, *peer, false);
        let text = |bytes: Cow<'_, [u8]>| String::from_utf8_lossy(&bytes).into_owned();
        Explained {
            site: settled.site,
            route: match &settled.route {
                Ok(route) => Ok(*route),
                Err(nowhere) => Err(Refused::of(nowhere.status().code(), nowhere.words())),
            },
            path: text(settled.goal.path.clone()),
            target: text(settled.target(&head)),
            client: settled.client.address,
        }
    }
}

impl Nowhere {
    fn words(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Nowhere::NoSite => "there is no site for this host",
            Nowhere::NoRoute => "no route matches this path",
            Nowhere::WrongMethod(methods) => {
                return Cow::Owned(format!("no route for this path allows this method, only {methods}"));
            }
            Nowhere::Path(reason) => reason,
            Nowhere::Circle => "the rewrites form a loop",
            Nowhere::Server => "it applies to the whole server",
        })
    }
}
