//! The Debian package: built, installed, run as its unit runs it, removed. It is built from the program under test,
//! or is the one named by `FLATOUT_DEB`, which `./x package` has built. Without Debian's tools, which `./x`
//! installs, the tests are skipped.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// The package, if it can be built here.
fn package(folder: &Folder) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FLATOUT_DEB") {
        return Some(root().join(path));
    }
    if !["objcopy", "dpkg-deb", "dpkg-shlibdeps", "gzip"].into_iter().all(is_there) {
        return None;
    }
    let program = program("flatout");
    let profile = program.parent()?.file_name()?.to_str()?.to_owned();
    let mut build = Command::new("sh");
    build.current_dir(root()).args(["packaging/build.sh", &profile]).arg(&folder.0).args(["-Zgzip", "-z1"]);
    build.stderr(Stdio::inherit());
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
    let Some(package) = package(&folder) else { return };
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
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut activate = Command::new("systemd-socket-activate");
    activate.arg("-l").arg(format!("127.0.0.1:{port}")).arg(program).args(words);
    let mut child = activate.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let url = format!("http://127.0.0.1:{port}/");
    let mut body = String::new();
    // The first connection starts it.
    until("the activated server answers", || {
        let output = run(Command::new("curl").args(["-s", "--max-time", "5", &url]));
        body = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    assert_eq!(body, "packaged");
    // The server has replaced the tool, with the same process id.
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
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
