#!/bin/sh
# packaging/build.sh PROFILE FOLDER [FLAG …]: the Debian package of target/PROFILE/flatout, written to FOLDER; its path is
# printed. Flags are dpkg-deb's.
set -eu
cd "$(dirname "$0")/.."
profile=$1
folder=$2
shift 2
version=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)-1
architecture=$(dpkg --print-architecture)
root=target/package/root
rm -rf target/package
mkdir -p "$folder" "$root/DEBIAN" "$root/usr/share/man/man1"

# put MODE SOURCE PLACE
put() {
    install -D -m "$1" "$2" "$root/$3"
}

# Names of functions stay, for profilers; lines of the source go.
put 755 "target/$profile/flatout" usr/bin/flatout
objcopy --strip-debug "$root/usr/bin/flatout"
program=$root/usr/bin/flatout
"$program" man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
for shell in bash zsh fish; do
    "$program" completions $shell >"target/package/$shell"
done
put 644 target/package/bash usr/share/bash-completion/completions/flatout
put 644 target/package/zsh usr/share/zsh/vendor-completions/_flatout
put 644 target/package/fish usr/share/fish/vendor_completions.d/flatout.fish
put 644 packaging/flatout.default etc/default/flatout
put 644 packaging/flatout.service usr/lib/systemd/system/flatout.service
put 644 packaging/flatout.socket usr/lib/systemd/system/flatout.socket
put 644 packaging/monitoring/grafana.json usr/share/doc/flatout/monitoring/grafana.json
put 644 packaging/monitoring/alerts.yml usr/share/doc/flatout/monitoring/alerts.yml
put 644 README.md usr/share/doc/flatout/README.md
put 644 LICENSE-APACHE usr/share/doc/flatout/LICENSE-APACHE
{
    echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
    echo 'Upstream-Name: flatout'
    echo
    printf 'Files: *\nCopyright: the flatout authors\nLicense: MIT or Apache-2.0\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
} >target/package/copyright
put 644 target/package/copyright usr/share/doc/flatout/copyright

for script in postinst prerm postrm; do
    put 755 packaging/scripts/$script DEBIAN/$script
done
echo /etc/default/flatout >"$root/DEBIAN/conffiles"
(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# The libraries that it is linked with. dpkg-shlibdeps wants to see a source package.
mkdir -p target/package/debian
printf 'Source: flatout\n\nPackage: flatout\nArchitecture: any\n' >target/package/debian/control
depends=$(cd target/package && dpkg-shlibdeps -O "root/usr/bin/flatout" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
size=$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f 1)
sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/; s/@DEPENDS@/$depends/" packaging/control >"$root/DEBIAN/control"
chmod 644 "$root"/DEBIAN/control "$root"/DEBIAN/conffiles "$root"/DEBIAN/md5sums
package=$folder/flatout_${version}_$architecture.deb
dpkg-deb --root-owner-group "$@" --build "$root" "$package" >&2
echo "$package"
