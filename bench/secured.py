"""Servers with TLS and HTTP/2 besides cleartext, and `flatout bench` as their client."""

import json, os, subprocess, tempfile
from pathlib import Path

from measure import FLATOUT
from servers import BENCH, CLIENT_CPU, Server, free_port, installed, only, pin
from smoke import leave_out

# Supported by all servers, and all that the client offers, so that the algorithms are the same.
CIPHER, KEY_EXCHANGE = "TLS_AES_128_GCM_SHA256", "X25519"

HYPER = BENCH / "peers/target/release/peers"


class Certificate:
    """A self-signed certificate: files with the certificate, the key, and both."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="flatout-bench-certificate-")
        of = lambda name: f"{self.folder.name}/{name}"
        self.cert, self.key, self.pem = of("cert.pem"), of("key.pem"), of("both.pem")
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /CN=localhost"
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run([*command.split(), "-keyout", self.key, "-out", self.cert, *names], check=True, capture_output=True)
        Path(self.pem).write_text(Path(self.cert).read_text() + Path(self.key).read_text())
        # For servers that drop root; flatout wants a key that other users cannot read.
        os.chmod(self.folder.name, 0o755)
        os.chmod(self.key, 0o600)


class Secured(Server):
    """A server with ports for cleartext, for TLS, and for cleartext HTTP/2 if that has its own."""

    def __init__(self, name, command, certificate=None, path="/json", has_h2c_port=False, has_files=True):
        self.certificate, self.has_h2c_port, self.has_files = certificate, has_h2c_port, has_files
        super().__init__(name, command, path)

    def renew(self):
        super().renew()
        self.tls_port = free_port()
        self.h2c_port = free_port() if self.has_h2c_port else self.port

    def fill(self, word):
        word = super().fill(word)
        if self.certificate and word.startswith(str(self.folder)) and Path(word).is_file():
            text = Path(word).read_text()
            of = self.certificate
            for key, value in {"TLS": self.tls_port, "H2C": self.h2c_port, "CERT": of.cert, "KEY": of.key, "PEM": of.pem}.items():
                text = text.replace(f"@{key}@", str(value))
            Path(word).write_text(text)
        return word

    def plain(self, path=None):
        return f"http://127.0.0.1:{self.port}{path or self.path}"

    def h2c(self):
        return f"http://127.0.0.1:{self.h2c_port}{self.path}"

    def tls(self, path=None):
        return f"https://127.0.0.1:{self.tls_port}{path or self.path}"


def servers(certificate, options):
    """The servers that are installed and selected."""
    found = [
        Secured("flatout", [FLATOUT, "serve", "-c", "@conf/flatout-tls.kdl"], certificate),
        Secured("nginx", ["nginx", "-c", "@conf/nginx-tls.conf"], certificate, has_h2c_port=True),
        Secured("h2o", ["h2o", "-c", "@conf/h2o-tls.conf"], certificate, path="/hello.json"),
        Secured("haproxy", ["haproxy", "-f", "@conf/haproxy-tls.cfg"], certificate, has_h2c_port=True, has_files=False),
        Secured("caddy", ["caddy", "run", "--adapter", "caddyfile", "--config", "@conf/Caddyfile-tls"], certificate),
    ]
    return only(installed(*found), options)


def hyper_h2():
    """hyper with the h2 crate, cleartext only."""
    if not HYPER.exists():
        leave_out("hyper, not built")
        return []
    return [Secured("hyper + h2", [str(HYPER), "hyper-h2", "127.0.0.1:{port}"])]


def secure_flags(cipher=CIPHER):
    return ["--insecure", "--cipher", cipher, "--key-exchange", KEY_EXCHANGE]


def bench(url, connections, seconds, *flags):
    """One run of our own client: requests per second, the server's CPU time per request in the counted time, and the client's share of its CPU."""
    command = [FLATOUT, "bench", "-t1", f"-c{connections}", f"-d{seconds}s", "--json", *flags, url]
    out = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin(CLIENT_CPU), timeout=seconds + 60)
    if out.returncode != 0:
        raise RuntimeError(f"{url}: flatout bench said: {out.stderr[-500:]}")
    said = json.loads(out.stdout)
    if "server_cpu_us_per_request" not in said:
        raise RuntimeError(f"{url}: the server's CPU time cannot be read")
    run = {key: said[key] for key in ("requests", "requests_per_s")}
    run |= {"cpu_us": sum(said["server_cpu_us_per_request"].values()), "client_share": max(said["client_cpu_share"])}
    return run | {f"{name}_us": said["latency_ns"][name] / 1e3 for name in ("p50", "p99")} | {"tls": said.get("tls")}
