#!/bin/sh
# sim/coverage.sh [--seconds N] [--seed N]: runs the simulator for N seconds (120 by default) with counters in the crates of this workspace, and
# prints which lines and functions of engine, site, proxy, cache and push were reached, and which functions were not. Needs llvm-profdata and
# llvm-cov of the LLVM version that rustc has: on PATH, with their version behind their names, or in the folder LLVM_BIN.
set -eu
cd "$(dirname "$0")/.."
crates='engine site proxy cache push'
version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\)\..*/\1/p')

tool() {
    for found in "${LLVM_BIN:-/usr/lib/llvm-$version/bin}/$1" "$(command -v "$1-$version" || :)" "$(command -v "$1" || :)"; do
        if [ -x "$found" ] && "$found" --version 2>/dev/null | grep -q "LLVM version $version\."; then
            echo "$found"
            return
        fi
    done
    echo "sim/coverage.sh: $1 of LLVM $version is missing; install the package llvm-$version, or set LLVM_BIN to its folder" >&2
    exit 1
}
profdata=$(tool llvm-profdata)
cov=$(tool llvm-cov)

mkdir -p target/sim/profiles
rm -f target/sim/profiles/*
# Only crates of the workspace get counters: others are built once, with or without them.
wrapper=$PWD/target/sim/with-counters
printf '#!/bin/sh\nexec "$@" -C instrument-coverage\n' >"$wrapper"
chmod +x "$wrapper"
RUSTC_WORKSPACE_WRAPPER=$wrapper cargo build --quiet --profile simulation --package sim --target-dir target/sim
cp target/sim/simulation/sim target/sim/counting

LLVM_PROFILE_FILE=$PWD/target/sim/profiles/%p.profraw target/sim/counting --seconds 120 "$@" | tail -n 1
"$profdata" merge --sparse -o target/sim/counts target/sim/profiles/*.profraw
sources=$(for crate in $crates; do echo "crates/$crate/src"; done)
# shellcheck disable=SC2086 # A list of folders.
"$cov" export --skip-expansions -instr-profile target/sim/counts target/sim/counting $sources >target/sim/coverage.json
python3 sim/coverage.py target/sim/coverage.json $crates
