#!/bin/sh
# demo/climb.sh FLATOUT [FLAG …]: two separate network namespaces, joined by a veth pair. The server's has typical
# burdens: a firewall with a rule for each blocked address, a packet tap, receive offload switched off, and all packets
# steered to one CPU. The climb gets no hint of them. The networks vanish with this script, and the host is unchanged.
# Needs root, nftables, iproute2, ethtool and python3, and less than five minutes.
#
# Two climbs: with requests of one packet, and then, for receive offload, with large ones, whose packets it handles together.
# With flags, one climb with these flags.
set -eu
FLATOUT=$1
shift
DEMO=$(cd "$(dirname "$0")" && pwd)
if [ -z "${FLATOUT_DEMO_RESULTS:-}" ]; then
    mkdir -p "$DEMO/../target/demo-climb"
    FLATOUT_DEMO_RESULTS=$(cd "$DEMO/../target/demo-climb" && pwd)
    export FLATOUT_DEMO_RESULTS
    exec unshare --net --mount sh "$0" "$FLATOUT" "$@"
fi

# Two networks with a queue for each CPU; /sys has to show the devices of this network, not the host's.
join() {
    mount -t sysfs sysfs /sys
    mkfifo "$work/up"
    unshare --net sh -c 'echo up >"$1" && exec sleep 600' - "$work/up" >/dev/null 2>&1 </dev/null &
    client=$!
    read -r _ <"$work/up"
    cpus=$(nproc)
    queues="numtxqueues $cpus numrxqueues $cpus"
    # shellcheck disable=SC2086
    ip link add burdened $queues type veth peer name client $queues netns "$client"
    ip link set lo up
    ip address add 198.18.0.1/30 dev burdened
    ip link set burdened up
    # Packets as from a real network: not large ones that were never segmented.
    nsenter -t "$client" -n sh -ec '
        ip link set lo up
        ip address add 198.18.0.2/30 dev client
        ip link set client up
        ethtool -K client tso off gso off >/dev/null'
}

blocked() { seq 1 100 | sed "s/.*/        ip $1 203.0.113.& drop/"; }

burden() {
    nft -f - <<RULES
table inet burden {
    chain input {
        type filter hook input priority filter; policy accept;
$(blocked saddr)
        ct state established,related accept
        ct state invalid drop
        tcp dport 1-65535 ct state new accept
    }
    chain output {
        type filter hook output priority filter; policy accept;
$(blocked daddr)
        ct state established,related accept
    }
}
RULES
    python3 "$DEMO/tap.py" >/dev/null 2>&1 </dev/null &
    tap=$!
    until grep -q ' 0003 ' /proc/net/packet; do kill -0 "$tap" && sleep 0.05; done
    ethtool -K burdened gro off >/dev/null
    for queue in /sys/class/net/burdened/queues/rx-*; do echo 1 >"$queue/rps_cpus"; done
}

# climb RESULT BYTES BUDGET [FLAG …]: with requests of this size. One worker and one client, each on its own CPU.
# REQUEST_RATE=20000 sends so many requests a second at random times, as many clients do; without it each connection sends
# as soon as it has a response, and the kernel handles packets in groups.
climb() {
    result=$FLATOUT_DEMO_RESULTS/$1 bytes=$2 budget=$3
    shift 3
    printf '#!/bin/sh\nexec "%s" json-api --listen 198.18.0.1:8080 --workers 1\n' "$FLATOUT" >"$work/server"
    chmod +x "$work/server"
    fill=$(printf "%0${bytes}d" 0)
    pace=${REQUEST_RATE:+"--rate $REQUEST_RATE --arrival poisson"}
    pace=${pace:-"--warmup 50ms"}
    load="nsenter -t $client -n '$FLATOUT' bench \$FLATOUT_URL -H 'X-Fill: $fill' --pin $((cpus - 1)) -c 64 -d 200ms $pace --json"
    "$FLATOUT" climb --server-cmd "exec '$work/server'" --url http://198.18.0.1:8080/json --bench "$load" \
        --interface burdened --accept-risk --budget "$budget" --state "$work/journal" \
        --json "$result.json" --report "$result.html" "$@" &
    climb=$!
    # The first `wait` ends with a signal, the second with the climb, which undoes its changes first.
    wait "$climb" || wait "$climb"
    echo "report: $result.html"
}

work=$(mktemp -d)
client='' tap='' climb=''
# shellcheck disable=SC2086
trap 'kill $client $tap 2>/dev/null; rm -rf "$work"' EXIT
trap 'if [ -n "$climb" ]; then kill -TERM "$climb" 2>/dev/null || true; else exit 130; fi' HUP INT TERM
join
burden
if [ $# -gt 0 ]; then
    climb climb "${REQUEST_BYTES:-1}" 4m "$@"
else
    climb climb 1 4m
    climb climb-large-requests 7000 40s gro
fi
