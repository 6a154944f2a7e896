#!/bin/sh
# demo/climb.sh FLATOUT [FLAG …]: a server that is burdened as real hosts are climbs, in two networks of its own that vanish
# with it. The host is left as it was. Takes root, nftables, iproute2 and python3, and under five minutes.
set -eu
FLATOUT=$1
shift
DEMO=$(cd "$(dirname "$0")" && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export FLATOUT DEMO WORK
results=$DEMO/../target/demo
mkdir -p "$results"
results=$(cd "$results" && pwd)

"$FLATOUT" climb --plan "$DEMO/climb.kdl" --accept-risk --state "$WORK/journal" \
    --json "$results/climb.json" --report "$results/climb.html" "$@"
echo "report: $results/climb.html"
