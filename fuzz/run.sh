#!/bin/sh
# fuzz/run.sh TARGET SECONDS: fuzzes one target on the stable toolchain, without cargo-fuzz.
# fuzz/run.sh TARGET FILE...: runs just these inputs.
#
# TARGET is head, chunked, range or uri. Starts from fuzz/corpus/TARGET, which it leaves alone; what it learns
# goes to fuzz/target/corpus/TARGET, and an input that fails to fuzz/artifacts/TARGET. Exit status 0 when
# nothing was found.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: fuzz/run.sh head|chunked|range|uri SECONDS|FILE..." >&2
    exit 2
fi
target=$1
shift
fuzz=$(cd "$(dirname "$0")" && pwd)
if [ ! -d "$fuzz/corpus/$target" ]; then
    echo "there is no target $target: head, chunked, range and uri are" >&2
    exit 2
fi
if ! command -v c++ >/dev/null; then
    echo "libFuzzer needs a C++ compiler: apt-get install g++" >&2
    exit 1
fi

# What `cargo fuzz` passes on nightly, as plain LLVM arguments. One codegen unit: sections of counters must not
# be split. --target keeps the flags away from build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1 -Cforce-frame-pointers=yes" \
    cargo build --manifest-path "$fuzz/Cargo.toml" --release --locked --quiet --target "$host" --target-dir "$fuzz/target" --bin "$target"

binary=$fuzz/target/$host/release/$target
if [ -f "$1" ]; then
    exec "$binary" "$@"
fi
learnt=$fuzz/target/corpus/$target found=$fuzz/artifacts/$target
mkdir -p "$learnt" "$found"
exec "$binary" -max_total_time="$1" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$found/" "$learnt" "$fuzz/corpus/$target"
