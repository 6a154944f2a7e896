#!/bin/sh
# Puts Flask and gunicorn into target/nginx-flask/venv: Debian's, if they are installed, otherwise by pip.
set -eu
cd "$(dirname "$0")/../.."
venv=target/nginx-flask/venv
# A mark, because a venv that was interrupted is there and does not work.
[ ! -e "$venv/ready" ] || exit 0
rm -rf "$venv"
mkdir -p target/nginx-flask
if /usr/bin/python3 -c 'import flask, gunicorn' 2>/dev/null; then
    /usr/bin/python3 -m venv --without-pip --system-site-packages "$venv"
else
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'flask>=3,<4' 'gunicorn>=21'
fi
"$venv/bin/python3" -c 'import flask, gunicorn.app.wsgiapp'
touch "$venv/ready"
