#!/usr/bin/env python3
"""The demo of TLS: a CA that speaks ACME (pebble) gives a certificate to `flatout serve`, with gunicorn and a gRPC server behind it.
curl, h2load, Chromium and grpcurl use it, and the certificate is renewed under load. `./x demo tls` builds what it needs and calls it."""

import json, os, re, shutil, signal, socket, ssl, subprocess, sys, threading, time

from proxy import FLATOUT, PATH, ROOT, children, gunicorn, ready, sized, start
from screen import BOLD, DIM, OFF, RED, done, say
from smoke import IS_SMOKE, leave_out

WORK = ROOT / "target/demo-tls"
TOOLS = ROOT / "target/tools/bin"
DEMO = ROOT / "demo"
NAME = "www.flatout.test"
# So short that the certificate has to be renewed while the demo looks.
# A smoke run has a busy machine, where a new one takes ten seconds and more.
LIFETIME_S = sized(60, smoke=72)
REQUESTS = sized(20_000, smoke=500)
LOAD_S_MAX = sized(60, smoke=90)
# The load goes on for so long after a renewal: new connections have the new certificate by then.
AFTER_S = sized(5, smoke=1)

SITE = """listen "127.0.0.1:{tls}"
listen-plain "127.0.0.1:{http}"
domain "{name}"
acme-directory "https://localhost:{directory}/dir"
acme-ca "ca.pem"
state "state"

upstream app {{
    server "unix:app.sock"
}}
upstream greeter {{
    server "127.0.0.1:{grpc}"
    protocol h2c
}}

site "*" {{
    files "site"
    route "/quotes" {{
        proxy app
    }}
    route "/demo.Greeter/" {{
        proxy greeter
    }}
}}
"""

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>flatout</title>
<p id="page"></p>
<p id="quotes"></p>
<script>
const over = (entry) => entry.nextHopProtocol;
fetch("/quotes").then((response) => response.json()).then((quotes) => {
  const [page] = performance.getEntriesByType("navigation"), [asked] = performance.getEntriesByName(location.origin + "/quotes");
  document.getElementById("page").textContent = `secure: ${isSecureContext}, page over ${over(page)}`;
  document.getElementById("quotes").textContent = `${quotes.length} quotes over ${over(asked)}`;
});
</script>
"""

PEBBLE = """{{"pebble": {{
    "listenAddress": "127.0.0.1:{directory}", "managementListenAddress": "127.0.0.1:{management}",
    "certificate": "pebble.pem", "privateKey": "pebble.key", "httpPort": {http}, "tlsPort": {tls},
    "ocspResponderURL": "", "externalAccountBindingRequired": false,
    "retryAfter": {{"authz": 1, "order": 1}}, "keyAlgorithm": "ecdsa",
    "profiles": {{"default": {{"description": "for the demo", "validityPeriod": {lifetime}}}}}
}}}}"""


def bad(text):
    say(f"  {RED}✗{OFF} {text}")
    sys.exit(1)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def run(command, timeout=60, **more):
    return subprocess.run(command, cwd=WORK, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, **more)


def check(what, command, *wanted, **more):
    """Runs a client, and looks for what must be in its output."""
    ended = run(command, **more)
    output = ended.stdout + ended.stderr
    lacking = [want for want in wanted if not re.search(want, output, re.M)]
    if lacking:
        bad(f"{what}: no {lacking[0]} in\n{output[:2000]}")
    done(what)
    return output


class Ca:
    """pebble, and the DNS server that leads every name to this machine."""

    def __init__(self, ports, log):
        directory, management, dns, records = (ports[name] for name in ("directory", "management", "dns", "records"))
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9"
        for command in (f"req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=demo",
                        f"req -x509 {key} -keyout pebble.key -out pebble.pem -subj /CN=localhost -CA ca.pem -CAkey ca.key "
                        "-addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE"):
            run(["openssl", *command.split()], check=True)
        (WORK / "pebble.json").write_text(PEBBLE.format(lifetime=LIFETIME_S, **ports))
        names = [TOOLS / "pebble-challtestsrv", "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", f"127.0.0.1:{dns}",
                 "-management", f"127.0.0.1:{records}", "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]
        ca = ["env", "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", TOOLS / "pebble", "-config", "pebble.json", "-dnsserver", f"127.0.0.1:{dns}"]
        self.processes = [start(names, log, WORK), start(ca, log, WORK)]
        self.url = f"https://localhost:{directory}/dir"
        ready(["--cacert", f"{WORK}/ca.pem", self.url], self.processes[1], WORK)
        root = run(["curl", "-sSf", "--cacert", "ca.pem", f"https://localhost:{management}/roots/0"], check=True).stdout
        (WORK / "root.pem").write_text(root)

    def trusted_by_chromium(self):
        """A home folder whose browser trusts the CA. Newer versions look elsewhere for it."""
        home = WORK / "home"
        for database in (home / ".pki/nssdb", home / ".local/share/pki/nssdb"):
            database.mkdir(parents=True)
            run(["certutil", "-d", f"sql:{database}", "-N", "--empty-password"], check=True)
            run(["certutil", "-d", f"sql:{database}", "-A", "-t", "C,,", "-n", "pebble", "-i", "root.pem"], check=True)
        return {**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home / ".local/share")}


class Watch(threading.Thread):
    """Connects again and again, and notes which certificate it is shown, when, and what fails."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.trust = port, ssl.create_default_context(cafile=str(WORK / "root.pem"))
        self.seen, self.handshakes, self.failures, self.is_over = [], 0, [], threading.Event()

    def shown(self):
        with socket.create_connection(("127.0.0.1", self.port), 5) as plain, self.trust.wrap_socket(plain, server_hostname=NAME) as secure:
            return secure.getpeercert()["serialNumber"]

    def run(self):
        began = time.monotonic()
        while not self.is_over.wait(0.1):
            try:
                serial = self.shown()
            except OSError as error:
                self.failures.append(str(error))
                continue
            self.handshakes += 1
            if not self.seen or self.seen[-1][1] != serial:
                self.seen.append((time.monotonic() - began, serial))


def wait_for_certificate(watch, process):
    """Until connections are accepted: seconds, and the certificate's serial number."""
    began = time.monotonic()
    while time.monotonic() - began < 60:
        if process.poll() is not None:
            sys.exit(f"flatout ended: see {WORK}/log")
        try:
            return time.monotonic() - began, watch.shown()
        except OSError:
            time.sleep(0.05)
    sys.exit(f"no certificate within 60 s: see {WORK}/log")


def clients(ca, tls, http):
    url = f"https://{NAME}:{tls}"
    curl = ["curl", "-sS", "-i", "--max-time", "10", "--cacert", "root.pem", "--resolve", f"{NAME}:{tls}:127.0.0.1", "--resolve", f"{NAME}:{http}:127.0.0.1"]
    say(f"\n{BOLD}clients{OFF}")
    check("curl over HTTP/2", [*curl, "--http2", f"{url}/"], "^HTTP/2 200", "<title>flatout")
    check("curl over HTTP/1.1 and TLS 1.2", [*curl, "--http1.1", "--tls-max", "1.2", f"{url}/"], "^HTTP/1.1 200", "<title>flatout")
    check("curl without TLS is redirected", [*curl, f"http://{NAME}:{http}/x?y"], "^HTTP/1.1 308", f"^Location: {url}/x\\?y")
    check("curl through the proxy to Flask under gunicorn", [*curl, f"{url}{PATH}"], "^HTTP/2 200", '"symbol":"S000"')
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
               "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={WORK}/chromium",
               f"--host-resolver-rules=MAP {NAME} 127.0.0.1", "--virtual-time-budget=10000", "--dump-dom", f"{url}/"]
    if IS_SMOKE and not (shutil.which("chromium") and shutil.which("certutil")):
        leave_out("Chromium; it or certutil is not installed")
    else:
        check("Chromium: the page and its request to Flask, both over h2", browser, "secure: true, page over h2", "40 quotes over h2", env=ca.trusted_by_chromium())
    grpc = [TOOLS / "grpcurl", "-cacert", "root.pem", "-authority", NAME, "-import-path", DEMO, "-proto", "greeter.proto", "-d", '{"name": "you"}', "-v"]
    call = lambda method: [*grpc, f"127.0.0.1:{tls}", f"demo.Greeter/{method}"]
    if IS_SMOKE and not grpc[0].exists():
        leave_out("grpcurl, which is not built")
    else:
        check("grpcurl: a call, with its trailer", call("Greet"), '"text": "hello, you"', "x-greeted: you")
        check("grpcurl: a stream of messages", call("Count"), '"text": "hello 1, you"', '"text": "hello 3, you"')
        check("grpcurl: an error with its message", call("Refuse"), "PermissionDenied", "not today, you")
    load = ["h2load", f"-n{REQUESTS}", "-c8", "-m16", f"--connect-to=127.0.0.1:{tls}", f"{url}/"]
    said = check(f"h2load: {REQUESTS:,} requests on 8 connections", load, f"{REQUESTS} succeeded, 0 failed, 0 errored, 0 timeout", "Application protocol: h2")
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", said)
    cipher = re.search(r"^Cipher: (.*)$", said, re.M)
    say(f"    {DIM}{float(rate[1]):,.0f} requests/s, {cipher[1]}{OFF}")


def renewal(watch, tls):
    """Loads the server in three ways until the certificate was replaced. What each has done, as rows."""
    say(f"\n{BOLD}renewal under load{OFF} {DIM}the certificate is good for {LIFETIME_S} s; it is renewed when the CA suggests it, or when a third is left{OFF}")
    bench = [FLATOUT, "bench", "--ca", "root.pem", "--tls-name", NAME, "-t1", "--json", f"-d{LOAD_S_MAX}s"]
    own = f"https://127.0.0.1:{tls}"
    commands = {
        "connections that stay, HTTP/2": [*bench, "--http2", "-c8", "-m4", "-R400", f"{own}/"],
        "connections that stay, to Flask": [*bench, "-c8", "-R100", f"{own}{PATH}"],
        "a connection for each request": [*bench, "--close", "-c8", "-R100", f"{own}/"],
    }
    loads = {what: children.start(command, cwd=WORK, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
             for what, command in commands.items()}
    try:
        watch.start()
        deadline = time.monotonic() + LOAD_S_MAX - AFTER_S
        while len(watch.seen) < 2:
            if time.monotonic() > deadline:
                bad(f"the certificate was not renewed within {LOAD_S_MAX - AFTER_S} s: see {WORK}/log")
            time.sleep(0.1)
        time.sleep(AFTER_S)
        for load in loads.values():
            # Ends early, with what was measured so far.
            load.send_signal(signal.SIGINT)
        watch.is_over.set()
        watch.join(10)
        return {what: json.loads(load.communicate(timeout=60)[0]) for what, load in loads.items()}
    finally:
        for load in loads.values():
            load.kill()
            load.wait()


def report(watch, found):
    is_good = not watch.failures
    say(f"  {'':<34}{'connections':>12}{'requests':>10}{'p99':>10}{'failed':>8}")
    for what, run in found.items():
        failed = sum(run["errors"].values()) + sum(count for status, count in run["statuses"].items() if status != "200")
        is_good &= failed == 0 and run["requests"] > 0
        say(f"  {what:<34}{run['connections_made']:>12,}{run['requests']:>10,}{run['latency_ns']['p99'] / 1e6:>7.1f} ms{failed:>8}")
    say(f"  {'handshakes that look':<34}{watch.handshakes + len(watch.failures):>12,}{'':>20}{len(watch.failures):>8}")
    for at, serial in watch.seen:
        say(f"    {DIM}from {at:4.1f} s on: serial number {serial}{OFF}")
    if not is_good:
        bad(f"something was lost: see the table and {WORK}/log")
    done("the certificate was renewed, and nothing was lost")


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "site").mkdir(parents=True)
    (WORK / "site/index.html").write_text(PAGE)
    names = ("tls", "http", "directory", "management", "dns", "records")
    ports = dict(zip(names, free_ports(len(names))))
    started = []
    with open(WORK / "log", "wb") as log:
        try:
            ca = Ca(ports, log)
            started += ca.processes
            started.append(start(gunicorn(f"{WORK}/app.sock"), log, WORK))
            ready(["--unix-socket", f"{WORK}/app.sock", f"http://app{PATH}"], started[-1], WORK)
            greeter = children.start(["/usr/bin/python3", DEMO / "greeter.py"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            started.append(greeter)
            grpc = int(greeter.stdout.readline() or sys.exit(f"the gRPC server ended: see {WORK}/log"))
            site = SITE.format(name=NAME, grpc=grpc, **ports)
            (WORK / "site.kdl").write_text(site)
            say(f"{BOLD}site.kdl{OFF}\n\n{site}")
            say(f"{BOLD}a certificate{OFF} {DIM}from pebble, a CA that speaks ACME, at {ca.url}{OFF}")
            server = start([FLATOUT, "serve", "-c", "site.kdl"], log, WORK)
            started.append(server)
            watch = Watch(ports["tls"])
            took, serial = wait_for_certificate(watch, server)
            done(f"{NAME}: {took:.1f} s after the start, serial number {serial}")
            clients(ca, ports["tls"], ports["http"])
            report(watch, renewal(watch, ports["tls"]))
        finally:
            for process in started[::-1]:
                children.stop(process)


if __name__ == "__main__":
    children.end_on_signals()
    main()
