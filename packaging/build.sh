#!/bin/sh
# packaging/build.sh FOLDER [TARGET]: the program as it is shipped, FOLDER/flatout, and its debug information, FOLDER/flatout.debug.
# Statically linked, with the controller, so that the image runs the chart, and with the list of its dependencies in it (`cargo audit bin`
# reads it). The same sources and compiler give the same bytes, wherever they lie. TARGET is cargo's target folder.
set -eu
cd "$(dirname "$0")/.."
. packaging/facts.sh
folder=$1
target=${2:-target}
mkdir -p "$folder"
here=$PWD
home=${CARGO_HOME:-$HOME/.cargo}
toolchain=$(rustc --print sysroot)
host=$(rustc -vV | sed -n 's/^host: //p')

# The flags of .cargo/config.toml, which RUSTFLAGS replaces, and: no path of this machine in the program.
RUSTFLAGS="-Cforce-frame-pointers=yes -Ctarget-feature=+crt-static -Clink-arg=-Wl,--build-id=sha1"
RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$here=flatout --remap-path-prefix=$home=cargo --remap-path-prefix=$toolchain=rust"
CFLAGS="-ffile-prefix-map=$here=flatout -ffile-prefix-map=$home=cargo"
export RUSTFLAGS CFLAGS
# With --target, the flags do not apply to build scripts and macros, which cannot be static.
PATH=$here/target/tools/bin:$PATH cargo auditable build --locked --quiet --release --target "$host" --target-dir "$target" \
    --package flatout-cli --bin flatout --features controller >&2

built=$target/$host/release/flatout
objcopy --only-keep-debug --compress-debug-sections "$built" "$folder/flatout.debug"
chmod 644 "$folder/flatout.debug"
objcopy --strip-all --add-gnu-debuglink="$folder/flatout.debug" "$built" "$folder/flatout"
