//! Parses a request for channels.

use std::net::IpAddr;

use flatout_engine::Response;
use flatout_wire::Head;
use flatout_wire::target::decode_component;

use super::message::Id;
use super::plan::{CHANNELS_PER_SUBSCRIBER_MAX, Plan, is_name};

/// Keys of latest values in one request.
const KEYS_MAX: usize = 1000;

/// A parsed request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) channels: Vec<String>,
    pub(super) since: Since,
    pub(super) polls: bool,
    /// The keys whose latest values are requested.
    pub(super) keys: Option<Vec<String>>,
    /// The number of subscribers is requested.
    pub(super) presence: bool,
    pub(super) token: Option<String>,
    /// The event type of the published message.
    pub(super) event: Option<String>,
    pub(super) key: Option<String>,
}

/// The start position of a subscriber.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// New messages only.
    #[default]
    Now,
    /// From the start of the history.
    All,
    /// After this message; with its id on other servers.
    Behind(Id, Option<Id>),
    /// After a message with an unknown id.
    Unknown,
}

/// The client.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    /// The client's address.
    pub address: Option<IpAddr>,
}

impl Wanted {
    /// # Errors
    /// The request is invalid.
    pub(super) fn of(head: &Head<'_>, path: &[u8], plan: &Plan) -> Result<Wanted, &'static str> {
        let mut wanted = Wanted { channels: channels(path, plan)?, ..Wanted::default() };
        // Of one that reconnects to the same URL, the field is newer than its query.
        let mut since = head.field("last-event-id").filter(|id| !id.is_empty()).map(<[u8]>::to_vec);
        for (name, value) in pairs(head.query().unwrap_or_default()) {
            let text = || {
                let decoded = decode_component(value, true).and_then(|text| String::from_utf8(text).ok());
                decoded.ok_or("a value of the query is malformed")
            };
            match name {
                b"since" if since.is_none() => since = Some(value.to_vec()),
                b"poll" => wanted.polls = is_on(value),
                b"presence" => wanted.presence = is_on(value),
                b"token" => wanted.token = Some(text()?),
                b"event" => wanted.event = Some(text()?),
                b"key" => wanted.key = Some(text()?),
                b"keys" => {
                    let keys: Vec<String> =
                        text()?.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect();
                    if keys.len() > KEYS_MAX {
                        return Err("too many keys");
                    }
                    wanted.keys = Some(keys);
                }
                _ => {}
            }
        }
        wanted.since = since.map_or(Since::Now, |text| Since::of(&text));
        Ok(wanted)
    }
}

impl Since {
    fn of(text: &[u8]) -> Since {
        match text {
            b"" => Since::Now,
            b"all" | b"0" => Since::All,
            text => std::str::from_utf8(text).ok().and_then(Since::behind).unwrap_or(Since::Unknown),
        }
    }

    fn behind(text: &str) -> Option<Since> {
        let (own, shared) = text.split_once('.').map_or((text, None), |(own, shared)| (own, Some(shared)));
        let shared = match shared {
            Some(shared) => Some(Id::parse(shared)?),
            None => None,
        };
        Some(Since::Behind(Id::parse(own)?, shared))
    }

    /// What other servers call the message, if it is one that another server has named.
    pub(super) fn elsewhere(self, epoch: u64) -> Option<Id> {
        match self {
            Since::Behind(id, shared) if id.epoch != epoch => shared,
            _ => None,
        }
    }

    /// The id up to which the client has everything, and whether messages may have been lost.
    pub(super) fn cursor(self, epoch: u64, tip: u64) -> (u64, bool) {
        match self {
            Since::Now => (tip, false),
            Since::All => (0, false),
            Since::Behind(id, _) if id.epoch == epoch && id.id <= tip => (id.id, false),
            Since::Behind(..) | Since::Unknown => (0, true),
        }
    }
}

fn is_on(value: &[u8]) -> bool {
    !matches!(value, b"0" | b"false" | b"off")
}

fn pairs(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (&pair[..at], pair.get(at + 1..).unwrap_or_default())
    })
}

/// The channels in a path, separated by commas after the prefix. `None` for the prefix alone.
fn channels(path: &[u8], plan: &Plan) -> Result<Vec<String>, &'static str> {
    let path = std::str::from_utf8(path).map_err(|_| "the channel's name is malformed")?;
    let rest = path.strip_prefix(plan.prefix.trim_end_matches('/')).unwrap_or(path);
    let names = rest.trim_start_matches('/');
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut channels: Vec<String> = Vec::new();
    for name in names.split(',') {
        if !is_name(name) {
            return Err("a channel's name has 1 to 128 letters, digits or any of -._~@!$+=/|");
        }
        if !channels.iter().any(|other| other == name) {
            channels.push(name.to_owned());
        }
        if channels.len() > CHANNELS_PER_SUBSCRIBER_MAX {
            return Err("too many channels");
        }
    }
    Ok(channels)
}

/// Whether a page of the request's origin may subscribe. Clients other than pages have no origin.
pub(super) fn may_come(head: &Head<'_>, plan: &Plan) -> bool {
    let Some(origin) = head.field("origin") else { return true };
    let own = origin.splitn(2, |&byte| byte == b':').nth(1).and_then(|rest| rest.strip_prefix(b"//"));
    let is_own = own.is_some_and(|host| host.eq_ignore_ascii_case(head.authority()));
    is_own || is_listed(origin, plan)
}

/// The origin of the page that asks, if it is a listed one.
pub(super) fn listed_origin<'a>(head: &Head<'a>, plan: &Plan) -> Option<&'a [u8]> {
    head.field("origin").filter(|origin| is_listed(origin, plan))
}

fn is_listed(origin: &[u8], plan: &Plan) -> bool {
    plan.origins.iter().any(|known| known == "*" || known.as_bytes().eq_ignore_ascii_case(origin))
}

/// Lets the pages of an origin read the response, and the position of a poll.
pub(super) fn allow_origin(origin: &[u8], response: &mut Response) {
    response.header("Access-Control-Allow-Origin", origin);
    response.encoded_fields(b"Access-Control-Expose-Headers: Last-Event-ID\r\nVary: Origin\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    fn with<T>(text: &str, act: impl FnOnce(&Head<'_>) -> T) -> T {
        let mut fields = Vec::new();
        act(&parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap())
    }

    fn wanted(target: &str) -> Result<Wanted, &'static str> {
        wanted_with(target, "")
    }

    fn wanted_with(target: &str, fields: &str) -> Result<Wanted, &'static str> {
        let text = format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        with(&text, |head| Wanted::of(head, head.path(), &Plan::default()))
    }

    #[test]
    fn channels_and_wishes_are_read() {
        let found = wanted("/live/a.1,b,a.1?poll=1&keys=x,,y%2c%41&token=t").unwrap();
        assert_eq!(found.channels, ["a.1", "b"]);
        assert!(found.polls && !found.presence);
        assert_eq!(found.keys.unwrap(), ["x", "y", "A"]);
        assert_eq!(found.since, Since::Now);
        // A browser that reconnects repeats the URL, with the last id that it has.
        for (fields, since) in [
            ("Last-Event-ID: ff-3\r\n", Since::Behind(Id { epoch: 255, id: 3 }, None)),
            ("Last-Event-ID: \r\n", Since::All),
            ("", Since::All),
        ] {
            assert_eq!(wanted_with("/live/a?since=all", fields).unwrap().since, since, "{fields}");
        }
        let shared = wanted("/live/a?since=fe-4.10-5").unwrap().since;
        assert_eq!(shared, Since::Behind(Id { epoch: 254, id: 4 }, Some(Id { epoch: 16, id: 5 })));
        assert_eq!((shared.elsewhere(255), shared.elsewhere(254)), (Some(Id { epoch: 16, id: 5 }), None));
        for bad in ["fe-4.", "fe-4.x", ".1-1", "fe-4.10-5.1-1"] {
            assert_eq!(wanted(&format!("/live/a?since={bad}")).unwrap().since, Since::Unknown, "{bad}");
        }
        assert_eq!(wanted("/live/a?since=all").unwrap().since, Since::All);
        assert_eq!(wanted("/live/a?since=zzz").unwrap().since, Since::Unknown);
        assert!(wanted("/live").unwrap().channels.is_empty());
        for bad in ["/live/a,,b", "/live/a:b", "/live/%61", "/live/a?token=%ff"] {
            assert!(wanted(bad).is_err(), "{bad}");
        }
        assert!(
            wanted(&format!("/live/{}", (0..65).map(|n| n.to_string()).collect::<Vec<_>>().join(",")))
                .is_err()
        );
    }

    #[test]
    fn ids_of_others_are_gaps() {
        let behind = |epoch, id| Since::Behind(Id { epoch, id }, None);
        assert_eq!(behind(7, 3).cursor(7, 5), (3, false));
        assert_eq!(behind(6, 3).cursor(7, 5), (0, true));
        assert_eq!(behind(7, 6).cursor(7, 5), (0, true));
        assert_eq!(Since::Unknown.cursor(7, 5), (0, true));
        assert_eq!(Since::Now.cursor(7, 5), (5, false));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let mut plan = Plan { origins: vec!["https://b.example".to_owned()], ..Plan::default() };
        let may = |origin: &str, plan: &Plan| {
            let text = format!("GET / HTTP/1.1\r\nHost: a.example:81\r\n{origin}\r\n");
            with(&text, |head| may_come(head, plan))
        };
        assert!(may("", &plan));
        assert!(may("Origin: http://a.example:81\r\n", &plan));
        assert!(may("Origin: https://b.example\r\n", &plan));
        for other in ["http://a.example", "https://c.example", "null", "http://a.example:81.c.example"] {
            assert!(!may(&format!("Origin: {other}\r\n"), &plan), "{other}");
        }
        plan.origins = vec!["*".to_owned()];
        assert!(may("Origin: null\r\n", &plan));
    }
}
