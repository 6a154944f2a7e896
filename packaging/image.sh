#!/bin/sh
# packaging/image.sh PROGRAM FOLDER: an OCI image with nothing but the program, the certificates of public CAs and a user, written to
# FOLDER as an archive that podman, docker and skopeo load; its path is printed. As root.
set -eu
cd "$(dirname "$0")/.."
. packaging/facts.sh
program=$1
folder=$2
user=65532
file=$folder/flatout-$version-$(uname -m)-image.tar
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir -p "$folder"

image=$work/layout:$version
umoci init --layout "$work/layout"
umoci new --image "$image"
umoci unpack --image "$image" "$work/bundle"
root=$work/bundle/rootfs
mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/var/www/html" "$root/var/lib/flatout" "$root/run" "$root/tmp"
install -m 755 "$program" "$root/usr/bin/flatout"
install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
echo "flatout:x:$user:$user::/var/lib/flatout:/sbin/nologin" >"$root/etc/passwd"
echo "flatout:x:$user:" >"$root/etc/group"
chmod 1777 "$root/tmp"
chown -R "$user:$user" "$root/run" "$root/var/lib/flatout"
settle "$root"
umoci repack --image "$image" --history.created "$created" --history.created_by 'packaging/image.sh' "$work/bundle"
umoci config --image "$image" --history.created "$created" --created "$created" --os linux --architecture "$(dpkg --print-architecture)" \
    --config.user "$user:$user" --config.workingdir /var/www/html --config.exposedports 8080/tcp \
    --config.env PATH=/usr/bin --config.env XDG_STATE_HOME=/var/lib/flatout \
    --config.entrypoint flatout \
    --config.cmd serve --config.cmd /var/www/html --config.cmd --listen=0.0.0.0:8080 --config.cmd --admin=unix:/run/flatout.sock \
    --config.label org.opencontainers.image.title=flatout --config.label "org.opencontainers.image.version=$version" \
    --config.label 'org.opencontainers.image.licenses=MIT OR Apache-2.0'
umoci gc --layout "$work/layout"
settle "$work/layout"
tar --create --directory "$work/layout" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --file "$file" .
echo "$file"
