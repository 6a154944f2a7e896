#!/bin/sh
# sim/defects.sh [--seconds N] [--debug] [NAME …]: plants each defect of sim/defects in a copy of the sources, runs the simulator for at most
# N seconds (120 by default), and says after how many the defect was found. Exit status 1 if one was not found, could not be planted or
# built, or if a run ended otherwise. --debug: builds without optimisation, which take seconds instead of minutes, and simulate a
# quarter as much.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
limit_s=120
# A run that began before the limit is finished after it, and one that hangs is waited for.
extra_s=60
profile=simulation
built=simulation
usage() {
    echo "sim/defects.sh: $1; usage: sim/defects.sh [--seconds N] [--debug] [NAME …]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
        --seconds)
            limit_s=${2:-}
            case $limit_s in '' | *[!0-9]* | 0*) usage "--seconds: got '$limit_s', need a whole number from 1 on" ;; esac
            shift 2
            ;;
        --debug)
            profile=dev
            built=debug
            shift
            ;;
        -*) usage "unknown flag $1" ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || set -- $(cd sim/defects && ls ./*.patch | sed 's|^\./||; s|\.patch$||')

copy=$root/target/sim/copy
new=$root/target/sim/new
log=$root/target/sim/defect.log
# Without a repository around it, or git would look for the files of a patch at the top of the work tree.
export GIT_CEILING_DIRECTORIES="$root/target/sim"

# One copy for all: only crates that a patch touches are compiled again. What differs is written anew, never with an old date: cargo would
# take the crate with the former defect for the present one.
refresh() {
    rm -rf "$new"
    mkdir -p "$new" "$copy"
    tar -c --exclude=./.git --exclude=./target --exclude='./bench/*/target' --exclude=./fuzz . | tar -x -C "$new"
    (cd "$new" && find . -type f) | while IFS= read -r file; do
        if ! cmp -s "$new/$file" "$copy/$file"; then
            mkdir -p "$(dirname "$copy/$file")"
            cp "$new/$file" "$copy/$file"
            touch "$copy/$file"
        fi
    done
    (cd "$copy" && find . -type f) | while IFS= read -r file; do
        [ -e "$new/$file" ] || rm "$copy/$file"
    done
    rm -rf "$new"
}

plant() {
    (cd "$copy" && git apply "$@" "$root/sim/defects/$name.patch")
}

build() {
    (cd "$copy" && cargo build --quiet --profile "$profile" --package sim --target-dir "$root/target/sim")
}

refresh
found=0
missed=
unusable=
for name in "$@"; do
    if ! plant 2>"$log"; then
        echo "$name: the patch does not apply: $(head -n 1 "$log")"
        unusable="$unusable $name"
        continue
    fi
    if ! build 2>"$log"; then
        echo "$name: does not build: $(grep -m 1 '^error' "$log" || head -n 1 "$log")"
        unusable="$unusable $name"
        plant --reverse
        continue
    fi
    status=0
    timeout $((limit_s + extra_s)) "target/sim/$built/sim" --seconds "$limit_s" --no-reduce >"$log" 2>&1 || status=$?
    # What the simulator itself says of a run: the rule that was broken, or the panic. The latter is all that there is if what a panic has
    # left panics too when it is dropped, which ends the process.
    report=$(grep -a '^seed [0-9]*, [0-9]* events: \|panicked at ' "$log" | tail -n 1 | cut -c 1-220) || report=
    if [ "$status" = 0 ]; then
        echo "$name: not found in $limit_s s: $(tail -n 1 "$log")"
        missed="$missed $name"
    elif [ -n "$report" ]; then
        echo "$name: $(grep -a '^failed after' "$log" || :): $report"
        found=$((found + 1))
    else
        echo "$name: the simulator ended with status $status and no report: $(tail -n 1 "$log" | cut -c 1-200)"
        unusable="$unusable $name"
    fi
    plant --reverse
done
echo "$found of $# found in at most $limit_s s each"
[ -z "$missed" ] || echo "not found:$missed"
[ -z "$unusable" ] || echo "not tried:$unusable"
[ -z "$missed$unusable" ]
