#!/bin/sh
# packaging/debian.sh PROGRAM FOLDER [FLAG …]: the Debian package of a program, written to FOLDER; its path is printed. Flags are
# dpkg-deb's.
set -eu
cd "$(dirname "$0")/.."
. packaging/facts.sh
program=$1
folder=$2
shift 2
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
root=$work/root
mkdir -p "$folder" "$root/DEBIAN"

sh packaging/files.sh "$program" "$root/usr"
install -D -m 644 packaging/flatout.default "$root/etc/default/flatout"
rm "$root/usr/share/doc/flatout/LICENSE-MIT"
{
    echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
    echo 'Upstream-Name: flatout'
    echo
    printf 'Files: *\nCopyright: the flatout authors\nLicense: MIT or Apache-2.0\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
} >"$root/usr/share/doc/flatout/copyright"

for script in postinst prerm postrm; do
    install -m 755 packaging/scripts/$script "$root/DEBIAN/$script"
done
echo /etc/default/flatout >"$root/DEBIAN/conffiles"
(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# The libraries that a program is linked with, none if it is static. dpkg-shlibdeps wants to see a source package.
mkdir "$work/debian"
printf 'Source: flatout\n\nPackage: flatout\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/flatout 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
size=$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f 1)
sed "s/@VERSION@/$version-1/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/; s/@DEPENDS@/$depends/" packaging/control |
    sed '/^Depends: $/d' >"$root/DEBIAN/control"
chmod 644 "$root"/DEBIAN/control "$root"/DEBIAN/conffiles "$root"/DEBIAN/md5sums
settle "$root"
package=$folder/flatout_$version-1_$architecture.deb
dpkg-deb --root-owner-group "$@" --build "$root" "$package" >&2
echo "$package"
