//! A file of servers: one on each line.
//!
//! ```text
//! # comment
//! 10.0.0.7:8000 weight=2
//! https://app.internal backup    # only if all others are down
//! unix:/run/app.sock drain
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::changes::SERVERS_MAX;
use crate::plan::{Server, ServerSource, Upstream};

/// The largest file: [`SERVERS_MAX`] lines of 256 bytes.
const FILE_BYTES_MAX: u64 = SERVERS_MAX as u64 * 256;

/// The largest weight.
pub(crate) const WEIGHT_MAX: u32 = 1_000_000;

/// Mistakes of a file that a message names.
const MISTAKES_MAX: usize = 10;

/// The servers in a file.
///
/// # Errors
/// It cannot be read, or has mistakes: all of them, with their lines.
pub(crate) fn read(path: &Path, source: &ServerSource, upstream: &Upstream) -> Result<Vec<Server>, String> {
    // Opening a named pipe would wait for a writer.
    let is_file = std::fs::metadata(path).map(|found| found.is_file());
    let file = is_file.and_then(|is_file| match is_file {
        true => File::open(path),
        false => Err(ErrorKind::InvalidInput.into()),
    });
    let mut bytes = Vec::new();
    let read = file.and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => "this is not a file".to_owned(),
        _ => error.to_string(),
    })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("larger than {FILE_BYTES_MAX} bytes"));
    }
    parse(&bytes, source, upstream).map_err(|mistakes| shown(&mistakes))
}

/// A line that is wrong, from 1, and why.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    why: String,
}

/// The servers in a text.
///
/// # Errors
/// All its mistakes; at least one.
fn parse(bytes: &[u8], source: &ServerSource, upstream: &Upstream) -> Result<Vec<Server>, Vec<Mistake>> {
    let mut servers: Vec<(usize, Server)> = Vec::new();
    let mut mistakes = Vec::new();
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line_number = at + 1;
        let found = std::str::from_utf8(line).map_err(|_| "this is not UTF-8".to_owned());
        let found = found.and_then(|line| server(line, source)).and_then(|server| {
            let Some(server) = server else { return Ok(None) };
            let alone = Upstream { servers: vec![server.clone()], ..upstream.clone() };
            alone.check()?;
            let other = servers.iter().find(|(_, other)| other.address == server.address);
            match other {
                Some((line, _)) => Err(format!("{} is on line {line} already", server.address)),
                None => Ok(Some(server)),
            }
        });
        match found {
            Ok(server) => servers.extend(server.map(|server| (line_number, server))),
            Err(why) => mistakes.push(Mistake { line: line_number, why }),
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let is_main = |server: &Server| !server.backup;
    let whole = |why: String| Err(vec![Mistake { line: 0, why }]);
    match servers.len() {
        0 => whole("there is no server in it; to stop all requests, drain each server".to_owned()),
        1..=SERVERS_MAX => {
            let servers: Vec<Server> = servers.into_iter().map(|(_, server)| server).collect();
            match servers.iter().chain(&upstream.servers).any(is_main) {
                true => Ok(servers),
                false => whole("all servers are backups; at least one must not be".to_owned()),
            }
        }
        count => whole(format!("it has {count} servers, at most {SERVERS_MAX} are allowed")),
    }
}

/// The server of a line; none on an empty one.
fn server(line: &str, source: &ServerSource) -> Result<Option<Server>, String> {
    let mut words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    let Some(address) = words.next() else { return Ok(None) };
    let mut server: Server = match address {
        "server" => return Err("a line begins with the address, without `server`".to_owned()),
        _ => address.parse()?,
    };
    if server.tls.is_some() {
        server.tls = Some(source.tls.clone());
    }
    let (mut has_weight, mut has_backup, mut has_limit) = (false, false, false);
    for word in words {
        let is_first = match word.split_once('=') {
            Some(("weight", value)) => {
                server.weight = weight(value)?;
                !std::mem::replace(&mut has_weight, true)
            }
            Some(("max-requests", value)) => {
                server.requests_max = requests_max(value)?;
                !std::mem::replace(&mut has_limit, true)
            }
            None if word == "backup" => {
                server.backup = true;
                !std::mem::replace(&mut has_backup, true)
            }
            None if word == "drain" => !std::mem::replace(&mut server.drain, true),
            _ => return Err(format!("got `{word}`, need weight=N, max-requests=N, backup or drain")),
        };
        if !is_first {
            return Err(format!("got `{word}` twice"));
        }
    }
    Ok(Some(server))
}

fn weight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
        Ok(0) => Err("got weight=0; to stop requests, write drain".to_owned()),
        _ => Err(format!("got weight={text}, need a number from 1 to {WEIGHT_MAX}")),
    }
}

/// Requests in progress at a server.
fn requests_max(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(most @ 1..) => Ok(most),
        _ => Err(format!("got max-requests={text}, need a number of at least 1")),
    }
}

/// Mistakes as a message of one line.
fn shown(mistakes: &[Mistake]) -> String {
    let one = |mistake: &Mistake| match mistake.line {
        0 => mistake.why.clone(),
        line => format!("line {line}: {}", mistake.why),
    };
    let listed: Vec<String> = mistakes.iter().take(MISTAKES_MAX).map(one).collect();
    match mistakes.len().saturating_sub(MISTAKES_MAX) {
        0 => listed.join("; "),
        more => format!("{}; and {more} more mistakes", listed.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Address, Protocol, SourcePlace, Tls};

    fn source() -> ServerSource {
        let tls = Tls { name: Some("api".to_owned()), verify: false, ..Tls::default() };
        ServerSource { place: SourcePlace::File("servers".into()), tls }
    }

    fn parsed(text: &[u8]) -> Result<Vec<Server>, String> {
        parse(text, &source(), &Upstream::new("api", Vec::new())).map_err(|mistakes| shown(&mistakes))
    }

    #[test]
    fn lines_are_servers_with_words() {
        let text = b"# servers of api\r\n\n 10.0.0.7:8000\tweight=3 drain\n\
                     https://app.internal backup # the last one\nunix:/run/app#1.sock";
        let servers = parsed(text).unwrap();
        let shown: Vec<_> =
            servers.iter().map(|it| (it.address.to_string(), it.weight, it.backup, it.drain)).collect();
        let expected = [
            ("10.0.0.7:8000".to_owned(), 3, false, true),
            ("app.internal:443".to_owned(), 1, true, false),
            ("unix:/run/app#1.sock".to_owned(), 1, false, false),
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            servers[1].tls.as_ref().and_then(|tls| tls.name.as_deref()),
            Some("api"),
            "the settings of the upstream"
        );
    }

    #[test]
    fn all_mistakes_are_found_with_their_lines() {
        let text = b"10.0.0.1:80 weight=0\n10.0.0.2\n\n10.0.0.3:80 down\n10.0.0.4:80 weight=x\n\xff\n\
                     10.0.0.5:80\n10.0.0.5:80 backup\nserver 10.0.0.6:80;\n10.0.0.7:80 backup backup\n\
                     http://10.0.0.8/x\n10.0.0.9:80 weight=1 weight=2\n";
        let mistakes = parse(text, &source(), &Upstream::new("api", Vec::new())).unwrap_err();
        let lines: Vec<usize> = mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]);
        let shown = shown(&mistakes);
        for expected in [
            "line 1: got weight=0; to stop requests, write drain",
            "line 4: got `down`, need weight=N, max-requests=N, backup or drain",
            "line 6: this is not UTF-8",
            "line 8: 10.0.0.5:80 is on line 7 already",
            "line 9: a line begins with the address",
            "line 12: got `weight=2` twice",
        ] {
            assert!(shown.contains(expected), "{shown}");
        }
    }

    #[test]
    fn lists_that_cannot_be_meant_are_refused() {
        for (text, why) in [
            (&b""[..], "there is no server in it"),
            (b"# 10.0.0.1:80\n\n", "there is no server in it"),
            (b"10.0.0.1:80 backup\n", "all servers are backups"),
            (b"10.0.0.1:80\0\n", "line 1: got `10.0.0.1:80\0`"),
        ] {
            assert!(parsed(text).unwrap_err().starts_with(why), "{:?}", parsed(text));
        }
        let many: String = (0..=SERVERS_MAX).map(|at| format!("a{at}:80\n")).collect();
        assert_eq!(parsed(many.as_bytes()).unwrap_err(), "it has 1025 servers, at most 1024 are allowed");
        let wrong = "x\n".repeat(25);
        assert!(parsed(wrong.as_bytes()).unwrap_err().ends_with("; and 15 more mistakes"));
        let h2 = Upstream {
            protocol: Protocol::H2 { streams_max: 1 },
            ..Upstream::new("api", vec![Server::new(Address::Name("main".to_owned(), 80))])
        };
        let mistakes = parse(b"https://a\nb:80\n", &source(), &h2).unwrap_err();
        assert_eq!(mistakes[0].line, 2, "{mistakes:?}");
        let plain = Upstream { protocol: Protocol::Http1, ..h2 };
        assert!(parse(b"a:1 backup\n", &source(), &plain).is_ok(), "the upstream has a server of its own");
    }

    #[test]
    fn folders_and_large_files_are_refused() {
        let upstream = Upstream::new("api", Vec::new());
        let read = |path: &Path| read(path, &source(), &upstream).unwrap_err();
        assert_eq!(read(Path::new("/dev/zero")), "this is not a file");
        assert_eq!(read(Path::new("/")), "this is not a file");
        assert!(read(Path::new("/nowhere/at/all")).contains("No such file"));
        let path = std::env::temp_dir().join(format!("flatout-servers-{}", std::process::id()));
        std::fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(read(&path).starts_with("larger than 262144 bytes"));
        std::fs::remove_file(&path).unwrap();
    }
}
