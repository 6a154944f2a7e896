#!/bin/sh
# Builds the JSON API of json-builds.kdl: as it is, for this CPU, with a profile of its load, and with both.
#
#     sh climbs/json-builds/build.sh LOAD        LOAD is the flatout that loads it for the profile
set -eu
load=$1
folder=$PWD/target/builds
host=$(rustc -vV | sed -n 's/^host: //p')
# The first as in .cargo/config.toml, which RUSTFLAGS replaces. The second: profile_text.py has no value profiles.
common="-Cforce-frame-pointers=yes -Cllvm-args=-disable-vp=true"

# build NAME FLAG …: with a target, the flags are not those of build scripts and macros.
build() {
    name=$1
    shift
    RUSTFLAGS="$common $*" cargo build --quiet --release -p hello-json --target "$host" --target-dir "$folder/cargo"
    mkdir -p "$folder/$name"
    cp "$folder/cargo/$host/release/hello-json" "$folder/$name/hello-json"
}

# Merges the profiles of rustc's LLVM, with its own tool or an older one.
merge() {
    own=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
    if [ -x "$own" ]; then
        "$own" merge -o "$folder/profile" "$folder"/raw/*.profraw
    else
        python3 climbs/json-builds/profile_text.py "$folder"/raw/*.profraw >"$folder/profile.txt"
        llvm-profdata merge -o "$folder/profile" "$folder/profile.txt"
    fi
}

rm -rf "$folder/raw"
build counting "-Cprofile-generate=$folder/raw"
"$folder/counting/hello-json" --listen 127.0.0.1:18095 --workers 1 &
counting=$!
trap 'kill "$counting" 2>/dev/null || true' EXIT
trap 'exit 143' HUP INT TERM
for _ in $(seq 50); do
    ! "$load" bench --requests 1 --connections 1 http://127.0.0.1:18095/json >/dev/null 2>&1 || break
    sleep 0.1
done
"$load" bench --connections 64 --duration 5s http://127.0.0.1:18095/json >/dev/null
# It writes its profile when it ends by itself.
kill -TERM "$counting"
wait "$counting"
merge
build plain
build native -Ctarget-cpu=native
build guided "-Cprofile-use=$folder/profile"
build both "-Cprofile-use=$folder/profile" -Ctarget-cpu=native
