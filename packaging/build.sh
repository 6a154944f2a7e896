#!/bin/sh
# packaging/build.sh PROFILE FOLDER [FLAG …]: the Debian package of target/PROFILE/flatout, written to FOLDER; its path is
# printed. Flags are cargo-deb's.
set -eu
cd "$(dirname "$0")/.."
profile=$1
folder=$2
shift 2
stage=target/package
rm -rf "$stage"
mkdir -p "$stage/man" "$stage/completions" "$folder"
# Names of functions stay, for profilers; lines of the source go.
objcopy --strip-debug "target/$profile/flatout" "$stage/flatout"
chmod 755 "$stage/flatout"
"$stage/flatout" man "$stage/man"
gzip -9n "$stage"/man/*.1
for shell in bash zsh fish; do
    "$stage/flatout" completions $shell >"$stage/completions/$shell"
done
target/tools/bin/cargo-deb deb --quiet --no-build --no-strip -p flatout-cli --output "$folder" "$@"
