#!/usr/bin/env python3
"""Measures servers against each other and against the floor.

    bench/drive.py CASE... [--rounds N] [--seconds S] [--only NAME,NAME] [--before PATH] [--parts PART,PART] [--entries N]

Cases: json, json256, pipeline, async, observed, load, guest, files, cold, volume, idle, crowd, instructions, proxy,
slow-readers, tunnels, cache. Every server has one worker, pinned to the first CPU of two; the client is pinned to the second. All servers
run through all rounds and take turns, so that a machine that drifts drifts for all of them; a server's ratio is taken within
its round, and its median and quartiles are reported. CPU is the scheduler's own account of the server's threads, in nanoseconds.
Writes bench/results/CASE.md and CASE.json.
"""

import argparse, json, resource, shutil, sys

from busy_application import case_slow_readers, case_tunnels
from caching import PARTS, case_cache
from cold import case_cold
from configured import case_conditions, case_sites
from counting import case_instructions
from holding import case_crowd, case_idle
from measure import measured, quartiles, rounds, table, told
from proxying import case_proxy
from rates import case_guest, case_load
import children
import smoke
from servers import RESULTS, SITE, SIZES, flatout_files, flatout_json, floor, floor_staged, h2o, installed, machine, make_site, nginx, observed, only, peers
from smoke import IS_SMOKE
from volume import case_sweep, case_volume


def case_json(options, connections=64, script=None):
    runs = rounds(only([floor(), floor_staged(), flatout_json(), *peers()], options), connections, options, script)
    return runs, table(runs, "floor", "floor staged")


def without_peers(options):
    """A smoke run has seen the other servers once."""
    options.only = options.only or ("flatout" if IS_SMOKE else "")
    return options


def case_json256(options):
    return case_json(without_peers(options), 256)


def case_pipeline(options):
    return case_json(without_peers(options), 64, "pipeline.lua")


def case_async(options):
    """One process, so that its two handlers differ in nothing else."""
    with flatout_json() as server:
        views = [server.view("sync handler", "/json"), server.view("async handler, ready", "/json-async")]
        runs = measured(views, 64, options)
    return runs, table(runs, "sync handler")


def case_observed(options):
    """What an access log and metrics cost a request: differences within each round."""
    plain, *others = servers = observed()
    runs = rounds(servers, 64, options)
    lines = table(runs, plain.name)
    for server in others:
        if server.name in runs and plain.name in runs:
            more = [run["cpu_us"] - base["cpu_us"] for run, base in zip(runs[server.name], runs[plain.name])]
            lines += ["", f"{server.name}: {told(quartiles(more), 3)} µs more."]
    return runs, lines


def case_files(options):
    runs, lines = {}, []
    for label, size in list(SIZES.items())[: 1 if IS_SMOKE else None]:
        path = f"/{size}.bin"
        servers = [flatout_files(path), *installed(nginx(path), h2o(path)), flatout_json("flatout /json")]
        these = rounds(only(servers, options), 64, options)
        for run in (run for name in these if name != "flatout /json" for run in these[name]):
            run["gib_per_cpu_s"] = size / run["cpu_us"] * 1e6 / (1 << 30)
        runs[label] = these
        lines += ["", f"### {label}", ""] + table(these, "flatout /json")
        rates = {n: quartiles([r["gib_per_cpu_s"] for r in these[n]]) for n in these if n != "flatout /json"}
        lines += ["", "GiB a CPU second: " + ", ".join(f"{n} {told(r)}" for n, r in rates.items()) + "."]
    return runs, lines


CASES = {"json": case_json, "json256": case_json256, "pipeline": case_pipeline, "async": case_async, "observed": case_observed, "load": case_load,
         "guest": case_guest, "files": case_files, "cold": case_cold, "volume": case_volume, "sweep": case_sweep, "sites": case_sites, "conditions": case_conditions,
         "idle": case_idle, "crowd": case_crowd, "instructions": case_instructions, "proxy": case_proxy,
         "slow-readers": case_slow_readers, "tunnels": case_tunnels, "cache": case_cache}
TITLES = {"json": "`GET /json`, 64 connections", "json256": "`GET /json`, 256 connections", "pipeline": "`GET /json`, 16 deep, 64 connections",
          "async": "`GET /json` by a sync and by a ready async handler, 64 connections",
          "observed": "`GET /json` with an access log and metrics, and without, 64 connections",
          "load": "Latency below the highest rate: `GET /json` in an open loop",
          "guest": "A round trip to an upstream for each request: guests of the lane, and tokio; 64 connections",
          "cold": "Small requests beside a large file that is not in the page cache",
          "volume": "A file in memory beside files that a slow volume has to give",
          "sweep": "Finding changes in a folder of 30,000 files",
          "sites": "A reload with ten thousand sites", "conditions": "A request through ten conditions and a map of ten thousand entries",
          "files": "Static files, 64 connections", "idle": "Idle keep-alive connections in one process",
          "crowd": "200 000 idle keep-alive connections", "instructions": "User instructions a request (valgrind --tool=callgrind)",
          "proxy": "A request passed on to an upstream, 64 connections", "slow-readers": "Large responses to slow clients",
          "tunnels": "WebSockets that rarely carry a message", "cache": "The response cache, 64 connections"}
# The cases that are not of `./x bench serve`, and how each is called.
BENCH_OF = {"proxy": "proxy", "slow-readers": "proxy slow-readers", "tunnels": "proxy tunnels", "cache": "cache"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--only", default="", help="names of servers, beside the floor")
    parser.add_argument("--before", metavar="PATH", help="an older build of hello-json, for the case load")
    parser.add_argument("--parts", default="", help=f"parts of the case cache, by how they begin: {', '.join(PARTS)}")
    parser.add_argument("--entries", type=int, default=1_000_000, help="small entries of the case cache")
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    if IS_SMOKE:
        options.rounds = options.seconds = 1
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    RESULTS.mkdir(exist_ok=True)
    make_site()
    try:
        for case in options.cases or [case for case in CASES if case not in BENCH_OF]:
            print(f"{case} …", file=sys.stderr)
            runs, lines = CASES[case](argparse.Namespace(**vars(options)))
            bench = BENCH_OF.get(case, f"serve {case}")
            command = f"./x bench {bench} --rounds {options.rounds} --seconds {options.seconds}"
            text = "\n".join([f"## {TITLES[case]}", "", f"`{command}` · {machine()}", "", *lines, ""])
            print(text)
            if not (options.only or options.parts or IS_SMOKE):
                (RESULTS / f"{case}.md").write_text(text)
                (RESULTS / f"{case}.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")
    finally:
        shutil.rmtree(SITE, ignore_errors=True)


if __name__ == "__main__":
    children.end_on_signals()
    main()
