"""The conformance suite of the Gateway API against `flatout controller`: `./x conformance`.

It runs in network, process and mount namespaces of its own, which `./x` makes: see cluster.py.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from cluster import GROUP, Cluster, enter

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "bench" / "results"
# What the controller claims.
PROFILES = ["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS"]
CLASS = "gateway-conformance"
NAMESPACE = "flatout-system"
# Each gateway gets an address of its own; the suite never has more at once.
GATEWAYS = [f"198.18.0.{number}" for number in range(1, 41)]
# Of the network for documentation: no machine has it.
UNUSABLE = "203.0.113.1"
# The suite demands an address of the project and of its people; a report for the standard's own list of implementations has them.
UNNAMED = "none"
SUITE_S = 3600


class SuiteCluster(Cluster):
    """The cluster in which the suite runs."""

    def start_controller(self):
        self.add_definitions()
        self.add_class(CLASS, NAMESPACE)
        command = [self.flatout, "controller", "--health", "127.0.0.1:8081", "--certificates", self.state / "flatout"]
        for address in GATEWAYS:
            command += ["--address", address]
        self.start("flatout", command, dict(os.environ, KUBECONFIG=str(self.state / "kubeconfig")))

        def has_features():
            found = json.loads(self.call("GET", f"{GROUP}/gatewayclasses/{CLASS}"))
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


# Why features of the profiles are not claimed.
UNCLAIMED = {
    "GatewayInfrastructure": "the feature is about labels and annotations of the objects that a controller creates for a gateway, and this "
                             "controller creates none; a gateway with a parametersRef is refused (InvalidParameters), as the suite's other "
                             "test of the feature requires",
    "HTTPRouteRetry": "retries are supported, but the standard channel has no field for them",
}

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
        f"{len(names('PASS'))} tests passed and {len(names('FAIL'))} failed. {len(names('SKIP'))} tests were skipped: they need a feature that "
        "the controller does not claim. Tests for meshes, TCP and UDP are not listed. The features that are not claimed, and why:", "",
        *[f"- {feature}: {why}" for feature, why in UNCLAIMED.items()], "",
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries, state = arguments.binaries, arguments.binaries / "state"
    logs = binaries / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    enter(state, GATEWAYS)
    cluster = SuiteCluster(binaries, pathlib.Path(os.environ["FLATOUT_BINARIES"]) / "flatout", state, logs)
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
