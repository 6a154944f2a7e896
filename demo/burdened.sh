#!/bin/sh
# demo/burdened.sh FLATOUT [ARGS…]: the JSON API in a network that is burdened as real hosts are: a firewall that tracks
# connections, a packet tap, bbr. Planted in the network that it is started in, which has to be one of its own.
set -eu
flatout=$1
shift
nft -f - <<'RULES'
table inet burden
flush table inet burden
table inet burden {
    chain input {
        type filter hook input priority filter; policy accept;
        ct state established,related accept
        ct state invalid drop
        tcp dport 1-65535 ct state new accept
    }
    chain output {
        type filter hook output priority filter; policy accept;
        ct state established,related accept
    }
}
RULES
# Set once: what the climb makes of it must outlive a restart.
if [ ! -e "$BURDENED" ]; then
    sysctl -q -w net.ipv4.tcp_congestion_control=bbr
    touch "$BURDENED"
fi
python3 "$(dirname "$0")/tap.py" &
exec "$flatout" json-api --listen 0.0.0.0:8080 "$@"
