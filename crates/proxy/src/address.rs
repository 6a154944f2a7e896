//! Server addresses as people write them.

use std::fmt;
use std::str::FromStr;

use super::plan::{Address, Server, Tls};

/// `127.0.0.1:8000`, `app.internal:8000`, `http://…`, `https://…`, `unix:/run/app.sock`.
impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Server, String> {
        let wrong = || format!("got `{text}`, need http://HOST:PORT, https://HOST, HOST:PORT or unix:PATH");
        let (rest, is_tls, port) = match text.split_once("://") {
            Some(("http", rest)) => (rest, false, Some(80)),
            Some(("https", rest)) => (rest, true, Some(443)),
            Some(_) => return Err(wrong()),
            None => (text, false, None),
        };
        if let Some(path) = rest.strip_prefix("unix:") {
            // sun_path holds 108 bytes with its NUL (unix(7)).
            let fits = (1..=107).contains(&path.len());
            return if fits { Ok(server(Address::Unix(path.into()), is_tls)) } else { Err(wrong()) };
        }
        let host = rest.strip_suffix('/').unwrap_or(rest);
        if host.contains(['/', '?', '#']) {
            return Err(format!("got `{text}`: an upstream cannot have a path"));
        }
        if let Ok(address) = host.parse() {
            return Ok(server(Address::Socket(address), is_tls));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let (Ok(address), Some(port)) = (bare.parse::<std::net::IpAddr>(), port) {
            return Ok(server(Address::Socket((address, port).into()), is_tls));
        }
        let (name, port) = match host.rsplit_once(':') {
            Some((name, digits)) => (name, digits.parse().ok()),
            None => (host, port),
        };
        let is_name = !name.is_empty()
            && name.len() <= 253
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        match (is_name, port) {
            (true, Some(port)) => Ok(server(Address::Name(name.to_ascii_lowercase(), port), is_tls)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(address) => address.fmt(f),
            Address::Name(name, port) => write!(f, "{name}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// With TLS, the certificate is checked against the name in the address.
fn server(address: Address, is_tls: bool) -> Server {
    let tls = is_tls.then(Tls::default);
    Server { tls, ..Server::new(address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers() {
        for (text, expected) in [
            ("127.0.0.1:8000", Some((Address::Socket("127.0.0.1:8000".parse().unwrap()), false))),
            ("https://[::1]:1/", Some((Address::Socket("[::1]:1".parse().unwrap()), true))),
            ("http://10.0.0.1", Some((Address::Socket("10.0.0.1:80".parse().unwrap()), false))),
            ("https://[::1]", Some((Address::Socket("[::1]:443".parse().unwrap()), true))),
            ("https://App.Example", Some((Address::Name("app.example".to_owned(), 443), true))),
            ("app:80", Some((Address::Name("app".to_owned(), 80), false))),
            ("unix:/a", Some((Address::Unix("/a".into()), false))),
            ("http://unix:/a", Some((Address::Unix("/a".into()), false))),
            ("app", None),
            ("http://a/b", None),
            ("ftp://a", None),
            ("unix:", None),
            ("a:99999", None),
            ("http://:80", None),
        ] {
            let found = text.parse::<Server>().ok();
            assert_eq!(found.map(|it| (it.address, it.tls.is_some())), expected, "{text}");
        }
    }
}
