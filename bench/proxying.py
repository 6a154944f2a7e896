"""The case proxy: what passing a request on costs, beside other proxies in front of the same upstream."""

import os, shutil
from pathlib import Path

from measure import rounds, table
from servers import CLIENT_CPU, ROOT, SIZES, Server, only

FLATOUT = str(ROOT / "target/release/flatout")
CONNECTIONS = 64


class Origin(Server):
    """What is passed on to: on the client's CPU, over TCP and a Unix socket."""

    def __init__(self):
        super().__init__("origin", [], cpu=CLIENT_CPU)
        self.socket = f"{self.folder}/origin.sock"
        self.command = [str(ROOT / "target/release/guest"), "origin", "127.0.0.1:{port}", f"unix:{self.socket}"]


    def __enter__(self):
        super().__enter__()
        # For workers of proxies that have given up root.
        os.chmod(self.socket, 0o777)
        return self


class Proxy(Server):
    """One of the proxies, in front of `upstream`, an address as its configuration names it."""

    def __init__(self, name, command, upstream, path):
        super().__init__(name, command, path)
        self.upstream = upstream

    def fill(self, word):
        word = super().fill(word)
        if word.startswith(str(self.folder)) and Path(word).is_file():
            Path(word).write_text(Path(word).read_text().replace("@UPSTREAM@", self.upstream))
        return word.replace("{upstream}", self.upstream)


def proxies(origin, unix, path):
    tcp, address = f"127.0.0.1:{origin.port}", f"unix:{origin.socket}"
    of = lambda over_unix, over_tcp: over_unix if unix else over_tcp
    flatout = [FLATOUT, "serve", "--to", of(address, f"http://{tcp}"), "--listen", "127.0.0.1:{port}", "--workers", "1"]
    found = [Proxy("flatout", flatout, "", path)]
    for name, command, upstream in [
        ("nginx", ["nginx", "-c", "@conf/nginx-proxy.conf"], of(address, tcp)),
        ("haproxy", ["haproxy", "-f", "@conf/haproxy-proxy.cfg"], of(f"unix@{origin.socket}", tcp)),
        ("caddy", ["caddy", "run", "--adapter", "caddyfile", "--config", "@conf/Caddyfile-proxy"], of(f"unix/{origin.socket}", tcp)),
    ]:
        if shutil.which(command[0]):
            found.append(Proxy(name, command, upstream, path))
    return found


KINDS = [(f"GET {label}, {over}", f"/{size}.bin", over == "Unix socket", None) for over in ("TCP", "Unix socket") for label, size in SIZES.items()]
KINDS += [("POST 1 KiB, TCP", "/", False, "post-1k.lua"), ("POST 1 MiB, TCP", "/", False, "post-1m.lua")]


def case_proxy(options):
    runs, lines = {}, []
    with Origin() as origin:
        for label, path, unix, script in KINDS:
            these = rounds(only(proxies(origin, unix, path), options), CONNECTIONS, options, script)
            runs[label] = these
            lines += ["", f"### {label}", "", *table(these, "nginx", "haproxy")]
    return runs, lines
