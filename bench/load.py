#!/usr/bin/env python3
"""Measures load generators against each other: flatout bench, wrk, and oha, hey, bombardier, h2load where they are.

    bench/load.py CASE... [--rounds N] [--seconds S] [--only NAME,NAME] [--before PATH]

Cases: rate64, rate256, pipeline, hold, stall, capacity. The server of the first three is the floor, pinned to the first CPU; each
client has one thread on the last CPU. Clients take turns, round by round, an older flatout (--before) among them; a client's
ratio to wrk is taken within its round, and its median and spread are reported. CPU is the kernel's account of the client's process.
Writes bench/results/load-CASE.md and .json.
"""

import argparse, json, os, re, resource, shutil, subprocess, sys, time
from pathlib import Path

from measure import spread
import children
import smoke
from servers import CLIENT_CPU, RESULTS, Server, floor, machine, program
from smoke import IS_SMOKE, leave_out, sized

FLATOUT = program("flatout")

# For how long flatout sends load before it counts, in milliseconds.
WARMUP_MS = sized(500, smoke=100)

# The duration of the server's only stall, in a run of STALL_RUN_S at STALL_RATE requests a second.
STALL_S, STALL_RUN_S, STALL_RATE = 1, sized(10, smoke=3), 1000
DELAY_S = 0.010


class Client:
    """A load generator: how it is called, where its rate stands in what it prints, and how long it sends load uncounted."""

    def __init__(self, name, command, rate, warmup_ms=0):
        self.name, self.command, self.rate, self.warmup_ms = name, command, rate, warmup_ms

    def run(self, url, connections, seconds):
        values = {"url": url, "c": connections, "d": seconds}
        command = [word.format(**values) for word in self.command]
        pin = lambda: os.sched_setaffinity(0, {CLIENT_CPU})
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin, timeout=seconds + 60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = re.search(self.rate, out.stdout)
        if not found:
            raise RuntimeError(f"{self.name} said: {out.stdout[-500:]}{out.stderr[-500:]}")
        per_s = float(found[1].replace(",", ""))
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"requests_per_s": per_s, "cpu_us": cpu / (per_s * (seconds + self.warmup_ms / 1e3)) * 1e6}


def flatout(name, program, extra=()):
    command = [program, "bench", "-t1", "-c{c}", "-d{d}s", "--warmup", f"{WARMUP_MS}ms", "--json", *extra, "{url}"]
    return Client(name, command, r'"requests_per_s": ([\d.]+)', WARMUP_MS)


def flatouts(options, extra=()):
    before = [flatout("before", options.before, extra)] if options.before else []
    return [flatout("flatout", FLATOUT, extra), *before]


def clients(options):
    all_of_them = [
        *flatouts(options),
        Client("wrk", ["wrk", "-t1", "-c{c}", "-d{d}s", "{url}"], r"Requests/sec:\s+([\d.]+)"),
        Client("oha", ["oha", "--no-tui", "-c", "{c}", "-z", "{d}s", "{url}"], r"Requests/sec:\s+([\d.]+)"),
        Client("hey", ["hey", "-cpus", "1", "-c", "{c}", "-z", "{d}s", "{url}"], r"Requests/sec:\s+([\d.]+)"),
        Client("bombardier", ["bombardier", "-c", "{c}", "-d", "{d}s", "{url}"], r"Reqs/sec\s+([\d.]+)"),
        Client("h2load", ["h2load", "--h1", "-t1", "-c{c}", "-D{d}", "{url}"], r"finished in .*?, ([\d.]+) req/s"),
    ]
    found = [client for client in all_of_them if Path(client.command[0]).exists() or shutil.which(client.command[0])]
    for client in all_of_them:
        if client not in found:
            leave_out(f"{client.name}, which is not installed")
    return found


def compare(connections, options, found):
    wanted = options.only.split(",") if options.only else None
    found = [client for client in found if not wanted or client.name in [*wanted, "wrk", "before"]]
    runs = {client.name: [] for client in found}
    for number in range(options.rounds):
        for client in found:
            with floor() as server:
                runs[client.name].append(client.run(server.url(), connections, options.seconds))
        print(f"  round {number + 1} of {options.rounds}", file=sys.stderr)
    lines = ["| client | requests/s | ÷ wrk (min–max) | its CPU µs per request | ÷ wrk (min–max) |", "|---|---:|---:|---:|---:|"]
    for name in sorted(runs, key=lambda name: -spread([run["requests_per_s"] for run in runs[name]])[0]):
        cells = []
        for key, form in (("requests_per_s", "{:,.0f}"), ("cpu_us", "{:.2f}")):
            ratio = spread([run[key] / other[key] for run, other in zip(runs[name], runs["wrk"])])
            cells += [form.format(spread([run[key] for run in runs[name]])[0]), f"{ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return runs, lines


def case_rate64(options):
    return compare(64, options, clients(options))


def case_rate256(options):
    return compare(256, options, clients(options))


def case_pipeline(options):
    script = str(Path(__file__).resolve().parent / "conf/pipeline.lua")
    wrk = Client("wrk", ["wrk", "-t1", "-c{c}", "-d{d}s", "-s", script, "{url}"], r"Requests/sec:\s+([\d.]+)")
    return compare(64, options, [*flatouts(options, ["--pipeline", "16"]), wrk])


def case_hold(options):
    """The cost of idle connections in one process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    runs = {}
    for count in (sized(1_000, smoke=50), sized(limit - 1_000, smoke=200)):
        command = [FLATOUT, "bench", "--hold", str(count), "-d", sized("4s", smoke="1s"), "--warmup", sized("2s", smoke="1s"), "--json", "--source", "127.0.0.2-127.0.0.9"]
        with floor() as server:
            client = children.start([*command, server.url()], stdout=subprocess.PIPE, text=True)
            anonymous = 0
            while client.poll() is None:
                try:
                    rollup = Path(f"/proc/{client.pid}/smaps_rollup").read_text()
                    anonymous = max(anonymous, int(re.search(r"^Anonymous:\s+(\d+)", rollup, re.M)[1]) * 1024)
                except (OSError, TypeError):
                    pass
                time.sleep(0.2)
            found = json.load(client.stdout)
            runs[count] = {"held": found["connections_held"], "anonymous_bytes": anonymous, "errors": sum(found["errors"].values())}
    few, many = runs.values()
    each = (many["anonymous_bytes"] - few["anonymous_bytes"]) / max(many["held"] - few["held"], 1)
    lines = ["| connections held | errors | anonymous KiB | bytes for each more |", "|---:|---:|---:|---:|"]
    lines += [f"| {run['held']:,} | {run['errors']} | {run['anonymous_bytes'] >> 10:,} | {each:,.0f} |" for run in runs.values()]
    return runs, lines


def waiting(delay_s, *stall_s):
    """A server that waits before each answer and may stall once; see bench/waiting."""
    times = [str(round(time * 1000)) for time in (delay_s, *stall_s)]
    return Server("waiting", [program("waiting"), "127.0.0.1:{port}", *times], "/")


def case_stall(options):
    """Latencies beside what arithmetic says: 10 ms always, and one stall of a second, seen by 1 request in 10."""
    def run(command, server):
        pin = lambda: os.sched_setaffinity(0, {CLIENT_CPU})
        with server:
            return subprocess.run([*command, server.url()], capture_output=True, text=True, preexec_fn=pin).stdout

    bench = lambda server, *flags: json.loads(run([FLATOUT, "bench", "--json", *flags], server))
    ms = lambda latency: [latency[p] / 1e6 for p in ("p50", "p99", "p99_9")]
    run_s = f"-d{STALL_RUN_S}s"
    stalling = lambda: waiting(0, STALL_RUN_S / 2, STALL_S)
    steady = bench(waiting(DELAY_S), "-c20", f"-R{STALL_RATE}", run_s)
    stalled = bench(stalling(), "-c1", f"-R{STALL_RATE}", run_s)
    out = run(["wrk", "-t1", "-c1", f"-d{STALL_RUN_S}s", "--latency"], stalling())
    unit = {"us": 1e-3, "ms": 1, "s": 1e3}
    wrk = {m[1]: float(m[2]) * unit[m[3]] for m in re.finditer(r"^\s+(\d+)%\s+([\d.]+)(us|ms|s)", out, re.M)}
    share = STALL_S / STALL_RUN_S
    expected = [1e3 * STALL_S * (1 - (1 - p) / share) if 1 - p < share else 0 for p in (0.50, 0.99, 0.999)]
    row = lambda name, values: f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |"
    lines = ["| | p50 ms | p99 ms | p99.9 ms |", "|---|---:|---:|---:|", row("waits 10 ms: arithmetic", [DELAY_S * 1e3] * 3),
             row("waits 10 ms: flatout", ms(steady["latency_ns"])), row("stalls 1 s in 10: arithmetic", expected),
             row("stalls 1 s in 10: flatout, since due", ms(stalled["latency_ns"])),
             row("stalls 1 s in 10: flatout, raw", ms(stalled["latency_raw_ns"])),
             f"| stalls 1 s in 10: wrk | {wrk.get('50', 0):.2f} | {wrk.get('99', 0):.2f} | – |"]
    return {"steady": steady, "stalled": stalled, "wrk_ms": wrk}, lines


# Requests a second that a server can serve, how many at a time, and how many may wait.
CAPACITIES = sized([(10, 1, None), (200, 1, None), (200, 64, None), (200, 1, 8), (2000, 1, None), (2000, 64, None)], smoke=[(2000, 1, None)])


def case_capacity(options):
    """The highest rate that a server sustains, beside the one that it is made for."""
    rows, lines = [], ["| capacity/s | at a time | may wait | connections | found/s | ÷ capacity (min–max) | steps | seconds |", "|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for capacity, at_once, queue in CAPACITIES:
        service_us = round(at_once / capacity * 1e6)
        words = ["capacity", str(service_us), str(at_once), *([str(queue)] if queue else [])]
        # The time without a queue, and room for a short one.
        slo_ms = round(service_us / 1e3 + max(20e3 / capacity, 20))
        for connections in sized((8, 100), smoke=(8,)):
            runs = []
            for _ in range(options.rounds):
                pin = lambda: os.sched_setaffinity(0, {CLIENT_CPU})
                command = [FLATOUT, "bench", "--json", "--find-max", "--slo", f"p99={slo_ms}ms", f"-c{connections}", f"-d{options.seconds}s"]
                with Server("waiting", [program("waiting"), "127.0.0.1:{port}", *words], "/") as server:
                    began = time.monotonic()
                    out = subprocess.run([*command, server.url()], capture_output=True, text=True, preexec_fn=pin)
                    found = json.loads(out.stdout)
                runs.append({"rate": found["setup"]["rate_per_s"] or 0, "steps": len(found["steps"]), "seconds": time.monotonic() - began})
            ratio = spread([run["rate"] / capacity for run in runs])
            of = lambda key: spread([run[key] for run in runs])[0]
            cells = [f"{capacity:,}", at_once, queue or "–", connections, f"{of('rate'):,.1f}", f"{ratio[0]:.3f} ({ratio[1]:.3f}–{ratio[2]:.3f})", of("steps"), f"{of('seconds'):.0f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            print(f"  {lines[-1]}", file=sys.stderr)
            rows.append({"capacity": capacity, "at_once": at_once, "queue": queue, "connections": connections, "runs": runs})
    return rows, lines


CASES = {"rate64": case_rate64, "rate256": case_rate256, "pipeline": case_pipeline, "hold": case_hold, "stall": case_stall,
         "capacity": case_capacity}
TITLES = {"rate64": "Requests a second of one client thread, 64 connections", "rate256": "Requests a second of one client thread, 256 connections",
          "pipeline": "The same, 16 deep, 64 connections", "hold": "Connections held by one client process",
          "stall": "Latencies that arithmetic knows", "capacity": "The highest rate of servers whose capacity is known"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of clients, beside wrk")
    parser.add_argument("--before", metavar="PATH", help="an older flatout")
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if IS_SMOKE:
        options.rounds = options.seconds = 1
    RESULTS.mkdir(exist_ok=True)
    for case in options.cases or CASES:
        print(f"{case} …", file=sys.stderr)
        runs, lines = CASES[case](options)
        command = f"./x bench load {case} --rounds {options.rounds} --seconds {options.seconds}"
        text = "\n".join([f"## {TITLES[case]}", "", f"`{command}` · {machine()}", "", *lines, ""])
        print(text)
        if not (options.only or IS_SMOKE):
            (RESULTS / f"load-{case}.md").write_text(text)
            (RESULTS / f"load-{case}.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    children.end_on_signals()
    main()
