#!/usr/bin/env python3
"""Runs the known attacks on HTTP/2 against `flatout serve`, beside honest clients with a fixed rate.

    bench/attacking.py [--rounds N] [--seconds S] [--parts PART,PART]

Parts: floods, held. Each attack has a server of its own in each round: honest clients alone, and then the same beside the attack, S seconds
each. The server has one worker on the first CPU; honest clients and attackers share the last one, and attackers have the lower priority.
Memory is the peak of the process beyond what it had before the attack. Writes bench/results/attacks.md and .json, unless only some of it
is measured. The attacks are those of `crates/engine/tests/support/attacks.rs`.
"""

import os, re, subprocess, sys
from pathlib import Path

from measure import FLATOUT, median, quartiles, told
from parts import main, table
from secured import bench
import children
from servers import CLIENT_CPU, SITE, Server, program
from smoke import IS_SMOKE, failed, sized

ATTACKER = program("attacker")

# Requests a second of honest clients: far below what a server can do, so that the rate falls where requests have to wait.
RATE = 2_000

FLOODS_AT_ONCE, HELD = 8, sized(100, smoke=10)

# The attack begins before the honest clients are counted, and ends behind them.
MARGIN_S = sized(1, smoke=0)


def names(is_flood):
    """The attacks by name: those that hold connections are the last ones."""
    found = subprocess.run([ATTACKER, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    first = next(at for at, name in enumerate(found) if name.startswith("a client that reads nothing"))
    these = found[:first] if is_flood else found[first:]
    return these[:1] if IS_SMOKE else these


def memory_bytes(server, name):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB", status, re.M)[1]) * 1024


def attacker(server, seconds, connections, name):
    def begin():
        os.sched_setaffinity(0, {CLIENT_CPU})
        os.nice(10)
    command = [ATTACKER, f"127.0.0.1:{server.port}", str(seconds), str(connections), name]
    return children.start(command, begin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def attacked(options, name, connections):
    """One round: what honest clients get alone and beside the attack, and what that costs the server."""
    honest = lambda: bench(server.url(), 2, options.seconds, "--http2", "-m", "4", "-R", str(RATE))
    with Server("flatout", [FLATOUT, "serve", "-c", "@conf/flatout-attacks.kdl"], "/alive") as server:
        cpu_ns = server.cpu_ns()
        alone = honest()
        alone_ns, before = server.cpu_ns() - cpu_ns, memory_bytes(server, "VmRSS")
        seconds = options.seconds + 2 * MARGIN_S
        process = attacker(server, seconds, connections, name)
        cpu_ns = server.cpu_ns()
        beside = honest()
        beside_ns = server.cpu_ns() - cpu_ns
        begun = int(process.communicate(timeout=seconds + 60)[0] or 0)
        return {
            "rate": beside["requests_per_s"] / alone["requests_per_s"],
            "p99_alone_us": alone["p99_us"],
            "p99_us": beside["p99_us"],
            "cpu_alone": alone_ns / options.seconds / 1e9,
            "cpu": beside_ns / options.seconds / 1e9,
            "more_bytes": memory_bytes(server, "VmHWM") - before,
            "connections_per_s": begun / seconds,
        }


def all_of(title, is_flood, connections, options):
    (SITE / "much").write_bytes(bytes(1_000_000))
    runs = {}
    for name in names(is_flood):
        try:
            runs[name] = [attacked(options, name, connections) for _ in range(options.rounds)]
        except RuntimeError as error:
            failed(name, error)
            continue
        print(f"  {name}: {median(runs[name], 'rate'):.1%}", file=sys.stderr)
    row = lambda name: [
        name,
        told(quartiles([run["rate"] * 100 for run in runs[name]]), 1) + " %",
        f"{median(runs[name], 'p99_alone_us') / 1e3:.2f} → {median(runs[name], 'p99_us') / 1e3:.2f}",
        f"{median(runs[name], 'cpu_alone'):.2f} → {median(runs[name], 'cpu'):.2f}",
        f"{max(run['more_bytes'] for run in runs[name]) / (1 << 20):.1f}",
        f"{median(runs[name], 'connections_per_s'):,.0f}",
    ]
    heads = ["attack", "honest requests, beside ÷ alone (quartiles)", "p99 ms", "CPUs", "MiB more at the most", "connections/s of the attack"]
    lines = [f"### {title}", "", f"Honest clients send {RATE:,} requests a second over two connections of HTTP/2.", ""]
    return runs, lines + table(heads, [row(name) for name in runs])


def floods(options):
    return all_of(f"Floods over {FLOODS_AT_ONCE} connections at a time", True, FLOODS_AT_ONCE, options)


def held(options):
    return all_of(f"{HELD} connections that are held", False, HELD, options)


PARTS = {"floods": floods, "held": held}

if __name__ == "__main__":
    main("attacks", "Attacks on HTTP/2", PARTS, __doc__, rounds=5, seconds=2)
