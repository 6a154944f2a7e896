//! The target of the load: a URL, parsed once.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use flatout_lane::connect::Remote;

/// The ports of URLs without one.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// An address to connect to, and what its requests contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to: the first one of the name.
    pub remote: Remote,
    /// For `https`: the server's name or address, without its port.
    pub secure_name: Option<String>,
    /// The Host field: `host[:port]` as in the URL.
    pub host: String,
    /// Path and query.
    pub path: String,
}

impl Target {
    /// Parses `http://host[:port][/path][?query]`, the same with `https`, and `unix:/path/of/socket[:/path]` for a Unix
    /// socket. Names are resolved.
    ///
    /// # Errors
    /// What is wrong with it, what was got, and what is allowed.
    pub fn parse(url: &str) -> Result<Target, String> {
        if let Some(rest) = url.strip_prefix("unix:") {
            return unix(url, rest);
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!(
                "got `{url}`, need a URL such as http://127.0.0.1:8080/ or unix:/run/app.sock"
            ));
        };
        let is_secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            other => {
                return Err(format!("`{url}`: scheme `{other}` is not supported; give an http or https URL"));
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        if host.is_empty() || host.starts_with(':') {
            return Err(format!("`{url}` has no host; need {scheme}://HOST[:PORT]/"));
        }
        if host.contains('@') {
            return Err(format!("`{url}`: a user in the URL is not sent; use --header 'Authorization: …'"));
        }
        let (name, port) = taken_apart(url, host, if is_secure { HTTPS_PORT } else { HTTP_PORT })?;
        Ok(Target {
            remote: Remote::Tcp(look_up(url, name, port)?),
            secure_name: is_secure.then(|| name.to_owned()),
            host: host.to_owned(),
            path: checked_path(url, path)?,
        })
    }

    /// The same for callers without TLS.
    ///
    /// # Errors
    /// As [`Target::parse`], and for `https`.
    pub fn parse_plain(url: &str) -> Result<Target, String> {
        match Target::parse(url)? {
            Target { secure_name: Some(_), .. } => {
                Err(format!("`{url}`: https is not supported here; give an http URL"))
            }
            target => Ok(target),
        }
    }
}

fn unix(url: &str, rest: &str) -> Result<Target, String> {
    let (socket, path) = rest.split_once(":/").map_or((rest, String::new()), |(s, p)| (s, format!("/{p}")));
    if socket.is_empty() {
        return Err(format!("`{url}` has no path; need unix:/path/of/socket[:/path/of/url]"));
    }
    let remote = Remote::Unix(PathBuf::from(socket));
    let path = checked_path(url, &path)?;
    Ok(Target { remote, secure_name: None, host: "localhost".to_owned(), path })
}

fn checked_path(url: &str, path: &str) -> Result<String, String> {
    let path = path.split('#').next().unwrap_or_default();
    if let Some(byte) = path.bytes().find(|byte| !byte.is_ascii_graphic()) {
        return Err(format!("`{url}`: byte {byte:#04x} is not allowed in a URL; write it as %{byte:02X}"));
    }
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

/// Splits `host[:port]`; brackets of an IPv6 address are removed.
fn taken_apart<'h>(url: &str, host: &'h str, default: u16) -> Result<(&'h str, u16), String> {
    let name_end = host.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match host[name_end..].rfind(':') {
        Some(at) => {
            let port = &host[name_end + at + 1..];
            match port.parse::<u16>() {
                Ok(number) if number > 0 => (&host[..name_end + at], number),
                _ => return Err(format!("`{url}`: got port `{port}`, need 1 to 65535")),
            }
        }
        None => (host, default),
    };
    Ok((name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name), port))
}

fn look_up(url: &str, name: &str, port: u16) -> Result<SocketAddr, String> {
    let mut found = (name, port)
        .to_socket_addrs()
        .map_err(|error| format!("`{url}`: cannot look up `{name}`: {error}"))?;
    found.next().ok_or_else(|| format!("`{url}`: `{name}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let target = Target::parse("http://127.0.0.1:8080/a?b=1#c").unwrap();
        assert_eq!(target.remote.to_string(), "127.0.0.1:8080");
        assert_eq!((target.host.as_str(), target.path.as_str()), ("127.0.0.1:8080", "/a?b=1"));
        let target = Target::parse("HTTP://[::1]?q").unwrap();
        assert_eq!((target.remote.to_string().as_str(), target.path.as_str()), ("[::1]:80", "/?q"));
        let target = Target::parse("unix:/run/app.sock:/json").unwrap();
        assert_eq!(
            (target.remote.to_string().as_str(), target.path.as_str()),
            ("unix:/run/app.sock", "/json")
        );
        assert_eq!(Target::parse("unix:app.sock").unwrap().path, "/");
        let target = Target::parse("https://[::1]/").unwrap();
        assert_eq!((target.remote.to_string().as_str(), target.host.as_str()), ("[::1]:443", "[::1]"));
        assert_eq!(target.secure_name.as_deref(), Some("::1"));
        assert_eq!(Target::parse("https://127.0.0.1:8443/a").unwrap().host, "127.0.0.1:8443");
        assert_eq!(Target::parse("http://127.0.0.1/").unwrap().secure_name, None);
    }

    #[test]
    fn mistakes_are_reported() {
        for (url, expected) in [
            ("", "need a URL"),
            ("localhost:80", "need a URL"),
            ("http://", "has no host"),
            ("http:///path", "has no host"),
            ("http://:80/", "has no host"),
            ("http://127.0.0.1:0/", "got port `0`"),
            ("http://127.0.0.1:70000/", "got port `70000`"),
            ("http://127.0.0.1:/", "got port ``"),
            ("http://[::1/", "cannot look up"),
            ("ftp://127.0.0.1/", "scheme `ftp`"),
            ("http://me@127.0.0.1/", "a user in the URL"),
            ("http://127.0.0.1/a b", "byte 0x20"),
            ("http://127.0.0.1/\r\nX: y", "byte 0x0d"),
            ("unix:", "has no path"),
        ] {
            let message = Target::parse(url).unwrap_err();
            assert!(message.contains(expected), "{url}: {message}");
        }
        let message = Target::parse_plain("https://127.0.0.1/").unwrap_err();
        assert!(message.contains("https is not supported here"), "{message}");
        assert!(Target::parse_plain("http://127.0.0.1/").is_ok());
    }
}
