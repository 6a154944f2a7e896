//! Machines: whatever files contain and commands print, every tuning reports its finding and its advice, or why it
//! cannot.
//!
//! The input is a machine in the format of `crates/tune/machines`: `=== ` with a path, `$ ` with a command line, `@ `
//! with the path of a link, or `~ ` with a netlink request, followed by its content, output, target or reply. The
//! first byte chooses the served port.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flatout_tune::{Advice, Host, Protocol, RunError, Served, ServerSelector, System, find, plan, survey};

struct Recorded(BTreeMap<String, Vec<u8>>);

impl Recorded {
    fn parse(input: &[u8]) -> Recorded {
        let text = String::from_utf8_lossy(input);
        let entries = text.split("=== ").skip(1).filter_map(|entry| entry.split_once('\n'));
        Recorded(entries.map(|(name, content)| (name.to_owned(), content.as_bytes().to_vec())).collect())
    }

    fn entry(&self, name: &str) -> io::Result<&Vec<u8>> {
        self.0.get(name).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

impl System for Recorded {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.entry(&path.to_string_lossy()).cloned()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let folder = format!("{}/", path.to_string_lossy());
        let paths = self.0.keys().map(|name| name.trim_start_matches("@ "));
        let below = paths.filter_map(|name| name.strip_prefix(&folder)?.split('/').next());
        let names: BTreeSet<String> = below.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(names.into_iter().collect()) }
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.entry(&path.to_string_lossy()).map(|_| SystemTime::UNIX_EPOCH)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let target = self.entry(&format!("@ {}", path.to_string_lossy()))?;
        Ok(PathBuf::from(String::from_utf8_lossy(target).trim_end()))
    }

    fn run(&self, program: &str, arguments: &[&str], _: &str) -> Result<String, RunError> {
        let answer = self.entry(&format!("$ {program} {}", arguments.join(" ")));
        answer.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).map_err(|_| RunError::Missing)
    }

    fn ask(&self, protocol: Protocol, request: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
        let request: String = request.iter().map(|byte| format!("{byte:02x}")).collect();
        let asked = format!("~ {protocol:?} {request} ").to_ascii_lowercase();
        let answer = self.0.iter().find(|(name, _)| name.starts_with(&asked)).map(|(_, content)| content);
        let answer = answer.ok_or(ErrorKind::NotFound)?;
        let mut datagrams =
            answer.split(|&byte| byte == b'\n').map(bytes).filter(|datagram| !datagram.is_empty());
        let _ = datagrams.any(|datagram| take(&datagram));
        Ok(())
    }

    fn write(&self, _: &Path, _: &[u8]) -> io::Result<()> {
        panic!("who looks does not write");
    }

    fn create(&self, _: &Path, _: &[u8], _: u32) -> io::Result<()> {
        panic!("who looks does not write");
    }

    fn create_folder(&self, _: &Path) -> io::Result<()> {
        panic!("who looks does not write");
    }

    fn sync(&self, _: &Path) -> io::Result<()> {
        panic!("who looks does not write");
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        panic!("who looks does not write");
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        panic!("who looks does not write");
    }
}

/// Decodes hexadecimal text; invalid digits are skipped.
fn bytes(hex: &[u8]) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hex.chunks(2).filter_map(byte).collect()
}

pub fn run(input: &[u8]) {
    let port = [Some(80), Some(8080), None][usize::from(input.first().copied().unwrap_or(0)) % 3];
    let host = Host::with(Box::new(Recorded::parse(input)), "/");
    let Ok(served) = Served::find(&host, &ServerSelector { port, ..ServerSelector::default() }) else {
        return;
    };
    for finding in survey(&host, &served) {
        let Some(tuning) = find(finding.about.name) else { panic!("{} is not found", finding.about.name) };
        if let Ok(Some(planned)) = plan(&host, &served, tuning) {
            assert!(matches!(finding.advice, Ok(Advice::Change { .. })));
            assert!(!planned.all_changes(true).is_empty(), "{} advises nothing", planned.about.name);
        }
    }
}
