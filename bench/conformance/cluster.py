"""A cluster of Kubernetes without machines, for the conformance suite and the demo: etcd, kube-apiserver, kube-controller-manager and the
program in `node`, which plays scheduler and kubelet. It needs network, process and mount namespaces of its own, which `./x` makes: whatever
happens here, nothing stays."""

import http.client
import json
import os
import ssl
import subprocess
import time
import urllib.request

TOKEN = "conformance"
API = "https://127.0.0.1:6443"
GROUP = "/apis/gateway.networking.k8s.io/v1"
# Waiting for a part of the cluster.
START_S = 120
# Controllers that are needed; others would only take time.
CONTROLLERS = "deployment-controller,replicaset-controller,endpointslice-controller,namespace-controller,garbage-collector-controller"


def enter(state, addresses):
    """Prepares the namespaces: a folder in memory, and addresses of this machine. Both are gone with the namespaces."""
    if os.getpid() != 1:
        raise SystemExit("run it by ./x: this needs namespaces of its own")
    state.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "cluster", state], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in [*addresses, "10.244.255.254"]:
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)


class Cluster:
    """Processes, and the folders they use."""

    def __init__(self, binaries, flatout, state, logs):
        self.binaries, self.flatout, self.state, self.logs = binaries, flatout, state, logs
        self.processes = []
        self.context = None

    def start(self, name, command, env=None):
        log = open(self.logs / f"{name}.log", "wb")
        child = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, env=env)
        self.processes.append((name, child))

    def stop(self):
        for _, child in reversed(self.processes):
            child.terminate()
        for name, child in reversed(self.processes):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def check(self):
        for name, child in self.processes:
            if child.poll() is not None:
                log = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
                raise SystemExit(f"{name} ended with {child.returncode}:\n" + "\n".join(log[-20:]))

    def wait(self, what, is_done):
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            self.check()
            try:
                if is_done():
                    return
            except (OSError, ValueError, LookupError, http.client.HTTPException):
                pass
            time.sleep(0.1)
        raise SystemExit(f"{what}: nothing after {START_S} s; see {self.logs}")

    def call(self, method, path, body=None, kind="application/json"):
        request = urllib.request.Request(API + path, data=body, method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        request.add_header("Content-Type", kind)
        with urllib.request.urlopen(request, context=self.context, timeout=10) as response:
            return response.read()

    def create(self, path, value):
        self.call("POST", path, json.dumps(value).encode())

    def start_servers(self):
        binaries, state = self.binaries, self.state
        kubeconfig = state / "kubeconfig"
        self.start("etcd", ["etcd", "--data-dir", state / "etcd", "--unsafe-no-fsync",
                            "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
                            "--listen-peer-urls", "http://127.0.0.1:2380"])
        subprocess.run(["openssl", "genrsa", "-out", state / "accounts.key", "2048"], check=True, capture_output=True)
        (state / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        self.start("kube-apiserver", [
            binaries / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--secure-port=6443",
            "--advertise-address=10.244.255.254", f"--cert-dir={state}/certificates", f"--token-auth-file={state}/tokens.csv",
            "--authorization-mode=AlwaysAllow", "--service-cluster-ip-range=10.0.0.0/16", "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={state}/accounts.key",
            f"--service-account-signing-key-file={state}/accounts.key", "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none"])
        certificate = state / "certificates" / "apiserver.crt"

        def is_ready():
            self.context = self.context or ssl.create_default_context(cafile=certificate)
            return self.call("GET", "/readyz") == b"ok"

        self.wait("kube-apiserver", is_ready)
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": API, "certificate-authority": str(certificate)}}],
            "users": [{"name": "here", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        }))
        self.start("kube-controller-manager", [
            binaries / "kube-controller-manager", f"--kubeconfig={kubeconfig}", "--leader-elect=false",
            f"--controllers={CONTROLLERS}", "--secure-port=0"])
        (state / "pods").mkdir()
        self.start("node", [binaries / "node", "--kubeconfig", kubeconfig, "--echo", binaries / "echo-basic",
                            "--folder", state / "pods"])

    def add_class(self, name, namespace):
        """Adds a class of gateways for `flatout controller`, and the namespace for its own objects."""
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self.create(f"{GROUP}/gatewayclasses", {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": name},
            "spec": {"controllerName": "flatout.dev/controller"}})

    def add_definitions(self):
        """Adds the kinds of the Gateway API."""
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for file in sorted((self.binaries / "definitions").glob("gateway.networking.k8s.io_*.yaml")):
            if "_vap_" not in file.name:
                self.call("POST", definitions, file.read_bytes(), "application/yaml")
        self.wait("the kinds of the Gateway API",
                  lambda: self.call("GET", f"{GROUP}/gatewayclasses"))
