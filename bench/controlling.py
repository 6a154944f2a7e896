#!/usr/bin/env python3
"""Measures the Kubernetes controller at scale: memory, CPU, and the time from a change of an object to its effect.

    bench/controlling.py [--routes N] [--endpoints N] [--rate N] [--seconds S]

An API server of this program (bench/scripted_api.py) has as many HTTPRoutes and Services, with EndpointSlices, and one Gateway. Each change
replaces all endpoints of a service by other ones, or a header that a route adds. The time begins when the event is written to the watch,
and ends with the first response of the gateway that shows the change; a client asks every few milliseconds, so it is an upper bound.
Everything runs on this machine: the API server, the endpoints and the client too. Writes bench/results/controller.md and .json.
"""

import argparse, asyncio, json, os, random, resource, subprocess, sys, tempfile, time
from pathlib import Path

import children
import smoke
from parts import table
from scripted_api import ScriptedApi
from servers import RESULTS, free_port, machine, program
from smoke import sized

GATEWAY = "/apis/gateway.networking.k8s.io/v1"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"

# The pause between two looks at a change.
LOOK_S = 0.003

# After this time without an effect, a change counts as lost.
LOST_S = 30

# The target of the project.
TARGET_P99_MS = 200

TOKEN = "0123456789abcdef0123456789abcdef"


def route(at, version):
    """A route for a host, which adds a header with its version."""
    return {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": f"r{at}", "namespace": "default", "generation": version, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "parentRefs": [{"name": "gw"}], "hostnames": [f"r{at}.test"],
            "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-Version", "value": str(version)}]}}],
                "backendRefs": [{"name": f"s{at}", "port": 80}],
            }],
        },
    }


class Endpoints:
    """One listener for all addresses of 127.0.0.0/8: a response is the address that was asked."""

    def __init__(self):
        self.next = 0x7F010000

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "0.0.0.0", 0, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        body = writer.get_extra_info("sockname")[0].encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    def fresh(self, count):
        """Addresses that no service has had for long."""
        found = []
        for _ in range(count):
            self.next = 0x7F010000 if self.next >= 0x7FFFFFF0 else self.next + 1
            found.append(".".join(str(self.next >> shift & 255) for shift in (24, 16, 8, 0)))
        return found

    def slice(self, at, addresses):
        return {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": f"s{at}-1", "namespace": "default", "labels": {"kubernetes.io/service-name": f"s{at}"}},
            "ports": [{"name": "", "port": self.port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        }


class Client:
    """Asks a gateway, on connections that stay open."""

    def __init__(self, host, port):
        self.place, self.idle = (host, port), []

    async def get(self, at):
        """The version and the address that a route responds with; none if it does not yet."""
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection(*self.place)
        writer.write(f"GET / HTTP/1.1\r\nHost: r{at}.test\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = (await reader.readexactly(int(fields["content-length"]))).decode()
        self.idle.append((reader, writer))
        return fields.get("x-version"), body

    async def until(self, at, is_so):
        began = time.monotonic()
        while not is_so(*await self.get(at)):
            if time.monotonic() - began > LOST_S:
                raise RuntimeError(f"no effect after {LOST_S} s: r{at}")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Fleet:
    """The processes that are measured. By default without admin listeners, which take CPU time with 10,000 servers."""

    def __init__(self, folder, port, api_port, has_admin=False):
        self.folder, self.port, self.has_admin, self.processes, self.commands = Path(folder), port, has_admin, {}, {}
        (self.folder / "kubeconfig").write_text(
            f"apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{api_port}'}}}}]\n"
            "users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n")

    def start(self, name, *flags, address):
        command = [program("flatout"), *flags, "--workers", "1", "--address", address, "--health", f"{address}:{free_port()}"]
        self.run(name, [*command, "--admin", f"unix:{self.admin(name)}"] if self.has_admin else command)

    def admin(self, name):
        return self.folder / f"{name.replace(' ', '-')}.sock"

    def run(self, name, command):
        self.commands[name] = command
        environment = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = children.start(command, stderr=log, stdout=subprocess.DEVNULL, env=environment)

    def restart(self, name, number):
        """Ends a process by this signal, and starts it again."""
        children.stop(self.processes[name], number)
        self.run(name, self.commands[name])

    def single(self):
        self.start("controller", "controller", "--certificates", str(self.folder / "state"), address="127.0.0.1")

    def apart(self, planes):
        subprocess.run(
            ["openssl", "req", "-x509", *"-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 9".split(),
             "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"],
            cwd=self.folder, check=True, capture_output=True)
        (self.folder / "key.pem").chmod(0o600)
        (self.folder / "token").write_text(TOKEN)
        plans, cert, token = f"127.0.0.1:{free_port()}", str(self.folder / "cert.pem"), str(self.folder / "token")
        self.start("controller", "controller", "--certificates", str(self.folder / "state"), "--plans", plans, "--plans-certificate", cert,
                   "--plans-key", str(self.folder / "key.pem"), "--token-file", token, address="127.0.0.1")
        for at in range(planes):
            self.start(f"data plane {at + 1}", "data-plane", "--controller", plans, "--ca", cert, "--token-file", token,
                       "--state", str(self.folder / f"plane-{at}"), address=f"127.0.0.{1 + at}")

    def end(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=60)


async def measured(options, api, endpoints, fleet, route_share):
    """Changes objects at the rate. Returns times to effect in milliseconds, and figures of the processes."""
    client = Client("127.0.0.1", fleet.port)
    began, times = time.monotonic(), {"endpoints": [], "routes": []}
    while True:
        try:
            seen = await client.get(options.routes - 1)
            if seen[0] is not None:
                break
        except (OSError, asyncio.IncompleteReadError):
            pass
        if any(process.poll() is not None for process in fleet.processes.values()) or time.monotonic() - began > 120:
            raise RuntimeError("it does not serve; see " + str(fleet.folder))
        await asyncio.sleep(0.05)
    started_s = time.monotonic() - began
    # Until statuses are written, and everything is quiet.
    patches = -1
    while patches != api.patches:
        patches = api.patches
        await asyncio.sleep(sized(3, smoke=1))
    before = {name: cpu_s(process.pid) for name, process in fleet.processes.items()}
    free, versions, busy = list(range(options.routes)), {}, set()

    async def change(at, is_route):
        if is_route:
            versions[at] = versions.get(at, api.objects[GATEWAY + "/httproutes"][("default", f"r{at}")]["metadata"]["generation"]) + 1
            wanted = str(versions[at])
            api.put(GATEWAY + "/httproutes", route(at, versions[at]))
            took = await client.until(at, lambda version, _: version == wanted)
        else:
            addresses = endpoints.fresh(options.endpoints // options.routes)
            api.put(SLICES, endpoints.slice(at, addresses))
            took = await client.until(at, lambda _, body: body in addresses)
        times["routes" if is_route else "endpoints"].append(took * 1000)
        free.append(at)

    count, began = options.rate * options.seconds, time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0, began + number / options.rate - time.monotonic()))
        at = free.pop(random.randrange(len(free)))
        task = asyncio.create_task(change(at, random.random() < route_share))
        busy.add(task)
        task.add_done_callback(busy.discard)
    offered_s = time.monotonic() - began
    for task in list(busy):
        await task
    took_s = time.monotonic() - began
    processes = {
        name: {"cpu_share": (cpu_s(process.pid) - before[name]) / took_s, "rss_mib": rss_mib(process.pid)}
        for name, process in fleet.processes.items()
    }
    return {"times_ms": times, "processes": processes, "started_s": started_s, "changes": count, "rate": count / offered_s}


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


async def run(options, planes, route_share):
    api, endpoints = ScriptedApi(), Endpoints()
    await endpoints.start()
    port = free_port()
    api.put(GATEWAY + "/gatewayclasses", {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "flatout", "generation": 1},
        "spec": {"controllerName": "flatout.dev/controller"}})
    api.put(GATEWAY + "/gateways", {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "gw", "namespace": "default", "generation": 1},
        "spec": {"gatewayClassName": "flatout", "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}})
    for at in range(options.routes):
        api.put(GATEWAY + "/httproutes", route(at, 1))
        api.put("/api/v1/services", {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{at}", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}})
        api.put(SLICES, endpoints.slice(at, endpoints.fresh(options.endpoints // options.routes)))
    api_port = await api.start()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(folder, port, api_port)
        try:
            fleet.apart(planes) if planes else fleet.single()
            return await measured(options, api, endpoints, fleet, route_share)
        finally:
            fleet.end()


# The share of changes that are of routes.
ROUTE_SHARE = sized(0.01, smoke=0.3)

CASES = [
    ("one process, endpoints", 0, 0.0),
    ("one process, endpoints and 1 % routes", 0, ROUTE_SHARE),
    ("two data planes, endpoints", 2, 0.0),
    ("two data planes, endpoints and 1 % routes", 2, ROUTE_SHARE),
]


def rows(name, run):
    for kind, times in run["times_ms"].items():
        if times:
            cells = [f"{percentile(times, share):,.1f}" for share in (0.5, 0.99, 1.0)]
            yield [name, f"{kind} ({len(times):,})", *cells, "yes" if percentile(times, 0.99) <= TARGET_P99_MS else "**no**"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--routes", type=int, default=sized(1_000, smoke=20))
    parser.add_argument("--endpoints", type=int, default=sized(10_000, smoke=60))
    parser.add_argument("--rate", type=int, default=sized(100, smoke=20), help="changes a second")
    parser.add_argument("--seconds", type=int, default=sized(20, smoke=1))
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    children.end_on_signals()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = f"./x bench controller --routes {options.routes} --endpoints {options.endpoints} --rate {options.rate} --seconds {options.seconds}"
    runs = {}
    for name, planes, share in CASES:
        print(f"{name} …", file=sys.stderr)
        runs[name] = asyncio.run(run(options, planes, share))
    effect = table(["case", "changes", "p50 ms", "p99 ms", "longest ms", f"p99 ≤ {TARGET_P99_MS} ms"],
                   [row for name, run in runs.items() for row in rows(name, run)])
    cost = table(["case", "process", "CPU, share of a core", "memory MiB", "first response after s"],
                 [[name, process, f"{figures['cpu_share']:.0%}", f"{figures['rss_mib']:,.0f}", f"{run['started_s']:.2f}"]
                  for name, run in runs.items() for process, figures in run["processes"].items()])
    lines = ["## The controller at scale", "", f"`{command}` · {machine()}", "",
             f"{options.routes:,} HTTPRoutes, {options.endpoints:,} endpoints, {options.rate} changes a second. Programs of the profile `{Path(program('flatout')).parent.name}`.", "",
             "### Time from a change to its effect", "", *effect, "", "### Cost", "",
             "With the requests of the client that looks for the changes. API server, endpoints and client are on the same machine.", "", *cost, ""]
    print("\n".join(lines))
    if not smoke.IS_SMOKE:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "controller.md").write_text("\n".join(lines))
        (RESULTS / "controller.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
