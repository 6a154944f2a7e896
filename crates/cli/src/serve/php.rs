//! `flatout serve DIR --php`: a folder with PHP, by php-fpm. The flag stands for a short site file, as the other flags do.

use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flatout_config::quoted;

use super::parse;

/// Where distributions put the socket of php-fpm. `*` is a version.
const SOCKETS: [&str; 5] = [
    "/run/php/php-fpm.sock",
    "/run/php/php*-fpm.sock",
    "/run/php-fpm/www.sock",
    "/run/php-fpm/php-fpm.sock",
    "/var/run/php-fpm.sock",
];

/// The address in php-fpm's own example.
const ADDRESS: &str = "127.0.0.1:9000";

/// How long a connection to it may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// Names of files that PHP reads, in any case, and of their copies by editors. Their source is never served.
const SOURCES: [&str; 6] = ["*.php*", "*.phtml*", "*.phar*", "*.pht", "*.phps", "*.inc"];

/// The site file for a folder: files as they are, scripts and all other paths by php-fpm at `address`. `hide` are further names
/// of files that are not served.
///
/// # Errors
/// The folder is not there, or its path is none that php-fpm can be told.
pub(super) fn site_file(folder: &str, address: &str, hide: &[&str]) -> Result<String, String> {
    let root = Path::new(folder).canonicalize().map_err(|error| format!("{folder}: {error}"))?;
    let Some(root_text) = root.to_str().filter(|_| root.is_dir()) else {
        return Err(format!("{folder}: need a folder whose path is UTF-8"));
    };
    let hidden = SOURCES.iter().chain(hide).fold(String::new(), |mut text, name| {
        // Writing to a text does not fail.
        let _ = write!(text, " {}", quoted(name));
        text
    });
    Ok(format!(
        "upstream php {{\n  server {}\n  protocol fastcgi\n  fastcgi-root {}\n}}\n\
         route \"/\" {{\n  hide{hidden}\n  try-files {}\n  proxy php\n}}\n",
        quoted(address),
        quoted(root_text),
        quoted(folder)
    ))
}

/// The address of php-fpm: the one that is given, or the first that accepts a connection.
///
/// # Errors
/// None does: what was tried, and what to do.
pub(super) fn address(given: &str) -> Result<String, String> {
    if !given.is_empty() {
        let (_, is_tls) = parse::server(given)?;
        return match is_tls {
            true => Err(format!("got `{given}`, need unix:PATH or HOST:PORT: FastCGI has no TLS")),
            false => Ok(given.to_owned()),
        };
    }
    find(&SOCKETS, ADDRESS)
}

fn find(patterns: &[&str], tcp: &str) -> Result<String, String> {
    let mut refused = Vec::new();
    for socket in patterns.iter().flat_map(|pattern| matching(pattern)) {
        match UnixStream::connect(&socket) {
            Ok(_) => return Ok(format!("unix:{}", socket.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => refused.push(format!("{}: {error}", socket.display())),
        }
    }
    let is_there = |address: &SocketAddr| TcpStream::connect_timeout(address, CONNECT_TIME_MAX).is_ok();
    if tcp.parse().is_ok_and(|address| is_there(&address)) {
        return Ok(tcp.to_owned());
    }
    Err(match refused.is_empty() {
        true => format!(
            "found no php-fpm; tried {} and {tcp}. Install it (Debian: apt install php-fpm), start it, or name its address: \
             --php unix:PATH or --php HOST:PORT",
            patterns.join(", ")
        ),
        false => format!(
            "php-fpm cannot be reached: {}. Is it running, and may this user open its socket (listen.owner and listen.group \
             of the pool)?",
            refused.join("; ")
        ),
    })
}

/// The files whose paths match a pattern, the highest version first.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let Some((folder, name)) = pattern.rsplit_once('/') else { return Vec::new() };
    let Some((start, end)) = name.split_once('*') else { return vec![PathBuf::from(pattern)] };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let version = |name: &str| -> Option<Vec<u32>> {
        name.strip_prefix(start)?.strip_suffix(end)?.split('.').map(|part| part.parse().ok()).collect()
    };
    let mut found: Vec<(Vec<u32>, PathBuf)> =
        names.filter_map(|name| Some((version(&name)?, Path::new(folder).join(&name)))).collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// Whether an address belongs to php-fpm rather than being the folder: `--php ./public`.
pub(super) fn is_address(text: &str) -> bool {
    parse::server(text).is_ok() && !Path::new(text).is_dir()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("flatout-php-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn at(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_newest_running_version_is_found() {
        let folder = Folder::new("newest");
        let pattern = folder.at("php*-fpm.sock");
        let none = find(&[&pattern], "127.0.0.1:1").unwrap_err();
        assert!(none.contains("found no php-fpm") && none.contains("apt install php-fpm"), "{none}");
        let _old = UnixListener::bind(folder.at("php8.2-fpm.sock")).unwrap();
        let _new = UnixListener::bind(folder.at("php8.10-fpm.sock")).unwrap();
        // Its server has ended.
        drop(UnixListener::bind(folder.at("php9.0-fpm.sock")).unwrap());
        std::fs::write(folder.at("phpx-fpm.sock"), "").unwrap();
        assert_eq!(
            find(&[&pattern], "127.0.0.1:1").unwrap(),
            format!("unix:{}", folder.at("php8.10-fpm.sock"))
        );
    }

    #[test]
    fn a_socket_without_a_server_is_named() {
        let folder = Folder::new("dead");
        let socket = folder.at("php-fpm.sock");
        drop(UnixListener::bind(&socket).unwrap());
        let refused = find(&[&socket], "127.0.0.1:1").unwrap_err();
        assert!(refused.contains(&socket) && refused.contains("Is it running"), "{refused}");
    }

    #[test]
    fn addresses_and_folders_differ() {
        for text in ["unix:/run/php.sock", "127.0.0.1:9000"] {
            assert!(is_address(text), "{text}");
        }
        for text in ["./public", "public", "/srv/www", ""] {
            assert!(!is_address(text), "{text}");
        }
        assert!(address("https://127.0.0.1:9000").unwrap_err().contains("no TLS"));
        assert!(site_file("/no/such/folder", "unix:/a", &[]).unwrap_err().contains("/no/such/folder"));
    }
}
