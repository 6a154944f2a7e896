#!/usr/bin/env python3
"""A cluster of Kubernetes without machines: `flatout controller` gives plans to two data planes, which serve an application that rolls under
load, a canary by weight, and a certificate that is replaced. Every request is counted. `./x demo kubernetes` makes the cluster and
calls it, in namespaces of its own: nothing stays."""

import argparse, collections, itertools, json, os, pathlib, re, shutil, signal, socket, ssl, subprocess, sys, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "conformance")]
from cluster import Cluster, enter  # noqa: E402
from screen import BOLD, DIM, OFF, done, say  # noqa: E402
import smoke  # noqa: E402
from parts import table  # noqa: E402
from servers import machine  # noqa: E402
from smoke import sized  # noqa: E402

BINARIES = ROOT / "target/kubernetes"
PLANES = ["198.18.0.1", "198.18.0.2"]
HOST = "app.test"
ROLLS = sized(3, smoke=1)
REQUESTS = sized(3000, smoke=600)
CANARY = 20
# Connections to each data plane that ask all the time.
CLIENTS = sized(4, smoke=2)
GATEWAY = "/apis/gateway.networking.k8s.io/v1/namespaces/default"


class Load:
    """Clients that ask all data planes as long as it is open. A response counts if it is 200 and comes from a pod."""

    def __init__(self):
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.good, self.lost, self.pods = 0, [], collections.Counter()
        self.threads = [threading.Thread(target=self.run, args=(plane,)) for plane in PLANES for _ in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def run(self, plane):
        client = Client(plane)
        while not self.is_over.is_set():
            try:
                pod, why = client.ask(), None
            except (OSError, ValueError, LookupError) as fault:
                pod, why = None, f"{plane}: {type(fault).__name__}: {fault}"
                client.close()
            with self.lock:
                if why:
                    self.lost.append(why)
                else:
                    self.good += 1
                    self.pods[pod] += 1

    def check(self, what):
        if self.lost or not self.good:
            raise SystemExit(f"{what}: {len(self.lost)} of {self.good + len(self.lost)} requests were lost, {self.lost[:1]}")
        done(f"{what}: {self.good:,} requests, 0 lost, {len(self.pods)} pods have responded")


class Client:
    """A client of a data plane. Its connection stays open."""

    def __init__(self, plane):
        self.plane, self.socket = plane, None

    def ask(self):
        """The name of the pod that responds."""
        if self.socket is None:
            self.socket = socket.create_connection((self.plane, 80), timeout=10)
        self.socket.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % HOST.encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.more()
        head, _, body = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ValueError(f"the response {head[:40]}")
        length = int(re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)[1])
        while len(body) < length:
            body += self.more()
        return json.loads(body)["pod"]

    def more(self):
        received = self.socket.recv(65536)
        if not received:
            raise ConnectionError("the connection was closed")
        return received

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def deployment(name, replicas, version):
    """An application whose pods serve on for two seconds after they are deleted: until then, no data plane uses them any more."""
    fields = [{"name": env, "valueFrom": {"fieldRef": {"fieldPath": path}}}
              for env, path in (("POD_NAME", "metadata.name"), ("NAMESPACE", "metadata.namespace"))]
    container = {"name": "app", "image": "here/echo-basic", "env": fields, "lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": {"app": name}, "annotations": {"version": str(version)}}, "spec": {"containers": [container]}},
        },
    }


def route(canary):
    """A route of which this share, in percent, goes to the canary."""
    backends = [{"name": "app", "port": 80, "weight": 100 - canary}, {"name": "canary", "port": 80, "weight": canary}]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "app", "namespace": "default"},
        "spec": {"parentRefs": [{"name": "gateway"}], "hostnames": [HOST], "rules": [{"backendRefs": backends}]},
    }


def write_result(requests, rolls, load):
    lines = [
        "## Requests while the pods of a Deployment roll", "", f"`./x demo kubernetes --requests {requests}` · {machine()}", "",
        "A Deployment of three pods is rolled again and again by kube-controller-manager; kube-apiserver and etcd are real, pods are network namespaces. "
        f"{CLIENTS} clients send requests to each of two data planes, on connections that stay open.", "",
        *table(["rolls", "pods that responded", "requests", "lost"], [[f"{rolls}", f"{len(load.pods)}", f"{load.good:,}", f"{len(load.lost)}"]]), ""]
    (ROOT / "bench/results/rolling-kubernetes.md").write_text("\n".join(lines))


class Demo(Cluster):
    def patch(self, path, value):
        self.call("PATCH", path, json.dumps(value).encode(), "application/merge-patch+json")

    def object(self, path):
        return json.loads(self.call("GET", path))

    def sign(self, name, common_name, address=None):
        """A certificate that signs itself. Returns its PEM files."""
        certificate, key = self.state / f"{name}.crt", self.state / f"{name}.key"
        names = f"IP:{address}" if address else f"DNS:{common_name}"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9",
                        "-keyout", key, "-out", certificate, "-subj", f"/CN={common_name}", "-addext", f"subjectAltName={names}",
                        "-addext", "basicConstraints=critical,CA:FALSE"], check=True, capture_output=True)
        key.chmod(0o600)
        return certificate, key

    def secret(self, name):
        """The content of a Secret with a fresh certificate for the host. Returns the certificate too."""
        certificate, key = self.sign(name, HOST)
        return certificate, {"tls.crt": certificate.read_text(), "tls.key": key.read_text()}

    def start_flatout(self):
        self.add_definitions()
        self.add_class("flatout", "flatout-system")
        certificate, key = self.sign("plans", "plans", "127.0.0.1")
        token = self.state / "token"
        token.write_text("0123456789abcdef0123456789abcdef")
        self.start("controller", [
            self.flatout, "controller", "--address", "0.0.0.0", "--health", "127.0.0.1:8081", "--certificates", self.state / "controller",
            "--plans", "127.0.0.1:8082", "--plans-certificate", certificate, "--plans-key", key, "--token-file", token,
            "--publish", PLANES[0], "--publish", PLANES[1]], dict(os.environ, KUBECONFIG=str(self.state / "kubeconfig")))
        for at, address in enumerate(PLANES):
            self.start(f"data-plane-{at + 1}", [
                self.flatout, "data-plane", "--controller", "127.0.0.1:8082", "--ca", certificate, "--token-file", token, "--workers", "1",
                "--address", address, "--health", f"{address}:8083", "--state", self.state / f"plane-{at}"])

    def add_application(self):
        for name, replicas in (("app", 3), ("canary", 1)):
            self.create("/apis/apps/v1/namespaces/default/deployments", deployment(name, replicas, 0))
            self.create("/api/v1/namespaces/default/services", {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 3000}]}})
        certificate, data = self.secret("first")
        self.create("/api/v1/namespaces/default/secrets", {
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "app"}, "stringData": data})
        secured = {"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "app"}]}}
        self.create(f"{GATEWAY}/gateways", {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "gateway", "namespace": "default"},
            "spec": {"gatewayClassName": "flatout", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}, secured]}})
        self.create(f"{GATEWAY}/httproutes", route(0))
        self.wait("both data planes serve the application",
                  lambda: all(Client(plane).ask().startswith("app-") for plane in PLANES))
        self.wait("the gateway is programmed", lambda: self.programmed() == "True")
        return certificate

    def programmed(self):
        conditions = self.object(f"{GATEWAY}/gateways/gateway")["status"]["conditions"]
        return next(it["status"] for it in conditions if it["type"] == "Programmed")

    def has_rolled(self):
        found = self.object("/apis/apps/v1/namespaces/default/deployments/app")
        status, wanted = found["status"], found["spec"]["replicas"]
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
        return status["observedGeneration"] == found["metadata"]["generation"] and counts == [wanted] * 3

    def roll(self, requests):
        """Rolls at least `ROLLS` times, and until this many requests have been counted."""
        with Load() as load:
            for version in itertools.count(1):
                if version > ROLLS and load.good >= requests:
                    break
                change = {"spec": {"template": {"metadata": {"annotations": {"version": str(version)}}}}}
                self.patch("/apis/apps/v1/namespaces/default/deployments/app", change)
                self.wait("all pods are new", self.has_rolled)
                time.sleep(sized(3, smoke=1))
        load.check(f"the application rolled {version - 1} times")
        if requests and not smoke.IS_SMOKE:
            write_result(requests, version - 1, load)

    def canary(self):
        self.patch(f"{GATEWAY}/httproutes/app", route(CANARY))
        self.wait("the canary responds", lambda: Client(PLANES[0]).ask().startswith("canary-"))
        self.wait("also behind the other data plane", lambda: Client(PLANES[1]).ask().startswith("canary-"))
        for plane in PLANES:
            client = Client(plane)
            share = sum(client.ask().startswith("canary-") for _ in range(REQUESTS)) / REQUESTS
            # Five standard deviations.
            if abs(share - CANARY / 100) > 5 * (CANARY / 100 * (1 - CANARY / 100) / REQUESTS) ** 0.5:
                raise SystemExit(f"the canary has {share:.1%} of the requests of {plane}, and its weight is {CANARY} %")
            done(f"data plane {plane}: {share:.1%} of {REQUESTS:,} requests went to the canary, whose weight is {CANARY} %")
        self.patch(f"{GATEWAY}/httproutes/app", route(0))

    def certificate(self, first):
        def shows(certificate):
            """Whether both data planes show it; a client that trusts only this one checks."""
            context = ssl.create_default_context(cafile=certificate)
            for plane in PLANES:
                with socket.create_connection((plane, 443), timeout=5) as plain, context.wrap_socket(plain, server_hostname=HOST):
                    pass
            return True

        self.wait("the certificate is shown", lambda: shows(first))
        second, data = self.secret("second")
        with Load() as load:
            began = time.monotonic()
            self.patch("/api/v1/namespaces/default/secrets/app", {"stringData": data})
            self.wait("the new certificate is shown", lambda: shows(second))
            took = time.monotonic() - began
            time.sleep(1)
        load.check(f"the certificate was replaced at both data planes after {took * 1000:.0f} ms")


def main():
    parser = argparse.ArgumentParser(prog="./x demo kubernetes", description="a cluster whose application rolls under load")
    parser.add_argument("--requests", type=int, default=0, help=f"roll until N requests are counted; {ROLLS} times by default", metavar="N")
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    state, logs = BINARIES / "state", BINARIES / "demo-logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    enter(state, PLANES)
    demo = Demo(BINARIES, pathlib.Path(os.environ["FLATOUT_BINARIES"]) / "flatout", state, logs)
    try:
        say(f"{BOLD}A cluster: etcd, kube-apiserver, kube-controller-manager, pods in network namespaces{OFF}")
        demo.start_servers()
        done("the API server responds")
        demo.start_flatout()
        certificate = demo.add_application()
        done("a controller, two data planes and an application of three pods; the gateway is programmed")
        say(f"{BOLD}The application rolls under load{OFF}")
        demo.roll(options.requests)
        say(f"{BOLD}A canary by weight{OFF}")
        demo.canary()
        say(f"{BOLD}A certificate{OFF}")
        demo.certificate(certificate)
    finally:
        demo.stop()
    say(f"{DIM}{time.monotonic() - began:.0f} s; logs: {logs.relative_to(ROOT)}{OFF}")


if __name__ == "__main__":
    main()
