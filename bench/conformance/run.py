"""The conformance suite of the Gateway API against `flatout controller`: `./x conformance`.

It runs in network, process and mount namespaces of its own, which `./x` makes: whatever happens here, nothing stays. The cluster is etcd,
kube-apiserver, kube-controller-manager and the program in `node`, which plays scheduler and kubelet.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "bench" / "results"
# What the controller claims.
PROFILES = ["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS"]
CLASS = "gateway-conformance"
NAMESPACE = "flatout-system"
TOKEN = "conformance"
API = "https://127.0.0.1:6443"
# Each gateway gets an address of its own; the suite never has more at once.
GATEWAYS = [f"198.18.0.{number}" for number in range(1, 41)]
# Of the network for documentation: no machine has it.
UNUSABLE = "203.0.113.1"
# The suite demands an address of the project and of its people; a report for the standard's own list of implementations has them.
UNNAMED = "none"
# Waiting for a part of the cluster.
START_S = 120
SUITE_S = 3600
# Controllers that the suite needs; others would only take time.
CONTROLLERS = "deployment-controller,replicaset-controller,endpointslice-controller,namespace-controller,garbage-collector-controller"


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
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.2)
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

    def start_controller(self):
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for file in sorted((self.binaries / "definitions").glob("gateway.networking.k8s.io_*.yaml")):
            if "_vap_" not in file.name:
                self.call("POST", definitions, file.read_bytes(), "application/yaml")
        self.wait("the kinds of the Gateway API",
                  lambda: self.call("GET", "/apis/gateway.networking.k8s.io/v1/gatewayclasses"))
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        group = "gateway.networking.k8s.io"
        self.create(f"/apis/{group}/v1/gatewayclasses", {
            "apiVersion": f"{group}/v1", "kind": "GatewayClass", "metadata": {"name": CLASS},
            "spec": {"controllerName": "flatout.dev/controller"}})
        command = [self.flatout, "controller", "--health", "127.0.0.1:8081", "--certificates", self.state / "flatout"]
        for address in GATEWAYS:
            command += ["--address", address]
        self.start("flatout", command, dict(os.environ, KUBECONFIG=str(self.state / "kubeconfig")))

        def has_features():
            found = json.loads(self.call("GET", f"/apis/{group}/v1/gatewayclasses/{CLASS}"))
            return found.get("status", {}).get("supportedFeatures")

        self.wait("flatout controller", has_features)

    def run_suite(self, test, profiles, implementation, report):
        command = [
            self.binaries / "suite", "-test.v", "-test.run=^TestGatewayAPI$", f"-test.timeout={SUITE_S}s",
            f"-gateway-class={CLASS}", f"-conformance-profiles={profiles}", f"-report-output={report}",
            "-organization=flatout", "-project=flatout", f"-version={version(self.flatout)}",
            f"-usable-address={GATEWAYS[-1]}", f"-unusable-address={UNUSABLE}"]
        command += [f"-{name}={value}" for name, value in implementation.items()]
        if test:
            command.append(f"-run-test={test}")
        env = dict(os.environ, KUBECONFIG=str(self.state / "kubeconfig"))
        log = self.logs / "suite.log"
        with open(log, "wb") as output:
            child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
            self.processes.append(("suite", child))
            for line in child.stdout:
                output.write(line)
                # One line for each test; details are in the log.
                found = re.match(rb" {4}--- (PASS|FAIL): TestGatewayAPI/(\S+) \((.*)\)", line)
                if found:
                    print(*(part.decode() for part in found.groups()), flush=True)
            child.wait()
        return log.read_text(errors="replace")


def version(flatout):
    output = subprocess.run([flatout, "--version"], capture_output=True, text=True, check=True).stdout
    return output.split()[1]


def results(log):
    """The tests of a log: what became of each."""
    found = re.findall(r"^ {4}--- (PASS|FAIL|SKIP): TestGatewayAPI/([^/\s]+) ", log, re.M)
    return {name: outcome for outcome, name in found}


def reasons(log):
    """Why tests were skipped: the feature that the controller does not claim."""
    return dict(re.findall(r"Skipping (\w+): suite does not support (\w+)", log))


# Tests of other profiles.
OTHERS = ("Mesh", "TCPRoute", "UDPRoute")


def write_summary(found, skipped, report, path):
    """A page for people; the report beside it is the suite's own."""
    found = {name: outcome for name, outcome in found.items() if not name.startswith(OTHERS)}
    names = lambda outcome: sorted(name for name, it in found.items() if it == outcome)
    version = re.findall(r"^gatewayAPIVersion: (.*)$", report.read_text(), re.M)
    lines = [
        "# Conformance with the Gateway API", "",
        f"`./x conformance` · Gateway API {', '.join(version)}, standard channel · profiles {', '.join(PROFILES)} · the suite's own "
        "report: [conformance.yaml](conformance.yaml)", "",
        f"{len(names('PASS'))} tests passed, {len(names('FAIL'))} failed, {len(names('SKIP'))} were skipped, because they need a feature "
        "that the controller does not claim. Tests for meshes, TCP and UDP are left out here. RequestMirror is supported and not claimed, because "
        "its tests read logs of pods, which this cluster has not; nor are retries, because the standard channel has no field for them.", "",
        "| failed |", "|---|", *[f"| {name} |" for name in names("FAIL")], "",
        "| skipped | feature |", "|---|---|", *[f"| {name} | {skipped.get(name, '')} |" for name in names("SKIP")], "",
        "| passed |", "|---|", *[f"| {name} |" for name in names("PASS")], "",
    ]
    path.write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(prog="./x conformance", description="run the conformance suite of the Gateway API")
    parser.add_argument("--test", help="only this test, by its name; no report is written")
    parser.add_argument("--profiles", default=",".join(PROFILES), help="only these, with commas; no report is written")
    parser.add_argument("--url", default=UNNAMED, help="for the report: the address of the project")
    parser.add_argument("--contact", default=UNNAMED, help="for the report: whom to ask about it")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target" / "kubernetes", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if os.getpid() != 1:
        raise SystemExit("run ./x conformance: this needs namespaces of its own")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries, state = arguments.binaries, arguments.binaries / "state"
    logs = binaries / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    state.mkdir(exist_ok=True)
    # In memory, and gone with this namespace.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "conformance", state], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in [*GATEWAYS, "10.244.255.254"]:
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
    cluster = Cluster(binaries, pathlib.Path(os.environ["FLATOUT_BINARIES"]) / "flatout", state, logs)
    report = state / "report.yaml"
    try:
        cluster.start_servers()
        cluster.start_controller()
        log = cluster.run_suite(arguments.test, arguments.profiles, {"url": arguments.url, "contact": arguments.contact}, report)
    finally:
        cluster.stop()
    found = results(log)
    failed = sorted(name for name, outcome in found.items() if outcome == "FAIL")
    if not arguments.test and arguments.profiles == ",".join(PROFILES) and report.exists():
        shutil.copyfile(report, RESULTS / "conformance.yaml")
        write_summary(found, reasons(log), report, RESULTS / "conformance.md")
    passed = sum(1 for outcome in found.values() if outcome == "PASS")
    print(f"{passed} passed, {len(failed)} failed; logs: {logs}")
    for name in failed:
        print(f"failed: {name}")
    raise SystemExit(1 if failed or not passed else 0)


main()
