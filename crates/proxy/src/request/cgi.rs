//! Writes the request of a job for FastCGI, SCGI or uwsgi: parameters from its head (RFC 3875 section 4.1), and its body.

use std::path::Path;

use flatout_gateway::PARAM;
use flatout_wire::h1::Length;
use flatout_wire::target::normal_path;
use flatout_wire::{Head, fastcgi, scgi, uwsgi};

use crate::failure::Failure;
use crate::plan::{Cgi, Protocol, Upstream};
use crate::request::job::{Job, Pulled};

/// Appends a request, with its body unless that is pulled. `out` may hold a part of it after an error.
///
/// # Errors
/// What cannot be sent.
pub(crate) fn write_request(job: &Job, plan: &Upstream, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    let is_whole = job.pulled == Pulled::Not;
    let pairs = parameters(job, plan.protocol, &plan.cgi)?;
    match plan.protocol {
        Protocol::Scgi if is_whole => scgi::write_request(&pairs, &job.body, out),
        Protocol::Scgi | Protocol::Uwsgi if !is_whole && body_bytes(job).is_none() => {
            return Err(bad("the length of its body has to be known"));
        }
        Protocol::Scgi => scgi::write_head(&pairs, body_bytes(job).unwrap_or(0), out),
        Protocol::Uwsgi => uwsgi::write_request(&pairs, if is_whole { &job.body } else { b"" }, out)
            .map_err(|_| bad("its parameters take more than the 65535 bytes that uwsgi allows"))?,
        _ => {
            fastcgi::write_begin(out);
            fastcgi::write_params(&pairs, out)
                .map_err(|_| bad("a parameter of the request is too long for FastCGI"))?;
            if is_whole {
                fastcgi::write_stdin(&job.body, out);
            }
        }
    }
    Ok(())
}

/// The length of the body; `None` if it is not known yet, or there is none.
fn body_bytes(job: &Job) -> Option<u64> {
    match job.length {
        Some(Length::Known(bytes) | Length::Declared(bytes)) => Some(bytes),
        Some(Length::Unknown) | None => None,
    }
}

/// Appends a part of a body that is pulled.
pub(crate) fn write_body_part(part: &[u8], protocol: Protocol, out: &mut Vec<u8>) {
    match protocol {
        Protocol::FastCgi => fastcgi::write_stdin_part(part, out),
        _ => out.extend_from_slice(part),
    }
}

/// Appends its end.
pub(crate) fn write_body_end(protocol: Protocol, out: &mut Vec<u8>) {
    if protocol == Protocol::FastCgi {
        fastcgi::write_stdin_end(out);
    }
}

/// How a request fails that cannot be sent, and why.
pub(crate) type Unsendable = (Failure, &'static str);

fn bad(why: &'static str) -> Unsendable {
    (Failure::BadParameters, why)
}

/// Parameters of the request; own ones take the place of ours.
struct Params<'a> {
    pairs: Vec<u8>,
    protocol: Protocol,
    plan: &'a Cgi,
    /// Names of those of the route.
    given: Vec<String>,
    /// A value cannot be sent.
    has_nul: bool,
}

impl Params<'_> {
    fn add(&mut self, name: &str, value: &[u8]) {
        let is_own = |own: &str| own == name;
        if !self.plan.params.iter().any(|(own, _)| is_own(own)) && !self.given.iter().any(|own| is_own(own)) {
            self.write(name, value);
        }
    }

    fn write(&mut self, name: &str, value: &[u8]) {
        let (name, pairs) = (name.as_bytes(), &mut self.pairs);
        match self.protocol {
            Protocol::Scgi => self.has_nul |= scgi::write_header(name, value, pairs).is_err(),
            Protocol::Uwsgi => uwsgi::write_var(name, value, pairs),
            _ => fastcgi::write_param(name, value, pairs),
        }
    }
}

/// The script of a request, and what follows it in the path.
struct Script {
    name: Vec<u8>,
    path_info: Vec<u8>,
}

fn parameters(job: &Job, protocol: Protocol, plan: &Cgi) -> Result<Vec<u8>, Unsendable> {
    let line_end =
        job.head.windows(2).position(|two| two == b"\r\n").ok_or(bad("the request has no head"))?;
    let line = job.head.get(..line_end).unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = match target.iter().position(|&byte| byte == b'?') {
        Some(at) => (target.get(..at).unwrap_or_default(), target.get(at + 1..).unwrap_or_default()),
        None => (target, &b""[..]),
    };
    let mut decoded = Vec::new();
    let path =
        normal_path(path, &mut decoded).map_err(|_| bad("the path of the request has no normal form"))?;
    let script = match protocol {
        Protocol::FastCgi => {
            script(path, plan, |file| Path::new(file).is_file(), Path::new(&plan.root).is_dir())
                .ok_or((Failure::NoScript, "its path names no script"))?
        }
        // One application for all paths, as WSGI and PSGI know it.
        _ => Script { name: Vec::new(), path_info: path.to_vec() },
    };
    let lines = job.head.get(line_end + 2..).unwrap_or_default();
    let (fields, own) = (fields(lines, false), fields(lines, true));
    let value = |name: &str| fields.iter().find(|(this, _)| this == name).map(|(_, value)| value.as_slice());
    // A rule of the route may set the field, where TLS ends at a server before us.
    let scheme = value("HTTP_X_FORWARDED_PROTO").filter(|_| !job.has_sent_scheme);
    let is_https = match scheme {
        Some(scheme) => scheme.ends_with(b"https"),
        None => job.client.is_some_and(|client| client.is_https),
    };

    let given = own.iter().map(|(name, _)| name.clone()).collect();
    let mut params = Params { pairs: Vec::with_capacity(2048), protocol, plan, given, has_nul: false };
    params.add("GATEWAY_INTERFACE", b"CGI/1.1");
    params.add("SERVER_SOFTWARE", b"flatout");
    params.add("SERVER_PROTOCOL", b"HTTP/1.1");
    params.add("REQUEST_METHOD", method);
    params.add("REQUEST_URI", target);
    params.add("QUERY_STRING", query);
    match protocol {
        Protocol::FastCgi => params.add("DOCUMENT_URI", &script.name),
        _ => params.add("DOCUMENT_URI", &script.path_info),
    }
    params.add("SCRIPT_NAME", &script.name);
    params.add("PATH_INFO", &script.path_info);
    if protocol == Protocol::FastCgi {
        params.add("DOCUMENT_ROOT", plan.root.as_bytes());
        let below = script.name.strip_prefix(plan.at.as_bytes()).unwrap_or(&script.name);
        params.add("SCRIPT_FILENAME", &[plan.root.as_bytes(), below].concat());
        // PHP that was built to run behind a redirect refuses requests without it.
        params.add("REDIRECT_STATUS", b"200");
    }
    params.add("REQUEST_SCHEME", if is_https { b"https" } else { b"http" });
    if is_https {
        params.add("HTTPS", b"on");
    }
    let (host, port) = host_and_port(value("HTTP_HOST").unwrap_or_default());
    params.add("SERVER_NAME", host);
    params.add("SERVER_PORT", port.unwrap_or(if is_https { b"443" } else { b"80" }));
    let peer = job.peer.map(|peer| (peer.ip().to_canonical(), peer.port()));
    let address = match job.client {
        Some(client) => client.address.map(|address| address.to_canonical()),
        None => peer.map(|(address, _)| address),
    };
    if let Some(address) = address {
        params.add("REMOTE_ADDR", address.to_string().as_bytes());
        // Trusted proxies report no port, and theirs is not that of the client.
        if let Some((_, port)) = peer.filter(|(peer, _)| *peer == address) {
            params.add("REMOTE_PORT", port.to_string().as_bytes());
        }
    }
    if let Some(bytes) = body_bytes(job) {
        params.add("CONTENT_LENGTH", bytes.to_string().as_bytes());
    }
    for (name, value) in &fields {
        params.add(name, value);
    }
    for (name, value) in &own {
        params.write(name, value);
    }
    let is_given = |name: &String| own.iter().any(|(own, _)| own == name);
    for (name, value) in plan.params.iter().filter(|(name, _)| !is_given(name)) {
        params.write(name, value.as_bytes());
    }
    match params.has_nul {
        true => Err(bad("a parameter of the request contains NUL")),
        false => Ok(params.pairs),
    }
}

/// `example.com:8080`, `[::1]:8080`.
fn host_and_port(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let colon = authority.iter().rposition(|&byte| byte == b':');
    match colon.and_then(|at| Some((authority.get(..at)?, authority.get(at + 1..)?))) {
        Some((host, port)) if !port.is_empty() && port.iter().all(u8::is_ascii_digit) => (host, Some(port)),
        _ => (authority, None),
    }
}

/// Adds the target as the client has sent it, if that of the request is another one: applications find their page by it.
pub(crate) fn write_sent_target(head: &Head<'_>, target: &[u8], out: &mut Vec<u8>) {
    let mut sent = Vec::new();
    head.write_origin_form(&mut sent);
    if sent != target {
        for part in [&b":REQUEST_URI: "[..], &sent, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

/// Removes the parameters from a request for an upstream whose protocol has none.
#[cold]
pub(crate) fn drop_params(head: &mut Vec<u8>) {
    let lines = std::mem::take(head);
    for line in lines.split_inclusive(|&byte| byte == b'\n').filter(|line| !is_param(line)) {
        head.extend_from_slice(line);
    }
}

fn is_param(line: &[u8]) -> bool {
    line.starts_with(&[PARAM as u8])
}

/// The field lines as parameters, or the lines that are parameters of the route. Several lines of one field are joined.
fn fields(lines: &[u8], are_params: bool) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    for line in lines.split(|&byte| byte == b'\n').filter(|line| is_param(line) == are_params) {
        let line = line.get(usize::from(are_params)..).unwrap_or_default();
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let upper: String = name
            .iter()
            .map(|byte| if *byte == b'-' { '_' } else { char::from(byte.to_ascii_uppercase()) })
            .collect();
        let name = match upper.as_str() {
            _ if are_params => upper,
            "CONTENT_TYPE" => upper,
            // HTTP_PROXY is an environment variable that libraries trust (CVE-2016-5385).
            "PROXY" | "CONTENT_LENGTH" | "CONNECTION" | "UPGRADE" | "TE" => continue,
            _ => format!("HTTP_{upper}"),
        };
        match found.iter_mut().find(|(this, _)| *this == name) {
            // That of the route comes before ours.
            Some(_) if are_params => {}
            Some((_, earlier)) => {
                earlier.extend_from_slice(if name == "HTTP_COOKIE" { b"; " } else { b", " });
                earlier.extend_from_slice(value);
            }
            None => found.push((name, value.to_vec())),
        }
    }
    found
}

/// Chooses the script: the one in the path, the index of a folder, or the front controller, if there is one. Where the files are on
/// this machine, a script that is not there never gets the request: the application might run a part of its path instead.
fn script(path: &[u8], plan: &Cgi, is_file: impl Fn(&str) -> bool, is_here: bool) -> Option<Script> {
    path.strip_prefix(plan.at.as_bytes()).filter(|below| below.starts_with(b"/"))?;
    let exists = |name: &[u8]| {
        let below = name.strip_prefix(plan.at.as_bytes()).unwrap_or_default();
        let name = std::str::from_utf8(below).unwrap_or("\0");
        !is_here || is_file(&format!("{}{name}", plan.root))
    };
    let end = end_of_script(path, plan.split.as_bytes());
    if let Some((name, path_info)) = end.and_then(|end| path.split_at_checked(end))
        && !is_hidden(name)
        && exists(name)
    {
        return Some(Script { name: name.to_vec(), path_info: path_info.to_vec() });
    }
    // Elsewhere, only an application without front controller is asked for the index of a folder.
    if end.is_none() && path.ends_with(b"/") && (is_here || !plan.has_front) {
        let name = [path, plan.index.as_bytes()].concat();
        if !is_hidden(&name) && exists(&name) {
            return Some(Script { name, path_info: Vec::new() });
        }
    }
    let front = || Script { name: format!("{}/{}", plan.at, plan.index).into_bytes(), path_info: Vec::new() };
    plan.has_front.then(front)
}

/// Where the name of the script ends: behind the first segment with this ending, or, without one, with the path of a file.
fn end_of_script(path: &[u8], ending: &[u8]) -> Option<usize> {
    if ending.is_empty() {
        return (!path.ends_with(b"/")).then_some(path.len());
    }
    (0..path.len()).find_map(|at| {
        let after = path.get(at..)?.strip_prefix(ending)?;
        (after.is_empty() || after.starts_with(b"/")).then_some(at + ending.len())
    })
}

/// Whether a part of a path starts with a dot: such files are never served, and never run.
fn is_hidden(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|part| part.starts_with(b".") && part != b".well-known")
}

#[cfg(test)]
mod tests;
