#!/usr/bin/env python3
"""The cache's demo: the published climb of an HTTP API behind nginx, in five steps, and the same steps with flatout in its place. The
application is Flask under gunicorn on a Unix socket, and wrk loads both servers in turn. `./x demo cache [SECONDS]` builds what it
needs and calls it."""

import os, shutil, statistics, sys
from pathlib import Path

from proxy import APP, FLATOUT, PATH, ROOT, at_port, children, failed, free_port, gunicorn, ready, sized, start, wrk

WORK = ROOT / "target/demo-cache"
# nginx's cache in memory: as step4.conf and step5.conf name it, and this demo's own.
CLIMB_MEMORY = "/dev/shm/flatout-nginx-flask"
NGINX_MEMORY = Path(f"/dev/shm/flatout-demo-cache-{os.getpid()}")
STEPS = ["default", "tuned: workers, keep-alive, gzip, no log", "cache on disk", "cache in memory", "buffered log"]
PUBLISHED = [1_663, 2_141, 31_624, 39_387, 50_413]
ROUNDS, SECONDS = sized(3, smoke=1), sized(5, smoke=1)
# Of `wrk -t20 -c200` on twenty CPUs.
THREADS = min(os.cpu_count(), 20)
CONNECTIONS = 10 * THREADS
FIELDS = ["Accept-Encoding: gzip"]


def servers(number, work, log):
    """Both with the configuration of a step, running."""
    nginx_port, flatout_port = free_port(), free_port()
    site = at_port(ROOT / f"climbs/flatout-flask/step{number}.kdl", flatout_port, work)
    conf = at_port(APP / f"step{number}.conf", nginx_port, work)
    conf.write_text(conf.read_text().replace(CLIMB_MEMORY, str(NGINX_MEMORY)))
    nginx = ["nginx", "-p", f"{work}/", "-c", str(conf), "-e", "stderr", "-g", "daemon off; pid nginx.pid;"]
    commands = {"nginx": (nginx, nginx_port), "flatout": ([FLATOUT, "serve", "-c", str(site)], flatout_port)}
    return {name: (start(command, log, work), f"http://127.0.0.1:{port}{PATH}") for name, (command, port) in commands.items()}


def folder(number):
    """A folder for a step, with nothing cached in it."""
    work = WORK / f"step{number}"
    work.mkdir(parents=True)
    shutil.rmtree(NGINX_MEMORY, ignore_errors=True)
    for made in (NGINX_MEMORY, work):
        made.mkdir(exist_ok=True)
        made.chmod(0o777)
    (work / "app.sock").symlink_to(WORK / "app.sock")
    return work


def step(number, seconds, log):
    """Medians of requests a second and of the 99th percentile, by server."""
    runs = {}
    started = servers(number, folder(number), log)
    try:
        for process, url in started.values():
            ready([url], process, WORK)
        for turn in range(ROUNDS):
            for name, (_, url) in list(started.items())[:: -1 if turn % 2 else 1]:
                rate, p99, errors = wrk(url, THREADS, CONNECTIONS, seconds, FIELDS)
                runs.setdefault(name, []).append((rate, p99))
                if errors:
                    failed(name, RuntimeError(errors))
    finally:
        for process, _ in started.values():
            children.stop(process)
    return {name: [statistics.median(column) for column in zip(*its)] for name, its in runs.items()}


def main():
    words = [word for word in sys.argv[1:] if word != "--smoke"]
    seconds = int(words[0]) if words else SECONDS
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    lines = ["| step | nginx requests/s | p99 ms | flatout requests/s | p99 ms | flatout ÷ nginx | published, nginx |", "|---|---:|---:|---:|---:|---:|---:|"]
    with open(WORK / "log", "wb") as log:
        application = start(gunicorn(WORK / "app.sock"), log, WORK)
        try:
            ready(["--unix-socket", f"{WORK}/app.sock", f"http://app{PATH}"], application, WORK)
            # For nginx's workers, which have dropped root.
            (WORK / "app.sock").chmod(0o777)
            for number, (name, published) in enumerate(zip(STEPS, PUBLISHED), 1):
                print(f"{number}  {name} …", file=sys.stderr)
                found = step(number, seconds, log)
                (nginx, nginx_p99), (flatout, flatout_p99) = found["nginx"], found["flatout"]
                lines.append(f"| {number}  {name} | {nginx:,.0f} | {nginx_p99:.1f} | {flatout:,.0f} | {flatout_p99:.1f} | {flatout / nginx:.2f} | {published:,} |")
        finally:
            children.stop(application)
            shutil.rmtree(NGINX_MEMORY, ignore_errors=True)
    load = f"wrk -t{THREADS} -c{CONNECTIONS} -d{seconds}s"
    print(f"\n{load}, on the CPUs of the servers and the application; medians of {ROUNDS} rounds in turn. Published: `wrk -t20 -c200 -d20s`.\n")
    print("\n".join(lines))


if __name__ == "__main__":
    children.end_on_signals()
    main()
