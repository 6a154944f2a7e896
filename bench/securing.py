#!/usr/bin/env python3
"""Measures servers' TLS: its cost per request, handshakes, files, and idle connections.

    bench/securing.py [--rounds N] [--seconds S] [--only NAME,NAME] [--parts PART,PART]

Parts: keepalive, resumed, full, files, idle. The client is `flatout bench`, which offers TLS 1.3 with one cipher suite and one key
exchange that all servers have. The server has one worker on the first CPU, the client is on the last one. Servers take turns, and
each ratio is taken within a round. CPU is what the kernel accounts to the server's processes in the counted time, without the earlier
handshakes. Writes bench/results/tls.md and .json, unless only some of it is measured.
"""

import sys

from holding import idle_bytes
from measure import median, quartiles, running, told, turns
from parts import beside, main, table
from smoke import failed, sized
from secured import CIPHER, KEY_EXCHANGE, Certificate, bench, secure_flags, servers

CONNECTIONS = 64

# Fewer connections for large files, so that the data stays in the cache.
FILES_CONNECTIONS, FILE, FILE_BYTES = 16, "/1048576.bin", 1 << 20

HANDSHAKES_AT_A_TIME = 32

# If the client is busier than this, it is the bottleneck.
CLIENT_LIMIT_SHARE = 0.95

# If a server sends no new ticket on resumption, two of three handshakes are resumed: tickets are used once.
RESUMED_SHARE_MIN = 0.5

# As many as a client can hold without running out of descriptors, and nginx out of connections.
HELD_FEW, HELD_MANY = sized(200, smoke=20), sized(5_000, smoke=200)


def checked(run, is_resumed=None):
    """Checks that the intended algorithms were negotiated."""
    said = run["tls"]
    if (said["cipher"], said["key_exchange"] or KEY_EXCHANGE) != (CIPHER, KEY_EXCHANGE):
        raise RuntimeError(f"it has chosen {said['cipher']} and {said['key_exchange']}")
    share = said["handshakes_resumed"] / max(said["handshakes_full"] + said["handshakes_resumed"], 1)
    if is_resumed and share < RESUMED_SHARE_MIN or is_resumed is False and share > 0:
        raise RuntimeError(f"{share:.0%} of its handshakes were resumed")
    return {**run, "resumed_share": share}


def limit(runs, name):
    share = median(runs[name], "client_share")
    return f"{share:.0%}" + (" (limit)" if share > CLIENT_LIMIT_SHARE else "")


def ratio(runs, base, key, name, digits=2):
    found = beside(runs, base, key, name)
    return told(quartiles(found), digits) if found else "–"


def keepalive(options):
    """The cost of TLS per request: plain and encrypted, one after the other, in each round."""
    def act(server):
        plain = bench(server.plain(), CONNECTIONS, options.seconds)
        tls = checked(bench(server.tls(), CONNECTIONS, options.seconds, *secure_flags()))
        return {**tls, "plain_us": plain["cpu_us"], "surplus_us": tls["cpu_us"] - plain["cpu_us"]}

    with running(servers(Certificate(), options)) as started:
        runs = turns(started, options, act)
    cells = lambda name: [told(quartiles([run[key] for run in runs[name]])) for key in ("plain_us", "cpu_us", "surplus_us")]
    row = lambda name: [name, *cells(name), ratio(runs, "nginx", "surplus_us", name), f"{median(runs[name], 'requests_per_s'):,.0f}", limit(runs, name)]
    lines = [f"### `/json` on {CONNECTIONS} connections that stay open", "", f"TLS 1.3, {CIPHER}.", ""]
    heads = ["server", "plain: CPU µs (quartiles)", "TLS: CPU µs", "TLS adds µs", "÷ nginx", "TLS: requests/s", "client"]
    return runs, lines + table(heads, [row(name) for name in sorted(runs, key=lambda name: median(runs[name], "surplus_us"))])


def handshakes(options, title, is_resumed):
    """One connection per request: handshakes per second, and per second of the server's CPU."""
    flags = [*secure_flags(), "--close"] + ([] if is_resumed else ["--no-resume"])

    def act(server):
        run = checked(bench(server.tls(), HANDSHAKES_AT_A_TIME, options.seconds, *flags), is_resumed)
        return {**run, "per_cpu_s": 1e6 / run["cpu_us"]}

    with running(servers(Certificate(), options)) as started:
        runs = turns(started, options, act)
    cells = lambda name, key: [told(quartiles([run[key] for run in runs[name]]), 0), ratio(runs, "nginx", key, name)]
    row = lambda name: [name, *cells(name, "per_cpu_s"), *cells(name, "requests_per_s"), f"{median(runs[name], 'resumed_share'):.0%}", limit(runs, name)]
    lines = [f"### {title}", "", f"{HANDSHAKES_AT_A_TIME} at a time, each with one request; ECDSA P-256, {KEY_EXCHANGE}, {CIPHER}.", ""]
    heads = ["server", "for each second of its CPU (quartiles)", "÷ nginx", "per second", "÷ nginx", "resumed", "client"]
    return runs, lines + table(heads, [row(name) for name in sorted(runs, key=lambda name: -median(runs[name], "per_cpu_s"))])


def files(options):
    """Files of 1 MiB: how much is encrypted per second of the server's CPU."""
    def act(server):
        run = checked(bench(server.tls(FILE), FILES_CONNECTIONS, options.seconds, *secure_flags()))
        return {**run, "gib_per_cpu_s": FILE_BYTES / run["cpu_us"] * 1e6 / (1 << 30)}

    with running([server for server in servers(Certificate(), options) if server.has_files]) as started:
        runs = turns(started, options, act)
    row = lambda name: [name, told(quartiles([run["gib_per_cpu_s"] for run in runs[name]])), ratio(runs, "nginx", "gib_per_cpu_s", name),
                        f"{median(runs[name], 'requests_per_s'):,.0f}", limit(runs, name)]
    lines = [f"### Files of 1 MiB, {FILES_CONNECTIONS} connections", ""]
    heads = ["server", "GiB for each second of its CPU (quartiles)", "÷ nginx", "files/s", "client"]
    return runs, lines + table(heads, [row(name) for name in sorted(runs, key=lambda name: -median(runs[name], "gib_per_cpu_s"))])


def idle(options):
    """Anonymous memory per additional connection; each was used once and is held."""
    runs = {}
    for server in servers(Certificate(), options):
        try:
            with server:
                runs[server.name] = idle_bytes(server, server.tls(), (HELD_FEW, HELD_MANY), secure_flags())
        except RuntimeError as error:
            failed(server.name, error)
            continue
        print(f"  {server.name}: {runs[server.name]:.0f} bytes", file=sys.stderr)
    base = runs.get("nginx")
    row = lambda name: [name, f"{runs[name]:,.0f}", f"{runs[name] / base:.2f}" if base else "–"]
    lines = ["### Idle connections", "", f"Anonymous memory of a connection, from the difference between {HELD_FEW:,} and {HELD_MANY:,}, each after one request.", ""]
    return runs, lines + table(["server", "bytes each", "÷ nginx"], [row(name) for name in sorted(runs, key=runs.get)])


PARTS = {"keepalive": keepalive, "resumed": lambda options: handshakes(options, "Resumed handshakes", True),
         "full": lambda options: handshakes(options, "Full handshakes", False), "files": files, "idle": idle}

if __name__ == "__main__":
    main("tls", "TLS", PARTS, __doc__, rounds=10, seconds=2)
