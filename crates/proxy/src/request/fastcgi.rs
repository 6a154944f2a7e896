//! Writes the FastCGI request of a job: parameters from its head (RFC 3875 section 4.1), and its body.

use std::path::Path;

use flatout_wire::fastcgi::{write_begin, write_param, write_params, write_stdin};
use flatout_wire::target::normal_path;

use crate::plan::FastCgi;
use crate::request::job::{Job, Pulled};

/// Appends a request. `out` may hold a part of it after an error.
///
/// # Errors
/// What cannot be sent.
pub(crate) fn write_request(job: &Job, plan: &FastCgi, out: &mut Vec<u8>) -> Result<(), &'static str> {
    if job.pulled != Pulled::Not {
        return Err("the body of a FastCGI request has to be complete");
    }
    let pairs = parameters(job, plan)?;
    write_begin(out);
    write_params(&pairs, out).map_err(|_| "a parameter of the request is too long for FastCGI")?;
    write_stdin(&job.body, out);
    Ok(())
}

/// Parameters of the request; own ones take the place of ours.
struct Params<'a> {
    pairs: Vec<u8>,
    plan: &'a FastCgi,
}

impl Params<'_> {
    fn add(&mut self, name: &str, value: &[u8]) {
        if !self.plan.params.iter().any(|(own, _)| own == name) {
            write_param(name.as_bytes(), value, &mut self.pairs);
        }
    }
}

/// The script of a request, and what follows it in the path.
struct Script {
    name: Vec<u8>,
    path_info: Vec<u8>,
}

fn parameters(job: &Job, plan: &FastCgi) -> Result<Vec<u8>, &'static str> {
    let line_end = job.head.windows(2).position(|two| two == b"\r\n").ok_or("the request has no head")?;
    let line = job.head.get(..line_end).unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = match target.iter().position(|&byte| byte == b'?') {
        Some(at) => (target.get(..at).unwrap_or_default(), target.get(at + 1..).unwrap_or_default()),
        None => (target, &b""[..]),
    };
    let mut decoded = Vec::new();
    let path = normal_path(path, &mut decoded).map_err(|_| "the path of the request has no normal form")?;
    let script = script(path, plan, |file| Path::new(file).is_file(), Path::new(&plan.root).is_dir());
    let fields = fields(job.head.get(line_end + 2..).unwrap_or_default());
    let value = |name: &str| fields.iter().find(|(this, _)| this == name).map(|(_, value)| value.as_slice());
    let is_https = value("HTTP_X_FORWARDED_PROTO").is_some_and(|scheme| scheme.ends_with(b"https"));

    let mut params = Params { pairs: Vec::with_capacity(2048), plan };
    params.add("GATEWAY_INTERFACE", b"CGI/1.1");
    params.add("SERVER_SOFTWARE", b"flatout");
    params.add("SERVER_PROTOCOL", b"HTTP/1.1");
    params.add("REQUEST_METHOD", method);
    params.add("REQUEST_URI", target);
    params.add("QUERY_STRING", query);
    params.add("DOCUMENT_ROOT", plan.root.as_bytes());
    params.add("DOCUMENT_URI", &[&script.name[..], &script.path_info].concat());
    params.add("SCRIPT_NAME", &script.name);
    params.add("SCRIPT_FILENAME", &[plan.root.as_bytes(), &script.name].concat());
    params.add("PATH_INFO", &script.path_info);
    // PHP that was built to run behind a redirect refuses requests without it.
    params.add("REDIRECT_STATUS", b"200");
    params.add("REQUEST_SCHEME", if is_https { b"https" } else { b"http" });
    if is_https {
        params.add("HTTPS", b"on");
    }
    let (host, port) = host_and_port(value("HTTP_HOST").unwrap_or_default());
    params.add("SERVER_NAME", host);
    params.add("SERVER_PORT", port.unwrap_or(if is_https { b"443" } else { b"80" }));
    if let Some(peer) = job.peer {
        params.add("REMOTE_ADDR", peer.ip().to_canonical().to_string().as_bytes());
        params.add("REMOTE_PORT", peer.port().to_string().as_bytes());
    }
    if job.length.is_some() {
        params.add("CONTENT_LENGTH", job.body.len().to_string().as_bytes());
    }
    for (name, value) in &fields {
        params.add(name, value);
    }
    for (name, value) in &plan.params {
        write_param(name.as_bytes(), value.as_bytes(), &mut params.pairs);
    }
    Ok(params.pairs)
}

/// `example.com:8080`, `[::1]:8080`.
fn host_and_port(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let colon = authority.iter().rposition(|&byte| byte == b':');
    match colon.and_then(|at| Some((authority.get(..at)?, authority.get(at + 1..)?))) {
        Some((host, port)) if !port.is_empty() && port.iter().all(u8::is_ascii_digit) => (host, Some(port)),
        _ => (authority, None),
    }
}

/// The field lines as parameters. Several lines of one field are joined.
fn fields(lines: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let upper: String = name
            .iter()
            .map(|byte| if *byte == b'-' { '_' } else { char::from(byte.to_ascii_uppercase()) })
            .collect();
        let name = match upper.as_str() {
            "CONTENT_TYPE" => upper,
            // HTTP_PROXY is an environment variable that libraries trust (CVE-2016-5385).
            "PROXY" | "CONTENT_LENGTH" | "CONNECTION" | "UPGRADE" | "TE" => continue,
            _ => format!("HTTP_{upper}"),
        };
        match found.iter_mut().find(|(this, _)| *this == name) {
            Some((_, earlier)) => {
                earlier.extend_from_slice(if name == "HTTP_COOKIE" { b"; " } else { b", " });
                earlier.extend_from_slice(value);
            }
            None => found.push((name, value.to_vec())),
        }
    }
    found
}

/// Chooses the script: the one in the path, the index of a folder, or the front controller. Where the files are on this machine, a
/// script that is not there never gets the request: the application might run a part of its path instead.
fn script(path: &[u8], plan: &FastCgi, is_file: impl Fn(&str) -> bool, is_here: bool) -> Script {
    let exists = |name: &[u8]| {
        let name = std::str::from_utf8(name).unwrap_or("\0");
        !is_here || is_file(&format!("{}{name}", plan.root))
    };
    let ending = plan.split.as_bytes();
    let end = (!ending.is_empty())
        .then(|| {
            (0..path.len()).find_map(|at| {
                let after = path.get(at..)?.strip_prefix(ending)?;
                (after.is_empty() || after.starts_with(b"/")).then_some(at + ending.len())
            })
        })
        .flatten();
    if let Some((name, path_info)) = end.and_then(|end| path.split_at_checked(end))
        && exists(name)
    {
        return Script { name: name.to_vec(), path_info: path_info.to_vec() };
    }
    if end.is_none() && path.ends_with(b"/") && is_here {
        let name = [path, plan.index.as_bytes()].concat();
        if exists(&name) {
            return Script { name, path_info: Vec::new() };
        }
    }
    Script { name: [b"/", plan.index.as_bytes()].concat(), path_info: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::Receiver;
    use crate::table::FixedTable;

    fn plan() -> FastCgi {
        FastCgi { root: "/srv/none".to_owned(), ..FastCgi::default() }
    }

    #[test]
    fn the_script_is_in_the_path_or_the_front_controller() {
        let files = ["/srv/none/index.php", "/srv/none/a.php", "/srv/none/admin/index.php"];
        for (path, name, path_info) in [
            ("/a.php", "/a.php", ""),
            ("/a.php/b/c.php", "/a.php", "/b/c.php"),
            ("/", "/index.php", ""),
            ("/admin/", "/admin/index.php", ""),
            ("/posts/1", "/index.php", ""),
            ("/posts/", "/index.php", ""),
            ("/upload/evil.jpg/x.php", "/index.php", ""),
            ("/a.phpx", "/index.php", ""),
        ] {
            let found = script(path.as_bytes(), &plan(), |file| files.contains(&file), true);
            assert_eq!(
                (&found.name[..], &found.path_info[..]),
                (name.as_bytes(), path_info.as_bytes()),
                "{path}"
            );
        }
        let elsewhere = script(b"/b.php/c", &plan(), |_| false, false);
        assert_eq!((&elsewhere.name[..], &elsewhere.path_info[..]), (&b"/b.php"[..], &b"/c"[..]));
    }

    #[test]
    fn heads_become_parameters() {
        let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
        let head = b"GET /a%20b.php/x?q=%201 HTTP/1.1\r\nHost: t:8080\r\nProxy: evil\r\nCookie: a\r\nCookie: b\r\nX-Forwarded-Proto: https\r\n";
        let job = Job::new(upstream, 0, Receiver::nobody(), head.to_vec());
        let mut plan = plan();
        plan.params = vec![("SERVER_SOFTWARE".to_owned(), "own".to_owned())];
        let pairs = parameters(&job, &plan).unwrap();
        let has = |name: &str, value: &str| {
            let mut pair = Vec::new();
            write_param(name.as_bytes(), value.as_bytes(), &mut pair);
            pairs.windows(pair.len()).any(|part| part == pair)
        };
        for (name, value) in [
            ("SCRIPT_NAME", "/a b.php"),
            ("SCRIPT_FILENAME", "/srv/none/a b.php"),
            ("PATH_INFO", "/x"),
            ("QUERY_STRING", "q=%201"),
            ("REQUEST_URI", "/a%20b.php/x?q=%201"),
            ("HTTP_HOST", "t:8080"),
            ("SERVER_NAME", "t"),
            ("SERVER_PORT", "8080"),
            ("HTTP_COOKIE", "a; b"),
            ("HTTPS", "on"),
            ("SERVER_SOFTWARE", "own"),
        ] {
            assert!(has(name, value), "{name}");
        }
        assert!(!has("HTTP_PROXY", "evil") && !has("SERVER_SOFTWARE", "flatout"));
    }

    #[test]
    fn paths_without_a_normal_form_are_refused() {
        let upstream = FixedTable::new(vec![()], ()).id(0).unwrap();
        let job = |head: &[u8]| Job::new(upstream, 0, Receiver::nobody(), head.to_vec());
        assert!(parameters(&job(b"GET /a/%2e%2e/b.php HTTP/1.1\r\n"), &plan()).is_err());
        let long = [b"GET / HTTP/1.1\r\nX-A: ", &vec![b'x'; 66_000][..], b"\r\n"].concat();
        assert!(write_request(&job(&long), &plan(), &mut Vec::new()).is_err());
    }
}
