//! Takes the programs out of docs/tutorial.md: one folder for each step, with the files as they are after it.

use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = "../../docs/tutorial.md";

fn main() {
    println!("cargo:rerun-if-changed={PAGE}");
    println!("cargo:rerun-if-changed=build.rs");
    let page = std::fs::read_to_string(PAGE).expect("the page can be read");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    // A step begins with the files of the one before.
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for step in page.split("\n## ").skip(1) {
        let Some((number, _)) = step.split_once(". ") else { continue };
        for block in step.split("\n`src/").skip(1) {
            let (name, rest) = block.split_once('`').expect("the name of a file ends");
            let (kind, code) =
                rest.split_once("```rust").expect("code follows").1.split_once('\n').expect("a line");
            let code = code.split_once("```").expect("the code ends").0;
            match kind {
                "" => drop(files.insert(name.to_owned(), code.to_owned())),
                ",replace" => replace(files.get_mut(name).expect("the file is there"), code),
                other => panic!("unknown kind of block `{other}`"),
            }
        }
        let folder = Path::new(&out).join(number);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, code) in &files {
            std::fs::write(folder.join(name), code).expect("a file");
        }
    }
}

/// Puts a line in the place of the one that begins like it, up to the `=`.
fn replace(file: &mut String, line: &str) {
    let begin = line.split_once('=').expect("an assignment").0;
    let old = file.lines().find(|old| old.starts_with(begin)).expect("a line that begins like it").to_owned();
    *file = file.replace(&old, line.trim_end());
}
