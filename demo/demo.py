#!/usr/bin/env python3
"""The demo: serves the bundled site and the JSON API on loopback, checks both with curl, loads them with wrk beside the
floor, and ends. `--keep` goes on serving. `./x demo` builds what it needs and calls it."""

import re, signal, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
# The servers, wrk and the CPU accounts are the benchmark's own.
import children  # noqa: E402
from measure import measure, split  # noqa: E402
from screen import BOLD, DIM, OFF, RED, done, say  # noqa: E402
from servers import CLIENT_CPU, SERVER_CPU, flatout_files, flatout_json, floor  # noqa: E402
from smoke import sized  # noqa: E402

SITE = ROOT / "demo/site"
SECONDS = sized(4, smoke=1)


def check(what, command, *wanted):
    """Runs curl, and looks for what must be in its answer."""
    out = subprocess.run(["curl", "-sS", "-i", "--max-time", "5", *command], capture_output=True).stdout
    text = out.decode("latin-1")
    lacking = [want for want in wanted if not re.search(want, text, re.M | re.I)]
    if lacking:
        say(f"  {RED}✗{OFF} {what}: no {lacking[0]} in\n{text[:600]}")
        sys.exit(1)
    done(what)
    return text


def check_all(site, api):
    say(f"{BOLD}checked with curl{OFF}")
    page = check("the page", [site], "^HTTP/1.1 200 OK", "^Content-Type: text/html; charset=utf-8", "<!doctype html>")
    etag = re.search(r"^ETag: (.*?)\r?$", page, re.M)[1]
    check("…the client has it already: 304", [site, "-H", f"If-None-Match: {etag}"], "^HTTP/1.1 304")
    deadline = time.time() + 20
    while time.time() < deadline and "Content-Encoding" not in head(site, "br"):
        time.sleep(0.1)
    check("…compressed: brotli", [site, "-H", "Accept-Encoding: br"], "^Content-Encoding: br", "^Vary: Accept-Encoding")
    check("a picture", [site + "hills.svg"], "^Content-Type: image/svg", "<svg")
    check("…a part of it: 206", [site + "hills.svg", "-r", "0-9"], "^HTTP/1.1 206", "^Content-Range: bytes 0-9/")
    check("no way out: 400", [site + "../Cargo.toml", "--path-as-is"], "^HTTP/1.1 400", "^Connection: close")
    check("the API", [api], "^HTTP/1.1 200 OK", "^Content-Type: application/json", "^Date: ", '{"message":"Hello, World!"}')


def head(url, coding):
    command = ["curl", "-sS", "-I", "--max-time", "5", "-H", f"Accept-Encoding: {coding}", url]
    return subprocess.run(command, capture_output=True, text=True).stdout


def load(servers):
    say(f"\n{BOLD}loaded with wrk{OFF} {DIM}64 connections, {SECONDS} s each, server on CPU {SERVER_CPU}, client on CPU {CLIENT_CPU}{OFF}")
    say(f"  {'':<22}{'requests/s':>12}{'p50':>9}{'p99':>9}{'user':>9}{'kernel':>9}{'CPU/request':>16}")
    least = None
    for label, server in servers:
        run = measure(server, 64, SECONDS)
        least = least or run["cpu_us"]
        user_us, kernel_us = split([run])
        say(f"  {label:<22}{run['requests_per_s']:>12,.0f}{run['p50_us']:>6.0f} µs{run['p99_us']:>6.0f} µs{user_us:>6.2f} µs"
            f"{kernel_us:>6.2f} µs{run['cpu_us']:>8.2f} µs  ×{run['cpu_us'] / least:.2f}")
    say(f"  {DIM}the floor reads without parsing and writes a constant: no server on this kernel costs less{OFF}")


def main():
    unknown = set(sys.argv[1:]) - {"--keep", "--smoke"}
    if unknown:
        sys.exit(f"demo: got {' '.join(sorted(unknown))}, need nothing, --keep or --smoke")
    children.end_on_signals()
    floor_server, site, api = floor(), flatout_files("/", SITE), flatout_json()
    with floor_server, site, api:
        say(f"site  http://127.0.0.1:{site.port}/\nAPI   http://127.0.0.1:{api.port}/json\n")
        check_all(site.url(), api.url())
        load([("floor", floor_server), ("flatout GET /json", api), ("flatout GET / (page)", site)])
        if "--keep" in sys.argv:
            say(f"\nserving on  http://127.0.0.1:{site.port}/  and  http://127.0.0.1:{api.port}/json   Ctrl-C stops them")
            signal.pause()


if __name__ == "__main__":
    main()
