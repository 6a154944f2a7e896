#!/usr/bin/env python3
"""The proxy's demo: Flask under gunicorn on a Unix socket, behind nginx and behind flatout. flatout's site file is nginx's own
configuration, converted by `flatout import`. Both answer the same requests, and are loaded in turn by wrk and by `flatout bench`.
`./x demo proxy` builds what it needs and calls it."""

import json, os, re, shutil, statistics, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import children  # noqa: E402
from servers import free_port, program  # noqa: E402
from smoke import failed, sized  # noqa: E402

FLATOUT = program("flatout")
APP = ROOT / "climbs/nginx-flask"
WORK = ROOT / "target/demo-proxy"
PYTHON = ROOT / "target/nginx-flask/venv/bin/python3"
# Where the configurations of the climb listen.
PORT = 18089
PATH = "/quotes"
ROUNDS, SECONDS, CONNECTIONS = sized(5, smoke=1), sized(2, smoke=1), 32


def ready(url, process, work=WORK):
    for _ in range(100):
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended:\n{(work / 'log').read_text()[-2000:]}")
        if subprocess.run(["curl", "-sf", "-o", "/dev/null", "--max-time", "2", *url]).returncode == 0:
            return
        time.sleep(0.1)
    sys.exit(f"no response at {url[-1]}: see {work}/log")


def gunicorn(socket):
    """The application, as published: CPUs x 2 + 1 workers."""
    command = [str(PYTHON), "-m", "gunicorn.app.wsgiapp", "--chdir", str(APP), "--workers", str(os.cpu_count() * 2 + 1)]
    return command + ["--bind", f"unix:{socket}", "--log-level", "error", "app:app"]


def start(command, log, work=WORK):
    return children.start(command, cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def at_port(source, port, work):
    """A copy of a configuration that listens on another port."""
    copy = work / source.name
    copy.write_text(source.read_text().replace(f":{PORT}", f":{port}"))
    return copy


def site_file(conf, nginx_port, flatout_port):
    """nginx's configuration as a site file that listens beside it."""
    text = subprocess.run([FLATOUT, "import", str(conf)], capture_output=True, text=True, check=True).stdout
    path = WORK / "site.kdl"
    path.write_text(text.replace(f":{nginx_port}", f":{flatout_port}"))
    print(text)
    subprocess.run([FLATOUT, "check", str(path)], check=True)
    return path


def wrk(url, threads=1, connections=CONNECTIONS, seconds=SECONDS, fields=()):
    command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--latency", *(word for field in fields for word in ("-H", field))]
    out = subprocess.run(command + [url], capture_output=True, text=True).stdout
    unit = {"us": 1e-3, "ms": 1, "s": 1e3}
    p99 = re.search(r"99%\s+([\d.]+)(\w+)", out)
    errors = re.search(r"Non-2xx.*|Socket errors.*", out)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1]), float(p99[1]) * unit[p99[2]], errors[0] if errors else ""


def bench(url):
    out = subprocess.run([FLATOUT, "bench", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--json", url], capture_output=True, text=True)
    said = json.loads(out.stdout)
    errors = {kind: count for kind, count in said.get("errors", {}).items() if count}
    return said["requests_per_s"], said["latency_ns"]["p99"] / 1e6, str(errors) if errors else ""


def cpu_s(pid):
    """CPU seconds of a process and its children so far."""
    pids, total = [pid], 0
    while pids:
        pid = pids.pop()
        try:
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            total += sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            pass
    return total / 1e9


def load(servers):
    rows = {}
    for _ in range(ROUNDS):
        for name, url, process in servers:
            for tool, act in (("wrk", wrk), ("flatout bench", bench)):
                before = cpu_s(process.pid)
                rate, p99, errors = act(url)
                rows.setdefault((tool, name), []).append((rate, p99, (cpu_s(process.pid) - before) / rate / SECONDS * 1e6))
                if errors:
                    failed(f"{name}, {tool}", RuntimeError(errors))
    print(f"\nMedians of {ROUNDS} rounds in turn, {SECONDS} s each, {CONNECTIONS} connections:\n")
    print("| load | proxy | requests/s | p99 ms | CPU µs of the proxy per request |\n|---|---|---:|---:|---:|")
    for (tool, name), runs in sorted(rows.items()):
        rate, p99, cpu = (statistics.median(column) for column in zip(*runs))
        print(f"| {tool} | {name} | {rate:,.0f} | {p99:.1f} | {cpu:.1f} |")


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    started = []
    with open(WORK / "log", "wb") as log:
        try:
            started.append(start(gunicorn(f"{WORK}/app.sock"), log))
            ready(["--unix-socket", f"{WORK}/app.sock", f"http://app{PATH}"], started[-1])
            print("nginx's configuration as a site file:\n")
            nginx_port, flatout_port = free_port(), free_port()
            conf = at_port(APP / "step2.conf", nginx_port, WORK)
            site = site_file(conf, nginx_port, flatout_port)
            nginx = ["nginx", "-p", f"{WORK}/", "-c", str(conf), "-e", "stderr", "-g", "daemon off; pid nginx.pid;"]
            flatout = [FLATOUT, "serve", "-c", str(site)]
            servers = []
            for name, command, port in (("nginx", nginx, nginx_port), ("flatout", flatout, flatout_port)):
                started.append(start(command, log))
                url = f"http://127.0.0.1:{port}{PATH}"
                ready([url], started[-1])
                servers.append((name, url, started[-1]))
            print("\nComparing the responses of both:\n", flush=True)
            lines = "".join(f'127.0.0.1 - - [21/Nov/2026:12:00:00 +0000] "GET {path} HTTP/1.1" 200 1\n' for path in (PATH, "/none", "/quotes?x=1"))
            (WORK / "access.log").write_text(lines)
            old, new = (f"http://127.0.0.1:{port}" for port in (nginx_port, flatout_port))
            subprocess.run([FLATOUT, "import", "--check", old, new, str(WORK / "access.log")])
            load(servers)
        finally:
            for process in started[::-1]:
                children.stop(process)


if __name__ == "__main__":
    children.end_on_signals()
    main()
