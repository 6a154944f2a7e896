//! The planted defects. They are a program of their own because git is started for each: see `seeds.rs`.

#[test]
fn every_planted_defect_applies() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for entry in std::fs::read_dir(root.join("sim/defects")).expect("a folder") {
        let patch = entry.expect("an entry").path();
        if patch.extension().is_some_and(|extension| extension == "patch") {
            let git = std::process::Command::new("git")
                .args(["apply", "--check"])
                .arg(&patch)
                .current_dir(root)
                .output()
                .expect("git");
            assert!(git.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&git.stderr));
        }
    }
}
