#!/bin/sh
# sim/defects.sh [--seconds N] [--jobs N] [--debug] [NAME …]: plants the defects of sim/defects in a copy of the sources, runs the simulator for
# at most N seconds (120 by default) with each of them, and prints a table: after how many seconds each was found, and by which rule. One
# build has all defects that only change the inside of functions, each behind a switch (sim/plant.py); others have builds of their own.
# --jobs: so many runs at once. --debug: without optimisation, which builds faster and simulates a quarter as much. Exit status 1 if a defect
# was not found, could not be planted or built, or if a run ended otherwise.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
limit_s=120
# A run that began before the limit is finished after it, and one that hangs is waited for.
extra_s=60
jobs=1
profile=simulation
built=simulation
usage() {
    echo "sim/defects.sh: $1; usage: sim/defects.sh [--seconds N] [--jobs N] [--debug] [NAME …]" >&2
    exit 2
}
number() {
    case $2 in '' | *[!0-9]* | 0*) usage "$1: got '$2', need a whole number from 1 on" ;; esac
}

# A row of the table: the simulator with one defect. Only what it says itself counts: the rule that was broken, or the panic or overflow. The latter is all
# that there is if what a panic has left panics too when it is dropped, which ends the process.
row() {
    log=$(mktemp "$root/target/sim/log.XXXXXX")
    status=0
    SIM_DEFECT=$2 timeout $((limit_s + extra_s)) "$1" --seconds "$limit_s" --no-reduce >"$log" 2>&1 || status=$?
    rule=$(grep -a '^seed [0-9]*, [0-9]* events: \|panicked at \|has overflowed its stack' "$log" | tail -n 1 | sed 's/^\(seed [0-9]*\), [0-9]* events: /\1: /; s/|/\//g' | cut -c 1-160) || rule=
    after=$(sed -n 's/^failed after \(.*\) s, \(.*\) runs, \(.*\) requests$/\1 s | \3/p' "$log" | tail -n 1)
    if [ "$status" = 0 ]; then
        echo "| $2 | **not found** | $(sed -n 's/.* \([0-9]*\) requests (.*/\1/p' "$log" | tail -n 1) | |"
    elif [ -n "$rule" ]; then
        echo "| $2 | ${after:-at once | } | $rule |"
    else
        echo "| $2 | **not tried** | | the simulator ended with status $status and no report: $(tail -n 1 "$log" | cut -c 1-160) |"
    fi
    rm "$log"
}

while [ $# -gt 0 ]; do
    case $1 in
        --seconds) number "$1" "${2:-}" && limit_s=$2 && shift 2 ;;
        --jobs) number "$1" "${2:-}" && jobs=$2 && shift 2 ;;
        # For this script itself: one row of the table.
        --row) row "$2" "$3" && exit ;;
        --debug) profile=dev built=debug && shift ;;
        -*) usage "unknown flag $1" ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || set -- $(cd sim/defects && ls ./*.patch | sed 's|^\./||; s|\.patch$||')

copy=$root/target/sim/copy
new=$root/target/sim/new
log=$root/target/sim/defect.log
rows=$root/target/sim/rows
simulator=$root/target/sim/planted
# Without a repository around it, or git would look for the files of a patch at the top of the work tree.
export GIT_CEILING_DIRECTORIES="$root/target/sim"

# One copy for all: only crates that a patch touches are compiled again. What differs is written anew, never with an old date: cargo would
# take the crate with the former defect for the present one. `.cargo` is left out: cargo also reads it
# from the folder above, and with its settings applied twice it would compile all crates again.
refresh() {
    rm -rf "$new"
    mkdir -p "$new" "$copy"
    tar -c --exclude=./.git --exclude=./.cargo --exclude=./target --exclude='./bench/*/target' --exclude=./fuzz . | tar -x -C "$new"
    if [ $# -gt 0 ]; then
        (cd "$new" && "$@") || return
    fi
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

# In a folder of its own: cargo cannot tell a crate of the copy from the same crate of the sources, and `./x sim` would use what has defects.
build() {
    (cd "$copy" && cargo build --quiet --profile "$profile" --package sim --target-dir "$root/target/sim/defects") &&
        cp "target/sim/defects/$built/sim" "$simulator"
}

plant_all() {
    for name; do printf '%s/sim/defects/%s.patch\n' "$root" "$name"; done | xargs python3 "$root/sim/plant.py" . >"$root/target/sim/together"
}

mkdir -p target/sim
: >"$rows"
refresh plant_all "$@"
if build 2>"$log"; then
    xargs -P "$jobs" -I '{}' sim/defects.sh --seconds "$limit_s" --row "$simulator" '{}' <target/sim/together | tee "$rows" >&2
else
    echo "sim/defects.sh: the defects do not build together, so each is built alone: $(grep -m 1 '^error' "$log" || head -n 1 "$log")" >&2
    : >target/sim/together
fi
for name; do
    if grep -qxF "$name" target/sim/together; then continue; fi
    if ! refresh git apply "$root/sim/defects/$name.patch" 2>"$log"; then
        echo "| $name | **not tried** | | the patch does not apply: $(head -n 1 "$log") |"
    elif ! build 2>"$log"; then
        echo "| $name | **not tried** | | does not build: $(grep -m 1 '^error' "$log" || head -n 1 "$log") |"
    else
        row "$simulator" "$name"
    fi
done | tee -a "$rows" >&2
rm -f "$simulator"
echo "| defect | found after | requests | by |"
echo "|---|---|---|---|"
sort "$rows"
missed=$(grep -c '^| [^|]* | \*\*' "$rows") || :
echo
echo "$(($# - missed)) of $# found in at most $limit_s s each"
[ "$missed" = 0 ]
