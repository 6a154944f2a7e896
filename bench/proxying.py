"""The case proxy: what passing a request on costs, beside other proxies in front of the same upstream."""

import os, resource, shutil, subprocess, time, urllib.request
from pathlib import Path

from holding import Holders
from measure import flatout_bench, measure, measured, median, quartiles, ratios, rounds, running, table, told, turns, warmed_up, with_cpu
import children
from servers import CLIENT_CPU, ROOT, SIZES, Server, only, pin, program
from smoke import IS_SMOKE, leave_out, sized

FLATOUT = program("flatout")
GUEST = program("guest")
CONNECTIONS = 64

PINGORA = str(ROOT / "bench/pingora/target/release/pingora-peer")

# Takes the configuration folder from an environment variable, which the shell sets to the folder of its files.
TRAFFIC_SERVER = ["sh", "-c", 'PROXY_CONFIG_CONFIG_DIR=$(dirname "$0") exec traffic_server']
TRAFFIC_SERVER += [f"@conf/trafficserver/{name}" for name in ("records.config", "remap.config", "storage.config", "ip_allow.yaml")]


class Origin(Server):
    """What is passed on to: on the client's CPU, over TCP and a Unix socket. `kind` is what the guest serves."""

    def __init__(self, kind="origin"):
        super().__init__(kind, [], cpu=CLIENT_CPU)
        self.socket = f"{self.folder}/{kind}.sock"
        self.command = [GUEST, kind, "127.0.0.1:{port}", f"unix:{self.socket}"]

    def __enter__(self):
        super().__enter__()
        # For workers of proxies that have dropped root.
        os.chmod(self.socket, 0o777)
        return self


class Proxy(Server):
    """One of the proxies, in front of `upstream`, an address as its configuration names it."""

    # How many it may have open, to clients and to the upstream.
    connections = 9_000

    def __init__(self, name, command, upstream, path):
        super().__init__(name, command, path)
        self.upstream = upstream

    def fill(self, word):
        word = super().fill(word)
        if word.startswith(str(self.folder)) and Path(word).is_file():
            text = Path(word).read_text().replace("@UPSTREAM@", self.upstream)
            Path(word).write_text(text.replace("@CONNECTIONS@", str(self.connections)).replace("@FILES@", str(min(3 * self.connections, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))))
        return word.replace("{upstream}", self.upstream)


def proxies(origin, unix, path):
    tcp, address = f"127.0.0.1:{origin.port}", f"unix:{origin.socket}"
    of = lambda over_unix, over_tcp: over_unix if unix else over_tcp
    flatout = [FLATOUT, "serve", "--to", of(address, f"http://{tcp}"), "--listen", "127.0.0.1:{port}", "--workers", "1"]
    found = [Proxy("flatout", flatout, "", path)]
    for name, command, upstream in [
        ("nginx", ["nginx", "-c", "@conf/nginx-proxy.conf"], of(address, tcp)),
        ("haproxy", ["haproxy", "-f", "@conf/haproxy-proxy.cfg"], of(f"unix@{origin.socket}", tcp)),
        ("pingora", [PINGORA, "127.0.0.1:{port}", "{upstream}"], of(address, tcp)),
        ("caddy", ["caddy", "run", "--adapter", "caddyfile", "--config", "@conf/Caddyfile-proxy"], of(f"unix/{origin.socket}", tcp)),
    ]:
        if shutil.which(command[0]):
            found.append(Proxy(name, command, upstream, path))
        else:
            leave_out(f"{name}, which is not installed")
    if not shutil.which("traffic_server"):
        leave_out("trafficserver, which is not installed")
    elif not unix:
        found.append(Proxy("trafficserver", TRAFFIC_SERVER, tcp, path))
    return found


KINDS = [(f"GET {label}, {over}", f"/{size}.bin", over == "Unix socket", None) for over in ("TCP", "Unix socket") for label, size in SIZES.items()]
KINDS += [("POST 1 KiB, TCP", "/", False, "post-1k.lua"), ("POST 1 MiB, TCP", "/", False, "post-1m.lua")]
if IS_SMOKE:
    # One of each kind.
    KINDS = [KINDS[0], KINDS[3], KINDS[6]]


def plain(origin, options, path="/1024.bin"):
    """The proxies that all cases are measured on, over TCP."""
    return [proxy for proxy in only(proxies(origin, False, path), options) if proxy.name != "caddy"]


# A share of the rate that the slowest of the proxies reaches.
LOAD_SHARE = 0.7


def latency(origin, options):
    """Latency in an open loop, at one rate for all."""
    with running(plain(origin, options)) as started:
        highest = {}
        started = warmed_up(started, CONNECTIONS)
        for server in started:
            highest[server.name] = measure(server, CONNECTIONS, options.seconds)["requests_per_s"]
        rate = LOAD_SHARE * min(highest.values())
        runs = turns(started, options, lambda server: flatout_bench(server.url(), CONNECTIONS, options.seconds, rate))
    lines = [f"At {rate:,.0f} requests/s, {LOAD_SHARE:.0%} of what the slowest of them reaches.", "", "| server | p50 µs (quartiles) | p99 µs (quartiles) | p99.9 µs (quartiles) |", "|---|---:|---:|---:|"]
    for name, its in runs.items():
        cells = [told(quartiles([run[key] for run in its]), 0) for key in ("p50_us", "p99_us", "p99_9_us")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return runs, lines


# Concurrent requests, one per connection.
UNDER_WAY = sized(2_000, smoke=100)


def memory(origin, options):
    """Memory of the proxy for each request that waits for its upstream."""
    runs = {}
    for server in plain(origin, options, "/1024.bin"):
        with running([server]) as started:
            if not warmed_up(started, 8):
                continue
            before = server.anonymous_bytes()
            holders = Holders("/slow", server.port, UNDER_WAY, waits=False)
            time.sleep(1)
            runs[server.name] = {"held": holders.held, "bytes_each": (server.anonymous_bytes() - before) / max(holders.held, 1)}
            holders.close()
    lines = ["| server | requests under way | anonymous bytes each |", "|---|---:|---:|"]
    lines += [f"| {name} | {run['held']:,} | {run['bytes_each']:,.0f} |" for name, run in runs.items()]
    return runs, lines


def messages(options):
    """Messages of 70 bytes there and back, over connections that have changed protocols."""

    def act(server):
        command = [GUEST, "ask", f"127.0.0.1:{server.port}", str(CONNECTIONS), str(options.seconds)]
        out = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin(CLIENT_CPU), timeout=options.seconds + 30)
        if out.returncode != 0:
            raise RuntimeError(out.stderr[-300:])
        return {"requests": int(out.stdout)}

    with Origin("messages") as upstream:
        servers = [proxy for proxy in plain(upstream, options, "/messages") if proxy.name != "trafficserver"]
        with running(servers) as started:
            runs = turns(started, options, lambda server: with_cpu(server, lambda: act(server)))
    lines = ["| server | CPU µs a message there and back (quartiles) | messages/s (quartiles) |", "|---|---:|---:|"]
    for name, its in sorted(runs.items(), key=lambda item: quartiles([run["cpu_us"] for run in item[1]])):
        rates = quartiles([run["requests"] / options.seconds for run in its])
        lines.append(f"| {name} | {told(quartiles([run['cpu_us'] for run in its]), 3)} | {told(rates, 0)} |")
    return runs, lines


# Levels of gzip, and where nginx has them: what `flatout climb` sets for nginx, and our default.
GZIP_LEVELS = {2: "json", 5: "json5"}
GZIP_SIZES = {"4 KiB": 4 << 10, "16 KiB": 16 << 10, "64 KiB": 64 << 10}


def compressed(origin, options):
    """JSON of an upstream, compressed with gzip for each request: the CPU time, and what is left of the bytes."""
    runs, lines = {}, ["| response | server | CPU µs (quartiles) | ÷ nginx (quartiles) | requests/s | bytes sent |", "|---|---|---:|---:|---:|---:|"]
    for level, place in GZIP_LEVELS.items():
        for label, size in list(GZIP_SIZES.items())[:1] if IS_SMOKE else GZIP_SIZES.items():
            path = f"/{place}/{size}"
            command = [FLATOUT, "serve", "--to", f"http://127.0.0.1:{origin.port}", "--encode", f"gzip={level}", "--listen", "127.0.0.1:{port}", "--workers", "1"]
            servers = [Proxy("flatout", command, "", path), *(proxy for proxy in proxies(origin, False, path) if proxy.name == "nginx")]
            with running(only(servers, options)) as started:
                sent = {server.name: gzip_bytes(server) for server in started}
                these = runs[f"{label}, level {level}"] = measured(started, CONNECTIONS, options, "gzip.lua")
            for name, its in these.items():
                ratio = told(ratios(these, name, "nginx", "cpu_us"), 3) if "nginx" in these else "–"
                cpu_us = told(quartiles([run["cpu_us"] for run in its]), 2)
                lines.append(f"| {label} of JSON, level {level} | {name} | {cpu_us} | {ratio} | {median(its, 'requests_per_s'):,.0f} | {sent[name]:,} |")
    return runs, lines


def gzip_bytes(server):
    """Bytes of a compressed body."""
    request = urllib.request.Request(server.url(), headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=10) as response:
        if response.headers["Content-Encoding"] != "gzip":
            raise RuntimeError(f"{server.name} did not compress {server.path}")
        return len(response.read())


PROFILE_S = sized(6, smoke=1)


def profile(origin):
    """Profile of flatout's CPU time per request: printed, and written as folded stacks to target/proxy-profile.folded."""
    [server] = [proxy for proxy in proxies(origin, False, "/1024.bin") if proxy.name == "flatout"]
    with server:
        load = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{PROFILE_S + 3}s", server.url()]
        client = children.start(load, pin(CLIENT_CPU), stdout=subprocess.DEVNULL)
        time.sleep(1)
        command = [FLATOUT, "profile", "--pid", str(server.process.pid), "-d", f"{PROFILE_S}s", "--frequency", "1999", "--softirq", "off"]
        out = subprocess.run([*command, "--folded", str(ROOT / "target/proxy-profile.folded")], capture_output=True, text=True)
        client.wait()
    return ["```text", (out.stdout or out.stderr).rstrip(), "```"]


def case_proxy(options):
    runs, lines = {}, []
    with Origin() as origin:
        for label, path, unix, script in KINDS:
            these = rounds(only(proxies(origin, unix, path), options), CONNECTIONS, options, script)
            runs[label] = these
            lines += ["", f"### {label}", "", *table(these, "nginx", "haproxy")]
        for label, act in [("Latency at 70 % load, 1 KiB, TCP", latency), ("Memory of requests under way", memory), ("JSON compressed with gzip, TCP", compressed)]:
            runs[label], more = act(origin, options)
            lines += ["", f"### {label}", "", *more]
        lines += ["", "### Where the CPU time of flatout goes, 1 KiB, TCP", "", *profile(origin)]
    label = "Messages through a tunnel (WebSocket), TCP"
    runs[label], more = messages(options)
    return runs, lines + ["", f"### {label}", "", *more]
