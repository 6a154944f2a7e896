#!/bin/sh
# demo/climb.sh FLATOUT: a server that is burdened as real hosts are climbs, in two networks of its own that vanish with it.
# The host is left as it was. Takes root, nftables, iproute2 and python3, and under five minutes.
set -eu
flatout=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BURDENED="$work/burdened"

# One worker and one client, each on a CPU of its own: what a burden takes shows in requests a second.
"$flatout" climb --lab --budget 4m -d 500ms --warmup 100ms --pin 1 --state "$work/journal" --json "$work/climb.json" \
    --server-cmd "exec '$here/burdened.sh' '$flatout' --workers 1" --url http://198.18.0.1:8080/json \
    firewall congestion taps --accept-risk "$@"
