#!/bin/sh
# The state in which the published climb began, in the lab of `flatout climb`: a firewall that tracks connections, a packet tap, a qdisc,
# receive offload, and audit switched on. All of it is gone with the lab, but for audit, which the process that holds the tap switches off
# again when the climb has ended.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# The lab's ends share a machine: without this, the sender's CPU would receive the packets, too, and their cost would not be the
# server's. CPUs are a mask: 1 is the server's, 2 the load generator's.
receive_on() {
    [ -e "/sys/class/net/$1" ] || mount -t sysfs sysfs /sys
    for queue in /sys/class/net/"$1"/queues/rx-*; do echo "$2" >"$queue/rps_cpus"; done
}

if [ "${1:-}" = receive-on ]; then
    receive_on "$2" "$3"
    exit
fi
unshare --mount sh "$0" receive-on "$FLATOUT_DEVICE" 1
nsenter --net="$FLATOUT_CLIENT_NETWORK" unshare --mount sh "$0" receive-on flatout1 2
# Packets as from a real network: not large ones that were never segmented.
nsenter --net="$FLATOUT_CLIENT_NETWORK" ethtool -K flatout1 tso off gso off >/dev/null

# The chains of Docker: connections are tracked, and every packet passes several hooks.
nft -f - <<'RULES'
table ip nat {
    chain PREROUTING { type nat hook prerouting priority -100; fib daddr type local counter jump DOCKER; }
    chain OUTPUT { type nat hook output priority -100; ip daddr != 127.0.0.0/8 fib daddr type local counter jump DOCKER; }
    chain POSTROUTING { type nat hook postrouting priority 100; ip saddr 172.17.0.0/16 oifname != "docker0" counter masquerade; }
    chain DOCKER { iifname "docker0" counter return; }
}
table ip filter {
    chain INPUT { type filter hook input priority filter; ct state invalid counter drop; }
    chain OUTPUT { type filter hook output priority filter; ct state invalid counter drop; }
    chain FORWARD { type filter hook forward priority filter; ct state established,related counter accept; }
}
RULES
ethtool -K "$FLATOUT_DEVICE" gro on
tc qdisc replace dev "$FLATOUT_DEVICE" root pfifo_fast
setsid python3 "$here/burdens.py" "$FLATOUT_PID" </dev/null >/dev/null 2>&1 &
for _ in $(seq 100); do
    ! grep -q ' 0003 ' /proc/net/packet || exit 0
    sleep 0.05
done
echo "there is no packet tap after five seconds" >&2
exit 1
