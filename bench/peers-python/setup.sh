#!/bin/sh
# Puts socketify, which is uWebSockets for Python, into target/socketify.
set -eu
cd "$(dirname "$0")/../.."
venv=target/socketify
# A mark, because a venv that was interrupted is there and does not work.
[ ! -e "$venv/ready" ] || exit 0
rm -rf "$venv"
mkdir -p target
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check socketify==0.0.31
"$venv/bin/python" -c 'import socketify'
touch "$venv/ready"
