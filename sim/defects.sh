#!/bin/sh
# sim/defects.sh [NAME …]: plants each defect of sim/defects in a copy of the sources, runs the simulator, and says after how many
# seconds it was found. Exit status 1 if one was not found within the limit.
set -eu
cd "$(dirname "$0")/.."
limit_s=120
copy=$PWD/target/sim/copy
log=$PWD/target/sim/defect.log
[ $# -gt 0 ] || set -- $(cd sim/defects && ls ./*.patch | sed 's|^\./||; s|\.patch$||')
missed=0
for name in "$@"; do
    rm -rf "$copy"
    mkdir -p "$copy"
    tar -c --exclude=./.git --exclude=./target --exclude='./bench/*/target' --exclude=./fuzz . | tar -x -C "$copy"
    patch --quiet --directory="$copy" --strip=1 <"sim/defects/$name.patch"
    (cd "$copy" && CARGO_PROFILE_DEMO_DEBUG_ASSERTIONS=true cargo build --quiet --profile demo --package sim --target-dir "$OLDPWD/target/sim")
    began=$(date +%s)
    if timeout $((limit_s + 20)) target/sim/demo/sim --seconds $limit_s >"$log" 2>&1; then
        echo "$name: not found in $limit_s s"
        missed=$((missed + 1))
    else
        echo "$name: $(($(date +%s) - began)) s: $(grep -a '^seed\|panicked at' "$log" | tail -n 1 | cut -c 1-150)"
    fi
done
rm -rf "$copy"
[ "$missed" = 0 ]
