//! The packages: installed or unpacked, run as their users run them, removed. `./x package` names the folder in which it has built
//! them, `FLATOUT_PACKAGES`; otherwise the Debian package is made of the program under test, and the others, which need a static
//! program, are left out. Without Debian's tools, which `./x` installs, the tests are skipped.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use flatout_tests::{Folder, Signal, program, until};
use rustix::process::{Pid, kill_process};

/// The highest exposure that systemd-analyze may report, from 0 (none) to 100.
const EXPOSURE_MAX: &str = "20";

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

fn is_there(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(name).exists())
}

/// The root of the sources.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The package that `./x package` has built whose name ends like this.
fn built(end: &str) -> Option<PathBuf> {
    let folder = root().join(std::env::var_os("FLATOUT_PACKAGES")?);
    let mut files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let found = files.find(|path| path.to_str().is_some_and(|path| path.ends_with(end)));
    Some(found.unwrap_or_else(|| panic!("{}: no file ends with {end}", folder.display())))
}

/// The Debian package, if it can be built here.
fn debian_package(folder: &Folder) -> Option<PathBuf> {
    if let Some(path) = built(".deb") {
        return Some(path);
    }
    if !["objcopy", "dpkg-deb", "dpkg-shlibdeps", "gzip"].into_iter().all(is_there) {
        return None;
    }
    let mut build = Command::new("sh");
    build.current_dir(root()).args(["packaging/debian.sh", program("flatout").to_str()?]);
    build.arg(&folder.0).args(["-Zgzip", "-z1"]).stderr(Stdio::inherit());
    Some(PathBuf::from(succeed(&mut build).trim()))
}

/// `dpkg` on an empty Debian system below a folder; the host stays unchanged.
fn dpkg(folder: &Path) -> Command {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", folder.display()));
    // Its scripts run without a chroot, and get the root from DPKG_ROOT; dependencies are not installed there.
    command.args(["--force-script-chrootless", "--force-depends", "--force-not-root"]);
    command
}

/// An empty Debian system.
fn debian(folder: &Folder) -> PathBuf {
    let place = folder.0.join("debian");
    for name in ["info", "updates", "triggers"] {
        std::fs::create_dir_all(place.join("var/lib/dpkg").join(name)).unwrap();
    }
    std::fs::write(place.join("var/lib/dpkg/status"), "").unwrap();
    place
}

#[test]
fn the_package_installs_runs_and_goes_away() {
    let folder = Folder::new();
    let Some(package) = debian_package(&folder) else { return };
    let place = debian(&folder);
    succeed(dpkg(&place).arg("--install").arg(&package));
    let listed = succeed(dpkg(&place).args(["--listfiles", "flatout"]));
    for file in [
        "/usr/bin/flatout",
        "/usr/lib/systemd/system/flatout.service",
        "/usr/lib/systemd/system/flatout.socket",
        "/etc/default/flatout",
        "/usr/share/man/man1/flatout-climb.1.gz",
        "/usr/share/bash-completion/completions/flatout",
        "/usr/share/doc/flatout/copyright",
    ] {
        assert!(listed.lines().any(|line| line == file), "{file}: {listed}");
        assert!(place.join(&file[1..]).exists(), "{file}");
    }
    let installed = place.join("usr/bin/flatout");
    assert_eq!(installed.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(succeed(Command::new(&installed).arg("--version")).starts_with("flatout "));
    if is_there("man") {
        let page = place.join("usr/share/man/man1/flatout-climb.1.gz");
        let text = succeed(Command::new("man").arg("-l").arg(page).env("MANWIDTH", "100"));
        assert!(text.contains("flatout climb") && text.contains("--budget"), "{text}");
    }
    serves_as_its_unit_says(&place);
    succeed(dpkg(&place).args(["--purge", "flatout"]));
    let left: Vec<PathBuf> =
        listed.lines().map(|line| place.join(&line[1..])).filter(|path| path.is_file()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Runs the unit's command, with a socket from systemd's own tool.
fn serves_as_its_unit_says(place: &Path) {
    if !is_there("systemd-socket-activate") {
        return;
    }
    let unit = std::fs::read_to_string(place.join("usr/lib/systemd/system/flatout.service")).unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/")).unwrap();
    let site = place.join("var/www/html");
    std::fs::create_dir_all(&site).unwrap();
    std::fs::write(site.join("index.html"), "packaged").unwrap();
    let line =
        command.replace("$FLATOUT_FLAGS", "--workers 2").replace("${FLATOUT_ROOT}", site.to_str().unwrap());
    let mut words = line.split_whitespace();
    let program = place.join(words.next().unwrap());
    let port = free_port();
    let mut activate = Command::new("systemd-socket-activate");
    activate.arg("-l").arg(format!("127.0.0.1:{port}")).arg(program).args(words);
    let child = activate.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The first connection starts it.
    assert_eq!(content(port), "packaged");
    // The server has replaced the tool, with the same process id.
    end(child);
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The index page of a server that is starting.
fn content(port: u16) -> String {
    let url = format!("http://127.0.0.1:{port}/");
    let mut body = String::new();
    until("the server responds", || {
        let output = run(Command::new("curl").args(["-s", "--max-time", "5", &url]));
        body = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    body
}

fn end(mut child: Child) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The program is alone in an otherwise empty root folder: it needs no library, and finds names.
#[test]
fn the_archive_runs_in_an_empty_root() {
    let Some(archive) = built(".tar.xz") else { return };
    let folder = Folder::new();
    succeed(Command::new("tar").arg("-xf").arg(&archive).args(["--strip-components=1", "-C"]).arg(&folder.0));
    assert!(folder.0.join("share/man/man1/flatout-serve.1.gz").exists());
    folder.write("etc/hosts", "127.0.0.1 localhost here.example\n");
    folder.write("site/index.html", "alone");
    let port = free_port();
    let mut serve = Command::new("chroot");
    serve.arg(&folder.0).args(["/bin/flatout", "serve", "/site", "--state", "/state"]);
    serve.args(["--workers", "1", "--listen", &format!("127.0.0.1:{port}")]).stderr(Stdio::null());
    let child = serve.spawn().unwrap();
    assert_eq!(content(port), "alone");
    let url = format!("http://here.example:{port}/");
    let mut bench = Command::new("chroot");
    bench.arg(&folder.0).args(["/bin/flatout", "bench", &url, "--duration", "1s", "-c", "1"]);
    let text = succeed(&mut bench);
    assert!(text.contains("requests"), "{text}");
    end(child);
}

/// The image has the layout of the OCI, and its command runs as its user, without capabilities.
#[test]
fn the_image_serves_and_reports_its_health() {
    let Some(file) = built("-image.tar") else { return };
    let folder = Folder::new();
    let (layout, bundle) = (folder.0.join("layout"), folder.0.join("bundle"));
    std::fs::create_dir(&layout).unwrap();
    succeed(Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(&layout));
    let tag = succeed(Command::new("umoci").args(["list", "--layout"]).arg(&layout)).trim().to_owned();
    let image = format!("{}:{tag}", layout.display());
    succeed(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle));
    let config = std::fs::read(bundle.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["process"]["user"]["uid"], 65532);
    let listed = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let port = free_port();
    let words = listed(&config["process"]["args"]);
    let words = words.iter().map(|word| word.replace("0.0.0.0:8080", &format!("127.0.0.1:{port}")));
    let rootfs = bundle.join("rootfs");
    std::fs::write(rootfs.join("var/www/html/index.html"), "contained").unwrap();
    let inside = || {
        // The variables of the image are also those by which the command is found.
        let mut chroot = Command::new("/usr/sbin/chroot");
        chroot.args(["--userspec=65532:65532", "--groups="]).arg(&rootfs);
        chroot
            .env_clear()
            .envs(listed(&config["process"]["env"]).iter().filter_map(|pair| pair.split_once('=')));
        chroot
    };
    let child = inside().args(words).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(content(port), "contained");
    assert_eq!(succeed(inside().args(["flatout", "health"])), "serving\n");
    end(child);
    let arguments = succeed(inside().args(["flatout", "controller", "--help"]));
    assert!(arguments.contains("--certificates"), "the chart needs it: {arguments}");
    let output = run(inside().args(["flatout", "health"]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// The shipped program has no debug information, no path of the machine that built it, and the list of its dependencies.
#[test]
fn the_program_is_stripped_and_lists_its_dependencies() {
    let Some(program) = built("/flatout") else { return };
    let sections = succeed(Command::new("objdump").arg("--section-headers").arg(&program));
    assert!(sections.contains(".dep-v0") && sections.contains(".gnu_debuglink"), "{sections}");
    assert!(!sections.contains(".debug_info") && !sections.contains(".interp"), "{sections}");
    let bytes = std::fs::read(&program).unwrap();
    let home = std::env::var("HOME").unwrap();
    for path in [root().canonicalize().unwrap().to_str().unwrap(), &format!("{home}/.cargo")] {
        let found = bytes.windows(path.len()).any(|window| window == path.as_bytes());
        assert!(!found, "{path} is in the program");
    }
    let debug = built("/flatout.debug").unwrap();
    let sections = succeed(Command::new("objdump").arg("--section-headers").arg(debug));
    assert!(sections.contains(".debug_info"), "{sections}");
}

/// The units are valid, and the sandbox is effective.
#[test]
fn the_units_are_sound() {
    if !is_there("systemd-analyze") {
        return;
    }
    let units = root().join("packaging");
    let security = ["security", "--no-pager", "--offline=yes", "--threshold", EXPOSURE_MAX];
    let judged = succeed(Command::new("systemd-analyze").args(security).arg(units.join("flatout.service")));
    assert!(judged.contains("Overall exposure level"), "{judged}");
    // The command is not installed here.
    let output = run(Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args([units.join("flatout.socket"), units.join("flatout.service")]));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints =
        text.lines().filter(|line| line.contains("flatout.") && !line.contains("/usr/bin/flatout is not"));
    assert_eq!(complaints.collect::<Vec<_>>(), [""; 0], "{text}");
}
