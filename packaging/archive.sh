#!/bin/sh
# packaging/archive.sh PROGRAM FOLDER: an archive for any Linux, written to FOLDER; its path is printed. Unpacked into /usr/local, with
# --strip-components=1, all files are where they belong.
set -eu
cd "$(dirname "$0")/.."
. packaging/facts.sh
program=$1
folder=$2
name=flatout-$version-$(uname -m)-linux
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir -p "$folder"
sh packaging/files.sh "$program" "$work/$name"
# The units of the Debian package, with the place of this program.
sed -i 's|/usr/bin/flatout|/usr/local/bin/flatout|' "$work/$name"/lib/systemd/system/flatout.service
settle "$work/$name"
tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu "$name" |
    xz --threads=1 -6 >"$folder/$name.tar.xz"
echo "$folder/$name.tar.xz"
