#!/usr/bin/env python3
"""Measures servers' HTTP/2: many streams on one connection, and idle connections.

    bench/streaming.py [--rounds N] [--seconds S] [--only NAME,NAME] [--parts PART,PART]

Parts: cleartext, tls, h2load, idle. The client is `flatout bench --http2`, and nghttp2's in the part h2load. The server has one
worker on the first CPU, the client one thread on the last one. Servers take turns, and each ratio is taken within a round. CPU is what
the kernel accounts to the server's processes in the counted time; in the part h2load it is that of the whole run, per response.
Writes bench/results/h2.md and .json, unless only some of it is measured.
"""

import re, resource, shutil, subprocess, sys, time

from holding import idle_bytes
from measure import median, quartiles, running, told, turns, with_cpu
from parts import beside, main, table
from secured import Certificate, bench, hyper_h2, secure_flags, servers
from servers import CLIENT_CPU, only, pin
from smoke import failed, leave_out, sized

STREAMS = 100

# If the client is busier than this, it is the bottleneck.
CLIENT_LIMIT_SHARE = 0.95

HELD_FEW, HELD_MANY = sized(200, smoke=20), sized(5_000, smoke=200)


def flatout_flags():
    return ["--http2", "-m", str(STREAMS)]


def h2load(url, seconds):
    """One run of nghttp2's client."""
    command = ["h2load", "-t1", "-c1", f"-m{STREAMS}", f"-D{seconds}", url]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    out = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin(CLIENT_CPU), timeout=seconds + 60).stdout
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    done = re.search(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed", out)
    if not done or int(done[2]) == 0 or int(done[3]) > 0:
        raise RuntimeError(f"{url}: h2load said: {out[-500:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    per_s = float(re.search(r"finished in .*?, ([\d.]+) req/s", out)[1])
    return {"requests": int(done[2]), "requests_per_s": per_s, "client_share": cpu / took}


def compared(title, servers, options, act):
    with running(servers) as started:
        runs = turns(started, options, act)
    ratio = lambda name, key: told(quartiles(found), 2) if (found := beside(runs, "h2o", key, name)) else "–"
    limit = lambda share: f"{share:.0%}" + (" (limit)" if share > CLIENT_LIMIT_SHARE else "")
    row = lambda name: [name, told(quartiles([run["cpu_us"] for run in runs[name]]), 3), ratio(name, "cpu_us"),
                        f"{median(runs[name], 'requests_per_s'):,.0f}", ratio(name, "requests_per_s"), limit(median(runs[name], "client_share"))]
    heads = ["server", "CPU µs per request (quartiles)", "÷ h2o", "requests/s", "÷ h2o", "client"]
    names = sorted(runs, key=lambda name: median(runs[name], "cpu_us"))
    return runs, [f"### {title}", ""] + table(heads, [row(name) for name in names])


def cleartext(options):
    title = f"`/json`, {STREAMS} streams on one connection, cleartext"
    found = [*servers(Certificate(), options), *only(hyper_h2(), options)]
    return compared(title, found, options, lambda server: bench(server.h2c(), 1, options.seconds, *flatout_flags()))


def tls(options):
    act = lambda server: bench(server.tls(), 1, options.seconds, *flatout_flags(), *secure_flags())
    return compared(f"`/json`, {STREAMS} streams on one connection, TLS", servers(Certificate(), options), options, act)


def by_h2load(options):
    """The same with a third-party client."""
    if not shutil.which("h2load"):
        leave_out("h2load, which is not installed")
        return {}, []
    found = [*servers(Certificate(), options), *only(hyper_h2(), options)]
    act = lambda server: with_cpu(server, lambda: h2load(server.h2c(), options.seconds))
    return compared(f"`/json`, {STREAMS} streams on one connection, cleartext, by h2load", found, options, act)


def idle(options):
    """Anonymous memory per additional connection; each was used once and is held."""
    runs = {}
    for server in [*servers(Certificate(), options), *only(hyper_h2(), options)]:
        try:
            with server:
                runs[server.name] = idle_bytes(server, server.h2c(), (HELD_FEW, HELD_MANY), ["--http2"])
        except RuntimeError as error:
            failed(server.name, error)
            continue
        print(f"  {server.name}: {runs[server.name]:.0f} bytes", file=sys.stderr)
    row = lambda name: [name, f"{runs[name]:,.0f}"]
    lines = ["### Idle connections, cleartext", "", f"Anonymous memory of a connection, from the difference between {HELD_FEW:,} and {HELD_MANY:,}, each after one request.", ""]
    return runs, lines + table(["server", "bytes each"], [row(name) for name in sorted(runs, key=runs.get)])


PARTS = {"cleartext": cleartext, "tls": tls, "h2load": by_h2load, "idle": idle}

if __name__ == "__main__":
    main("h2", "HTTP/2", PARTS, __doc__, rounds=10, seconds=2)
