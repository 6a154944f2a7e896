#!/bin/sh
# demo/burdened.sh FLATOUT [ARGS…]: the JSON API in a network that is burdened as real hosts are: a firewall that tracks
# connections and has a rule for each address of a blocklist, a packet tap, bbr. Planted in the network that it is started
# in, which has to be one of its own.
set -eu
flatout=$1
shift
blocked() { seq 1 100 | sed "s/.*/        ip $1 203.0.113.& drop/"; }
# Planted once: what the climb makes of it must outlive a restart.
if [ ! -e "$WORK/burdened" ]; then
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
    sysctl -q -w net.ipv4.tcp_congestion_control=bbr
    touch "$WORK/burdened"
fi
python3 "$(dirname "$0")/tap.py" &
echo $! >"$WORK/tap"
exec "$flatout" json-api --listen 0.0.0.0:8080 "$@"
