#!/usr/bin/env python3
"""Counts the requests that are lost while pods are replaced behind `flatout controller` and two data planes.

    bench/rolling.py [--requests N] [--only TEXT]

An API server of this program (bench/scripted_api.py) has a Gateway with a listener for HTTP and one for HTTPS, an HTTPRoute and a Service.
Its pods are processes that listen at addresses of their own: again and again one is started, added to the EndpointSlice, and the oldest one
is removed from it and then ended. Meanwhile clients of four kinds send requests as fast as they get responses, and further cases change a
route, replace the certificate, restart the controller or upgrade the data planes. A request is lost if it gets no response, or another
status than 200. Each case ends after N requests. Everything runs on this machine. Writes bench/results/rolling.md and .json.
"""

import argparse, asyncio, base64, itertools, json, os, re, signal, subprocess, sys, tempfile, time
from pathlib import Path

import children
import smoke
from controlling import GATEWAY, SLICES, Fleet
from parts import table
from scripted_api import ScriptedApi
from servers import RESULTS, free_port, machine, program
from smoke import sized

HOST = "app.test"
PODS = 4

# The pause between two new pods, and between two other changes.
ROLL_S, CHANGE_S = sized(0.5, smoke=0.2), sized(2, smoke=0.3)

# A pod serves for this time after it is removed from the EndpointSlice, as with a preStop hook.
GRACE_S = 1

# How long the clients run before they are started again.
ROUND_S = sized(10, smoke=1)

# By name: the scheme, the data plane, and flags of `flatout bench`.
CLIENTS = {
    "HTTP/1.1": ("http", "127.0.0.1", ["-c", "8"]),
    "HTTP/1.1 with TLS": ("https", "127.0.0.2", ["-c", "4"]),
    "HTTP/2 with TLS": ("https", "127.0.0.1", ["-c", "2", "--http2", "-m", "4"]),
    "a connection for each request": ("http", "127.0.0.2", ["-c", "4", "--close"]),
}

# Errors of a request that a client may send again: its connection was closed before the server had begun with it.
REPEATABLE = ("closed", "goaway")


class Pods:
    """The pods of the application, the oldest first."""

    def __init__(self, folder, api):
        self.folder, self.api, self.port, self.running, self.numbers = Path(folder), api, free_port(), [], itertools.count(1)
        self.started, self.grace_s, self.ending = 0, GRACE_S, set()
        # Also those that start, or that are no longer in the EndpointSlice.
        self.processes = set()

    async def add(self):
        number = next(self.numbers)
        address = f"127.1.{number // 250}.{number % 250 + 1}"
        site = self.folder / f"pod-{number}.kdl"
        site.write_text(f'listen "{address}:{self.port}"\nworkers 1\nroute "/" {{\n    respond 200 "{address}"\n}}\n')
        process = children.start([program("flatout"), "serve", "-c", str(site)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.add(process)
        began = time.monotonic()
        while True:
            try:
                (await asyncio.open_connection(address, self.port))[1].close()
                break
            except OSError:
                if time.monotonic() - began > 30:
                    raise RuntimeError(f"the pod {address} does not listen") from None
                await asyncio.sleep(0.01)
        self.running.append((address, process))
        self.started += 1

    def publish(self):
        self.api.put(SLICES, {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "app-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "app"}},
            "ports": [{"name": "", "port": self.port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address, _ in self.running]})

    async def roll(self):
        while True:
            await self.add()
            self.publish()
            oldest = self.running.pop(0)[1]
            self.publish()
            task = asyncio.create_task(self.end(oldest))
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)
            await asyncio.sleep(ROLL_S)

    async def end(self, process):
        await asyncio.sleep(self.grace_s)
        self.processes.discard(process)
        await asyncio.to_thread(children.stop, process)

    def stop(self):
        for process in self.processes:
            children.stop(process)


class Setting:
    """The API server, the pods, the controller and the data planes."""

    def __init__(self, folder):
        self.folder, self.api = Path(folder), ScriptedApi()
        self.pods = Pods(folder, self.api)
        self.plain, self.secure, self.versions, self.successors = free_port(), free_port(), itertools.count(1), {}
        self.changes, self.fleet = 0, None

    async def start(self):
        self.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 9 -subj /CN=ca")
        self.api.put(GATEWAY + "/gatewayclasses", {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "flatout", "generation": 1},
            "spec": {"controllerName": "flatout.dev/controller"}})
        secured = {"name": "https", "port": self.secure, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "app"}]}}
        self.api.put(GATEWAY + "/gateways", {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "gw", "namespace": "default", "generation": 1},
            "spec": {"gatewayClassName": "flatout", "listeners": [{"name": "http", "port": self.plain, "protocol": "HTTP"}, secured]}})
        self.api.put("/api/v1/services", {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "app", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}})
        for _ in range(PODS):
            await self.pods.add()
        self.pods.publish()
        self.change_route()
        self.change_certificate()
        self.fleet = Fleet(self.folder, self.plain, await self.api.start(), has_admin=True)
        self.fleet.apart(2)
        for address in ("127.0.0.1", "127.0.0.2"):
            await self.listens(address, self.secure)

    def openssl(self, arguments):
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, check=True, capture_output=True)

    async def listens(self, address, port):
        began = time.monotonic()
        while True:
            try:
                return (await asyncio.open_connection(address, port))[1].close()
            except OSError:
                if time.monotonic() - began > 60:
                    raise RuntimeError(f"the data plane {address} does not listen; see {self.folder}") from None
                await asyncio.sleep(0.05)

    def change_route(self):
        version = next(self.versions)
        fields = {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-Version", "value": str(version)}]}}
        self.api.put(GATEWAY + "/httproutes", {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "app", "namespace": "default", "generation": version, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"parentRefs": [{"name": "gw"}], "rules": [{"filters": [fields], "backendRefs": [{"name": "app", "port": 80}]}]}})

    def change_certificate(self):
        (self.folder / "leaf.ext").write_text(f"subjectAltName=DNS:{HOST}\n")
        self.openssl(f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key -out leaf.csr -subj /CN={HOST}")
        self.openssl("x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -extfile leaf.ext -out leaf.pem")
        data = {name: base64.b64encode((self.folder / file).read_bytes()).decode() for name, file in (("tls.crt", "leaf.pem"), ("tls.key", "leaf.key"))}
        self.api.put("/api/v1/secrets", {
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "app", "namespace": "default"}, "data": data})

    async def restart_controller(self):
        await asyncio.to_thread(self.fleet.restart, "controller", signal.SIGTERM)

    async def upgrade(self):
        """Upgrades one data plane, each in turn."""
        at = self.changes % 2 + 1
        command = [program("flatout"), "upgrade", "--admin", f"unix:{self.fleet.admin(f'data plane {at}')}"]
        output = (await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)).stdout
        found = re.search(r"process (\d+) has taken over", output)
        if not found:
            raise RuntimeError(f"the data plane {at} was not upgraded: {output}")
        self.successors[at] = int(found[1])

    async def keep_changing(self, change):
        while True:
            await asyncio.sleep(CHANGE_S)
            result = change()
            if asyncio.iscoroutine(result):
                await result
            self.changes += 1

    def end(self):
        for pid in self.successors.values():
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        self.pods.stop()
        if self.fleet:
            self.fleet.end()


async def load(setting, name):
    """What `flatout bench` counts in one round."""
    scheme, address, flags = CLIENTS[name]
    port = setting.secure if scheme == "https" else setting.plain
    secured = ["--ca", str(setting.folder / "ca.pem"), "--tls-name", HOST] if scheme == "https" else []
    command = [program("flatout"), "bench", f"{scheme}://{address}:{port}/", "--json", "-t", "1", "-d", f"{ROUND_S}s", "--warmup", "0ms",
               "--expect-status", "200", *flags, *secured]
    process = children.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = await asyncio.to_thread(process.communicate)
    children.stop(process)
    try:
        return json.loads(output)
    except ValueError:
        raise RuntimeError(f"{name}: {errors}") from None


CASES = {
    "pods roll": None,
    "pods roll, each ends as soon as it is removed": None,
    "and a route changes": Setting.change_route,
    "and the certificate is replaced": Setting.change_certificate,
    "and the controller restarts": Setting.restart_controller,
    "and data planes are upgraded": Setting.upgrade,
}


async def run(case, requests):
    """Requests and errors of each client, until there are enough requests."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(folder)
        counts = {name: {"requests": 0, "errors": {}} for name in CLIENTS}
        tasks = []
        try:
            await setting.start()
            setting.pods.grace_s = 0 if "as soon as" in case else GRACE_S
            change = CASES[case]
            tasks.append(asyncio.create_task(setting.pods.roll()))
            if change:
                tasks.append(asyncio.create_task(setting.keep_changing(lambda: change(setting))))
            began = time.monotonic()
            while sum(count["requests"] for count in counts.values()) < requests:
                for name, found in zip(CLIENTS, await asyncio.gather(*(load(setting, name) for name in CLIENTS))):
                    counts[name]["requests"] += found["requests"]
                    for kind, number in found["errors"].items():
                        if number:
                            counts[name]["errors"][kind] = counts[name]["errors"].get(kind, 0) + number
                for task in tasks:
                    if task.done():
                        task.result()
            return {"clients": counts, "seconds": time.monotonic() - began, "pods": setting.pods.started, "changes": setting.changes}
        finally:
            for task in tasks:
                task.cancel()
            setting.end()


def counted(run):
    """Requests, those that are lost, and those that a client may send again."""
    errors = [(kind, number) for count in run["clients"].values() for kind, number in count["errors"].items()]
    repeatable = sum(number for kind, number in errors if kind in REPEATABLE)
    return sum(count["requests"] for count in run["clients"].values()), sum(number for _, number in errors) - repeatable, repeatable


def row(case, run):
    each = [f"{count['requests']:,}" for count in run["clients"].values()]
    requests, lost, repeatable = counted(run)
    return [case, f"{run['pods']}", f"{run['changes']}", *each, f"{requests:,}", f"{lost:,}", f"{repeatable:,}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=sized(1_000_000, smoke=2_000), help="requests of each case")
    parser.add_argument("--only", default="", help="cases with this text in their name; no results are written")
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    children.end_on_signals()
    runs = {}
    for case in CASES:
        if options.only in case:
            print(f"{case} …", file=sys.stderr)
            runs[case] = asyncio.run(run(case, options.requests))
            requests, lost, repeatable = counted(runs[case])
            print(f"  {requests:,} requests, {lost:,} lost, {repeatable:,} to be sent again", file=sys.stderr)
    command = f"./x bench rolling --requests {options.requests}"
    heads = ["case", "pods started", "changes", *CLIENTS, "all requests", "lost", "to be sent again"]
    errors = [f"- {case}, {name}: " + ", ".join(f"{number:,} {kind}" for kind, number in count["errors"].items())
              for case, found in runs.items() for name, count in found["clients"].items() if count["errors"]]
    lines = ["## Requests that are lost while pods roll", "", f"`{command}` · {machine()}", "",
             f"{PODS} pods behind two data planes; a new pod every {ROLL_S:g} s, and in the last cases another change every {CHANGE_S:g} s.", "",
             *table(heads, [row(case, found) for case, found in runs.items()]), "",
             "Lost is a request without a response, or with another status than 200. A request is to be sent again if its connection was closed "
             "before its response began (HTTP/1.1), or GOAWAY says that it was not processed (HTTP/2); clients do that by themselves.", "",
             *errors, *([""] if errors else [])]
    print("\n".join(lines))
    if not smoke.IS_SMOKE and not options.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "rolling.md").write_text("\n".join(lines))
        (RESULTS / "rolling.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")
    if sum(counted(found)[1] for found in runs.values()):
        raise SystemExit("requests were lost")


if __name__ == "__main__":
    main()
