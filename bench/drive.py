#!/usr/bin/env python3
"""Measures servers against each other and against the floor.

    bench/drive.py CASE... [--rounds N] [--seconds S] [--only NAME,NAME]

Cases: json, json256, pipeline, files, idle, crowd, instructions. Every server has one worker, pinned to the first CPU of
two; the client, wrk, is pinned to the second. Servers take turns, round by round, so that a machine that drifts drifts for
all of them; a server's ratio is taken within its round, and its median and spread are reported. CPU is the kernel's own
account of the server's processes (utime and stime of /proc/PID/stat): exact in sum, sampled in its split.
Writes bench/results/CASE.md and CASE.json.
"""

import argparse, json, os, platform, re, resource, shutil, signal, socket, statistics, subprocess, sys, tempfile, time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
RESULTS = BENCH / "results"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, CLIENT_CPU = CPUS[0], CPUS[-1]
CLIENT_LIMIT_SHARE = 0.95


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One server process (with its children), pinned to the server's CPU."""

    def __init__(self, name, command, path="/json"):
        self.name, self.command, self.path = name, command, path
        self.folder = Path(tempfile.mkdtemp(prefix="flatout-bench-"))
        os.chmod(self.folder, 0o777)  # h2o gives up root before it writes its pid file
        self.port = free_port()

    def __enter__(self):
        command = [self.fill(word) for word in self.command]
        self.log = open(self.folder / "log", "wb")
        env = {**os.environ, "GOMAXPROCS": "1"}
        pin = lambda: os.sched_setaffinity(0, {SERVER_CPU})
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env, preexec_fn=pin)
        deadline = time.time() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self.process.poll() is not None or time.time() > deadline:
                    raise RuntimeError(f"{self.name} did not start: {(self.folder / 'log').read_text()[-500:]}")
                time.sleep(0.05)

    def __exit__(self, *_):
        for pid in self.pids()[::-1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self, word):
        """Fills in a port, and makes a config file of a template."""
        if word.startswith("@conf/"):
            text = (BENCH / word[1:]).read_text()
            for key, value in {"PORT": self.port, "ROOT": SITE, "DIR": self.folder}.items():
                text = text.replace(f"@{key}@", str(value))
            out = self.folder / Path(word).name
            out.write_text(text)
            return str(out)
        return word.replace("{port}", str(self.port))

    def pids(self):
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            try:
                queue += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                pass
        return found

    def cpu(self):
        """User and kernel seconds so far."""
        user = kernel = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            user, kernel = user + int(fields[11]), kernel + int(fields[12])
        return user / TICKS_PER_S, kernel / TICKS_PER_S

    def anonymous_bytes(self):
        total = 0
        for pid in self.pids():
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Anonymous:\s+(\d+)", rollup, re.M)[1]) * 1024
        return total

    def url(self):
        return f"http://127.0.0.1:{self.port}{self.path}"


def wrk(url, connections, seconds, script=None):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    command += ["-s", str(BENCH / "conf" / script)] if script else []
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    pin = lambda: os.sched_setaffinity(0, {CLIENT_CPU})
    out = subprocess.run(command + [url], capture_output=True, text=True, preexec_fn=pin, timeout=seconds + 30).stdout
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.time() - began
    if "Requests/sec" not in out:
        raise RuntimeError(f"wrk said: {out}")
    errors = re.search(r"Socket errors.*|Non-2xx.*", out)
    if errors and not re.fullmatch(r"Socket errors: connect 0, read 0, write 0, timeout \d+", errors[0]):
        raise RuntimeError(f"{url}: {errors[0]}")
    unit = {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}
    latency = lambda p: (lambda m: float(m[1]) * unit[m[2]])(re.search(rf"^\s+{p}%\s+([\d.]+)(\w+)", out, re.M))
    return {
        "requests": int(re.search(r"(\d+) requests in", out)[1]),
        "requests_per_s": float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1]),
        "p50_us": latency(50),
        "p99_us": latency(99),
        "client_cpu_share": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took,
    }


def measure(server, connections, seconds, script=None):
    wrk(server.url(), connections, 1, script)
    before = server.cpu()
    run = wrk(server.url(), connections, seconds, script)
    after = server.cpu()
    # The server also served what wrk counted late; that is below 1 in 1000.
    run["user_us"] = (after[0] - before[0]) / run["requests"] * 1e6
    run["kernel_us"] = (after[1] - before[1]) / run["requests"] * 1e6
    run["cpu_us"] = run["user_us"] + run["kernel_us"]
    return run


def rounds(servers, connections, options, script=None):
    """Runs of each server by name, taken in turn."""
    runs = {server.name: [] for server in servers}
    for number in range(options.rounds):
        for server in servers:
            try:
                with server:
                    runs[server.name].append(measure(server, connections, options.seconds, script))
            except RuntimeError as error:
                print(f"  {server.name}: {error}", file=sys.stderr)
                runs.pop(server.name)
                servers = [other for other in servers if other is not server]
            server.__init__(server.name, server.command, server.path)
        print(f"  round {number + 1} of {options.rounds}", file=sys.stderr)
    return runs


def spread(values):
    return statistics.median(values), min(values), max(values)


def table(runs, base):
    """Markdown rows, cheapest first; ratios are to `base` within each round."""
    lines = [
        "| server | user µs | kernel µs | CPU µs | CPU ÷ floor (min–max) | requests/s | p50 µs | p99 µs | client |".replace("floor", base),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    median = lambda name, key: statistics.median(run[key] for run in runs[name])
    for name in sorted(runs, key=lambda name: median(name, "cpu_us")):
        ratios = spread([run["cpu_us"] / other["cpu_us"] for run, other in zip(runs[name], runs[base])])
        share = median(name, "client_cpu_share")
        limit = f"{share:.0%}" + (" (limit)" if share > CLIENT_LIMIT_SHARE else "")
        lines.append(
            f"| {name} | {median(name, 'user_us'):.2f} | {median(name, 'kernel_us'):.2f} | {median(name, 'cpu_us'):.2f} "
            f"| {ratios[0]:.2f} ({ratios[1]:.2f}–{ratios[2]:.2f}) | {median(name, 'requests_per_s'):,.0f} "
            f"| {median(name, 'p50_us'):.0f} | {median(name, 'p99_us'):.0f} | {limit} |"
        )
    return lines


def flatout_json():
    return Server("flatout", [str(ROOT / "target/release/examples/json"), "--listen", "127.0.0.1:{port}", "--workers", "1"])


def flatout_files(path):
    command = [str(ROOT / "target/release/flatout"), "serve", str(SITE), "--listen", "127.0.0.1:{port}", "--workers", "1"]
    return Server("flatout serve", command, path)


def floor():
    return Server("floor", [str(ROOT / "target/release/floor"), "127.0.0.1:{port}"])


def peers():
    binary = BENCH / "peers/target/release/peers"
    go = BENCH / "peers-go/peers"
    found = []
    if binary.exists():
        names = ["hyper", "axum", "actix-web", "ntex", "xitca-web", "may_minihttp"]
        found += [Server(name, [str(binary), name, "127.0.0.1:{port}"]) for name in names]
    if go.exists():
        found.append(Server("fasthttp", [str(go), "127.0.0.1:{port}"]))
    found += [server for server in (nginx("/json"), haproxy(), h2o("/hello.json")) if shutil.which(server.command[0])]
    return found


def nginx(path):
    return Server("nginx", ["nginx", "-c", "@conf/nginx.conf"], path)


def haproxy():
    return Server("haproxy", ["haproxy", "-f", "@conf/haproxy.cfg"])


def h2o(path):
    return Server("h2o", ["h2o", "-c", "@conf/h2o.conf"], path)


SIZES = {"1 KiB": 1 << 10, "16 KiB": 16 << 10, "1 MiB": 1 << 20}
SITE = Path(tempfile.gettempdir()) / f"flatout-bench-site-{os.getpid()}"


def make_site():
    SITE.mkdir(exist_ok=True)
    os.chmod(SITE, 0o755)
    (SITE / "hello.json").write_text('{"message":"Hello, World!"}')
    for size in SIZES.values():
        (SITE / f"{size}.bin").write_bytes(os.urandom(size))


def case_json(options, connections=64, script=None):
    runs = rounds(only([floor(), flatout_json(), *peers()], options), connections, options, script)
    return runs, table(runs, "floor")


def case_json256(options):
    return case_json(options, 256)


def case_pipeline(options):
    return case_json(options, 64, "pipeline.lua")


def case_files(options):
    runs, lines = {}, []
    for label, size in SIZES.items():
        path = f"/{size}.bin"
        servers = [flatout_files(path), nginx(path), h2o(path), flatout_json()]
        servers[3].name = "flatout /json"
        these = rounds(only(servers, options), 64, options)
        for run in (run for name in these if name != "flatout /json" for run in these[name]):
            run["gib_per_cpu_s"] = size / run["cpu_us"] * 1e6 / (1 << 30)
        runs[label] = these
        lines += ["", f"### {label}", ""] + table(these, "flatout /json")
        rates = {n: spread([r["gib_per_cpu_s"] for r in these[n]]) for n in these if n != "flatout /json"}
        lines += ["", "GiB a CPU second: " + ", ".join(f"{n} {r[0]:.2f} ({r[1]:.2f}–{r[2]:.2f})" for n, r in rates.items()) + "."]
    return runs, lines


class Holders:
    """Idle keep-alive connections, each after one request, held by processes of their own."""

    # A source address has some 28 000 ports, and finding a free one is slow when most are taken.
    PER_PROCESS = 10_000

    def __init__(self, server_path, port, count):
        self.processes = []
        for number, start in enumerate(range(0, count, self.PER_PROCESS)):
            part = min(self.PER_PROCESS, count - start)
            command = [sys.executable, __file__, "--hold", f"{part},{port},127.0.0.{2 + number},{server_path}"]
            pin = lambda: os.sched_setaffinity(0, {CLIENT_CPU})
            self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, preexec_fn=pin))
        self.held = sum(int(process.stdout.readline() or 0) for process in self.processes)

    def close(self):
        for process in self.processes:
            process.stdin.close()
            process.wait()


def hold(argument):
    """In a process of its own: opens connections, says how many, and waits for stdin to close."""
    count, port, source, path = argument.split(",")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request = f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    held = []
    for number in range(int(count)):
        s = socket.socket()
        s.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        s.bind((source, 0))
        s.connect(("127.0.0.1", int(port)))
        s.sendall(request)
        if not s.recv(4096).startswith(b"HTTP/1.1 200"):
            break
        held.append(s)
    print(len(held), flush=True)
    sys.stdin.read()


def case_idle(options):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(19_000, limit - 1_000)
    runs = {}
    hyper = [server for server in peers() if server.name == "hyper"]
    for server in only([flatout_json(), nginx("/json"), *hyper], options):
        with server:
            wrk(server.url(), 8, 1)
            before = server.anonymous_bytes()
            holders = Holders(server.path, server.port, count)
            time.sleep(1)
            grown = server.anonymous_bytes() - before
            busy = wrk(server.url(), 8, 2)
            runs[server.name] = {"held": holders.held, "bytes_each": grown / max(holders.held, 1), "p99_us_meanwhile": busy["p99_us"]}
            holders.close()
        print(f"  {server.name}: {runs[server.name]}", file=sys.stderr)
    lines = ["| server | connections held | anonymous bytes each | p99 µs of 8 busy ones meanwhile |", "|---|---:|---:|---:|"]
    lines += [f"| {n} | {r['held']:,} | {r['bytes_each']:,.0f} | {r['p99_us_meanwhile']:.0f} |" for n, r in runs.items()]
    return runs, lines


def case_crowd(options):
    """Two hundred thousand over as many processes, sharing the port, as the descriptor limit needs."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted, per_server = 200_000, int(min(limit, 200_000) * 0.85)
    count = -(-wanted // per_server) + 1
    command = [str(ROOT / "target/release/flatout"), "serve", str(SITE), "--listen", "127.0.0.1:{port}", "--workers", "1", "--share-port", "--idle-time", "10m"]
    servers = [Server("flatout serve", command, "/hello.json") for _ in range(count)]
    for server in servers:
        server.port = servers[0].port
    started = []
    try:
        started = [server.__enter__() for server in servers]
        time.sleep(0.5)
        before = sum(server.anonymous_bytes() for server in started)
        holders = Holders("/hello.json", servers[0].port, wanted)
        time.sleep(2)
        grown = sum(server.anonymous_bytes() for server in started) - before
        busy = measure(started[0], 8, 3)
        resident = sum(server.anonymous_bytes() for server in started)
        runs = {"held": holders.held, "processes": count, "bytes_each": grown / max(holders.held, 1), "anonymous_mib": resident / (1 << 20),
                "requests_per_s_meanwhile": busy["requests_per_s"], "p99_us_meanwhile": busy["p99_us"]}
        holders.close()
    finally:
        for server in started:
            server.__exit__()
    lines = ["| connections held | processes | anonymous bytes each | anonymous MiB in all | requests/s of 8 busy ones meanwhile | their p99 µs |", "|---:|---:|---:|---:|---:|---:|",
             f"| {runs['held']:,} | {count} | {runs['bytes_each']:.0f} | {runs['anonymous_mib']:.0f} | {runs['requests_per_s_meanwhile']:,.0f} | {runs['p99_us_meanwhile']:.0f} |"]
    return runs, lines


def case_instructions(options):
    """User instructions a request, which no neighbour disturbs: the difference of two runs, so that starting cancels out.

    Pipelined, what it costs to wake up is shared by sixteen. Alone, each request comes to a server that sleeps: without the
    pause it would depend on chance whether the busy lane, which is looked at again, already has the next."""
    cases = [(f"GET {name}, {how}", server, deep)
             for name, server in [("/json", flatout_json()), ("a file of 1 KiB", flatout_files("/1024.bin")), ("what is not there", flatout_files("/nothing"))]
             for how, deep in [("16 pipelined", 16), ("alone, waking up", 1)]]
    runs = {}
    for label, server, deep in cases:
        few, many, pause = (2_000, 12_000, 0) if deep > 1 else (100, 600, 0.005)
        counts = [instructions(server, n, deep, pause) for n in (few, many)]
        runs[label] = (counts[1] - counts[0]) / (many - few)
        print(f"  {label}: {runs[label]:.0f}", file=sys.stderr)
    lines = ["| request | user instructions |", "|---|---:|"] + [f"| {label} | {count:,.0f} |" for label, count in runs.items()]
    return runs, lines


def instructions(server, requests, deep, pause):
    out = server.folder.with_suffix(".callgrind")
    plain = server.command
    server.__init__(server.name, ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *plain], server.path)
    try:
        with server:
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                request = f"GET {server.path} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\nUser-Agent: bench\r\n\r\n".encode()
                s.sendall(request)
                time.sleep(0.3)
                answer = len(s.recv(65536))
                for _ in range(requests // deep):
                    s.sendall(request * deep)
                    left = answer * deep
                    while left > 0:
                        left -= len(s.recv(65536))
                    time.sleep(pause)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(20)
        files = sorted(out.parent.glob(out.name + "*"))
        totals = [int(m[1]) for f in files for m in re.finditer(r"^(?:summary|totals): (\d+)", f.read_text(), re.M)]
        for f in files:
            f.unlink()
        return max(totals)
    finally:
        server.__init__(server.name, plain, server.path)


def only(servers, options):
    wanted = options.only.split(",") if options.only else None
    return [server for server in servers if not wanted or server.name in wanted or server.name == "floor"]


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return f"{model[1] if model else platform.machine()}, {len(CPUS)} CPUs, Linux {platform.release().split('-')[0]}, tcp {congestion}"


CASES = {"json": case_json, "json256": case_json256, "pipeline": case_pipeline, "files": case_files, "idle": case_idle,
         "crowd": case_crowd, "instructions": case_instructions}
TITLES = {"json": "`GET /json`, 64 connections", "json256": "`GET /json`, 256 connections", "pipeline": "`GET /json`, 16 deep, 64 connections",
          "files": "Static files, 64 connections", "idle": "Idle keep-alive connections in one process",
          "crowd": "200 000 idle keep-alive connections", "instructions": "User instructions a request (valgrind --tool=callgrind)"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of servers, beside the floor")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        return hold(options.hold)
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    RESULTS.mkdir(exist_ok=True)
    make_site()
    try:
        for case in options.cases or CASES:
            print(f"{case} …", file=sys.stderr)
            runs, lines = CASES[case](options)
            command = f"./x bench serve {case} --rounds {options.rounds} --seconds {options.seconds}"
            text = "\n".join([f"## {TITLES[case]}", "", f"`{command}` · {machine()}", "", *lines, ""])
            print(text)
            if not options.only:
                (RESULTS / f"{case}.md").write_text(text)
                (RESULTS / f"{case}.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")
    finally:
        shutil.rmtree(SITE, ignore_errors=True)


if __name__ == "__main__":
    main()
