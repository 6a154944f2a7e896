//! The settings of a bus, and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use flatout_wire::target::decode_component;

/// The default port of NATS.
const PORT: u16 = 4222;

/// Maximum number of servers of one bus.
const SERVERS_MAX: usize = 16;

/// Maximum length of a group's name.
const GROUP_BYTES_MAX: usize = 64;

/// The default group.
const GROUP: &str = "flatout";

/// The settings of a bus.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Its servers, tried in turn.
    pub servers: Vec<Server>,
    /// The name of the group: servers with the same name share messages and purges.
    pub group: String,
    /// How long the bus keeps messages for servers that were disconnected or are new. `None`: no history.
    pub history: Option<Duration>,
}

/// A server of a bus.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Server {
    /// Its host name or address; IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether to connect with TLS. The server may also require it.
    pub is_tls: bool,
    /// The credentials to connect with.
    pub credentials: Option<Credentials>,
}

/// Credentials for a server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Credentials {
    /// A user with a password.
    Password(String, String),
    /// A token.
    Token(String),
}

impl Server {
    /// Its address as a URL, without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "tls" } else { "nats" };
        match self.host.contains(':') {
            true => format!("{scheme}://[{}]:{}", self.host, self.port),
            false => format!("{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// As its URL.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url())
    }
}

/// Credentials are not shown anywhere.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = if self.credentials.is_some() { " with credentials" } else { "" };
        write!(f, "{}{secret}", self.url())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Plan {
    /// Changes the name of the group.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn set_group(&mut self, group: &str) -> Result<(), String> {
        let is_name = (1..=GROUP_BYTES_MAX).contains(&group.len())
            && group.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_name {
            return Err(format!("got `{group}`, need 1 to {GROUP_BYTES_MAX} letters, digits, - or _"));
        }
        group.clone_into(&mut self.group);
        Ok(())
    }

    /// Sets credentials for the servers that have none.
    pub fn set_credentials(&mut self, credentials: &Credentials) {
        for server in self.servers.iter_mut().filter(|server| server.credentials.is_none()) {
            server.credentials = Some(credentials.clone());
        }
    }
}

/// `nats://HOST[:PORT]` or `tls://…`, with `USER:PASSWORD@` or `TOKEN@` before the host; several are
/// separated by commas.
impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        let servers: Vec<Server> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(format!("got {} servers, need at most {SERVERS_MAX}", servers.len()));
        }
        Ok(Plan { servers, group: GROUP.to_owned(), history: None })
    }
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Server, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        // The part before the `@` is secret.
        let (secret, place) =
            rest.rsplit_once('@').map_or((None, rest), |(secret, place)| (Some(secret), place));
        let place = place.strip_suffix('/').unwrap_or(place);
        let shown = match (scheme, secret) {
            ("", None) => place.to_owned(),
            ("", Some(_)) => format!("…@{place}"),
            (scheme, None) => format!("{scheme}://{place}"),
            (scheme, Some(_)) => format!("{scheme}://…@{place}"),
        };
        let wrong = || format!("got `{shown}`, need nats://HOST:PORT or tls://HOST:PORT");
        let is_tls = match scheme {
            "nats" => false,
            "tls" => true,
            _ => return Err(wrong()),
        };
        let (host, port) = host_and_port(place).ok_or_else(wrong)?;
        let credentials = secret.map(Credentials::from_str).transpose();
        let credentials = credentials.map_err(|()| format!("the credentials of `{shown}` are malformed"))?;
        Ok(Server { host, port, is_tls, credentials })
    }
}

impl Credentials {
    /// `USER:PASSWORD` or `TOKEN` as a line of a file, without percent-encoding.
    pub fn of_line(line: &str) -> Option<Credentials> {
        let line = line.trim();
        match line.split_once(':') {
            Some(("", _) | (_, "")) => None,
            Some((user, password)) => Some(Credentials::Password(user.to_owned(), password.to_owned())),
            None => (!line.is_empty()).then(|| Credentials::Token(line.to_owned())),
        }
    }
}

/// `USER:PASSWORD` or `TOKEN`, percent-encoded.
impl FromStr for Credentials {
    type Err = ();

    fn from_str(text: &str) -> Result<Credentials, ()> {
        let decoded = |text: &str| {
            let bytes = decode_component(text.as_bytes(), false).ok_or(())?;
            let text = String::from_utf8(bytes).map_err(drop)?;
            if text.is_empty() { Err(()) } else { Ok(text) }
        };
        match text.split_once(':') {
            Some((user, password)) => Ok(Credentials::Password(decoded(user)?, decoded(password)?)),
            None => decoded(text).map(Credentials::Token),
        }
    }
}

fn host_and_port(place: &str) -> Option<(String, u16)> {
    if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        let port = if rest.is_empty() { PORT } else { port(rest.strip_prefix(':')?)? };
        return Some((host.to_owned(), port));
    }
    let (host, port) = match place.split_once(':') {
        Some((host, digits)) => (host, port(digits)?),
        None => (place, PORT),
    };
    let is_name = (1..=253).contains(&host.len())
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_name.then(|| (host.to_owned(), port))
}

fn port(digits: &str) -> Option<u16> {
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
        .filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_parsed() {
        for (text, url, credentials) in [
            ("nats://a", "nats://a:4222", None),
            ("nats://127.0.0.1:7/", "nats://127.0.0.1:7", None),
            ("tls://[::1]", "tls://[::1]:4222", None),
            ("nats://u:p%40@a:1", "nats://a:1", Some(Credentials::Password("u".into(), "p@".into()))),
            ("nats://s3cr+t@a", "nats://a:4222", Some(Credentials::Token("s3cr+t".into()))),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!((server.url().as_str(), &server.credentials), (url, &credentials), "{text}");
            assert!(!format!("{server:?} {server} {:?}", server.credentials).contains("s3cr"), "{server:?}");
        }
        let plan: Plan = "nats://a,tls://b:1".parse().unwrap();
        assert_eq!((plan.servers.len(), plan.group.as_str()), (2, "flatout"));
    }

    #[test]
    fn errors_do_not_contain_secrets() {
        for text in [
            "",
            "a:4222",
            "http://a",
            "nats://",
            "nats://a:0",
            "nats://a:x",
            "nats://a:99999",
            "nats://a b",
            "nats://[::1",
            "nats://[a]",
            "nats://a/b",
            "nats://a,",
            "nats://hidden:hidden@",
            "nats://hidden:@a",
            "nats://hidden%zz@a",
            "hidden@a",
            "nats://hidden:x@a:b",
        ] {
            let why = text.parse::<Plan>().unwrap_err();
            assert!(!why.contains("hidden"), "{why}");
        }
        assert!(vec!["nats://a"; SERVERS_MAX + 1].join(",").parse::<Plan>().is_err());
    }

    #[test]
    fn credentials_are_parsed_from_a_line() {
        let password = |user: &str, password: &str| Some(Credentials::Password(user.into(), password.into()));
        assert_eq!(Credentials::of_line(" u:p:%40 \n"), password("u", "p:%40"));
        assert_eq!(Credentials::of_line("token"), Some(Credentials::Token("token".into())));
        for line in ["", " ", ":", "u:", ":p"] {
            assert_eq!(Credentials::of_line(line), None, "{line}");
        }
    }

    #[test]
    fn group_names_are_checked() {
        let mut plan: Plan = "nats://a".parse().unwrap();
        plan.set_group("shop-1").unwrap();
        for group in ["", "a.b", "a b", "*", ">", &"a".repeat(65)] {
            assert!(plan.set_group(group).is_err(), "{group}");
        }
        assert_eq!(plan.group, "shop-1");
    }
}
