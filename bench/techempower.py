#!/usr/bin/env python3
"""TechEmpower's seven tests, on flatout and on others, interleaved.

    bench/techempower.py [TEST …] [--rounds N] [--seconds S] [--only NAME,NAME]

Tests: json, plaintext, db, queries, fortunes, updates, cached. DATABASE_URL is a PostgreSQL with the tables of
examples/techempower/tables.sql, POSTGRES_PID its first process. Every server has one worker, pinned to the first CPU of two; the
client and the database have the second. What counts is the CPU time of the application for each request; that of the
database stands beside it. Before it is measured, each server's response is checked against the others'.
Writes bench/results/techempower-TEST.md and .json.
"""

import argparse, json, os, sys, urllib.request
from pathlib import Path

from measure import median, running, table, turns, warm_up, with_cpu, wrk
import children
import smoke
from servers import BENCH, RESULTS, Server, machine, program
from smoke import IS_SMOKE, leave_out

OURS = program("techempower")
PEERS = BENCH / "techempower/target/release/techempower-peers"
WITH_DATABASE = ["hyper", "axum", "actix-web", "xitca-web"]
WITHOUT = ["may_minihttp"]

# Path, connections, script of wrk, whether it asks the database.
TESTS = {
    "json": ("/json", 256, None, False),
    "plaintext": ("/plaintext", 256, "pipeline.lua", False),
    "db": ("/db", 256, None, True),
    "queries": ("/queries?queries=20", 256, None, True),
    "fortunes": ("/fortunes", 256, None, True),
    "updates": ("/updates?queries=20", 256, None, True),
    "cached": ("/cached-queries?count=100", 256, None, True),
}


def servers(path, needs_database):
    ours = Server("flatout", [OURS, "--listen", "127.0.0.1:{port}", "--workers", "1"], path)
    if not PEERS.exists():
        leave_out("hyper, axum and others, not built")
        return [ours]
    names = WITH_DATABASE + ([] if needs_database else WITHOUT)
    return [ours] + [Server(name, [str(PEERS), name, "127.0.0.1:{port}"], path) for name in names]


def database_ns():
    """CPU time of PostgreSQL so far: of those of its processes that live."""
    total, queue = 0, [int(os.environ["POSTGRES_PID"])]
    while queue:
        pid = queue.pop()
        try:
            total += sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
            queue += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            pass
    return total


def check(server):
    """The shape of a response: its type, and the keys of its JSON or its number of rows."""
    with urllib.request.urlopen(server.url(), timeout=10) as answer:
        kind, body = answer.headers["Content-Type"].split(";")[0], answer.read().decode()
    if kind != "application/json":
        return kind, body.count("<tr>"), body if kind == "text/plain" else None
    value = json.loads(body)
    first = value[0] if isinstance(value, list) else value
    return kind, len(value) if isinstance(value, list) else 1, sorted(first)


def measure(server, connections, seconds, script):
    before = database_ns()
    run = with_cpu(server, lambda: wrk(server.url(), connections, seconds, script))
    run["database_us"] = (database_ns() - before) / run["requests"] / 1e3
    return run


def run_test(name, options):
    path, connections, script, needs_database = TESTS[name]
    with running([s for s in servers(path, needs_database) if not options.only or s.name in options.only.split(",")]) as started:
        shapes = {server.name: check(server) for server in started}
        odd = [server for server, shape in shapes.items() if shape != shapes[started[0].name]]
        if odd:
            raise SystemExit(f"{name}: {', '.join(odd)} responds with something else: {shapes}")
        for server in started:
            warm_up(server, connections, script)
        runs = turns(started, options, lambda server: measure(server, connections, options.seconds, script))
    lines = table(runs, "flatout") + ["", "CPU of the database, µs per request: " + ", ".join(f"{server} {median(its, 'database_us'):.1f}" for server, its in runs.items()) + "."]
    return runs, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", help=", ".join(TESTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--only", default="", help="names of servers")
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    if IS_SMOKE:
        options.rounds = options.seconds = 1
    unknown = [test for test in options.tests if test not in TESTS]
    if unknown:
        parser.error(f"no test {', '.join(unknown)}; there are {', '.join(TESTS)}")
    RESULTS.mkdir(exist_ok=True)
    for name in options.tests or TESTS:
        print(f"{name} …", file=sys.stderr)
        runs, lines = run_test(name, options)
        command = f"./x bench techempower {name} --rounds {options.rounds} --seconds {options.seconds}"
        text = "\n".join([f"## TechEmpower: {name}, `{TESTS[name][0]}`, {TESTS[name][1]} connections", "", f"`{command}` · {machine()}", "", *lines, ""])
        print(text)
        if not (options.only or IS_SMOKE):
            (RESULTS / f"techempower-{name}.md").write_text(text)
            (RESULTS / f"techempower-{name}.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    children.end_on_signals()
    main()
