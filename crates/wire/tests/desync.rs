//! The classified requests shipped with the crate `http_desync_guardian`: those it calls severe must be rejected.
//!
//! They are YAML files in its package, which cargo has unpacked because it is a dependency of this test.

use std::path::{Path, PathBuf};
use std::process::Command;

use flatout_wire::head::{HeadLimits, parse};
// The dependency is needed for its files; linking it makes sure that cargo has unpacked them.
use http_desync_guardian as _;

/// A request and the guardian's verdict.
#[derive(Default)]
struct Judged {
    name: String,
    method: Vec<u8>,
    uri: Vec<u8>,
    version: Vec<u8>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    tier: String,
}

impl Judged {
    fn is_accepted(&self) -> bool {
        matches!(parse(&self.request(), &mut Vec::new(), &HeadLimits::default()), Ok(Some(_)))
    }

    fn request(&self) -> Vec<u8> {
        let mut out = [&self.method[..], b" ", &self.uri, b" ", &self.version, b"\r\n"].concat();
        for (name, value) in &self.headers {
            out.extend([&name[..], b": ", value, b"\r\n"].concat());
        }
        // Most cases have no Host; a request must not be rejected for that alone.
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"host")) {
            out.extend(b"Host: example.org\r\n");
        }
        out.extend(b"\r\n");
        out
    }
}

#[test]
fn severe_faults_are_refused() {
    let requests = judged_requests();
    assert_eq!(requests.len(), 159, "the package ships another number of cases than is known");
    assert!(requests.iter().all(|judged| !judged.method.is_empty() && !judged.tier.is_empty()));
    assert_eq!(names(&requests, "Severe", true), [""; 0]);
}

/// Ambiguous requests that are accepted on purpose.
const ACCEPTED: [&str; 10] = [
    // Names that resemble framing fields: ordinary fields here. Components that pass fields on to an application that
    // treats `_` like `-` drop those with `_`.
    "Content_Length with underscore.",
    "Transfer-Encoding with multiple delimiters",
    "Transfer-Encoding with multiple hyphens",
    "Transfer_Encoding with underscore.",
    // A body of GET or HEAD: read according to its framing.
    "Get with a body and Content-Length",
    "Get with a body and Transfer-Encoding",
    "Has a CL in GET",
    "Has a TE in GET",
    "Head with a body and Content-Length",
    "Head with a body and Transfer-Encoding",
];

/// Compliant requests that are rejected on purpose.
const REFUSED: [&str; 10] = [
    // Transfer codings other than `chunked`, lists of them and parameters: 501 or 400.
    "Correct TE OK",
    "Different Transfer-Encoding headers",
    "Different Transfer-Encoding headers combined",
    "Multiple transfer encoding headers in a single request OK",
    "TE with custom parameters OK",
    "Transfer-Encoding with a param: chunked;custom_param",
    "Transfer-Encoding: identity and chunked OK",
    // Targets with `#`, with bytes above 127, or without a path.
    "Compliant URL",
    "Empty URI",
    "International in URI",
];

#[test]
fn other_requests_are_parsed_the_same_with_known_exceptions() {
    let requests = judged_requests();
    let sorted = |mut names: Vec<&'static str>| {
        names.sort();
        names
    };
    assert_eq!(names(&requests, "Ambiguous", true), sorted(ACCEPTED.to_vec()));
    assert_eq!(names(&requests, "Compliant", false), sorted(REFUSED.to_vec()));
}

/// The sorted names of a tier's requests that are accepted or rejected here.
fn names<'j>(requests: &'j [Judged], tier: &str, accepted: bool) -> Vec<&'j str> {
    let requests = requests.iter().filter(|judged| judged.tier == tier && judged.is_accepted() == accepted);
    let mut names: Vec<_> = requests.map(|judged| judged.name.as_str()).collect();
    names.sort();
    names
}

fn judged_requests() -> Vec<Judged> {
    let folder = package_folder().join("tests");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files.iter().flat_map(|file| judged_requests_of(file)).collect()
}

/// Parses the one shape of these files, a key and a scalar per line: a complete YAML parser is not needed.
///
/// ```text
/// - name: 'a case'
///   uri: /foo/bar
///   headers:
///     - name: "Transfer-Encoding\x01"
///       value: chunked
///       tier: Bad
///   expected:
///     tier: Severe
/// ```
fn judged_requests_of(file: &Path) -> Vec<Judged> {
    let mut cases: Vec<Judged> = Vec::new();
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = scalar(value.trim());
        if key == "- name" {
            cases.push(Judged { name: String::from_utf8_lossy(&value).into_owned(), ..Judged::default() });
            continue;
        }
        let Some(case) = cases.last_mut() else { continue };
        match key {
            "  method" => case.method = value,
            "  uri" => case.uri = value,
            "  version" => case.version = value,
            "    - name" => case.headers.push((value, Vec::new())),
            "      value" => case.headers.last_mut().unwrap().1 = value,
            "    tier" => case.tier = String::from_utf8(value).unwrap(),
            _ => {}
        }
    }
    cases
}

/// A plain or quoted scalar; escapes count in both kinds of quotes, as in the guardian's own tests.
fn scalar(text: &str) -> Vec<u8> {
    let quoted = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    let text = quoted('"').or_else(|| quoted('\'')).unwrap_or(text);
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next().unwrap() {
                b'x' => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                other => other,
            },
            _ => byte,
        });
    }
    out
}

/// Cargo's folder of the package. Only packages for this platform are requested: others may be missing.
fn package_folder() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let about = Command::new("rustc").arg("-vV").output().unwrap();
    let about = String::from_utf8(about.stdout).unwrap();
    let platform = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform", platform])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let package = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|package| package["name"] == "http_desync_guardian")
        .expect("the dependency is among the packages");
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}
