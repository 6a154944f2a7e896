//! All fuzz targets in one program, which is built once. `FLATOUT_FUZZ_TARGET` chooses one by its name.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

/// Each target is a file with a function `run`.
macro_rules! targets {
    ($($name:ident)*) => {
        $(mod $name;)*

        const TARGETS: &[(&str, Target)] = &[$((stringify!($name), $name::run)),*];
    };
}

targets! {
    answer
    cache
    chunked
    client_hello
    conversation
    deflate
    expression
    h2_frames
    h2_pair
    head
    hpack
    machine
    plan
    proxy_header
    range
    result
    site
    uri
    websocket
}

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FLATOUT_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("FLATOUT_FUZZ_TARGET is `{name}`, which is no file of fuzz/fuzz_targets")).1
});

fuzz_target!(|input: &[u8]| TARGET(input));
