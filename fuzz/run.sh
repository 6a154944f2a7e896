#!/bin/sh
# fuzz/run.sh TARGET SECONDS: fuzzes one target on the stable toolchain, without cargo-fuzz.
# fuzz/run.sh TARGET FILE...: runs just these inputs.
#
# TARGET is a file of fuzz/fuzz_targets; without one, their names are printed. Starts from fuzz/corpus/TARGET, which
# stays unchanged; new inputs go to fuzz/target/corpus/TARGET, failing inputs to fuzz/artifacts/TARGET. Exit status 0 if
# no failure was found.
set -eu
fuzz=$(cd "$(dirname "$0")" && pwd)
targets=$(cd "$fuzz/fuzz_targets" && for file in *.rs; do [ "$file" = main.rs ] || echo "${file%.rs}"; done)
if [ $# -eq 0 ]; then
    echo "$targets"
    exit 0
fi
target=$1
shift
if [ $# -eq 0 ] || ! echo "$targets" | grep -qx "$target"; then
    echo "usage: fuzz/run.sh TARGET SECONDS|FILE...; targets:" $targets >&2
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
    cargo build --manifest-path "$fuzz/Cargo.toml" --release --locked --quiet --target "$host" --target-dir "$fuzz/target"

export FLATOUT_FUZZ_TARGET="$target"
binary=$fuzz/target/$host/release/fuzz
if [ -f "$1" ]; then
    exec "$binary" "$@"
fi
learnt=$fuzz/target/corpus/$target found=$fuzz/artifacts/$target
mkdir -p "$learnt" "$found"
# A machine has many files; for all other targets short inputs are more efficient.
case $target in machine) bytes=16384 ;; *) bytes=4096 ;; esac
exec "$binary" -max_total_time="$1" -max_len=$bytes -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$found/" "$learnt" "$fuzz/corpus/$target"
