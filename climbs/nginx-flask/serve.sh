#!/bin/sh
# serve.sh CONF: the application under gunicorn on a Unix socket, then nginx with CONF in the foreground, or flatout if CONF is a site file.
# Both are in this shell's process group, by which the climb ends them.
set -eu
conf=$(realpath "$1")
cd "$(dirname "$0")"
work=$(realpath ../..)/target/nginx-flask
[ -e "$work/venv/ready" ] || { echo "run climbs/nginx-flask/setup.sh first" >&2; exit 1; }
flatout=${FLATOUT_BINARIES:-$(realpath ../..)/target/release}/flatout
case $conf in
    *.kdl) [ -x "$flatout" ] || { echo "build flatout first" >&2; exit 1; } ;;
    *) command -v nginx >/dev/null || { echo "nginx is missing" >&2; exit 1; } ;;
esac
rm -rf "$work/run" /dev/shm/flatout-nginx-flask
mkdir -p "$work/run/disk" /dev/shm/flatout-nginx-flask
# As published: CPUs x 2 + 1 workers.
"$work/venv/bin/python3" -m gunicorn.app.wsgiapp --chdir "$PWD" --workers $(($(nproc) * 2 + 1)) \
    --bind "unix:$work/run/app.sock" --log-level error app:app &
tries=0
until [ -S "$work/run/app.sock" ]; do
    kill -0 $! 2>/dev/null || { echo "gunicorn ended" >&2; exit 1; }
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "gunicorn does not listen" >&2; exit 1; }
    sleep 0.1
done
# A Unix socket of `proxy_pass` is looked up from here, not from `-p`.
cd "$work/run"
case $conf in *.kdl)
    cp "$conf" site.kdl
    exec "$flatout" serve -c site.kdl
    ;;
esac
exec nginx -p "$work/run/" -c "$conf" -e stderr -g 'daemon off; pid nginx.pid;'
