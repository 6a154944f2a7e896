//! Compiler messages for common mistakes of authors.
//!
//! The texts are from one compiler version. For another one, `TRYBUILD=overwrite cargo test refused` rewrites them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the process that compiles.
const INSIDE: &str = "FLATOUT_TEST_REFUSED";

/// What the compiler says names the types that there are. Features that bring the modules of `flatout serve` are left out, because
/// building them takes long and they add no such types.
const FEATURES: [&str; 7] = ["compression", "cookies", "garde", "multipart", "openapi", "tracing", "upgrade"];

/// An application with the mistakes, in a folder whose path has the same length on every machine: the name of a closure's type
/// contains the path of its file, and the compiler words an error differently when such a name is long. It depends on the library and
/// on nothing that only the library's tests need, so little is compiled.
struct Application(PathBuf);

impl Application {
    fn new() -> Application {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = PathBuf::from(format!("/tmp/flatout-{:010}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("src")).unwrap();
        std::fs::create_dir_all(folder.join("tests")).unwrap();
        let application = Application(folder);
        let manifest = format!(
            "[package]\nname = \"refused\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
             flatout = {{ path = {package:?}, features = {FEATURES:?} }}\n"
        );
        application.write("Cargo.toml", &manifest);
        application.write("src/lib.rs", "");
        // The versions that everything else is tested with.
        std::fs::copy(package.join("../../Cargo.lock"), application.0.join("Cargo.lock")).unwrap();
        symlink(package.join("tests/refused"), application.0.join("tests/refused")).unwrap();
        application
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn compiler_errors_name_types_of_this_library() {
    if std::env::var_os(INSIDE).is_some() {
        trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
        return;
    }
    let application = Application::new();
    // trybuild reads from the environment where the package is.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "--nocapture"]).arg(std::thread::current().name().unwrap());
    again.env(INSIDE, "1").env("CARGO_MANIFEST_DIR", &application.0).current_dir(&application.0);
    // The folder of this build, so that dependencies are compiled once.
    again
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap());
    assert!(again.status().unwrap().success(), "the differences are above");
}
