#!/bin/sh
# packaging/files.sh PROGRAM FOLDER: what every package contains, below FOLDER/bin, FOLDER/share and FOLDER/lib.
set -eu
cd "$(dirname "$0")/.."
program=$1
folder=$2

# put MODE SOURCE PLACE
put() {
    install -D -m "$1" "$2" "$folder/$3"
}

put 755 "$program" bin/flatout
mkdir -p "$folder/share/man/man1"
"$program" man "$folder/share/man/man1" >&2
gzip -9n "$folder"/share/man/man1/*.1
completions=$(mktemp -d)
trap 'rm -r "$completions"' EXIT
for shell in bash zsh fish; do
    "$program" completions $shell >"$completions/$shell"
done
put 644 "$completions/bash" share/bash-completion/completions/flatout
put 644 "$completions/zsh" share/zsh/vendor-completions/_flatout
put 644 "$completions/fish" share/fish/vendor_completions.d/flatout.fish
put 644 packaging/flatout.service lib/systemd/system/flatout.service
put 644 packaging/flatout.socket lib/systemd/system/flatout.socket
put 644 packaging/monitoring/grafana.json share/doc/flatout/monitoring/grafana.json
put 644 packaging/monitoring/alerts.yml share/doc/flatout/monitoring/alerts.yml
for text in README.md LICENSE-APACHE LICENSE-MIT; do
    put 644 $text share/doc/flatout/$text
done
